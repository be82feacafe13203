// Times in the reader's zone, with the exact time as a tooltip; and numbers with units.

import { signal } from '@preact/signals';

import { bytes, duration } from '../format';

/** The present, in milliseconds. It advances while the page is visible. */
export const now = signal(Date.now());
const TICK = 5000;
setInterval(() => { if (!document.hidden) now.value = Date.now(); }, TICK);
document.addEventListener('visibilitychange', () => { if (!document.hidden) now.value = Date.now(); });

const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'long' });

/** Date and time in the reader's zone, without fractions of seconds. */
export function localTime(time: string): string {
  const at = new Date(time);
  const two = (n: number): string => String(n).padStart(2, '0');
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function fullTime(time: string): string {
  const at = new Date(time);
  return Number.isNaN(at.getTime()) ? time : FULL.format(at);
}

/** Such as `5 min ago` or `in 2 h`. */
export function relativeTime(time: string, at = Date.now()): string {
  const seconds = (Date.parse(time) - at) / 1000;
  return seconds > 1 ? `in ${duration(seconds)}` : `${duration(-seconds)} ago`;
}

/** The present for this time: the tick of what has just happened is still to come. */
function present(at: string): number {
  const moment = Date.parse(at), latest = Date.now();
  return now.value < moment && moment <= latest ? latest : now.value;
}

/** `form`: `relative`, such as `5 min ago`; `age`, such as `5 min`; `date`; or `full`, date and time. */
export function Time({ at, form = 'relative' }: { at: string; form?: 'relative' | 'age' | 'date' | 'full' }) {
  const shown = form === 'relative' ? relativeTime(at, present(at)) : form === 'age' ? duration((present(at) - Date.parse(at)) / 1000)
    : form === 'date' ? localTime(at).slice(0, 10) : localTime(at);
  return <time dateTime={at} title={fullTime(at)}>{shown}</time>;
}

export function Bytes({ value }: { value: number | null | undefined }) {
  return value === null || value === undefined ? <>–</> : <data value={value} title={`${value.toLocaleString('en')} bytes`}>{bytes(value)}</data>;
}
