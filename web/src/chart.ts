// Charts as SVG: bars over time, and a line of recent values.

import { make } from './dom';

const SVG = 'http://www.w3.org/2000/svg';

function svg<K extends keyof SVGElementTagNameMap>(tag: K, attributes: Record<string, string | number>, ...children: (Node | string)[]): SVGElementTagNameMap[K] {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

export interface Bar {
  label: string;
  value: number;
}

const WIDTH = 320;
const HEIGHT = 96;

/** `text`: of a value, for the tooltips and the top of the axis. */
export function barChart(title: string, all: readonly Bar[], text: (value: number) => string): HTMLElement {
  const top = Math.max(...all.map(bar => bar.value), 0);
  const step = WIDTH / Math.max(1, all.length);
  const gap = Math.min(3, step * 0.25);
  const drawing = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', class: 'bars', 'aria-hidden': 'true' });
  for (const line of [0.5, HEIGHT / 2, HEIGHT - 0.5]) drawing.append(svg('line', { class: 'grid', x1: 0, x2: WIDTH, y1: line, y2: line }));
  all.forEach((bar, n) => {
    const high = top > 0 ? (bar.value / top) * (HEIGHT - 4) : 0;
    // The whole column shows the value, so that small bars can be read, too.
    drawing.append(svg('g', { class: 'column' },
      svg('rect', { class: 'space', x: n * step, y: 0, width: step, height: HEIGHT }),
      svg('rect', { class: 'bar', x: n * step + gap / 2, y: HEIGHT - Math.max(high, bar.value > 0 ? 1 : 0), width: step - gap, height: Math.max(high, bar.value > 0 ? 1 : 0) }),
      svg('title', {}, `${bar.label}: ${text(bar.value)}`)));
  });
  const ends = make('p', { className: 'axis', ariaHidden: 'true' },
    make('span', { textContent: all[0]?.label ?? '' }), make('span', { textContent: all.at(-1)?.label ?? '' }));
  const figure = make('figure', { className: 'chart' }, make('figcaption', { textContent: title }),
    make('p', { className: 'top quiet', ariaHidden: 'true', textContent: top > 0 ? `up to ${text(top)}` : 'nothing used' }));
  figure.append(drawing, ends);
  return figure;
}

/** Values of the last minutes, drawn over each other as they come. */
export class LineChart {
  readonly box: HTMLElement;
  private readonly line = svg('polyline', { class: 'line', fill: 'none' });
  private readonly area = svg('polygon', { class: 'area' });
  private readonly said = make('p', { className: 'value' });
  private readonly values: number[] = [];
  private readonly most: number;

  /** `most`: the number of values that it keeps. */
  constructor(title: string, most: number) {
    this.most = most;
    const drawing = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', class: 'lines', 'aria-hidden': 'true' },
      svg('line', { class: 'grid', x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }), svg('line', { class: 'grid', x1: 0, x2: WIDTH, y1: 0.5, y2: 0.5 }), this.area, this.line);
    this.box = make('figure', { className: 'chart live' }, make('figcaption', { textContent: title }), this.said);
    this.box.append(drawing);
  }

  /** Adds a value; `limit` is the top of the axis. */
  add(value: number, limit: number, text: string): void {
    this.values.push(value);
    if (this.values.length > this.most) this.values.shift();
    const step = WIDTH / (this.most - 1);
    const first = this.most - this.values.length;
    const points = this.values.map((value, n) => `${((first + n) * step).toFixed(1)},${(HEIGHT - 1 - Math.min(1, value / limit) * (HEIGHT - 3)).toFixed(1)}`);
    this.line.setAttribute('points', points.join(' '));
    this.area.setAttribute('points', `${(first * step).toFixed(1)},${HEIGHT} ${points.join(' ')} ${WIDTH},${HEIGHT}`);
    this.said.textContent = text;
  }
}
