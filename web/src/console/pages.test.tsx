import { cleanup, fireEvent, render, screen, waitFor } from '@testing-library/preact';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';

import { Rights, route } from '../shell';
import { parseRoute } from '../shell/router';
import { Dialogs, closeDialogs } from '../ui/dialog';
import { CorporaPage, readPassage } from './corpora';
import { NodesPage } from './nodes';
import { byTask, RolloutsPage } from './rollouts/page';
import { opened, readResults, totals } from './rollouts/results';
import { type Recorded, type Sandbox, known, recorded } from './sandboxes/store';
import { TemplatesPage } from './templates';
import { WorkersPage } from './workers';

const ADMIN = new Rights({ tenant: 'acme', role: 'admin', operator: true, bound: [], tenants: true, quotas: [] });
const fetched = vi.fn<(path: string, options?: RequestInit) => Promise<Response>>();
let answers: Record<string, unknown> = {};

function show(address: string): void {
  history.replaceState(null, '', address);
  route.value = parseRoute(address);
}

beforeEach(() => {
  answers = {};
  known.value = [];
  recorded.value = new Map();
  opened.value = null;
  fetched.mockReset().mockImplementation((path, options) => {
    const key = options?.method && options.method !== 'GET' ? `${options.method} ${path}` : path;
    return Promise.resolve(key in answers ? new Response(JSON.stringify(answers[key])) : new Response(JSON.stringify({ detail: `there is no ${path}`, code: 'not_found' }), { status: 404 }));
  });
  vi.stubGlobal('fetch', fetched);
});
afterEach(() => {
  closeDialogs();
  cleanup();
  vi.unstubAllGlobals();
});

const run = (trajectory: string, worker: string | null, task: string | null, more: Partial<Recorded> = {}): Recorded =>
  ({ trajectory, worker, task, sandbox_name: '', steps: 3, bytes: 10, ended: true, first_at: '2026-01-01T00:00:00Z', last_at: '2026-01-01T00:01:00Z', ...more });
const sent = (method: string): [string, unknown][] => fetched.mock.calls.filter(([, options]) => options?.method === method).map(([path, options]) => [path, JSON.parse((options?.body as string | undefined) ?? 'null')]);

it('templates: a list, a page with limits, and a create with the template chosen', async () => {
  const code = { name: 'code', description: 'For <b>code</b>', services: ['jupyter'], pool: 2, spec: { image: 'tools', timeout_seconds: 3600, resources: { cpu_millis: 500, memory_bytes: 1 << 30 } } };
  answers = { 'api/v2/templates': { templates: [code] }, 'api/v2/templates/code': code, 'api/v2/images': { images: [] } };
  show('#/templates');
  render(<><TemplatesPage rights={ADMIN} /><Dialogs /></>);
  expect((await screen.findByRole('link', { name: 'code' })).getAttribute('href')).toBe('#/templates/code');
  expect(screen.getByRole('link', { name: 'tools' }).getAttribute('href')).toBe('#/images/tools');
  expect(screen.getByText('For <b>code</b>')).toBeTruthy();
  fireEvent.click(screen.getByRole('button', { name: 'Create a sandbox from code' }));
  expect(((await screen.findByLabelText('Template')) as HTMLSelectElement).value).toBe('code');
  cleanup();
  closeDialogs();
  show('#/templates/code');
  render(<TemplatesPage rights={new Rights({ ...ADMIN.me, role: 'read' })} />);
  const limits = await screen.findByRole('region', { name: 'Limits' });
  expect(limits.textContent).toContain('0.5 cores');
  expect(limits.textContent).toContain('Lifetime1h');
  expect(screen.getByRole('region', { name: 'Start' }).textContent).toContain('2 sandboxes, created in advance');
  expect(screen.queryByRole('button', { name: 'Create a sandbox from it' })).toBeNull();
  cleanup();
  show('#/templates/none');
  render(<TemplatesPage rights={ADMIN} />);
  await screen.findByText('There is no such template');
});

