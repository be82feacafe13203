import { beforeEach, expect, test, vi } from 'vitest';

import { type Sandbox, keepFresh, merged, sandboxes } from './store';

const box = (id: string, name: string, state = 'running') => ({ id, name, state, spec: { image: 'base' } }) as unknown as Sandbox;
const fetched = vi.fn<(path: string) => Promise<Response>>();
const listeners = new Map<string, (event: { data: string }) => void>();
let opened: () => void = () => undefined;

class Source {
  static readonly CLOSED = 2;
  readyState = 1;
  set onopen(handle: () => void) { opened = handle; }
  set onerror(_handle: () => void) { /* It does not fail. */ }
  addEventListener(name: string, handle: (event: { data: string }) => void): void { listeners.set(name, handle); }
  close(): void { /* Nothing is open. */ }
}

const paths = (): string[] => fetched.mock.calls.map(([path]) => new URL(path, 'http://server/').pathname).filter(path => path.startsWith('/api/v2/sandboxes'));
const names = (): string => sandboxes.value.map(one => `${one.name} ${one.state}`).join(', ');

beforeEach(() => {
  vi.stubGlobal('EventSource', Source);
  vi.stubGlobal('fetch', fetched);
});

test('changed sandboxes take the place of those with their ids', () => {
  const list = [box('1', 'a'), box('2', 'b'), box('3', 'c')];
  const found = merged(list, new Map([['2', null], ['3', box('3', 'c', 'paused')], ['4', box('4', 'd')], ['5', null]]));
  expect(found.map(one => `${one.id} ${one.state}`)).toEqual(['1 running', '3 paused', '4 running']);
});

test('only what changed is read again, and everything after a connection was lost', async () => {
  const held = new Map([['a', box('1', 'a')], ['b', box('2', 'b')]]);
  fetched.mockImplementation(path => {
    const { pathname } = new URL(path, 'http://server/');
    if (pathname === '/api/v2/sandboxes') return Promise.resolve(Response.json({ sandboxes: [...held.values()] }));
    if (pathname.startsWith('/api/v2/sandboxes/')) {
      const found = held.get(pathname.split('/').at(-1)!);
      return Promise.resolve(found ? Response.json(found) : Response.json({ code: 'sandbox_not_found' }, { status: 404 }));
    }
    return Promise.resolve(Response.json({ sandboxes: [], left_out: 0, trajectories: [] }));
  });
  keepFresh();
  await vi.waitFor(() => expect(names()).toBe('a running, b running'));
  fetched.mockClear();

  const change = (id: string, name: string, state: string | null): void => listeners.get('change')!({ data: JSON.stringify({ id, name, state }) });
  held.set('a', box('1', 'a', 'paused'));
  held.delete('b');
  held.set('c', box('3', 'c'));
  change('1', 'a', 'paused');
  change('2', 'b', null);
  change('3', 'c', 'running');
  await vi.waitFor(() => expect(names()).toBe('a paused, c running'));
  expect(paths().sort()).toEqual(['/api/v2/sandboxes/a', '/api/v2/sandboxes/b', '/api/v2/sandboxes/c']);

  // The name is that of a newer sandbox by now.
  fetched.mockClear();
  held.set('a', box('4', 'a'));
  change('1', 'a', null);
  change('4', 'a', 'running');
  await vi.waitFor(() => expect(sandboxes.value.map(one => one.id)).toEqual(['3', '4']));

  fetched.mockClear();
  held.set('d', box('5', 'd'));
  opened();
  change('5', 'd', 'running');
  await vi.waitFor(() => expect(names()).toBe('a running, c running, d running'));
  expect(paths()).toEqual(['/api/v2/sandboxes']);
});
