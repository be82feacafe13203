// Two runs beside each other: which steps belong together, and where they differ first.

import { kindOf, outcomeOf } from './rows';
import { type Recorded, type Step, failure, title } from './step';

export type Difference = 'same' | 'arguments' | 'result' | 'observation' | 'left' | 'right';
export interface Pair {
  id: string;
  left: Step | null;
  right: Step | null;
  difference: Difference;
  /** What differs, in a few words. */
  note: string;
}

/** Steps ahead that are searched for one that is equal again. */
const AHEAD = 64;
const MOST_TEXT = 20_000;

/** Words that differ in each run. */
const VOLATILE: readonly (readonly [RegExp, string])[] = [
  [/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/gi, '<uuid>'],
  [/\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?/g, '<time>'],
  [/\b\d\d:\d\d:\d\d(\.\d+)?\b/g, '<time>'],
  [/\b\d+(\.\d+)?(?=\s?(s|ms|us|ns|seconds)\b)/g, '<took>'],
  [/\/tmp\/tmp\.?[A-Za-z0-9_]+/g, '/tmp/<tmp>'],
  [/0x[0-9a-f]{6,}/gi, '<address>'],
];
/** Fields of bodies that differ in each run, or say only how long something took. */
const VOLATILE_FIELDS = /^(id|.*_id|pid|port|host(name)?|created(_at)?|.*_at|.*_ms|duration|elapsed|timestamp|time|system_fingerprint|usage)$/;

export function masked(text: string): string {
  return VOLATILE.reduce((all, [pattern, word]) => all.replace(pattern, word), text.slice(0, MOST_TEXT));
}

export function bodyAsText(body: Recorded | null): string {
  if (!body) return '';
  if ('json' in body) return JSON.stringify(body.json, null, 2) ?? '';
  if ('text' in body) return body.text;
  return 'blob' in body ? `BLAKE3 ${body.blob.blake3}` : body.base64;
}

function compared(body: Recorded | null): string {
  if (!body || !('json' in body)) return masked(bodyAsText(body));
  return masked(JSON.stringify(body.json, (name, value: unknown) => (VOLATILE_FIELDS.test(name) && typeof value !== 'object' ? undefined : value)) ?? '');
}

interface Signature {
  tool: string;
  asked: string;
  came: string;
}
const signatures = new WeakMap<Step, Signature>();

function signature(step: Step): Signature {
  let found = signatures.get(step);
  if (!found) {
    // A picture is never equal to the byte, and creates name their sandboxes.
    const isPicture = kindOf(step) === 'screen';
    found = { tool: step.model ? `model ${step.model.model}` : title(step.action), asked: step.origin === 'system' ? '' : compared(step.arguments), came: isPicture || step.origin === 'system' ? '' : compared(step.observation) };
    signatures.set(step, found);
  }
  return found;
}

function isSameCall(left: Step, right: Step): boolean {
  const [a, b] = [signature(left), signature(right)];
  return a.tool === b.tool && a.asked === b.asked;
}

function ending(step: Step): string {
  return step.outcome === null ? 'running' : failure(step) || outcomeOf(step);
}

function pairOf(left: Step, right: Step): Pair {
  const id = `step-${left.step}`;
  const [a, b] = [signature(left), signature(right)];
  if (a.asked !== b.asked) return { id, left, right, difference: 'arguments', note: 'other arguments' };
  if (ending(left) !== ending(right)) return { id, left, right, difference: 'result', note: `${ending(left)}, then ${ending(right)}`.slice(0, 120) };
  if (a.came !== b.came) return { id, left, right, difference: 'observation', note: 'another answer' };
  return { id, left, right, difference: 'same', note: '' };
}

const onlyLeft = (left: Step): Pair => ({ id: `step-${left.step}`, left, right: null, difference: 'left', note: 'only in the first' });
const onlyRight = (right: Step): Pair => ({ id: `right-${right.step}`, left: null, right, difference: 'right', note: 'only in the second' });

/** Pairs equal calls. Where they differ, it searches ahead for the nearest equal ones, and pairs those between that use the same tool. */
export function align(left: readonly Step[], right: readonly Step[]): Pair[] {
  const pairs: Pair[] = [];
  let i = 0;
  let j = 0;
  while (i < left.length && j < right.length) {
    if (isSameCall(left[i]!, right[j]!)) {
      pairs.push(pairOf(left[i++]!, right[j++]!));
      continue;
    }
    const [skipLeft, skipRight] = resync(left, right, i, j);
    const [endLeft, endRight] = [i + skipLeft, j + skipRight];
    while (i < endLeft && j < endRight && signature(left[i]!).tool === signature(right[j]!).tool) pairs.push(pairOf(left[i++]!, right[j++]!));
    while (i < endLeft) pairs.push(onlyLeft(left[i++]!));
    while (j < endRight) pairs.push(onlyRight(right[j++]!));
  }
  while (i < left.length) pairs.push(onlyLeft(left[i++]!));
  while (j < right.length) pairs.push(onlyRight(right[j++]!));
  return pairs;
}

/** How many steps of each side come before the nearest equal calls. Without any, one of each. */
function resync(left: readonly Step[], right: readonly Step[], i: number, j: number): [number, number] {
  for (let sum = 1; sum <= AHEAD; sum++) {
    for (let x = 0; x <= sum; x++) {
      const [a, b] = [left[i + x], right[j + sum - x]];
      if (a && b && isSameCall(a, b)) return [x, sum - x];
    }
  }
  return [1, 1];
}

/** The first pair from a place on that differs, or -1. */
export function nextDifference(pairs: readonly Pair[], from: number): number {
  return pairs.findIndex((pair, n) => n >= from && pair.difference !== 'same');
}
