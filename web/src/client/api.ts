// Typed calls to the server: the paths, parameters, bodies and answers are those of its OpenAPI document.

import { ApiError } from './errors';
import type { components, paths } from '../../generated/schema';

export type Schemas = components['schemas'];
type Method = 'get' | 'post' | 'put' | 'patch' | 'delete';
type Operation<P extends keyof paths, M extends Method> = paths[P] extends Record<M, infer O> ? O : never;
/** The paths that have a method. */
type PathsWith<M extends Method> = { [P in keyof paths]: paths[P] extends Record<M, { responses: unknown }> ? P : never }[keyof paths];
type Content<T> = T extends { content: { 'application/json': infer C } } ? C : never;
type Answer<O> = O extends { responses: infer R } ? Content<R[keyof R & (200 | 201 | 202)]> : never;
type Body<O> = O extends { requestBody: { content: { 'application/json': infer B } } } ? { body: B }
  : O extends { requestBody?: { content: { 'application/json': infer B } } } ? { body?: B } : { body?: never };
type Parameters<O, K extends 'path' | 'query'> = O extends { parameters: { [k in K]: infer P } } ? P : O extends { parameters: { [k in K]?: infer P } } ? P : undefined;
type Path<O> = Parameters<O, 'path'> extends infer P ? (undefined extends P ? { path?: never } : { path: P }) : never;
type Query<O> = { query?: Exclude<Parameters<O, 'query'>, undefined> };
interface Common {
  signal?: AbortSignal;
  headers?: Record<string, string>;
}
type Options<O> = Common & Path<O> & Query<O> & Body<O>;
/** Options may be left out if none of them is required. */
type Args<O> = {} extends Options<O> ? [options?: Options<O>] : [options: Options<O>];

/** How a page's address relates to the server's root: `''` for `/`, `'../'` for `/trajectory/ID`. */
let root = '';

export function setRoot(prefix: string): void {
  root = prefix;
}

/** The address of a server path such as `/api/v2/me`, as seen from the page. */
export function address(path: string): string {
  return root + path.replace(/^\//, '');
}

/** What to do when the session has ended; afterwards the call is made again. */
let signIn: (() => Promise<void>) | null = null;

export function onUnauthorized(ask: (() => Promise<void>) | null): void {
  signIn = ask;
}

/** Any request of a server path. A refusal is an `ApiError`; after a 401 the reader signs in, and it is sent again. */
export function request(path: string, options: RequestInit = {}): Promise<Response> {
  return requestAddress(address(path), options);
}

/** The same for an address as the page has it. */
export async function requestAddress(url: string, options: RequestInit = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  // It is for the record only: a person causes what a page requests.
  headers.set('x-arenite-origin', 'person');
  let answer: Response;
  try {
    answer = await fetch(url, { ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, { message: 'the server can\'t be reached' });
  }
  if (answer.status === 401 && signIn) {
    await signIn();
    return requestAddress(url, options);
  }
  if (!answer.ok) throw await ApiError.read(answer);
  return answer;
}

interface AnyOptions extends Common {
  path?: Record<string, unknown>;
  query?: Record<string, unknown>;
  body?: unknown;
}

/** Paths with a name that may have slashes, which stay as they are. */
const WITH_SLASHES: ReadonlySet<string> = new Set<keyof paths>(['/api/v2/images/{name}']);

/** Fills `{name}` in a path, and adds the query. Absent values are left out; lists repeat their name. */
export function fill(path: string, { path: parts = {}, query = {} }: AnyOptions = {}): string {
  // Dot segments would lead to another path.
  const encode = (text: string): string => (WITH_SLASHES.has(path) && !/(^|\/)\.{0,2}(\/|$)/.test(text) ? text.split('/').map(encodeURIComponent).join('/') : encodeURIComponent(text));
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encode(String(parts[name])));
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined && one !== null && one !== '') search.append(name, String(one));
  }
  return search.size > 0 ? `${filled}?${search}` : filled;
}

async function send(method: string, path: string, options: AnyOptions = {}): Promise<unknown> {
  const headers: Record<string, string> = { accept: 'application/json', ...options.headers };
  const init: RequestInit = { method, headers };
  if (options.signal) init.signal = options.signal;
  if (options.body !== undefined) {
    headers['content-type'] = 'application/json';
    init.body = JSON.stringify(options.body);
  }
  const answer = await request(fill(path, options), init);
  const value = (await answer.json()) as { success?: boolean; message?: string };
  // AIO reports a failure within an answer of 200.
  if (value.success === false) throw new ApiError(answer.status, { ...value, message: value.message || 'the call failed' });
  return value;
}

type Caller<M extends Method> = <P extends PathsWith<M>>(path: P, ...args: Args<Operation<P, M>>) => Promise<Answer<Operation<P, M>>>;

function caller<M extends Method>(method: M): Caller<M> {
  return ((path: string, options?: AnyOptions) => send(method.toUpperCase(), path, options)) as Caller<M>;
}

export const api = { get: caller('get'), post: caller('post'), put: caller('put'), patch: caller('patch'), delete: caller('delete') };

/** The most entries that `all` reads. */
export const MOST_ENTRIES = 20_000;

/** The fields of an answer that are lists. */
type ListField<A> = { [F in keyof A]-?: NonNullable<A[F]> extends readonly unknown[] ? F : never }[keyof A];
type Entry<A, F extends keyof A> = NonNullable<A[F]> extends readonly (infer E)[] ? E : never;

/** The entries of all pages of a list, up to a number of them. `warnings` gets what the server says of missing entries. */
export async function all<P extends PathsWith<'get'>, F extends ListField<Answer<Operation<P, 'get'>>>>(
  path: P, field: F, options: Omit<AnyOptions, 'body'> & { most?: number; warnings?: Set<string> } = {},
): Promise<Entry<Answer<Operation<P, 'get'>>, F>[]> {
  const { most = MOST_ENTRIES, warnings, ...rest } = options;
  const found: unknown[] = [];
  let cursor: string | null = null;
  do {
    const query: Record<string, unknown> = { ...rest.query, ...(cursor === null ? {} : { cursor }) };
    const page = (await send('GET', path, { ...rest, query })) as Record<string, unknown>;
    found.push(...((page[field as string] ?? []) as unknown[]));
    for (const text of (page.warnings ?? []) as string[]) warnings?.add(text);
    cursor = (page.next_cursor as string | null | undefined) ?? null;
  } while (cursor !== null && found.length < most);
  return found as Entry<Answer<Operation<P, 'get'>>, F>[];
}

/** A key that makes a repeated create find what the first one made. */
export function idempotencyKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map(byte => byte.toString(16).padStart(2, '0')).join('');
}
