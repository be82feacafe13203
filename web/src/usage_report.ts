// Reports of usage: their rows, sums and periods.

import { bytes } from './format';
import { number } from './quantities';

export interface Amounts {
  core_seconds: number;
  memory_gib_seconds: number;
  disk_gib_hours: number;
  egress_bytes: number;
  ingress_bytes: number;
  tool_calls: number;
}

export type Amount = keyof Amounts;

/** A row of `GET /api/v2/usage`. What it is not grouped by is absent. */
export interface UsageRow extends Amounts {
  tenant: string;
  hour?: string;
  sandbox?: string;
  /** In place of a sandbox. */
  volume?: string;
  name?: string;
  template?: string;
}

export interface UsageReport {
  rows: UsageRow[];
  truncated: boolean;
}

export const AMOUNTS: Record<Amount, { label: string; unit: string; text: (value: number) => string }> = {
  core_seconds: { label: 'CPU', unit: 'core-seconds', text: number },
  memory_gib_seconds: { label: 'Memory', unit: 'GiB-seconds', text: number },
  disk_gib_hours: { label: 'Disk', unit: 'GiB-hours', text: number },
  egress_bytes: { label: 'Sent', unit: '', text: bytes },
  ingress_bytes: { label: 'Received', unit: '', text: bytes },
  tool_calls: { label: 'Calls', unit: 'calls', text: number },
};
export const AMOUNT_NAMES = Object.keys(AMOUNTS) as Amount[];

export function amountText(amount: Amount, value: number): string {
  const { unit, text } = AMOUNTS[amount];
  if (unit === '') return text(value);
  return `${text(value)} ${value === 1 ? unit.replace(/s$/, '') : unit}`;
}

/** Periods that end now. Days are UTC's, as the hours of the report are. */
export const PERIODS = { '24 hours': { hours: 24, step: 1 }, '7 days': { hours: 7 * 24, step: 24 }, '30 days': { hours: 30 * 24, step: 24 }, '90 days': { hours: 90 * 24, step: 24 } } as const;
export type Period = keyof typeof PERIODS;

const HOUR = 3_600_000;

/** The bars of a period: their starts, in milliseconds, and the length of each. */
export function bars(period: Period, now: number): { starts: number[]; length: number } {
  const { hours, step } = PERIODS[period];
  const length = step * HOUR;
  const last = Math.floor(now / length) * length;
  const count = hours / step;
  return { starts: Array.from({ length: count }, (_, n) => last - (count - 1 - n) * length), length };
}

export function nothing(): Amounts {
  return { core_seconds: 0, memory_gib_seconds: 0, disk_gib_hours: 0, egress_bytes: 0, ingress_bytes: 0, tool_calls: 0 };
}

function add(sum: Amounts, row: Amounts): void {
  for (const amount of AMOUNT_NAMES) sum[amount] += row[amount];
}

export function total(rows: readonly Amounts[]): Amounts {
  const sum = nothing();
  for (const row of rows) add(sum, row);
  return sum;
}

/** Sums of hourly rows for each bar. */
export function byBar(rows: readonly UsageRow[], starts: readonly number[], length: number): Amounts[] {
  const sums = starts.map(nothing);
  const first = starts[0] ?? 0;
  for (const row of rows) {
    const sum = sums[Math.floor((Date.parse(row.hour ?? '') - first) / length)];
    if (sum) add(sum, row);
  }
  return sums;
}

export function barLabel(start: number, length: number): string {
  const text = new Date(start).toISOString();
  return length < 24 * HOUR ? `${text.slice(0, 10)} ${text.slice(11, 16)}` : text.slice(0, 10);
}

/** The address of a report. Empty parts are left out. */
export function reportAddress(parts: Record<string, string>): string {
  const query = new URLSearchParams(Object.entries(parts).filter(([, value]) => value !== ''));
  return `api/v2/usage?${query}`;
}
