// Addresses of pages: `#/sandboxes/NAME?tab=log`. The part before `?` is a path, its first part names the page.

import { signal } from '@preact/signals';

export interface Route {
  /** The first part of the path; empty for `#/`. */
  page: string;
  /** The other parts, decoded. */
  parts: string[];
  query: URLSearchParams;
}

/** A part of an address; a malformed one names nothing. */
export function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return '';
  }
}

export function parseRoute(hash: string): Route {
  const text = hash.replace(/^#\/?/, '');
  const at = text.indexOf('?');
  const path = at < 0 ? text : text.slice(0, at);
  const [page = '', ...parts] = path.split('/').map(decoded);
  return { page, parts: parts.filter(part => part !== ''), query: new URLSearchParams(at < 0 ? '' : text.slice(at + 1)) };
}

export const route = signal<Route>(parseRoute(location.hash));
/** Counts the changes of pages, after which the focus goes to the heading. */
export const navigations = signal(0);

addEventListener('hashchange', () => {
  const before = route.value;
  const next = parseRoute(location.hash);
  route.value = next;
  if (before.page !== next.page || before.parts.join('/') !== next.parts.join('/')) navigations.value++;
});

/** The address of a page. Parts are encoded; empty values of the query are left out. */
export function pageAddress(parts: readonly string[], query: Record<string, string> = {}): string {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ''));
  return `#/${parts.map(encodeURIComponent).join('/')}${search.size > 0 ? `?${search}` : ''}`;
}

export function go(address: string): void {
  location.hash = address;
}

/** Changes the query of this page, without an entry in the history. */
export function replaceQuery(query: Record<string, string>): void {
  const { page, parts } = route.value;
  const next = pageAddress(page === '' ? [] : [page, ...parts], query);
  if (next === location.hash || (next === '#/' && location.hash === '')) return;
  history.replaceState(null, '', next);
  route.value = parseRoute(next);
}

export function sandboxPage(name: string, query: Record<string, string> = {}): string {
  return pageAddress(['sandboxes', name], query);
}
