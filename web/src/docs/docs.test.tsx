import { act, cleanup, fireEvent, render, screen, waitFor, within } from '@testing-library/preact';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';

import { parseRoute, route } from '../shell/router';
import { closeDialogs } from '../ui/dialog';
import { Docs } from './app';
import { golden } from './testing';

type Sent = { path: string; method: string; headers: Headers; body: unknown };
let sent: Sent[] = [];
let answer: (sent: Sent) => Response | Promise<Response> = () => json({});

function json(value: unknown, status = 200): Response {
  return new Response(JSON.stringify(value), { status, headers: { 'content-type': 'application/json' } });
}

beforeEach(() => {
  sent = [];
  answer = () => json({});
  history.replaceState(null, '', '#/');
  route.value = parseRoute('#/');
  vi.stubGlobal('fetch', vi.fn((path: string, options: RequestInit = {}) => {
    const url = new URL(path, 'http://box.example/');
    if (url.pathname.endsWith('openapi.json')) return Promise.resolve(json(golden(url.pathname)));
    if (url.pathname === '/api/v2/me') return Promise.resolve(json({ tenant: 'acme', role: 'admin', operator: false, bound: [], tenants: true, quotas: [] }));
    const one = { path: url.pathname + url.search, method: options.method ?? 'GET', headers: new Headers(options.headers), body: options.body };
    if (one.path.startsWith('/api/v2/sandboxes?order=newest')) return Promise.resolve(json({ sandboxes: [{ name: 'newest', state: 'running' }, { name: 'broken', state: 'failed' }, { name: 'older', state: 'paused' }] }));
    sent.push(one);
    const given = answer(one);
    // As the browser does: an aborted request ends.
    return Promise.race([given, new Promise<Response>((_, refuse) => options.signal?.addEventListener('abort', () => refuse(new DOMException('aborted', 'AbortError'))))]);
  }));
});
afterEach(() => {
  closeDialogs();
  cleanup();
  vi.unstubAllGlobals();
});

function open(hash: string, dialect: 'arenite' | 'aio' = 'arenite'): void {
  history.replaceState(null, '', hash);
  route.value = parseRoute(hash);
  render(<Docs dialect={dialect} sandbox="" ownHost={false} base="./" />);
}

const heading = (name: string) => screen.findByRole('heading', { level: 1, name });
const answerBox = () => screen.findByRole('region', { name: 'Answer' });

it('lists the operations of each interface, and finds them by keyboard', async () => {
  open('#/');
  await heading('Arenite API');
  const search = screen.getByRole('combobox', { name: 'Search operations' });
  await screen.findByRole('link', { name: /POST \/api\/v2\/sandboxes\/\{name\}\/fork/ });
  act(() => { fireEvent.keyDown(document.body, { key: '/' }); });
  expect(document.activeElement).toBe(search);
  fireEvent.input(search, { target: { value: 'bash' } });
  const options = await screen.findAllByRole('option');
  expect(options[0]!.getAttribute('aria-selected')).toBe('true');
  fireEvent.keyDown(search, { key: 'ArrowDown' });
  await waitFor(() => expect(screen.getAllByRole('option')[1]!.getAttribute('aria-selected')).toBe('true'));
  expect(search.getAttribute('aria-activedescendant')).toBe(screen.getAllByRole('option')[1]!.id);
  fireEvent.input(search, { target: { value: 'POST /v1/bash/exec' } });
  await waitFor(() => expect(screen.getAllByRole('option')[0]!.textContent).toContain('/v1/bash/exec'));
  fireEvent.keyDown(search, { key: 'Enter' });
  expect(location.hash).toBe('#/aio/exec');
  fireEvent.input(search, { target: { value: 'no such words' } });
  await screen.findByText('Nothing matches.');
});

it('keeps addresses of the page before it, and says what is not there', async () => {
  open('#exec', 'aio');
  await heading('Runs a command in a fresh process');
  cleanup();
  open('#/agentflow/no_such');
  expect((await screen.findByRole('alert')).textContent).toBe('AgentFlow has no operation no_such.');
});

it('shows parameters, nested fields, limits, and errors', async () => {
  open('#/arenite/create_sandbox');
  await heading('Creates a sandbox, or several');
  const body = screen.getByRole('region', { name: 'Body' });
  expect(body.textContent).toContain('idle_policy');
  const resources = within(body).getByText(/^Fields of resources/).closest('details')!;
  resources.open = true;
  fireEvent(resources, new Event('toggle'));
  await waitFor(() => expect(resources.textContent).toContain('memory_bytes'));
  expect(screen.getByRole('region', { name: 'Errors' }).textContent).toContain('application/problem+json');
  expect(screen.getByRole('region', { name: 'Parameters' }).textContent).toContain('at most 255 characters');
});