it('nodes: without a cluster it explains, and a drain is asked for with its deadline', async () => {
  answers = { 'api/v2/nodes': { nodes: [] } };
  show('#/nodes');
  const { unmount } = render(<NodesPage />);
  await screen.findByRole('heading', { name: 'This server has no cluster' });
  unmount();
  const node = { name: 'red', state: 'up', epoch: 1, sandboxes: 4, room: 6, memory_total_bytes: 100, memory_available_bytes: 40, disk_total_bytes: 0, disk_available_bytes: 0, labels: { zone: 'a' }, tiers: ['namespace'], version: '1', address: 'h:1', started_at: '2026-01-01T00:00:00Z', renewed_at: '2026-01-01T00:00:00Z', drain: null };
  answers = { 'api/v2/nodes': { nodes: [node] }, 'POST api/v2/nodes/red/drain': node, 'POST api/v2/nodes/red/uncordon': node };
  render(<><NodesPage /><Dialogs /></>);
  const row = (await screen.findByRole('link', { name: 'red' })).closest('tr')!;
  expect(row.textContent).toContain('60 B of 100 B');
  fireEvent.click(screen.getByRole('button', { name: 'Drain red' }));
  const dialog = await screen.findByRole('dialog', { name: 'Drain the node red?' });
  expect(dialog.textContent).toContain('4 sandboxes');
  answers['api/v2/nodes'] = { nodes: [{ ...node, sandboxes: 2, drain: { since: '2026-01-01T00:00:00Z', deadline: null } }] };
  fireEvent.input(screen.getByLabelText('Delete those that are left after'), { target: { value: '30m' } });
  fireEvent.submit(dialog.querySelector('form')!);
  await waitFor(() => expect(sent('POST')).toEqual([['api/v2/nodes/red/drain', { deadline_seconds: 1800 }]]));
  await screen.findByText('draining: 2 left');
  fireEvent.click(screen.getByRole('button', { name: 'End the drain of red' }));
  fireEvent.click(await screen.findByRole('button', { name: 'End the drain' }));
  await waitFor(() => expect(sent('POST').at(-1)![0]).toBe('api/v2/nodes/red/uncordon'));
});

it('corpora: their size, and a search with its results, or why there are none', async () => {
  answers = {
    'api/v2/corpora': { corpora: ['docs', 'broken'] },
    'api/v2/corpora/docs': { name: 'docs', passages: 1200, best_mode: 'bm25', batches: { total_queries: 4 }, stats: { bytes: 4096, made_at: '2026-01-01T00:00:00Z' } },
    'POST api/v2/corpora/docs/search': { results: [{ id: 'p1', title: '<i>One</i>', text: 'first', metadata: { page: 3 }, score: 1.5 }, 'odd'] },
  };
  show('#/corpora');
  const { unmount } = render(<CorporaPage />);
  expect((await screen.findByRole('link', { name: 'docs' })).closest('tr')!.textContent).toContain('1,2004.0 KiB');
  // One that can't be opened does not hide the others.
  expect(screen.getByRole('link', { name: 'broken' }).closest('tr')!.textContent).toContain('There is no');
  unmount();
  show('#/corpora/docs');
  render(<CorporaPage />);
  fireEvent.click(await screen.findByRole('button', { name: 'Search' }));
  await screen.findByText('Enter what to search for.');
  fireEvent.input(screen.getByLabelText('Search for'), { target: { value: 'one' } });
  fireEvent.click(screen.getByRole('button', { name: 'Search' }));
  await screen.findByText('<i>One</i>');
  expect(sent('POST')).toEqual([['api/v2/corpora/docs/search', { query: 'one', top_k: 10, mode: null }]]);
  expect(screen.getByRole('list', { name: 'Results' }).textContent).toContain('p1, page: 3');
  expect(location.hash).toBe('#/corpora/docs?find=one');
  expect(readPassage('odd')).toEqual({ id: '', title: '', text: '', score: null, metadata: [] });
  delete answers['POST api/v2/corpora/docs/search'];
  fireEvent.click(screen.getByRole('button', { name: 'Search' }));
  expect((await screen.findByRole('alert')).textContent).toContain('There is no');
});

