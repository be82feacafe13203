// Steps as they are recorded: followed, and shown with the newest first.

import { requestAddress as request } from './client/api';
import { ApiError } from './client/errors';
import { make } from './dom';
import { bytes, milliseconds } from './format';
import { type Recorded, type Step, circumstances, failure, pictureAddress, state, subject, title, told } from './viewer/step';

export * from './viewer/step';

const MOST_SHOWN = 20_000;
type Said = 'live' | 'waiting' | 'over';

/**
 * Follows the steps at an address until it is closed. Not while nobody looks at the page: a browser has six connections to a
 * host, for all its windows.
 */
export class Feed {
  private source: EventSource | null = null;
  private timer = 0;
  private complete = '';
  private over = false;
  private readonly address: string;
  private readonly take: (step: Step) => void;
  private readonly say: (state: Said, why: string) => void;
  private readonly looked = (): void => (document.hidden ? this.pause() : this.open());

  constructor(address: string, take: (step: Step) => void, say: (state: Said, why: string) => void) {
    this.address = address;
    this.take = take;
    this.say = say;
    document.addEventListener('visibilitychange', this.looked);
    this.looked();
  }

  close(): void {
    this.over = true;
    this.pause();
    document.removeEventListener('visibilitychange', this.looked);
  }

  private pause(): void {
    this.source?.close();
    this.source = null;
    clearTimeout(this.timer);
  }

  /** From where it was. */
  private open(): void {
    if (this.over || this.source) return;
    const address = this.complete ? `${this.address}&after=${this.complete}` : this.address;
    const source = new EventSource(address);
    this.source = source;
    source.onopen = () => this.say('live', '');
    source.addEventListener('step', event => {
      const { data, lastEventId } = event as MessageEvent<string>;
      this.complete = lastEventId;
      this.take(JSON.parse(data) as Step);
    });
    source.addEventListener('end', () => this.end('the sandbox is gone'));
    source.onerror = () => {
      this.say('waiting', 'connecting …');
      // It tries again by itself, but not after a refusal.
      if (source.readyState === EventSource.CLOSED && source === this.source) void this.refused(address);
    };
  }

  private end(why: string): void {
    this.close();
    this.say('over', why);
  }

  /** Finds out why, and tries again. */
  private async refused(address: string): Promise<void> {
    const mine = this.source;
    let why = 'connecting …';
    try {
      const answer = await request(address);
      void answer.body?.cancel();
    } catch (error) {
      why = (error as Error).message;
      if (error instanceof ApiError && error.status === 404) return this.end(why);
    }
    if (this.over || mine !== this.source) return;
    this.source = null;
    this.say('waiting', why);
    this.timer = window.setTimeout(() => this.open(), 3000);
  }
}

/** A list of steps, the newest first. A step that comes again takes its own place. */
export class StepList {
  private readonly items = new Map<number, HTMLLIElement>();
  private readonly list: HTMLOListElement;
  private readonly base: string;
  private readonly most: number;

  /** `base`: where a step's bodies are, below its number. `most`: older ones leave the list. */
  constructor(list: HTMLOListElement, base: string, most: number) {
    this.list = list;
    this.base = base;
    this.most = most;
    list.replaceChildren();
  }

  get size(): number {
    return this.items.size;
  }

  get oldest(): number {
    return Math.min(...this.items.keys());
  }

  put(step: Step, fresh: boolean): void {
    const old = this.items.get(step.step);
    const item = this.draw(step);
    if (old) {
      const wasOpen = old.querySelector('details')?.open;
      const hadFocus = old.contains(document.activeElement);
      old.replaceWith(item);
      if (wasOpen) item.querySelector('details')!.open = true;
      if (hadFocus) item.querySelector('summary')!.focus();
    } else {
      if (fresh) item.classList.add('fresh');
      this.list.insertBefore(item, this.after(step.step));
    }
    this.items.set(step.step, item);
    while (this.items.size > this.most) {
      const oldest = this.oldest;
      const item = this.items.get(oldest);
      const picture = item?.querySelector('img');
      if (picture) URL.revokeObjectURL(picture.src);
      item?.remove();
      this.items.delete(oldest);
    }
  }

