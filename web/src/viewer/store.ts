// The steps of one run: the newest at once, the earlier ones in pages in the background, and new ones as they are recorded.

import { type Schemas, address, all, api, request } from '../client/api';
import { ApiError, isAbort } from '../client/errors';
import type { NetworkRecord, SessionRecord } from './rows';
import type { Recorded, Step } from './step';

export type Summary = Schemas['TrajectorySummary'];
export type RunState = 'loading' | 'live' | 'waiting' | 'ended' | 'gone';

/** Steps that are read first. */
export const FIRST = 300;
/** Steps of one page after that. */
const PAGE = 1000;
/** The newest are kept; the exports have all. */
export const MOST = 50_000;
/** Characters of bodies that are kept in memory. Beyond it, large bodies are read again when they are shown. */
const MOST_BODIES = 64 << 20;
const LARGE = 8 << 10;
const CUT = 2000;
const RETRY = 3000;
/** How often the network's records are read while steps come. */
const RECORDS = 10_000;

export class Run {
  readonly id: string;
  readonly path: string;
  private readonly known = new Map<number, Step>();
  private ordered: Step[] | null = null;
  network: NetworkRecord[] = [];
  /** Network records beyond the limit of the log. */
  networkLeftOut = 0;
  sessions: SessionRecord[] = [];
  summary: Summary | null = null;
  state: RunState = 'loading';
  /** Why it waits, or is gone. */
  reason = '';
  /** Earlier steps are being read. */
  reading = false;
  private bodies = 0;
  private source: EventSource | null = null;
  private complete = '';
  private timer: ReturnType<typeof setTimeout> | undefined;
  private frame: ReturnType<typeof setTimeout> | undefined;
  private closed = false;
  private readonly aborter = new AbortController();
  private readonly changed: () => void;
  private readonly visibility = (): void => { if (document.hidden) this.disconnect(); else this.connect(); };

  /** `wanted`: a step that is read first. `changed` is called after changes, not for each step. */
  constructor(id: string, wanted: number, changed: () => void) {
    this.id = id;
    this.path = `/api/v1/trajectories/${encodeURIComponent(id)}`;
    this.changed = changed;
    document.addEventListener('visibilitychange', this.visibility);
    void this.start(wanted);
  }

  close(): void {
    this.closed = true;
    this.disconnect();
    clearTimeout(this.frame);
    clearTimeout(this.records);
    clearTimeout(this.timer);
    this.aborter.abort();
    document.removeEventListener('visibilitychange', this.visibility);
  }

  get steps(): readonly Step[] {
    this.ordered ??= [...this.known.values()].sort((a, b) => a.step - b.step);
    return this.ordered;
  }

  get size(): number {
    return this.known.size;
  }

  step(number: number): Step | undefined {
    return this.known.get(number);
  }

  /** Earlier steps than the page keeps. */
  get leftOut(): number {
    const first = this.steps[0]?.step ?? 1;
    return this.reading ? 0 : first - 1;
  }

  private put(step: Step): void {
    const old = this.known.get(step.step);
    // The end of a step is not undone by a page that was read before it.
    if (old && old.outcome !== null && step.outcome === null) return;
    this.known.set(step.step, old ? step : this.shrink(step));
    if (old && this.ordered) this.ordered[indexOf(this.ordered, step.step)] = step;
    else if (this.ordered && (this.ordered.at(-1)?.step ?? 0) < step.step) this.ordered.push(this.known.get(step.step)!);
    else this.ordered = null;
    this.later();
  }

  /** Keeps memory bounded: what is large is read again when it is shown. */
  private shrink(step: Step): Step {
    const size = step.bytes_in + step.bytes_out;
    this.bodies += size;
    if (this.bodies < MOST_BODIES || size < LARGE) return step;
    const parts = [step.arguments, step.observation].map(body => (body && 'json' in body ? JSON.stringify(body.json) : body && 'text' in body ? body.text : ''));
    const reference = (body: Recorded | null, text: string): Recorded | null => (text.length < LARGE / 2 ? body : { blob: { blake3: '', bytes: text.length, kept: true } });
    return { ...step, arguments: reference(step.arguments, parts[0]!), observation: reference(step.observation, parts[1]!), cut: parts.map(part => part.slice(0, CUT)).join('\n') };
  }

  private later(): void {
    this.frame ??= setTimeout(() => {
      this.frame = undefined;
      if (!this.closed) this.changed();
    }, 60);
  }

  private async start(wanted: number): Promise<void> {
    void this.about();
    if (wanted > 0) await this.page(Math.max(0, wanted - FIRST / 2), FIRST).catch(() => null);
    this.connect();
  }

