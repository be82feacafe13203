// The results of `arenite rollout run`: the file `results.jsonl`, which is where the run was, and is read by the browser alone.

import { signal } from '@preact/signals';

export type Status = 'success' | 'agent' | 'timeout' | 'infrastructure';

export interface Result {
  /** From 0. */
  row: number;
  task: string;
  status: string;
  success: boolean | null;
  /** The agent's answer, as text. */
  answer: string;
  attempts: number;
  error: string;
  worker: string;
  workers: string[];
  startedAt: string;
  ms: number | null;
}

export interface Results {
  file: string;
  results: Result[];
  /** Lines that are not results. */
  wrong: number;
}

export const MOST_BYTES = 256 << 20;
export const MOST_RESULTS = 200_000;
/** Characters of an answer or an error that are kept. */
const MOST_TEXT = 4000;

/** The file that is shown, while the page is open. */
export const opened = signal<Results | null>(null);

function text(value: unknown): string {
  if (value === null || value === undefined) return '';
  return (typeof value === 'string' ? value : JSON.stringify(value)).slice(0, MOST_TEXT);
}

/** A line of the file; null if it is not one. */
export function readResult(line: string, row: number): Result | null {
  let one: Record<string, unknown>;
  try {
    one = JSON.parse(line) as Record<string, unknown>;
  } catch {
    return null;
  }
  if (typeof one !== 'object' || one === null || typeof one.status !== 'string' || one.task_id === undefined) return null;
  const result = (typeof one.result === 'object' && one.result !== null ? one.result : { output: one.result }) as Record<string, unknown>;
  const attempts = one.attempts;
  return {
    row, task: text(one.task_id), status: one.status, success: typeof one.success === 'boolean' ? one.success : null,
    answer: text(result.final_answer ?? result.output ?? one.result), attempts: typeof attempts === 'number' ? attempts : Array.isArray(attempts) ? attempts.length : 1,
    error: text(one.error_message ?? one.error_kind), worker: text(one.worker_id), workers: Array.isArray(one.worker_ids) ? one.worker_ids.map(text) : [],
    startedAt: text(one.started_at), ms: typeof one.duration_ms === 'number' ? one.duration_ms : null,
  };
}

export function readResults(file: string, content: string): Results {
  const results: Result[] = [];
  let wrong = 0;
  for (const line of content.split('\n')) {
    if (!line.trim()) continue;
    const result = results.length < MOST_RESULTS ? readResult(line, results.length) : null;
    if (result) results.push(result);
    else wrong++;
  }
  return { file, results, wrong };
}

export async function openResults(file: File): Promise<void> {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} is larger than ${MOST_BYTES >> 20} MiB`);
  const read = readResults(file.name, await file.text());
  if (read.results.length === 0) throw new Error(`${file.name} has no results: choose the results.jsonl of a run`);
  opened.value = read;
}

export interface Totals {
  tasks: number;
  succeeded: number;
  byStatus: [string, number][];
  /** Of the tasks that did not end as `infrastructure`, which says nothing about the agent; null without any. */
  rate: number | null;
  /** Milliseconds. */
  median: number | null;
  p95: number | null;
}

function quantile(sorted: readonly number[], part: number): number | null {
  return sorted.length === 0 ? null : sorted[Math.min(sorted.length - 1, Math.ceil(sorted.length * part) - 1)]!;
}

export function totals(results: readonly Result[]): Totals {
  const counts = new Map<string, number>();
  for (const { status } of results) counts.set(status, (counts.get(status) ?? 0) + 1);
  const rated = results.filter(one => one.status !== 'infrastructure');
  const succeeded = rated.filter(one => one.success ?? one.status === 'success').length;
  const times = results.flatMap(({ ms }) => (ms === null ? [] : [ms])).sort((a, b) => a - b);
  return { tasks: results.length, succeeded, byStatus: [...counts].sort((a, b) => b[1] - a[1]), rate: rated.length > 0 ? succeeded / rated.length : null, median: quantile(times, 0.5), p95: quantile(times, 0.95) };
}
