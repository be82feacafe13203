// Steps in their order, from the first down; branches stand to the right of what they go on from.

import { make, milliseconds } from './dom';
import { type Step, failure, parentOf, state, subject, title, told } from './steps';

const DEEPEST = 8;

export class Timeline {
  private readonly items = new Map<number, { step: Step; node: HTMLLIElement; lane: number }>();
  private readonly list: HTMLOListElement;
  private readonly take: (step: Step) => void;
  chosen = 0;
  first = 0;
  last = 0;

  constructor(list: HTMLOListElement, take: (step: Step) => void) {
    this.list = list;
    this.take = take;
    list.addEventListener('click', event => {
      const node = (event.target as Element).closest<HTMLElement>('li[data-step]');
      if (node) this.choose(Number(node.dataset.step));
    });
  }

  put(step: Step): void {
    const known = this.items.get(step.step);
    const lane = this.lane(step);
    const node = this.draw(step, lane);
    if (known) {
      const focused = known.node.contains(document.activeElement);
      known.node.replaceWith(node);
      if (focused) node.querySelector('button')?.focus();
    } else {
      this.list.insertBefore(node, this.after(step.step));
      this.first = this.first ? Math.min(this.first, step.step) : step.step;
      this.last = Math.max(this.last, step.step);
    }
    this.items.set(step.step, { step, node, lane });
    if (step.step === this.chosen) mark(node, true);
  }

  choose(number: number): void {
    const item = this.items.get(number);
    if (!item) return;
    const before = this.items.get(this.chosen);
    if (before) mark(before.node, false);
    this.chosen = number;
    mark(item.node, true);
    item.node.scrollIntoView({ block: 'nearest' });
    if (this.list.contains(document.activeElement)) this.focus();
    this.take(item.step);
  }

  /** Which steps are shown; the others keep their places. */
  shows: (step: Step) => boolean = () => true;

  /** Updates which steps are shown. */
  refilter(): void {
    for (const { step, node } of this.items.values()) node.hidden = !this.shows(step);
  }

  /** So many steps down, or up, of those that are shown. */
  move(by: number): void {
    const shown = [...this.items.values()].filter(({ step }) => this.shows(step)).map(({ step }) => step.step).sort((a, b) => a - b);
    if (shown.length === 0) return;
    const here = shown.findIndex(number => number >= this.chosen);
    const at = here < 0 ? shown.length - 1 : here;
    this.choose(shown[Math.min(shown.length - 1, Math.max(0, at + by))]!);
  }

  /** The oldest leaves the list. */
  drop(): number {
    const oldest = this.first;
    this.items.get(oldest)?.node.remove();
    this.items.delete(oldest);
    while (this.first < this.last && !this.items.has(this.first)) this.first++;
    return oldest;
  }

  focus(): void {
    this.items.get(this.chosen)?.node.querySelector('button')?.focus();
  }

  private lane(step: Step): number {
    const parent = parentOf(step);
    const from = this.items.get(parent);
    if (parent === step.step - 1) return from?.lane ?? 0;
    return Math.min(DEEPEST, from ? from.lane + 1 : 0);
  }

  /** The item of the next later step. Most often there is none. */
  private after(number: number): Element | null {
    if (number > this.last) return null;
    for (const node of this.list.children) if (Number((node as HTMLElement).dataset.step) > number) return node;
    return null;
  }

  private draw(step: Step, lane: number): HTMLLIElement {
    const outcome = state(step);
    const parent = parentOf(step);
    const took = step.outcome ? (step.duration_ms === null ? '' : milliseconds(step.duration_ms)) : 'under way';
    const about = subject(step);
    const button = make('button', { type: 'button', title: `${step.action}: ${told(step)}, by ${step.origin}` },
      make('span', { className: 'dot' }),
      make('span', { className: 'what' }, make('small', { textContent: String(step.step) }), title(step.action)),
      make('span', { className: 'took', textContent: step.outcome && step.outcome !== 'ok' ? `${step.outcome} ${took}` : `${failure(step).slice(0, 40)} ${took}`.trim() }),
      make('span', { className: 'about', textContent: about }));
    const node = make('li', {}, button);
    if (parent !== step.step - 1) node.prepend(make('small', { className: 'from', textContent: parent === 0 ? '↳ from the start' : `↳ from ${parent}` }));
    node.dataset.step = String(step.step);
    node.dataset.outcome = outcome;
    node.dataset.origin = step.origin;
    node.hidden = !this.shows(step);
    node.style.setProperty('--lane', String(lane));
    return node;
  }
}

function mark(node: HTMLLIElement, chosen: boolean): void {
  node.classList.toggle('chosen', chosen);
  const button = node.querySelector('button');
  if (chosen) button?.setAttribute('aria-current', 'step');
  else button?.removeAttribute('aria-current');
}
