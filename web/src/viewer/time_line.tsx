// The time line: a lane for tools, models, the screen, and the network. It is drawn on a canvas, so it stays fast with many steps.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';

import { contrast, theme } from '../shell/theme';
import { IconButton, now } from '../ui';
import { LANES, type Lane, type Span, containing, isLane, moved, nearest, neighbour, offset, spanOf, ticks, valueText, zoomed } from './lanes';
import type { Row } from './rows';

const LANE_HEIGHT = 20;
const AXIS = 18;
const HEIGHT = AXIS + LANES.length * LANE_HEIGHT + 2;
const COLOURS = ['--accent', '--info', '--good', '--quiet', '--bad', '--wait', '--text', '--line', '--raised'] as const;
type Colours = Record<(typeof COLOURS)[number], string>;
const LANE_COLOURS: Record<Lane, (typeof COLOURS)[number]> = { tool: '--accent', model: '--info', screen: '--good', network: '--quiet' };

export interface TimeLineProps {
  rows: readonly Row[];
  /** Rows that the filters let through; the others are faint. */
  shown: ReadonlySet<string> | null;
  chosen: string;
  onChoose: (row: Row) => void;
  /** Rows with annotations, which have a mark. */
  annotated?: ReadonlySet<string>;
  /** Where the film is. */
  cursor: number | null;
}

const NOBODY: ReadonlySet<string> = new Set();

export function TimeLine({ rows, shown, chosen, onChoose, cursor, annotated = NOBODY }: TimeLineProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [zoom, setZoom] = useState<Span | null>(null);
  const [lane, setLane] = useState<Lane>('tool');
  const isRunning = rows.some(row => row.outcome === 'running');
  const present = isRunning ? now.value : 0;
  const whole = useMemo(() => spanOf(rows, present), [rows, present]);
  const span = zoom ?? whole;
  const current = rows.find(row => row.id === chosen);
  const counts = useMemo(() => new Map(LANES.map(([id]) => [id, rows.reduce((sum, row) => sum + (row.kind === id ? 1 : 0), 0)])), [rows]);
  const [dark, setDark] = useState(0);

  useEffect(() => {
    const node = canvas.current?.parentElement;
    if (!node) return;
    const measure = (): void => setWidth(node.clientWidth);
    measure();
    const sizes = typeof ResizeObserver === 'function' ? new ResizeObserver(measure) : null;
    sizes?.observe(node);
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    const changed = (): void => setDark(n => n + 1);
    scheme.addEventListener?.('change', changed);
    return () => {
      sizes?.disconnect();
      scheme.removeEventListener?.('change', changed);
    };
  }, []);
  useEffect(() => {
    if (!current) return;
    if (isLane(current.kind)) setLane(current.kind);
    setZoom(before => before && containing(before, whole, current));
  }, [chosen]);
  useEffect(() => {
    const node = canvas.current;
    if (node && width > 0) draw(node, { rows, shown, chosen, annotated, span, origin: whole.from, width, lane, cursor });
  }, [rows, shown, chosen, annotated, span.from, span.to, whole.from, width, lane, cursor, dark, theme.value, contrast.value]);

  const scale = (by: number, around = current && current.start >= span.from && current.start <= span.to ? current.start : (span.from + span.to) / 2): void => {
    const next = zoomed(span, whole, by, around);
    setZoom(next.to - next.from >= whole.to - whole.from ? null : next);
  };
  const time = (x: number): number => span.from + (x / Math.max(1, width)) * (span.to - span.from);
  const press = (event: MouseEvent): void => {
    const box = canvas.current!.getBoundingClientRect();
    const at = Math.floor((event.clientY - box.top - AXIS) / LANE_HEIGHT);
    const found = LANES[at]?.[0];
    if (!found) return;
    setLane(found);
    const row = nearest(rows, found, time(event.clientX - box.left), (span.to - span.from) * 0.03);
    if (row) onChoose(row);
  };
  const wheel = (event: WheelEvent): void => {
    const box = canvas.current!.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) scale(event.deltaY > 0 ? 1.25 : 0.8, time(event.clientX - box.left));
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && zoom) setZoom(moved(span, whole, (event.deltaX / width) * (span.to - span.from)));
    else return;
    event.preventDefault();
  };
  const key = (event: KeyboardEvent): void => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const at = LANES.findIndex(([id]) => id === lane);
    const go = (row: Row | null): void => { if (row) onChoose(row); };
    const ends = rows.filter(row => row.kind === lane);
    const keys: Record<string, () => void> = {
      ArrowRight: () => go(neighbour(rows, lane, chosen, 1)), ArrowLeft: () => go(neighbour(rows, lane, chosen, -1)),
      ArrowDown: () => setLane(LANES[Math.min(LANES.length - 1, at + 1)]![0]), ArrowUp: () => setLane(LANES[Math.max(0, at - 1)]![0]),
      Home: () => go(ends[0] ?? null), End: () => go(ends.at(-1) ?? null),
      '+': () => scale(0.5), '=': () => scale(0.5), '-': () => scale(2), 0: () => setZoom(null),
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  };
  const index = current ? rows.indexOf(current) + 1 : 0;
  return (
    <section class="time-line" aria-label="Time line">
      <div class="lane-names" aria-hidden="true">{LANES.map(([id, name]) => <span key={id} data-lane={id} data-current={id === lane ? '' : undefined}>{name}</span>)}</div>
      <div class="lanes" role="slider" tabIndex={0} aria-label="Time line: left and right go through a lane, up and down change the lane, plus and minus zoom" aria-orientation="horizontal"
        aria-valuemin={0} aria-valuemax={rows.length} aria-valuenow={index} aria-valuetext={valueText(current, lane, counts.get(lane) ?? 0, annotated.has(chosen))} onKeyDown={key} onWheel={wheel} onClick={press}>
        <canvas ref={canvas} aria-hidden="true" style={{ width: '100%', height: `${HEIGHT}px` }} />
      </div>
      <div class="zoom" role="group" aria-label="Zoom">
        <IconButton small kind="plain" icon="plus" label="Zoom in" onPress={() => scale(0.5)} disabled={rows.length === 0} />
        <IconButton small kind="plain" icon="minus" label="Zoom out" onPress={() => scale(2)} disabled={zoom === null} />
        <IconButton small kind="plain" icon="fit" label="Show the whole run" onPress={() => setZoom(null)} disabled={zoom === null} />
      </div>
    </section>
  );
}