it('sends what the form says to the chosen sandbox, and shows the answer as text', async () => {
  open('#/aio/exec');
  await heading('Runs a command in a fresh process');
  await waitFor(() => expect((screen.getByLabelText('Sandbox') as HTMLInputElement).value).toBe('newest'));
  expect([...document.querySelectorAll('datalist option')].map(option => (option as HTMLOptionElement).value)).toEqual(['newest', 'older']);
  fireEvent.input(screen.getByLabelText('Sandbox'), { target: { value: 'older' } });
  const body = screen.getByRole('textbox', { name: 'Body' }) as HTMLTextAreaElement;
  expect(JSON.parse(body.value)).toEqual({ command: 'echo hello' });
  fireEvent.input(body, { target: { value: '{' } });
  fireEvent.click(screen.getByRole('button', { name: 'Send' }));
  await waitFor(() => expect(body.getAttribute('aria-invalid')).toBe('true'));
  expect(sent).toEqual([]);
  fireEvent.input(body, { target: { value: '{"command": "ls"}' } });
  answer = () => json({ success: true, data: { stdout: '<img src=x>' } });
  fireEvent.click(screen.getByRole('button', { name: 'Send' }));
  const box = await answerBox();
  await waitFor(() => expect(box.textContent).toContain('"stdout": "<img src=x>"'));
  expect(box.querySelector('pre img')).toBeNull();
  expect(within(box).getByRole('status').textContent).toMatch(/^200 .*ms.*bytes$/);
  const [request] = sent;
  expect([request!.method, request!.path, request!.body, request!.headers.get('x-arenite-origin')]).toEqual(['POST', '/sandbox/older/v1/bash/exec', '{"command":"ls"}', 'person']);
  expect(screen.getByRole('group', { name: 'The same as code' }).textContent).toContain('/sandbox/older/v1/bash/exec');
  // A refusal is an answer, too.
  answer = () => json({ success: false, message: 'no' }, 409);
  fireEvent.click(screen.getByRole('button', { name: 'Send' }));
  await waitFor(async () => expect((await answerBox()).textContent).toContain('409'));
});

it('asks before it deletes', async () => {
  open('#/arenite/delete_sandbox');
  await heading('Deletes a sandbox with its files');
  const name = screen.getByLabelText('name (required)') as HTMLInputElement;
  fireEvent.input(name, { target: { value: '' } });
  fireEvent.click(screen.getByRole('button', { name: 'Send' }));
  await screen.findByText('Enter name.');
  fireEvent.input(name, { target: { value: 'older' } });
  fireEvent.click(screen.getByRole('button', { name: 'Send' }));
  const question = await screen.findByRole('dialog', { name: 'Send DELETE /api/v2/sandboxes/{name}?' });
  fireEvent.click(within(question).getByRole('button', { name: 'Cancel' }));
  await waitFor(() => expect(screen.queryByRole('dialog')).toBeNull());
  expect(sent).toEqual([]);
  fireEvent.click(screen.getByRole('button', { name: 'Send' }));
  fireEvent.click(within(await screen.findByRole('dialog')).getByRole('button', { name: 'Send' }));
  await answerBox();
  expect(sent.map(({ method, path }) => `${method} ${path}`)).toEqual(['DELETE /api/v2/sandboxes/older']);
});

it('shows a stream as it comes, until it is stopped', async () => {
  let push: (text: string) => void = () => {};
  let fail: (error: Error) => void = () => {};
  open('#/arenite/list_events');
  await heading('Returns the latest events of the sandboxes, the oldest first');
  fireEvent.change(screen.getByLabelText('follow'), { target: { value: 'true' } });
  answer = () => new Response(new ReadableStream({ start: controller => {
    push = text => controller.enqueue(new TextEncoder().encode(text));
    fail = error => controller.error(error);
  } }), { headers: { 'content-type': 'text/event-stream' } });
  fireEvent.click(screen.getByRole('button', { name: 'Send' }));
  const box = await answerBox();
  await act(async () => { push('data: one\n\n'); await Promise.resolve(); });
  await waitFor(() => expect(box.textContent).toContain('data: one'));
  expect(within(box).getByRole('status').textContent).toContain('coming');
  fireEvent.click(screen.getByRole('button', { name: 'Stop' }));
  fail(new DOMException('aborted', 'AbortError'));
  await waitFor(() => expect(within(box).getByRole('status').textContent).toContain('stopped'));
  expect(box.textContent).toContain('data: one');
  expect(screen.queryByRole('button', { name: 'Stop' })).toBeNull();
});

it('shows a part of a long answer, and saves what is not text', async () => {
  open('#/aio/download_file');
  await heading('The bytes of a file, or of a range of it');
  answer = () => new Response('x'.repeat(300_000), { headers: { 'content-type': 'text/plain' } });
  fireEvent.click(screen.getByRole('button', { name: 'Send' }));
  const box = await answerBox();
  await waitFor(() => expect(box.textContent).toContain('100,000 more characters are not shown.'));
  answer = () => new Response(new Uint8Array([0, 255]), { headers: { 'content-type': 'application/octet-stream', 'content-disposition': 'attachment; filename="a/b.bin"' } });
  fireEvent.click(screen.getByRole('button', { name: 'Send' }));
  const save = await screen.findByRole('link', { name: 'Save' });
  await waitFor(async () => expect((await answerBox()).textContent).toContain('Not text'));
  await waitFor(() => expect(screen.getByRole('link', { name: 'Save' }).getAttribute('download')).toBe('a_b.bin'));
  expect(save.getAttribute('href')).toMatch(/^blob:/);
});

it('shows one interface on a sandbox\'s own host', async () => {
  history.replaceState(null, '', '#/');
  render(<Docs dialect="aio" sandbox="" ownHost base="http://box.example/" />);
  await heading('AIO API');
  await screen.findByRole('link', { name: /POST \/v1\/bash\/exec/ });
  expect(screen.queryByRole('navigation', { name: 'Interfaces' })).toBeNull();
  route.value = parseRoute('#/aio/exec');
  await heading('Runs a command in a fresh process');
  expect(screen.queryByLabelText('Sandbox')).toBeNull();
  fireEvent.click(screen.getByRole('button', { name: 'Send' }));
  await answerBox();
  expect(sent[0]!.path).toBe('/v1/bash/exec');
  expect(vi.mocked(fetch).mock.calls.some(([path]) => String(path).includes('api/v2'))).toBe(false);
});
