// The sandboxes of the tenant, kept fresh by events and by measurements, while the page is visible.

import { batch, signal } from '@preact/signals';

import { type Schemas, all, api } from '../../client/api';
import { ApiError } from '../../client/errors';
import { Stream } from '../../client/stream';
import { Loads } from '../../load';
import { themeFragment } from '../../shell/theme';

/** Without what only its own page shows. */
export type Sandbox = Omit<Schemas['SandboxInfo'], keyof typeof NOTHING>;
export type State = Schemas['SandboxState'];
export type Recorded = Schemas['TrajectorySummary'];

/** What the server filters by. */
export interface Filter {
  states: readonly State[];
  labels: readonly string[];
  template: string;
  group: string;
  image: string;
  node: string;
  /** The caller's if it is empty; others are for operators. */
  tenant: string;
}

export const NO_FILTER: Filter = { states: [], labels: [], template: '', group: '', image: '', node: '', tenant: '' };

export function isFiltered(filter: Filter): boolean {
  return filter.states.length > 0 || filter.labels.length > 0 || filter.template !== '' || filter.group !== '' || filter.image !== '' || filter.node !== '' || filter.tenant !== '';
}

/** Totals of all measured sandboxes at a time. */
export interface Total {
  /** Milliseconds since the epoch. */
  at: number;
  cores: number;
  memory_bytes: number;
  sandboxes: number;
}

/** Interval of measurements, which no event reports. */
const PERIOD = 5000;
/** Of the time, one in so many parts goes to reads of the whole list at most. */
const READ_SHARE = 20;
/** Turns of the count of steps until all trajectories are read again: five minutes. */
const WHOLE_COUNT = 60;
/** Changes that come together are read together. */
const TOGETHER = 60;
/** Sandboxes that are read one by one; with more, the whole list is read. */
const MOST_SINGLE = 20;
/** Totals that are kept: ten minutes. */
const MOST_TOTALS = 120;

/** Shared, and set rather than deleted: an object with deleted fields is larger. */
const NOTHING = { isolation: [], stages: [], urls: null };

export const sandboxes = signal<readonly Sandbox[]>([]);
/** All that were read without a filter, for the palette and the overview. */
export const known = signal<readonly Sandbox[]>([]);
/** The first list was read. */
export const ready = signal(false);
export const failure = signal<Error | null>(null);
export const filter = signal<Filter>(NO_FILTER);
/** Counts what was reported to have changed. */
export const changes = signal(0);
/** Counts measurements; the loads are in `loads`. */
export const measured = signal(0);
export const loads = new Loads();
export const totals = signal<readonly Total[]>([]);
/** Trajectories by their ids, which are those of their sandboxes. */
export const recorded = signal<ReadonlyMap<string, Recorded>>(new Map());

/** Names by id of what was reported to have changed since the last read. */
const changed = new Map<string, string>();
/** There was no connection for a while, so changes may not have been reported. */
let mayMiss = false;
let last: Promise<void> = Promise.resolve();
let waiting: Promise<void> | null = null;
let soon: ReturnType<typeof setTimeout> | undefined;
/** Milliseconds that the last read of the whole list took. */
let took = 0;
let counted = 0;
/** The time of the newest step that was counted. */
let newest = '';

/** Reads are one after the other: a large list takes longer than the events that ask for it. */
function inTurn(work: () => Promise<void>): Promise<void> {
  last = last.then(work);
  return last;
}

/** Leaves out what only a sandbox's own page shows: of ten thousand sandboxes, it takes 13 MB. */
function slim(sandbox: Sandbox): void {
  Object.assign(sandbox, NOTHING);
}

async function readAll(): Promise<void> {
  const asked = filter.value;
  const { states, labels, ...single } = asked;
  const begun = performance.now();
  changed.clear();
  mayMiss = false;
  try {
    const found = await all('/api/v2/sandboxes', 'sandboxes', { query: { state: states, label: labels, ...single } });
    found.forEach(slim);
    took = performance.now() - begun;
    // Who changed the filter asked for another read.
    if (asked !== filter.value) return;
    batch(() => {
      sandboxes.value = found;
      if (!isFiltered(asked)) known.value = found;
      ready.value = true;
      failure.value = null;
    });
  } catch (error) {
    failure.value = error as Error;
  }
}

/** Reads the whole list. */
export function refresh(): Promise<void> {
  waiting ??= inTurn(() => {
    waiting = null;
    return readAll();
  });
  return waiting;
}

/** The list with changed sandboxes in place of those with the same ids, and new ones at its end; null is for those that are gone. */
export function merged(list: readonly Sandbox[], changes: ReadonlyMap<string, Sandbox | null>): Sandbox[] {
  const left = new Map(changes);
  const kept = list.flatMap(one => {
    const now = left.get(one.id);
    if (now === undefined) return [one];
    left.delete(one.id);
    return now ? [now] : [];
  });
  return [...kept, ...[...left.values()].filter(one => one !== null)];
}

