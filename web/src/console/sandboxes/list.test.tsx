import { act, cleanup, fireEvent, render, screen, waitFor } from '@testing-library/preact';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';

import { Rights, route } from '../../shell';
import { parseRoute } from '../../shell/router';
import { Dialogs, closeDialogs } from '../../ui/dialog';
import { SandboxesPage } from './list';
import { type Sandbox, NO_FILTER, filter, known, ready, sandboxes } from './store';
import { readView, savedViews, viewQuery } from './views';

const sandbox = (name: string, more: Partial<Sandbox> = {}): Sandbox => ({
  name, id: `id-${name}`, state: 'running', state_since: '2026-01-01T00:00:00Z', created_at: '2026-01-01T00:00:00Z', last_used_at: '2026-01-01T00:00:00Z', origin: 'api', tier: 'namespace',
  revision: 1, spec: { image: 'base', labels: { team: 'red' } }, ...more,
});
const ADMIN = new Rights({ tenant: 'acme', role: 'admin', operator: false, bound: [], tenants: true, quotas: [] });
const fetched = vi.fn<(path: string, options?: RequestInit) => Promise<Response>>();

beforeEach(() => {
  history.replaceState(null, '', '#/');
  route.value = parseRoute('#/');
  fetched.mockReset().mockImplementation(() => Promise.resolve(new Response(JSON.stringify({ sandboxes: sandboxes.value }))));
  vi.stubGlobal('fetch', fetched);
  filter.value = NO_FILTER;
  ready.value = true;
  sandboxes.value = [sandbox('old', { created_at: '2025-01-01T00:00:00Z' }), sandbox('new'), sandbox('paused', { state: 'paused', created_at: '2025-06-01T00:00:00Z' })];
});
afterEach(() => {
  closeDialogs();
  cleanup();
  vi.unstubAllGlobals();
});

const names = (): (string | null)[] => [...document.querySelectorAll('a.title')].map(link => link.textContent);

it('shows the newest first, and finds by name, state and label', async () => {
  render(<SandboxesPage rights={ADMIN} />);
  expect(names()).toEqual(['new', 'paused', 'old']);
  fireEvent.input(screen.getByRole('searchbox', { name: 'Find sandboxes' }), { target: { value: 'team=red paused' } });
  await waitFor(() => expect(names()).toEqual(['paused']));
  expect(location.hash).toBe('#/?find=team%3Dred+paused');
  fireEvent.input(screen.getByRole('searchbox', { name: 'Find sandboxes' }), { target: { value: 'none' } });
  await screen.findByText('No sandbox matches');
});

it('filters by state on the server', async () => {
  render(<SandboxesPage rights={ADMIN} />);
  fireEvent.click(screen.getByRole('button', { name: 'Filter by state' }));
  fireEvent.click(screen.getByRole('menuitemcheckbox', { name: 'paused' }));
  await waitFor(() => expect(fetched.mock.calls.some(([path]) => path === 'api/v2/sandboxes?state=paused')).toBe(true));
  fireEvent.click(await screen.findByRole('button', { name: 'Remove the filter state: paused' }));
  await waitFor(() => expect(location.hash).toBe('#/'));
});

it('shows nodes where there are several, and filters by them on the server', async () => {
  const { unmount } = render(<SandboxesPage rights={ADMIN} />);
  expect(screen.queryByRole('button', { name: 'Filter by node' })).toBeNull();
  expect(screen.queryByRole('columnheader', { name: /Node/ })).toBeNull();
  unmount();
  known.value = sandboxes.value = [sandbox('here', { node: 'red' }), sandbox('there', { node: 'green' })];
  render(<SandboxesPage rights={ADMIN} />);
  expect(screen.getByRole('columnheader', { name: /Node/ })).toBeTruthy();
  fireEvent.click(screen.getByRole('button', { name: 'Filter by node' }));
  fireEvent.click(screen.getByRole('menuitemcheckbox', { name: 'green' }));
  await waitFor(() => expect(fetched.mock.calls.some(([path]) => path === 'api/v2/sandboxes?node=green')).toBe(true));
  known.value = [];
});

