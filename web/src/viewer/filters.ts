// What is shown of a run: kept in the address, so that it can be shared.

import { type Annotation, type AnnotationsOf, WHOLE, fitsNote, isNoteChoice } from './annotations';
import { KINDS, type Kind, type Outcome, type Row, searchText } from './rows';

export type View = 'step' | 'film';
export interface Filters {
  text: string;
  kind: Kind | '';
  tool: string;
  outcome: Outcome | '';
  origin: string;
  /** Milliseconds. */
  least: number;
  /** By annotations: see `noteChoices`. */
  note: string;
}

export const NO_FILTERS: Filters = { text: '', kind: '', tool: '', outcome: '', origin: '', least: 0, note: '' };
export const OUTCOMES: readonly (readonly [Outcome | '', string])[] = [['', 'Outcome'], ['ok', 'Succeeded'], ['failed', 'Failed'], ['refused', 'Refused'], ['running', 'Running'], ['unknown', 'Unknown']];
export const ORIGINS: readonly (readonly [string, string])[] = [['', 'Origin'], ['agent', 'An agent'], ['person', 'A person'], ['system', 'The system']];
export const LEAST: readonly (readonly [number, string])[] = [[0, 'Duration'], [100, 'At least 100 ms'], [1000, 'At least 1 s'], [10_000, 'At least 10 s'], [60_000, 'At least 1 min']];

export interface Address {
  filters: Filters;
  view: View;
  compare: string;
  /** The row that is chosen: `step-7`. */
  row: string;
}

function oneOf<T extends string>(value: string | null, all: readonly (readonly [T, string])[]): T | '' {
  return all.find(([name]) => name === value)?.[0] ?? '';
}

export function parseAddress(search: string, hash: string): Address {
  const query = new URLSearchParams(search);
  const least = Number(query.get('min') ?? 0);
  return {
    filters: {
      text: query.get('q') ?? '', kind: oneOf(query.get('kind'), KINDS), tool: query.get('tool') ?? '', outcome: oneOf(query.get('outcome'), OUTCOMES),
      origin: oneOf(query.get('origin'), ORIGINS), least: Number.isFinite(least) && least > 0 ? least : 0, note: isNoteChoice(query.get('note') ?? '') ? query.get('note')! : '',
    },
    view: query.get('view') === 'film' ? 'film' : 'step',
    compare: query.get('compare') ?? '',
    row: /^#((?:step|network|session|right)-\d+)$/.exec(hash)?.[1] ?? '',
  };
}

export function formatAddress({ filters, view, compare, row }: Address): string {
  const query = new URLSearchParams();
  const parts = { q: filters.text, kind: filters.kind, tool: filters.tool, outcome: filters.outcome, origin: filters.origin, min: filters.least > 0 ? String(filters.least) : '', note: filters.note, view: view === 'step' ? '' : view, compare };
  for (const [name, value] of Object.entries(parts)) if (value) query.set(name, value);
  return `${query.size > 0 ? `?${query}` : ''}${row ? `#${row}` : ''}`;
}

export function isFiltered(filters: Filters): boolean {
  return Object.values(filters).some(Boolean);
}

/** All words have to be found. A gap of the record belongs to nobody, so no origin hides it. */
export function filterRows(rows: readonly Row[], filters: Filters, annotations: AnnotationsOf = new Map()): readonly Row[] {
  if (!isFiltered(filters)) return rows;
  const words = filters.text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter(row => {
    const isGap = row.step?.outcome === 'damaged';
    if (filters.kind && row.kind !== filters.kind) return false;
    if (filters.tool && row.tool !== filters.tool) return false;
    if (filters.outcome && row.outcome !== filters.outcome && !(isGap && filters.outcome === 'failed')) return false;
    if (filters.origin && row.origin !== filters.origin && !isGap) return false;
    if (filters.least > 0 && (row.duration ?? 0) < filters.least) return false;
    if (filters.note && !(row.step && fitsNote(annotationsOf(row, annotations), filters.note))) return false;
    return words.every(word => searchText(row).includes(word));
  });
}

/** Those of a step. */
export function annotationsOf({ step }: Row, annotations: AnnotationsOf): readonly Annotation[] {
  return (step && step.step !== WHOLE && annotations.get(step.step)) || NONE;
}

const NONE: readonly Annotation[] = [];

/** Tools by how often they occur. */
export function toolsOf(rows: readonly Row[]): [tool: string, count: number][] {
  const counts = new Map<string, number>();
  for (const { tool } of rows) counts.set(tool, (counts.get(tool) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]));
}

export function isFailure(row: Row): boolean {
  return row.outcome === 'failed' || row.outcome === 'refused';
}

/** The next or the previous failure, seen from a row; null if there is none. */
export function findFailure(rows: readonly Row[], from: string, ways: 1 | -1): Row | null {
  const at = rows.findIndex(row => row.id === from);
  for (let n = at < 0 && ways < 0 ? rows.length - 1 : at + ways; n >= 0 && n < rows.length; n += ways) if (isFailure(rows[n]!)) return rows[n]!;
  return null;
}