/** Reads what has changed. Which sandboxes a filter selects is the server's to say. */
async function readChanged(): Promise<void> {
  if (mayMiss || !ready.value || isFiltered(filter.value) || changed.size > MOST_SINGLE) return readAll();
  const asked = [...changed];
  changed.clear();
  const found = new Map<string, Sandbox | null>();
  try {
    await Promise.all(asked.map(async ([id, name]) => {
      const now = await api.get('/api/v2/sandboxes/{name}', { path: { name } }).catch((error: unknown) => {
        if (error instanceof ApiError && error.status === 404) return null;
        throw error;
      });
      // Its name may be that of a newer one.
      if (now) slim(now);
      found.set(id, now?.id === id ? now : null);
    }));
  } catch (error) {
    failure.value = error as Error;
    return;
  }
  batch(() => {
    known.value = merged(known.value, found);
    if (!isFiltered(filter.value)) sandboxes.value = known.value;
    failure.value = null;
  });
}

function changedSoon(): void {
  clearTimeout(soon);
  soon = setTimeout(() => {
    changes.value++;
    void inTurn(readChanged);
  }, TOGETHER);
}

export function setFilter(next: Filter): void {
  if (JSON.stringify(next) === JSON.stringify(filter.value)) return;
  // Names are a tenant's: what is done to a row must not reach a sandbox of another one.
  if (next.tenant !== filter.value.tenant) batch(() => {
    sandboxes.value = [];
    ready.value = false;
  });
  filter.value = next;
  void refresh();
}

async function measure(): Promise<void> {
  const live = await api.get('/api/v2/usage/live').catch(() => null);
  if (!live) return;
  loads.take(live.sandboxes as Parameters<Loads['take']>[0], performance.now());
  let cores = 0;
  let memory = 0;
  let isComplete = true;
  for (const { id, usage } of live.sandboxes) {
    const load = loads.get(id);
    memory += usage.memory_bytes;
    if (load?.cores === null) isComplete = false;
    cores += load?.cores ?? 0;
  }
  batch(() => {
    if (isComplete) totals.value = [...totals.value, { at: Date.now(), cores, memory_bytes: memory, sandboxes: live.sandboxes.length }].slice(-MOST_TOTALS);
    measured.value++;
  });
}

/** Reads the trajectories with new steps; now and then all, since some are deleted. */
async function count(): Promise<void> {
  const isWhole = counted++ % WHOLE_COUNT === 0 || newest === '';
  const found = await all('/api/v1/trajectories', 'trajectories', { query: isWhole ? {} : { since: newest } }).catch(() => null);
  if (!found) {
    newest = '';
    return;
  }
  const before = isWhole ? new Map<string, Recorded>() : recorded.value;
  const news = found.filter(one => before.get(one.trajectory)?.last_at !== one.last_at || before.get(one.trajectory)?.steps !== one.steps);
  for (const one of found) if (one.last_at > newest) newest = one.last_at;
  if (isWhole || news.length > 0) recorded.value = new Map([...before, ...found.map(one => [one.trajectory, one] as const)]);
}

/** Starts reading. It goes on as long as the page. */
export function keepFresh(): void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const turn = async (): Promise<void> => {
    clearTimeout(timer);
    if (document.hidden) return;
    await Promise.all([refresh(), measure(), count()]);
    clearTimeout(timer);
    // A list that takes long to read is read less often.
    timer = setTimeout(() => void turn(), Math.max(PERIOD, took * READ_SHARE));
  };
  new Stream('/api/v2/sandboxes?follow=true', {
    on: {
      change: data => {
        const { id, name } = data as { id: string; name: string };
        changed.set(id, name);
        changedSoon();
      },
    },
    opened: () => {
      mayMiss = true;
      changedSoon();
    },
  });
  document.addEventListener('visibilitychange', () => void turn());
  void turn();
}

/** It is on the sandbox's own host where there is one. */
export function dashboardAddress(name: string): string {
  return `sandbox/${encodeURIComponent(name)}/index.html${themeFragment()}`;
}

/** The reason of a state, for people. */
export function reasonText({ died, reason }: Pick<Sandbox, 'died' | 'reason'>): string {
  return died?.message || reason || '';
}

/** Whether a sandbox matches what was typed: its name, id, image, state, template, group, or a label. */
export function matches(sandbox: Sandbox, typed: string): boolean {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return true;
  const labels = Object.entries(sandbox.spec.labels ?? {}).map(([key, value]) => `${key}=${value}`);
  const text = [sandbox.name, sandbox.id, sandbox.spec.image, sandbox.state, sandbox.template ?? '', sandbox.group ?? '', ...labels].join('\n').toLowerCase();
  return words.every(word => text.includes(word));
}
