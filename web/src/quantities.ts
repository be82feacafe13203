// Sizes, times and cores as people write them, in the forms of the command line.

export type Parsed = { value: number } | { error: string };

const SIZES: Record<string, number> = { '': 1, b: 1, k: 2 ** 10, ki: 2 ** 10, kib: 2 ** 10, m: 2 ** 20, mi: 2 ** 20, mib: 2 ** 20, g: 2 ** 30, gi: 2 ** 30, gib: 2 ** 30, t: 2 ** 40, ti: 2 ** 40, tib: 2 ** 40 };
const TIMES: Record<string, number> = { '': 1, s: 1, m: 60, min: 60, h: 3600, d: 86_400 };

function amount(text: string, units: Record<string, number>, error: string): Parsed {
  const [, number, unit] = /^([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)$/.exec(text.trim().toLowerCase()) ?? [];
  const factor = unit === undefined ? undefined : units[unit];
  if (number === undefined || factor === undefined) return { error };
  const value = Math.round(Number(number) * factor);
  return Number.isSafeInteger(value) ? { value } : { error };
}

/** Bytes of a size such as `512MiB`. */
export function parseSize(text: string): Parsed {
  return amount(text, SIZES, 'Write a number and a unit, such as 512MiB or 10GiB.');
}

/** Seconds of a time such as `90s` or `2h`. */
export function parseTime(text: string): Parsed {
  return amount(text, TIMES, 'Write a number and a unit, such as 90s, 10m, 2h or 1d.');
}

/** Thousandths of a core. */
export function parseCores(text: string): Parsed {
  const cores = /^[0-9]*\.?[0-9]+$/.test(text.trim()) ? Number(text) : NaN;
  return cores >= 0.01 && cores <= 1024 ? { value: Math.round(cores * 1000) } : { error: 'Write a number of cores from 0.01 to 1024, such as 0.5 or 2.' };
}

export function parseCount(text: string, least: number, most: number): Parsed {
  const value = /^[0-9]+$/.test(text.trim()) ? Number(text) : NaN;
  return value >= least && value <= most ? { value } : { error: most === Infinity ? 'Write a whole number.' : `Write a number from ${least} to ${most}.` };
}

/** A size that `parseSize` reads back exactly. */
export function exactSize(bytes: number): string {
  for (const [unit, size] of [['TiB', 2 ** 40], ['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]] as const) {
    if (bytes >= size && bytes % size === 0) return `${bytes / size}${unit}`;
  }
  return String(bytes);
}

/** A time that `parseTime` reads back exactly. */
export function exactTime(seconds: number): string {
  for (const [unit, size] of [['d', 86_400], ['h', 3600], ['m', 60]] as const) {
    if (seconds >= size && seconds % size === 0) return `${seconds / size}${unit}`;
  }
  return `${seconds}s`;
}

export function cores(millis: number): string {
  const text = number(millis / 1000);
  return `${text} ${text === '1' ? 'core' : 'cores'}`;
}

const FORMAT = new Intl.NumberFormat('en', { maximumFractionDigits: 2 });

/** A number with at most two decimals. */
export function number(value: number): string {
  return value > 0 && value < 0.005 ? '< 0.01' : FORMAT.format(value);
}

export function plural(count: number, one: string, several = `${one}s`): string {
  return `${number(count)} ${count === 1 ? one : several}`;
}