interface Drawing {
  rows: readonly Row[];
  shown: ReadonlySet<string> | null;
  chosen: string;
  annotated: ReadonlySet<string>;
  span: Span;
  origin: number;
  width: number;
  lane: Lane;
  cursor: number | null;
}

/** Tokens are functions of the theme; a computed colour is not. */
function colours(node: HTMLElement): Colours {
  // With reduced motion, all elements have short transitions, and a colour in transition reads as the one before.
  node.style.transitionProperty = 'none';
  const found = Object.fromEntries(COLOURS.map(name => {
    node.style.color = `var(${name})`;
    return [name, getComputedStyle(node).color];
  })) as Colours;
  node.style.color = '';
  return found;
}

function draw(node: HTMLCanvasElement, { rows, shown, chosen, annotated, span, origin, width, lane, cursor }: Drawing): void {
  const ratio = devicePixelRatio || 1;
  node.width = Math.round(width * ratio);
  node.height = Math.round(HEIGHT * ratio);
  const context = node.getContext('2d');
  if (!context) return;
  const colour = colours(node);
  context.scale(ratio, ratio);
  context.clearRect(0, 0, width, HEIGHT);
  const x = (at: number): number => ((at - span.from) / (span.to - span.from)) * width;
  context.font = '11px Inter, system-ui, sans-serif';
  context.textBaseline = 'middle';
  const laneAt = LANES.findIndex(([id]) => id === lane);
  context.fillStyle = colour['--raised'];
  context.fillRect(0, AXIS + laneAt * LANE_HEIGHT, width, LANE_HEIGHT);
  for (const at of ticks(span, origin, Math.max(2, width / 90))) {
    const left = Math.round(x(origin + at)) + 0.5;
    context.fillStyle = colour['--line'];
    context.fillRect(left, AXIS, 1, HEIGHT - AXIS);
    context.fillStyle = colour['--quiet'];
    const text = offset(at);
    context.fillText(text, Math.min(left + 3, width - context.measureText(text).width - 2), AXIS / 2);
  }
  for (const pass of ['plain', 'wrong'] as const) {
    for (const row of rows) {
      const isWrong = row.outcome === 'failed' || row.outcome === 'refused';
      if ((pass === 'wrong') !== isWrong || !isLane(row.kind)) continue;
      const at = LANES.findIndex(([id]) => id === row.kind);
      const left = x(row.start);
      const right = x(row.end ?? (row.outcome === 'running' ? span.to : row.start));
      if (right < -4 || left > width + 4) continue;
      context.globalAlpha = shown && !shown.has(row.id) ? 0.15 : 1;
      context.fillStyle = isWrong ? colour['--bad'] : row.outcome === 'running' ? colour['--wait'] : colour[LANE_COLOURS[row.kind]];
      const from = Math.max(-2, left);
      const wide = Math.max(2, Math.min(width + 2, right) - from);
      const top = AXIS + at * LANE_HEIGHT + 4;
      // A failure is taller, so it is seen without its colour, too.
      context.fillRect(from, isWrong ? top - 2 : top, wide, isWrong ? LANE_HEIGHT - 4 : LANE_HEIGHT - 8);
    }
  }
  context.globalAlpha = 1;
  if (annotated.size > 0) {
    context.fillStyle = colour['--text'];
    for (const row of rows) {
      if (!annotated.has(row.id)) continue;
      const left = x(row.start);
      if (left < 0 || left > width) continue;
      // A triangle that points at the lanes.
      context.beginPath();
      context.moveTo(left - 4, AXIS - 6);
      context.lineTo(left + 4, AXIS - 6);
      context.lineTo(left, AXIS);
      context.fill();
    }
  }
  const current = rows.find(row => row.id === chosen);
  if (current) {
    const at = LANES.findIndex(([id]) => id === current.kind);
    const left = x(current.start);
    context.strokeStyle = colour['--text'];
    context.lineWidth = 1.5;
    if (at >= 0) context.strokeRect(left - 1.5, AXIS + at * LANE_HEIGHT + 2, Math.max(5, x(current.end ?? current.start) - left + 3), LANE_HEIGHT - 4);
    context.fillStyle = colour['--text'];
    context.beginPath();
    context.moveTo(left - 4, 0);
    context.lineTo(left + 4, 0);
    context.lineTo(left, 6);
    context.fill();
  }
  if (cursor !== null) {
    context.fillStyle = colour['--text'];
    context.fillRect(Math.round(x(cursor)), 0, 1.5, HEIGHT);
  }
}
