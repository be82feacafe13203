// Quotas of a tenant: their names, units, and texts.

import { bytes } from './format';
import { type Parsed, cores, exactSize, exactTime, number, parseCores, parseCount, parseSize, parseTime } from './quantities';

export interface QuotaState {
  quota: string;
  limit: number | null;
  used: number | null;
}

interface Kind {
  label: string;
  note: string;
  text: (value: number) => string;
  parse: (text: string) => Parsed;
  /** A text that `parse` reads back. */
  exact: (value: number) => string;
}

const count = (text: string): Parsed => parseCount(text, 0, Infinity);
const COUNT = { text: number, parse: count, exact: String };
const SIZE = { text: bytes, parse: parseSize, exact: exactSize };

const KINDS: Record<string, Kind> = {
  sandboxes: { label: 'Sandboxes', note: 'In any state', ...COUNT },
  concurrent_creates: { label: 'Concurrent creates', note: 'In progress or in the queue', ...COUNT },
  cpu_millis: { label: 'CPU', note: 'Cores of sandboxes that are not failed or lost', text: cores, parse: parseCores, exact: millis => String(millis / 1000) },
  memory_bytes: { label: 'Memory', note: 'Of the same sandboxes', ...SIZE },
  disk_bytes: { label: 'Disk', note: 'Of sandboxes in any state', ...SIZE },
  snapshots: { label: 'Snapshots', note: 'Of the disks of sandboxes', ...COUNT },
  volumes: { label: 'Volumes', note: 'On all nodes', ...COUNT },
  volume_bytes: { label: 'Volume space', note: 'The sizes of volumes', ...SIZE },
  trajectory_bytes: { label: 'Trajectories', note: 'Bytes of their logs', ...SIZE },
  timeout_seconds: { label: 'Lifetime', note: 'The longest of one sandbox', text: exactTime, parse: parseTime, exact: exactTime },
  requests_per_second: { label: 'Requests a second', note: 'With the keys of the tenant', ...COUNT },
};

/** A quota that this page does not know is a plain number. */
export function quotaKind(quota: string): Kind {
  return KINDS[quota.replace(/^max_/, '')] ?? { label: quota.replaceAll('_', ' '), note: '', ...COUNT };
}

/** Such as `3 of 10`, `3, unlimited` or `20 a second`. */
export function quotaText({ quota, limit, used }: QuotaState): string {
  const { text } = quotaKind(quota);
  if (used === null) return limit === null ? 'unlimited' : text(limit);
  return limit === null ? `${text(used)}, unlimited` : `${text(used)} of ${text(limit)}`;
}

/** The used part, from 0 to 1; null without a limit or a use. */
export function quotaShare({ limit, used }: QuotaState): number | null {
  if (limit === null || used === null) return null;
  return limit === 0 ? 1 : Math.min(1, used / limit);
}
