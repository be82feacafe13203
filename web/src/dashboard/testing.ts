// For tests: answers of the server by method and path.

import { vi } from 'vitest';

type Answer = (url: URL, options: RequestInit & { body?: string }) => Response | unknown;

export interface Call {
  method: string;
  path: string;
  body: unknown;
}

/** Stubs `fetch`. `routes`: an answer by `GET path`, without the query. What is no response becomes JSON. */
export function answering(routes: Record<string, Answer>): Call[] {
  const calls: Call[] = [];
  vi.stubGlobal('fetch', vi.fn((path: string, options: RequestInit & { body?: string } = {}) => {
    const url = new URL(path, 'http://box.example/');
    const method = options.method ?? 'GET';
    calls.push({ method, path: url.pathname + url.search, body: options.body ? JSON.parse(options.body) : undefined });
    const answer = routes[`${method} ${url.pathname}`];
    if (!answer) return Promise.resolve(json({ message: `nothing at ${method} ${url.pathname}` }, 404));
    const value = answer(url, options);
    return Promise.resolve(value instanceof Response ? value : json(value));
  }));
  return calls;
}

export function json(value: unknown, status = 200): Response {
  return new Response(JSON.stringify(value), { status });
}

/** In the envelope of the sandbox's API. */
export function data(value: unknown): unknown {
  return { success: true, message: null, data: value };
}