it('workers: sessions, the sandbox, and the way to the trajectory', async () => {
  const session = { session_id: 's1', session_name: 'bash-1', resource_type: 'bash', status: 'active', auto_created: false, created_at: '2026-01-01T00:00:00Z', last_activity: '2026-01-01T00:00:00Z', expires_at: '2026-01-01T01:00:00Z' };
  answers = { 'api/v2/workers': { workers: [{ worker_id: 'w1', sessions: [session] }, { worker_id: 'w2', sessions: [{ ...session, session_id: 's2', status: 'error' }] }] } };
  known.value = [{ id: 'x', name: 'box', spec: { image: 'base', labels: { 'agentflow.worker': 'w1' } } } as unknown as Sandbox];
  recorded.value = new Map([['t1', run('t1', 'w1', 'task-1')]]);
  show('#/workers');
  const { unmount } = render(<WorkersPage />);
  const row = (await screen.findByRole('link', { name: 'w1' })).closest('tr')!;
  expect(row.querySelector('a[href="#/sandboxes/box"]')).toBeTruthy();
  expect(screen.getByRole('link', { name: 'Trajectory of w1: 3 steps' }).getAttribute('href')).toBe('trajectory/t1');
  expect(screen.getByRole('link', { name: 'w2' }).closest('tr')!.textContent).toContain('error');
  unmount();
  show('#/workers/w1');
  render(<WorkersPage />);
  await screen.findByText('bash-1');
  expect(screen.getByRole('link', { name: 'task-1' }).getAttribute('href')).toBe('#/rollouts/task-1');
});

it('rollouts: attempts by task, and the results of a file', async () => {
  answers = { 'api/v2/workers': { workers: [{ worker_id: 'w2', sessions: [{}] }, { worker_id: 'w1', sessions: [] }] }, 'api/v1/trajectories': { trajectories: [run('t1', 'w1', 'a'), run('t2', 'w2', 'a', { first_at: '2025-12-31T23:00:00Z' }), run('t3', null, null), run('t4', 'w4', null)] } };
  show('#/rollouts');
  const { container } = render(<RolloutsPage />);
  const row = (await screen.findByRole('link', { name: 'a' })).closest('tr')!;
  expect(row.textContent).toContain('1 at work');
  expect(row.textContent).toContain('6');
  expect(screen.getByText('without a task')).toBeTruthy();
  const lines = [
    { task_id: 'a', status: 'success', success: true, result: { final_answer: 'forty-two' }, attempts: 2, worker_id: 'w2', worker_ids: ['w1', 'w2'], duration_ms: 1000 },
    { task_id: 'b', status: 'agent', success: false, error_message: 'it gave up', worker_id: 'w9', duration_ms: 3000 },
    { task_id: 'c', status: 'infrastructure', success: null, worker_id: 'w8' },
  ];
  const file = new File([`${lines.map(line => JSON.stringify(line)).join('\n')}\nnot json\n`], 'results.jsonl');
  const input = container.ownerDocument.querySelector<HTMLInputElement>('input[type="file"]')!;
  Object.defineProperty(input, 'files', { value: [file], configurable: true });
  fireEvent.change(input);
  const results = await screen.findByRole('region', { name: 'Results of the run' });
  expect(results.textContent).toContain('50.0 %');
  expect(results.textContent).toContain('1 of 2 rated tasks');
  expect(results.textContent).toContain('1 line is left out');
  expect(results.textContent).toContain('forty-two');
  expect(results.textContent).toContain('it gave up');
  expect(screen.getByRole('link', { name: 'Open the trajectory of a' }).getAttribute('href')).toBe('trajectory/t2');
  fireEvent.change(screen.getByLabelText('Outcome'), { target: { value: 'agent' } });
  await waitFor(() => expect(screen.queryByText('forty-two')).toBeNull());
});

it('rollouts: numbers of many results', () => {
  const { results, wrong } = readResults('r', Array.from({ length: 100 }, (_, n) => JSON.stringify({ task_id: n, status: 'success', duration_ms: n + 1 })).join('\n'));
  expect(wrong).toBe(0);
  expect(totals(results)).toMatchObject({ tasks: 100, rate: 1, median: 50, p95: 95 });
  expect(totals([])).toMatchObject({ rate: null, median: null });
  expect(byTask([run('t', 'w', 'x'), run('u', null, 'x')], new Set())[0]).toMatchObject({ task: 'x', steps: 3 });
});
