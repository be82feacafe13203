// Annotations of a run: read again at an interval, since other people write them, too.

import { type Schemas, all, api, idempotencyKey } from '../client/api';
import { type Resource, useResource } from '../client/resource';
import { rights } from '../shell/rights';

export type Annotation = Schemas['Annotation'];
export type AnnotationsOf = ReadonlyMap<number, readonly Annotation[]>;

const REFRESH = 15_000;
/** In the map by steps, the whole run. */
export const WHOLE = 0;
export const RATINGS = [1, 2, 3, 4, 5] as const;
/** As the server has them. */
export const MOST_TEXT = 8192;
export const MOST_LABELS = 16;
const LABEL = /^[a-z0-9](?:[a-z0-9._:/-]{0,61}[a-z0-9])?$/;

export function useAnnotations(id: string): Resource<Annotation[]> {
  return useResource(`annotations ${id}`, signal => all('/api/v1/trajectories/{id}/annotations', 'annotations', { path: { id }, query: { limit: 1000 }, signal }), REFRESH);
}

export function byStep(annotations: readonly Annotation[]): AnnotationsOf {
  const found = new Map<number, Annotation[]>();
  for (const one of annotations) {
    const step = one.step ?? WHOLE;
    found.set(step, [...(found.get(step) ?? []), one]);
  }
  return found;
}

export function labelsOf(annotations: readonly Annotation[]): string[] {
  return [...new Set(annotations.flatMap(one => one.labels))].sort();
}

/** The mean of their ratings; null if none rates. */
export function ratingOf(annotations: readonly Annotation[]): number | null {
  const ratings = annotations.flatMap(one => (one.rating == null ? [] : [one.rating]));
  return ratings.length > 0 ? ratings.reduce((sum, one) => sum + one, 0) / ratings.length : null;
}

export function ratingText(rating: number): string {
  return `${Number.isInteger(rating) ? rating : rating.toFixed(1)} of 5`;
}

/** What a list says of annotations: the rating, the labels, the number of notes. */
export function summaryText(annotations: readonly Annotation[]): string {
  const rating = ratingOf(annotations);
  const notes = annotations.filter(one => one.text).length;
  return [rating === null ? '' : `rated ${ratingText(rating)}`, ...labelsOf(annotations), notes > 0 ? `${notes} ${notes === 1 ? 'note' : 'notes'}` : ''].filter(Boolean).join(', ');
}

/** Values of the filter by annotations, as in the address. */
export function noteChoices(annotations: readonly Annotation[], chosen: string): [string, string][] {
  const labels = labelsOf(annotations).map(label => `label-${label}`);
  if (chosen.startsWith('label-') && !labels.includes(chosen)) labels.push(chosen);
  return [['', 'Notes'], ['any', 'Annotated'], ['none', 'Not annotated'], ['high', 'Rated 4 or more'], ['low', 'Rated 2 or less'], ...labels.map((value): [string, string] => [value, `Label ${value.slice(6)}`])];
}

export function isNoteChoice(value: string): boolean {
  return /^(?:any|none|high|low)$/.test(value) || (value.startsWith('label-') && LABEL.test(value.slice(6)));
}

export function fitsNote(annotations: readonly Annotation[], choice: string): boolean {
  if (choice === 'any') return annotations.length > 0;
  if (choice === 'none') return annotations.length === 0;
  const rating = ratingOf(annotations);
  if (choice === 'high') return rating !== null && rating >= 4;
  if (choice === 'low') return rating !== null && rating <= 2;
  return annotations.some(one => one.labels.includes(choice.slice(6)));
}

/** Labels as they were typed, between spaces or commas; or what is wrong with them. */
export function parseLabels(text: string): { labels: string[] } | { error: string } {
  const labels = [...new Set(text.toLowerCase().split(/[\s,]+/).filter(Boolean))];
  const wrong = labels.find(label => !LABEL.test(label));
  if (wrong !== undefined) return { error: `“${wrong.slice(0, 80)}” is no label: use letters, digits and inner . _ : / -, at most 63.` };
  if (labels.length > MOST_LABELS) return { error: `At most ${MOST_LABELS} labels.` };
  return { labels };
}

/** Who is signed in, as authors are named. */
function me(): string | null {
  const who = rights.value?.me;
  return who?.key ?? (who?.subject ? `user:${who.subject}` : null);
}

export function authorText(author: string | null | undefined): string {
  if (author == null) return '';
  return author.startsWith('user:') ? author.slice(5) : `key ${author}`;
}

export function mayAnnotate(): boolean {
  return rights.value?.may('use') ?? false;
}

export interface Written {
  text: string;
  labels: string[];
  rating: number | null;
}

const LIST = '/api/v1/trajectories/{id}/annotations';
const ONE = '/api/v1/trajectories/{id}/annotations/{annotation}';

export function addAnnotation(id: string, step: number, written: Partial<Written>): Promise<Annotation> {
  const { rating = null, ...rest } = written;
  const about = step === WHOLE ? {} : { step };
  return api.post(LIST, { path: { id }, body: { ...about, ...rest, ...(rating === null ? {} : { rating }) }, headers: { 'idempotency-key': idempotencyKey() } });
}

/** Refused if it has changed since it was read. */
export function changeAnnotation(id: string, { id: annotation, revision }: Annotation, written: Partial<Written>): Promise<Annotation> {
  return api.patch(ONE, { path: { id, annotation }, body: written, headers: { 'if-match': `"${annotation}-${revision}"` } });
}

export function removeAnnotation(id: string, { id: annotation, revision }: Annotation): Promise<unknown> {
  return api.delete(ONE, { path: { id, annotation }, headers: { 'if-match': `"${annotation}-${revision}"` } });
}

/** Rates a step, or the whole run. One's own rating is changed, not given twice. */
export function rate(id: string, step: number, annotations: readonly Annotation[], rating: number): Promise<Annotation> {
  const own = annotations.find(one => one.rating != null && (one.author ?? null) === me());
  return own ? changeAnnotation(id, own, { rating }) : addAnnotation(id, step, { rating });
}