  private async about(): Promise<void> {
    const { signal } = this.aborter;
    const quiet = (error: unknown): void => { if (!isAbort(error)) this.later(); };
    await Promise.all([
      api.get('/api/v1/trajectories', { query: { sandbox: this.id }, signal }).then(async ({ trajectories }) => {
        // A worker's trajectory is not found by its sandbox.
        this.summary = trajectories.find(one => one.trajectory === this.id) ?? (await all('/api/v1/trajectories', 'trajectories', { signal })).find(one => one.trajectory === this.id) ?? null;
      }).catch(quiet),
      this.readRecords(),
    ]);
    this.later();
  }

  /** What stands between the steps. */
  private async readRecords(): Promise<void> {
    const path = { id: this.id };
    const { signal } = this.aborter;
    // Steps are shown without them, too.
    await Promise.all([
      this.readNetwork().catch(() => null),
      all('/api/v1/trajectories/{id}/sessions', 'sessions', { path, signal }).then(sessions => { this.sessions = sessions; }).catch(() => null),
    ]);
    this.later();
  }

  private async readNetwork(): Promise<void> {
    let cursor: string | undefined;
    const found: NetworkRecord[] = [];
    do {
      const page = await api.get('/api/v1/trajectories/{id}/network', { path: { id: this.id }, query: { limit: 1000, ...(cursor === undefined ? {} : { cursor }) }, signal: this.aborter.signal });
      found.push(...page.network);
      this.networkLeftOut = page.left_out;
      cursor = page.next_cursor ?? undefined;
    } while (cursor !== undefined && found.length < MOST);
    this.network = found;
  }

  private async page(after: number, limit: number): Promise<void> {
    const page = await api.get('/api/v1/trajectories/{id}/steps', { path: { id: this.id }, query: { after, limit }, signal: this.aborter.signal });
    for (const step of page.steps) this.put(step as unknown as Step);
  }

  /** Reads what is missing before the newest steps, the latest first. */
  private async history(): Promise<void> {
    if (this.reading) return;
    this.reading = true;
    try {
      for (let missing = this.lastMissing(); missing > 0 && !this.closed && this.known.size < MOST; missing = this.lastMissing()) {
        const after = Math.max(0, missing - PAGE);
        await this.page(after, missing - after);
        // A page without the step would be requested again and again.
        if (this.lastMissing() === missing) break;
      }
    } catch (error) {
      if (isAbort(error)) return;
      this.reason = (error as Error).message;
      this.timer ??= setTimeout(() => { this.timer = undefined; void this.history(); }, RETRY);
    } finally {
      this.reading = false;
      this.later();
    }
  }

  private lastMissing(): number {
    const { steps } = this;
    let next = steps.at(-1)?.step ?? 0;
    for (let n = steps.length - 1; n >= 0; n--) {
      if (steps[n]!.step !== next) return next;
      next--;
    }
    return next;
  }

  private disconnect(): void {
    this.source?.close();
    this.source = null;
  }

  private connect(): void {
    if (this.closed || this.source || document.hidden || this.state === 'ended' || this.state === 'gone') return;
    const path = `${this.path}?follow=true${this.complete ? `&after=${this.complete}` : `&tail=${FIRST}`}`;
    const source = new EventSource(address(path));
    this.source = source;
    source.onopen = () => this.become('live');
    source.addEventListener('step', event => {
      const { data, lastEventId } = event as MessageEvent<string>;
      this.complete = lastEventId;
      this.put(JSON.parse(data) as Step);
      this.soon();
      this.records ??= setTimeout(() => { this.records = undefined; void this.readRecords(); }, RECORDS);
    });
    source.addEventListener('end', () => {
      this.become('ended');
      this.disconnect();
      void this.history();
    });
    source.onerror = () => {
      if (this.source !== source) return;
      this.become('waiting', 'connecting …');
      // The browser reconnects by itself, except after a refusal.
      if (source.readyState !== EventSource.CLOSED) return;
      this.source = null;
      void this.refused(path);
    };
  }

  private records: ReturnType<typeof setTimeout> | undefined;
  private pending: ReturnType<typeof setTimeout> | undefined;
  /** The first steps come at once; those before them are read afterwards. */
  private soon(): void {
    this.pending ??= setTimeout(() => {
      this.pending = undefined;
      if (!this.closed) void this.history();
    }, 250);
  }

  private become(state: RunState, reason = ''): void {
    this.state = state;
    this.reason = reason;
    this.later();
  }

  /** An event source does not say why it was refused; a call does. */
  private async refused(path: string): Promise<void> {
    let reason = 'connecting …';
    try {
      void (await request(path, { signal: this.aborter.signal })).body?.cancel();
    } catch (error) {
      if (isAbort(error)) return;
      reason = error instanceof ApiError ? error.message : String(error);
      if (error instanceof ApiError && (error.status === 404 || error.status === 403 || error.status === 410)) {
        this.become('gone', reason);
        return;
      }
    }
    this.become('waiting', reason);
    setTimeout(() => this.connect(), RETRY);
  }
}

/** The place of a step, by bisection. */
export function indexOf(steps: readonly Step[], number: number): number {
  let low = 0;
  let high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle]!.step < number) low = middle + 1;
    else high = middle;
  }
  return low;
}
