// A run as a film: film time in place of real time, and what is to be seen at each moment.

import { type Piece, command, partOf, printed } from './content';
import { saidMessages } from './conversation';
import type { Row } from './rows';
import type { Step } from './step';

export const SPEEDS = [0.5, 1, 2, 4, 8, 16] as const;
/** A longer time without an event is shortened to this, in milliseconds. */
const LONGEST_PAUSE = 2000;
/** Commands that the terminal of the film shows. */
const MOST_COMMANDS = 25;
const MOST_OUTPUT = 20_000;
const MOST_SAID = 1500;

/** Moments in both times. Between them, time passes evenly. */
export interface Track {
  real: number[];
  film: number[];
}

export function buildTrack(rows: readonly Row[], shorten: boolean): Track {
  const real = [...new Set(rows.flatMap(row => (row.end === null ? [row.start] : [row.start, row.end])))].sort((a, b) => a - b);
  const film: number[] = [];
  real.forEach((at, n) => {
    const passed = n === 0 ? 0 : at - real[n - 1]!;
    film.push(n === 0 ? 0 : film[n - 1]! + (shorten ? Math.min(passed, LONGEST_PAUSE) : passed));
  });
  return { real, film };
}

export function lengthOf({ film }: Track): number {
  return film.at(-1) ?? 0;
}

/** The last place whose value is not greater. */
function floorIndex(values: readonly number[], value: number): number {
  let low = -1;
  let high = values.length - 1;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (values[middle]! <= value) low = middle;
    else high = middle - 1;
  }
  return low;
}

function convert(from: readonly number[], to: readonly number[], at: number): number {
  const n = floorIndex(from, at);
  if (n < 0) return to[0] ?? 0;
  if (n >= from.length - 1) return to.at(-1) ?? 0;
  const length = from[n + 1]! - from[n]!;
  return to[n]! + (length > 0 ? (at - from[n]!) / length : 0) * (to[n + 1]! - to[n]!);
}

export function toReal(track: Track, film: number): number {
  return convert(track.film, track.real, film);
}

export function toFilm(track: Track, real: number): number {
  return convert(track.real, track.film, real);
}

/** The last event at or before a time: with reduced motion, the film goes from event to event. */
export function eventAt({ film }: Track, at: number): number {
  return film[Math.max(0, floorIndex(film, at))] ?? 0;
}

/** Where the picture of a step is: its whole observation, or a text in Base64 within it. */
export type PictureSource = { step: Step; text: string | null };
const pictures = new WeakMap<Step, PictureSource | null>();

export function pictureOf(step: Step): PictureSource | null {
  const known = pictures.get(step);
  if (known !== undefined) return known;
  const found = findPicture(step);
  pictures.set(step, found);
  return found;
}

function findPicture(step: Step): PictureSource | null {
  const body = step.observation;
  if (!body || step.outcome !== 'ok') return null;
  if ('blob' in body) return body.blob.kept && /screenshot/i.test(step.action) ? { step, text: null } : null;
  if (!('json' in body)) return null;
  const shown = printed(body.json);
  for (const one of shown && 'parts' in shown ? shown.parts.map(partOf) : [shown]) if (one && 'picture' in one) return { step, text: one.picture };
  return null;
}

/** What a step adds to the terminal: its command when it starts, its output when it has ended. */
function terminalOf(step: Step, hasEnded: boolean): Piece[] {
  const asked = step.arguments && 'json' in step.arguments ? command(step.arguments.json) : null;
  if (!asked) return [];
  const prompt: Piece[] = asked[0]?.[1] === 'prompt' ? [...asked] : [['>>> ', 'prompt'], ...asked];
  if (!hasEnded) return prompt;
  const body = step.observation;
  const shown = body && 'json' in body ? printed(body.json) : body && 'text' in body ? { terminal: [[body.text, 'output']] as Piece[] } : null;
  const output: Piece[] = shown && 'terminal' in shown ? shown.terminal.map(([text, kind]) => [text.slice(-MOST_OUTPUT), kind] as const) : [];
  const text = output.map(([one]) => one).join('');
  return [...prompt, ['\n', 'output'], ...output, ...(text && !text.endsWith('\n') ? [['\n', 'output'] as const] : [])];
}

export interface Scene {
  /** What started last. */
  row: Row | null;
  picture: PictureSource | null;
  terminal: Piece[];
  /** What a model said last. */
  said: string;
}

/** What is to be seen at a real time. Rows are in the order of their starts, as nearly as their numbers are. */
export function sceneAt(rows: readonly Row[], at: number): Scene {
  let row: Row | null = null;
  let picture: PictureSource | null = null;
  let said: string | null = null;
  const commands: Piece[][] = [];
  for (let n = rows.length - 1; n >= 0; n--) {
    const one = rows[n]!;
    if (one.start > at) continue;
    row ??= one;
    const { step } = one;
    if (!step) continue;
    const hasEnded = one.end !== null && one.end <= at;
    if (hasEnded) picture ??= pictureOf(step);
    if (hasEnded && step.dialect === 'model' && said === null && step.observation && 'json' in step.observation) {
      said = (saidMessages(step.observation.json) ?? []).filter(message => message.role !== 'reasoning').map(message => message.text).join('\n').slice(0, MOST_SAID);
    }
    if (commands.length < MOST_COMMANDS) {
      const pieces = terminalOf(step, hasEnded);
      if (pieces.length > 0) commands.push(pieces);
    }
    if (picture && said !== null && commands.length >= MOST_COMMANDS) break;
  }
  return { row, picture, terminal: commands.reverse().flat(), said: said ?? '' };
}
