// Values as text for people: times, sizes. The forms that people write are in `quantities.ts`.

/** What becomes of a sandbox if nothing happens before. */
export interface Deadline {
  at: string;
  reason: 'timeout' | 'idle' | 'kept' | 'paused';
  action: 'delete' | 'pause' | 'disk';
}

export function timeLeft({ at, reason, action }: Deadline): { short: string; long: string } {
  const left = duration((Date.parse(at) - Date.now()) / 1000);
  const done = { pause: 'paused', disk: 'moved to disk', delete: 'deleted' }[action];
  const why = reason === 'idle' ? 'unless it is used' : reason === 'timeout' ? 'when its lifetime is over' : reason === 'paused' ? 'unless it is resumed' : 'it is no longer running';
  return { short: reason === 'idle' ? `${left} if idle` : left, long: `${done} in ${left}: ${why} (${at})` };
}

export function age(from: string): string {
  return duration((Date.now() - Date.parse(from)) / 1000);
}

export function duration(length: number): string {
  const seconds = Math.max(0, length);
  const units: [string, number][] = [['d', 86400], ['h', 3600], ['min', 60]];
  for (const [unit, size] of units) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.floor(seconds)} s`;
}

export function bytes(n: number): string {
  const units: [string, number][] = [['TiB', 2 ** 40], ['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]];
  for (const [unit, size] of units) if (n >= size) return `${(n / size).toFixed(n < 10 * size ? 1 : 0)} ${unit}`;
  return `${n} B`;
}

export function milliseconds(ms: number): string {
  if (ms >= 3_600_000) return `${(ms / 3_600_000).toFixed(1)} h`;
  if (ms >= 60_000) return `${(ms / 60_000).toFixed(1)} min`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(1)} s`;
  return ms >= 10 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`;
}

/** With a capital letter first, unless that is a command, or a name such as `memory_bytes`. */
export function capitalized(text: string): string {
  return /^(?!arenite\b)[a-z]+(?![\w./-]|:\/\/)/.test(text) ? `${text.charAt(0).toUpperCase()}${text.slice(1)}` : text;
}

/** A message of the server as a sentence: those begin in lower case. */
export function sentence(text: string): string {
  return `${capitalized(text)}${/[.!?]$/.test(text) ? '' : '.'}`;
}