  /** The item of the next older step. */
  private after(number: number): Element | null {
    for (const item of this.list.children) if (Number((item as HTMLElement).dataset.step) < number) return item;
    return null;
  }

  private draw(step: Step): HTMLLIElement {
    const outcome = state(step);
    const took = make('span', { className: 'took' });
    if (step.outcome === 'ok' && failure(step)) took.append(make('b', { textContent: `${failure(step).slice(0, 40)} ` }));
    else if (step.outcome && step.outcome !== 'ok') took.append(make('b', { textContent: step.status && step.outcome === 'error' ? `${step.status} ` : `${step.outcome} ` }));
    took.append(step.outcome ? (step.duration_ms === null ? '' : milliseconds(step.duration_ms)) : 'under way');
    const what = make('span', { className: 'what', title: step.action }, make('small', { textContent: String(step.step) }), title(step.action));
    const about = subject(step);
    const details = make('details', {},
      make('summary', {}, make('span', { className: 'dot', title: told(step) }), what, took, make('span', { className: 'about', textContent: about, title: about })));
    details.addEventListener('toggle', () => {
      // Bodies are drawn when someone looks.
      if (details.open && details.childElementCount === 1) details.append(this.more(step));
    });
    const item = make('li', { className: 'step' }, details);
    item.dataset.step = String(step.step);
    item.dataset.outcome = outcome;
    if (isPicture(step)) void this.picture(step).then(picture => picture && item.append(picture));
    return item;
  }

  private more(step: Step): HTMLElement {
    const box = make('div', { className: 'more' });
    for (const [name, body] of [['arguments', step.arguments], ['observation', step.observation]] as const) {
      if (!body) continue;
      const link = make('a', { href: `${this.base}${step.step}/${name}`, textContent: 'Save' });
      link.download = `step-${step.step}-${name}`;
      box.append(make('h3', {}, `${name} `, link), make('pre', { textContent: shown(body), tabIndex: 0 }));
    }
    if (step.error) box.append(make('h3', { textContent: 'How it ended' }), make('pre', { textContent: step.error }));
    box.append(make('p', { className: 'quiet', textContent: circumstances(step) }));
    if (step.calls) box.append(make('h3', { textContent: `Its ${step.calls.length} calls` }), make('pre', { textContent: JSON.stringify(step.calls, null, 2).slice(0, MOST_SHOWN), tabIndex: 0 }));
    return box;
  }

  private async picture(step: Step): Promise<HTMLElement | null> {
    const address = await pictureOf(`${this.base}${step.step}/observation`).catch(() => null);
    if (!address) return null;
    const image = make('img', { alt: `Screenshot of step ${step.step}` });
    image.setAttribute('src', address);
    const button = make('button', { type: 'button', className: 'picture', title: 'Enlarge' }, image);
    button.addEventListener('click', () => {
      const large = make('img', { alt: image.alt });
      large.setAttribute('src', address);
      const dialog = make('dialog', { className: 'shown' }, large);
      dialog.addEventListener('click', () => dialog.close());
      dialog.addEventListener('close', () => { dialog.remove(); button.focus(); });
      document.body.append(dialog);
      dialog.showModal();
    });
    return button;
  }
}

function shown(body: Recorded): string {
  let text: string;
  if ('json' in body) text = JSON.stringify(body.json, null, 2);
  else if ('text' in body) text = body.text;
  else if ('base64' in body) text = body.base64;
  else return body.blob.kept ? `${bytes(body.blob.bytes)}, BLAKE3 ${body.blob.blake3}` : `${bytes(body.blob.bytes)}, of which only the hash was kept`;
  return text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n… ${text.length - MOST_SHOWN} more characters` : text;
}

function isPicture(step: Step): boolean {
  const body = step.observation;
  return step.outcome === 'ok' && body !== null && 'blob' in body && body.blob.kept && /\/screenshot(\?|$)/.test(step.action);
}

/** An address of a picture, for as long as the page lives; null when it is none. */
export async function pictureOf(path: string): Promise<string | null> {
  const answer = await request(path);
  return pictureAddress(new Uint8Array(await answer.arrayBuffer()));
}
