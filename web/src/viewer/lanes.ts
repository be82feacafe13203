// The time line as numbers: lanes, what is in view, and what is under a point.

import { type Row, rowText } from './rows';

export const LANES = [['tool', 'Tools'], ['model', 'Models'], ['screen', 'Screen'], ['network', 'Network']] as const;
export type Lane = (typeof LANES)[number][0];

/** A part of the time of a run, in milliseconds since 1970. */
export interface Span {
  from: number;
  to: number;
}

export function isLane(kind: string): kind is Lane {
  return LANES.some(([lane]) => lane === kind);
}

/** From the first start to the last end. */
export function spanOf(rows: readonly Row[], now: number): Span {
  let from = Infinity;
  let to = -Infinity;
  for (const row of rows) {
    from = Math.min(from, row.start);
    to = Math.max(to, row.end ?? (row.outcome === 'running' ? now : row.start));
  }
  return from === Infinity ? { from: 0, to: 1 } : { from, to: Math.max(to, from + 1) };
}

const LEAST = 5;

/** Zooms around a point: a factor below 1 shows less time. Stays within the whole. */
export function zoomed(span: Span, whole: Span, factor: number, around: number): Span {
  const length = Math.min(whole.to - whole.from, Math.max(LEAST, (span.to - span.from) * factor));
  const share = (around - span.from) / (span.to - span.from);
  return moved({ from: around - share * length, to: around + (1 - share) * length }, whole, 0);
}

/** Moves by milliseconds, within the whole. */
export function moved(span: Span, whole: Span, by: number): Span {
  const length = span.to - span.from;
  const from = Math.min(Math.max(whole.from, span.from + by), Math.max(whole.from, whole.to - length));
  return { from, to: Math.min(whole.to, from + length) };
}

/** Moves so that a row is in view. */
export function containing(span: Span, whole: Span, row: Row): Span {
  const length = span.to - span.from;
  if (row.start >= span.from && row.start <= span.to) return span;
  return moved({ from: row.start - length / 2, to: row.start + length / 2 }, whole, 0);
}

/** The row of a lane that is nearest to a time, if it is within some milliseconds. */
export function nearest(rows: readonly Row[], lane: Lane, at: number, within: number): Row | null {
  let best: Row | null = null;
  let distance = within;
  for (const row of rows) {
    if (row.kind !== lane) continue;
    const end = row.end ?? row.start;
    const away = at < row.start ? row.start - at : at > end ? at - end : 0;
    // Of several, the shortest: it may be within a longer one.
    if (away < distance || (away === distance && best && end - row.start < (best.end ?? best.start) - best.start)) {
      best = row;
      distance = away;
    }
  }
  return best;
}

/** The next or previous row of a lane; `ways` is 1 or -1. */
export function neighbour(rows: readonly Row[], lane: Lane, id: string, ways: 1 | -1): Row | null {
  const at = rows.findIndex(row => row.id === id);
  for (let n = at < 0 ? (ways > 0 ? 0 : rows.length - 1) : at + ways; n >= 0 && n < rows.length; n += ways) if (rows[n]!.kind === lane) return rows[n]!;
  return null;
}

/** Times of the marks of the axis, relative to the start of the run. */
export function ticks(span: Span, origin: number, most: number): number[] {
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 86_400_000, 604_800_000];
  const every = steps.find(step => (span.to - span.from) / step <= most) ?? (span.to - span.from) / most;
  const found: number[] = [];
  for (let at = Math.ceil((span.from - origin) / every) * every; at <= span.to - origin && found.length < 100; at += every) found.push(at);
  return found;
}

export function offset(ms: number): string {
  const all = Math.max(0, ms) / 1000;
  const [hours, minutes, seconds] = [Math.floor(all / 3600), Math.floor((all % 3600) / 60), all % 60];
  const two = (n: number): string => String(Math.floor(n)).padStart(2, '0');
  const digits = ms % 100 === 0 ? 1 : 3;
  const rest = ms % 1000 === 0 || all >= 600 ? two(seconds) : seconds.toFixed(digits).padStart(digits + 3, '0');
  return `${hours > 0 ? `${hours}:${two(minutes)}` : minutes}:${rest}`;
}

export function valueText(row: Row | undefined, lane: Lane, count: number, isAnnotated = false): string {
  const name = LANES.find(([id]) => id === lane)![1];
  return row ? `${rowText(row)}${isAnnotated ? ', annotated' : ''}. Lane ${name}, ${count} in it` : `Lane ${name}, ${count} in it. Nothing is chosen`;
}
