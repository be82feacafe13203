import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { all, api, fill, onUnauthorized, setRoot } from './api';
import { ApiError } from './errors';

const fetched = vi.fn<(path: string, options: RequestInit) => Promise<Response>>();
const json = (value: unknown, status = 200): Response => new Response(JSON.stringify(value), { status });

beforeEach(() => {
  fetched.mockReset();
  vi.stubGlobal('fetch', fetched);
});
afterEach(() => {
  setRoot('');
  onUnauthorized(null);
  vi.unstubAllGlobals();
});

describe('calls', () => {
  it('fill paths and queries, and say that a person causes them', async () => {
    fetched.mockResolvedValue(json({ sandboxes: [] }));
    setRoot('../');
    await api.get('/api/v2/sandboxes', { query: { state: ['running', 'paused'], limit: 10 } });
    const [path, options] = fetched.mock.calls[0]!;
    expect(path).toBe('../api/v2/sandboxes?state=running&state=paused&limit=10');
    expect(new Headers(options.headers).get('x-arenite-origin')).toBe('person');
    expect(fill('/api/v2/sandboxes/{name}', { path: { name: '../<x>' } })).toBe('/api/v2/sandboxes/..%2F%3Cx%3E');
    expect(fill('/api/v2/images/{name}', { path: { name: 'team/app:1' } })).toBe('/api/v2/images/team/app%3A1');
    for (const name of ['a/../../sandboxes', '../x', 'a//b', 'a/.']) expect(fill('/api/v2/images/{name}', { path: { name } })).not.toContain(name);
  });

  it('report refusals with their hints', async () => {
    fetched.mockResolvedValue(json({ detail: 'quota exceeded', hint: 'delete one', code: 'quota_exceeded', quota: { quota: 'sandboxes', limit: 1, used: 1, requested: 1 } }, 409));
    const refused = await api.post('/api/v2/sandboxes', { body: { name: 'x' } }).catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(ApiError);
    expect(refused).toMatchObject({ status: 409, reason: 'Quota exceeded.', hint: 'Delete one', message: 'Quota exceeded. Delete one', quota: { quota: 'sandboxes' } });
    fetched.mockResolvedValue(json({ detail: 'no', quota: { quota: 'memory_bytes', limit: 1 << 30, used: 0, requested: 2 ** 32 } }, 409));
    expect(await api.get('/api/v2/sandboxes').catch((error: unknown) => error)).toMatchObject({ reason: 'Memory: this tenant may have 1.0 GiB, has 0 B, and requested 4.0 GiB more.' });
  });

  it('report a failure within an answer of 200', async () => {
    fetched.mockResolvedValue(json({ success: false, message: 'no such file' }));
    await expect(api.get('/api/v2/info')).rejects.toThrow('No such file.');
  });

  it('report a server that can\'t be reached, but not an abort', async () => {
    fetched.mockRejectedValue(new TypeError('failed'));
    await expect(api.get('/api/v2/info')).rejects.toMatchObject({ status: 0 });
    const controller = new AbortController();
    controller.abort();
    fetched.mockRejectedValue(new DOMException('gone', 'AbortError'));
    await expect(api.get('/api/v2/info', { signal: controller.signal })).rejects.toMatchObject({ name: 'AbortError' });
  });

  it('ask to sign in, and are made again', async () => {
    fetched.mockResolvedValueOnce(json({}, 401)).mockResolvedValueOnce(json({ version: '1' }));
    const ask = vi.fn().mockResolvedValue(undefined);
    onUnauthorized(ask);
    expect(await api.get('/api/v2/info')).toMatchObject({ version: '1' });
    expect(ask).toHaveBeenCalledTimes(1);
  });
});

it('all pages of a list are read, up to a number of entries', async () => {
  fetched.mockImplementation(path => Promise.resolve(json(path.includes('cursor=b') ? { groups: [{ name: 'c' }] } : { groups: [{ name: 'a' }], next_cursor: 'b' })));
  expect((await all('/api/v2/groups', 'groups')).map(one => one.name)).toEqual(['a', 'c']);
  expect(await all('/api/v2/groups', 'groups', { most: 1 })).toHaveLength(1);
});