it('shows operators the sandboxes of another tenant, and nothing that would reach their own', async () => {
  const operator = new Rights({ ...ADMIN.me, operator: true });
  const own = sandboxes.value;
  fetched.mockImplementation(path => Promise.resolve(new Response(JSON.stringify(
    path === 'api/v2/tenants' ? { tenants: [{ name: 'acme' }, { name: 'other' }] } : path === 'api/v2/sandboxes?tenant=other' ? { sandboxes: [sandbox('old')] } : { sandboxes: own },
  ))));
  render(<SandboxesPage rights={operator} />);
  fireEvent.click(await screen.findByRole('button', { name: 'Filter by tenant' }));
  fireEvent.click(screen.getByRole('menuitemcheckbox', { name: 'other' }));
  // At once: a row of one tenant must not be taken for one of another.
  expect(screen.queryByText('new')).toBeNull();
  await waitFor(() => expect(screen.getByText('old')).toBeTruthy());
  expect(names()).toEqual([]);
  expect(screen.queryByRole('checkbox')).toBeNull();
  expect(screen.queryByRole('button', { name: 'Delete old' })).toBeNull();
  fireEvent.click(screen.getByRole('button', { name: 'Remove the filter tenant: other' }));
  await waitFor(() => expect(names()).toEqual(['new', 'paused', 'old']));
});

it('offers tenants only to operators', async () => {
  render(<SandboxesPage rights={ADMIN} />);
  await waitFor(() => expect(fetched).toHaveBeenCalled());
  expect(fetched.mock.calls.some(([path]) => path === 'api/v2/tenants')).toBe(false);
  expect(screen.queryByRole('button', { name: 'Filter by tenant' })).toBeNull();
});

it('deletes those that are selected, after a question', async () => {
  render(<><SandboxesPage rights={ADMIN} /><Dialogs /></>);
  fireEvent.click(screen.getByRole('checkbox', { name: 'Select old' }));
  fireEvent.click(screen.getByRole('checkbox', { name: 'Select new' }));
  fireEvent.click(await screen.findByRole('button', { name: 'Delete selected' }));
  fireEvent.click(await screen.findByRole('button', { name: 'Delete' }));
  await waitFor(() => {
    const deleted = fetched.mock.calls.filter(([, options]) => options?.method === 'DELETE').map(([path]) => path);
    expect(deleted.sort()).toEqual(['api/v2/sandboxes/new', 'api/v2/sandboxes/old']);
  });
});

it('offers no changes to a role that only reads', () => {
  render(<SandboxesPage rights={new Rights({ ...ADMIN.me, role: 'read' })} />);
  expect(screen.queryByRole('checkbox')).toBeNull();
  expect(screen.queryByRole('button', { name: 'Delete old' })).toBeNull();
  expect(screen.queryByRole('button', { name: 'Create sandbox' })).toBeNull();
});

it('says what to do without sandboxes', () => {
  act(() => { sandboxes.value = []; });
  render(<SandboxesPage rights={ADMIN} />);
  expect(screen.getByRole('heading', { name: 'No sandboxes yet' })).toBeTruthy();
  expect(screen.getByRole('button', { name: 'Create the first one' })).toBeTruthy();
});

it('reads views from addresses, whatever they have', () => {
  const view = readView(new URLSearchParams('state=paused,none&label=team%253Dred%2Cx&sort=-cpu&find=a'));
  expect(view).toMatchObject({ find: 'a', sort: '-cpu', filter: { states: ['paused'], labels: ['team=red', 'x'] } });
  expect(readView(new URLSearchParams(viewQuery(view)))).toEqual(view);
  expect(readView(new URLSearchParams('label=%25E0%25A4')).filter.labels).toEqual([]);
  expect(savedViews.value).toEqual([]);
});
