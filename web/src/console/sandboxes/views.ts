// What the list of sandboxes shows, as its address has it; and views that are saved in the browser.

import { decoded, stored } from '../../shell';
import type { Filter, State } from './store';

export const STATES: readonly State[] = ['creating', 'running', 'paused', 'failed', 'lost', 'deleting'];

export interface ListView {
  find: string;
  filter: Filter;
  sort: string;
}

export const DEFAULT_SORT = '-age';

/** Reads a view from the query of the address. */
export function readView(query: URLSearchParams): ListView {
  const list = (name: string): string[] => (query.get(name) ?? '').split(',').filter(Boolean);
  return {
    find: query.get('find') ?? '',
    filter: {
      states: list('state').filter((state): state is State => (STATES as readonly string[]).includes(state)),
      labels: list('label').map(decoded).filter(Boolean), template: query.get('template') ?? '', group: query.get('group') ?? '', image: query.get('image') ?? '', node: query.get('node') ?? '', tenant: query.get('tenant') ?? '',
    },
    sort: query.get('sort') ?? DEFAULT_SORT,
  };
}

export function viewQuery({ find, filter: { states, labels, ...single }, sort }: ListView): Record<string, string> {
  return { find: find.trim(), state: states.join(','), label: labels.map(encodeURIComponent).join(','), ...single, sort: sort === DEFAULT_SORT ? '' : sort };
}

export interface SavedView {
  name: string;
  query: Record<string, string>;
}

export const MOST_VIEWS = 20;

export const savedViews = stored<SavedView[]>('views', [], (value): value is SavedView[] =>
  Array.isArray(value) && value.every(one => typeof one === 'object' && one !== null && typeof (one as SavedView).name === 'string' && typeof (one as SavedView).query === 'object'));

export function saveView(name: string, query: Record<string, string>): void {
  savedViews.value = [...savedViews.value.filter(view => view.name !== name), { name, query }].slice(-MOST_VIEWS);
}

export function removeView(name: string): void {
  savedViews.value = savedViews.value.filter(view => view.name !== name);
}
