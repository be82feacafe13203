// Pulls and builds that this page started. They go on while other pages of the console are shown, and end with the window.

import { batch, signal } from '@preact/signals';

import { type Schemas, fill, request } from '../../client/api';
import { ApiError, isAbort } from '../../client/errors';
import { readEvents } from '../../client/events';
import { bytes } from '../../format';
import { route } from '../../shell';
import { failed, notify } from '../../ui';

export type PullProgress = Schemas['PullProgress'];
/** `lost`: the connection ended first, so the result is not known here. */
export type JobState = 'sending' | 'running' | 'done' | 'failed' | 'cancelled' | 'lost';

export interface Job {
  id: number;
  kind: 'pull' | 'build';
  image: string;
  state: JobState;
  /** Milliseconds since the epoch. */
  startedAt: number;
  endedAt: number | null;
  pull: PullProgress | null;
  /** Bytes a second of the pull, once it has downloaded for a while. */
  rate: number | null;
  /** Of a build: the current step, and their number. */
  step: number;
  steps: number;
  text: string;
  /** Of a build: its steps and their output. */
  log: string;
  /** The beginning of the log is left out. */
  cut: boolean;
  error: Error | null;
  image_bytes: number | null;
  /** Bytes of the context of a build. */
  sent: number;
}

export interface BuildRequest {
  image: string;
  dockerfile?: string | undefined;
  target?: string | undefined;
  build_arg?: string[];
  network?: 'open' | 'none' | undefined;
  no_cache?: boolean | undefined;
}

/** Characters of a log that are kept: its end. */
export const MOST_LOG = 512 << 10;
/** Jobs that are shown: the newest, and all that run. */
const MOST_JOBS = 20;
/** What a log gets meanwhile is shown together. */
const TOGETHER = 100;

export const jobs = signal<readonly Job[]>([]);
/** Counts jobs that ended, after which the list of images is another one. */
export const ended = signal(0);

const running = new Map<number, AbortController>();
const again = new Map<number, () => void>();
let numbered = 0;

export function isActive({ state }: Job): boolean {
  return state === 'sending' || state === 'running';
}

function leave(event: BeforeUnloadEvent): void {
  event.preventDefault();
}

function change(id: number, part: Partial<Job>): void {
  jobs.value = jobs.value.map(job => (job.id === id ? { ...job, ...part } : job));
}

/** The log of a build, as text. */
export class BuildLog {
  text = '';
  cut = false;

  add(line: string): void {
    this.text += `${line}\n`;
    if (this.text.length <= 2 * MOST_LOG) return;
    this.text = this.text.slice(-MOST_LOG);
    this.text = this.text.slice(this.text.indexOf('\n') + 1);
    this.cut = true;
  }
}

/** Adds an event of a build to its log, and returns what it changes. */
export function takeEvent(log: BuildLog, name: string, data: unknown): Partial<Job> {
  const of = data as { step: number; of: number; text: string; line: string | number; skipped?: number; cached: boolean; seconds: number; bytes: number };
  if (name === 'step') {
    log.add(`Step ${of.step} of ${of.of}: ${of.text}`);
    return { step: of.step, steps: of.of, text: of.text, pull: null };
  }
  if (name === 'log') {
    if (of.skipped) log.add(`  (${of.skipped} lines are left out)`);
    log.add(`  ${of.line}`);
  } else if (name === 'warning') log.add(`Warning, line ${of.line}: ${of.text}`);
  else if (name === 'step_done') log.add(of.cached ? '  (kept from an earlier build)' : `  (${of.seconds.toFixed(1)} s, ${bytes(of.bytes)})`);
  else if (name === 'pull') return { pull: data as PullProgress };
  return {};
}

interface Result {
  state: JobState;
  error?: Error;
  image_bytes?: number;
}

/** Sends the request, and follows its events up to the last one. */
async function follow(id: number, path: string, init: RequestInit): Promise<Result> {
  const log = new BuildLog();
  let first: { at: number; bytes: number } | null = null;
  let waiting: Partial<Job> = {};
  let timer: ReturnType<typeof setTimeout> | undefined;
  const show = (): void => {
    timer = undefined;
    change(id, { ...waiting, log: log.text, cut: log.cut });
    waiting = {};
  };
  try {
    const answer = await request(path, init);
    change(id, { state: 'running' });
    for await (const { name, data } of readEvents(answer)) {
      if (name === 'pulled' || name === 'built') return { state: 'done', image_bytes: (data as Schemas['ImageDetails']).size_bytes };
      if (name === 'failed') return { state: 'failed', error: new ApiError((data as { status?: number }).status ?? 500, data as object) };
      waiting = { ...waiting, ...takeEvent(log, name, data) };
      if (name === 'pull') {
        const { state, bytes_done } = data as PullProgress;
        if (state === 'downloading') first ??= { at: Date.now(), bytes: bytes_done };
        const seconds = first ? (Date.now() - first.at) / 1000 : 0;
        waiting.rate = first && seconds >= 1 ? (bytes_done - first.bytes) / seconds : null;
      }
      timer ??= setTimeout(show, TOGETHER);
    }
    return { state: 'lost' };
  } catch (error) {
    if (isAbort(error) || init.signal?.aborted) return { state: 'cancelled' };
    // A refusal has a status; everything else is the connection.
    if (error instanceof ApiError && error.status > 0) return { state: 'failed', error };
    return { state: 'lost' };
  } finally {
    clearTimeout(timer);
    show();
  }
}

function start(kind: Job['kind'], image: string, path: string, init: RequestInit, sent = 0): void {
  const id = ++numbered;
  const controller = new AbortController();
  running.set(id, controller);
  again.set(id, () => start(kind, image, path, init, sent));
  if (running.size === 1) addEventListener('beforeunload', leave);
  const job: Job = { id, kind, image, state: 'sending', startedAt: Date.now(), endedAt: null, pull: null, rate: null, step: 0, steps: 0, text: '', log: '', cut: false, error: null, image_bytes: null, sent };
  jobs.value = [job, ...jobs.value.filter((one, n) => isActive(one) || n < MOST_JOBS - 1)];
  void follow(id, path, { ...init, signal: controller.signal }).then(result => {
    running.delete(id);
    if (running.size === 0) removeEventListener('beforeunload', leave);
    batch(() => {
      change(id, { ...result, endedAt: Date.now() });
      ended.value++;
    });
    if (result.state === 'done') notify(`${kind === 'pull' ? 'Pulled' : 'Built'} ${image}.`);
    // The page of images shows it beside the job.
    else if (result.error && route.value.page !== 'images') failed(result.error);
  });
}

const EVENTS = { accept: 'text/event-stream' };

export function startPull(image: string): void {
  const body: Schemas['PullImage'] = { image };
  start('pull', image, '/api/v2/images/pull', { method: 'POST', headers: { ...EVENTS, 'content-type': 'application/json' }, body: JSON.stringify(body) });
}

/** `context`: a tar, plain or compressed. */
export function startBuild(build: BuildRequest, context: Blob): void {
  const path = fill('/api/v2/images/build', { query: { ...build } });
  start('build', build.image, path, { method: 'POST', headers: { ...EVENTS, 'content-type': 'application/octet-stream' }, body: context }, context.size);
}

export function cancel(id: number): void {
  running.get(id)?.abort();
}

/** Removes a job that ended from what is shown. */
export function dismiss(id: number): void {
  again.delete(id);
  jobs.value = jobs.value.filter(job => job.id !== id);
}

export function retry(id: number): void {
  const repeat = again.get(id);
  dismiss(id);
  repeat?.();
}
