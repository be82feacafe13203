import { cleanup, fireEvent, render, screen, waitFor } from '@testing-library/preact';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';

import { Rights, route } from '../../shell';
import { parseRoute } from '../../shell/router';
import { Dialogs, closeDialogs } from '../../ui/dialog';
import { type Sandbox, known } from '../sandboxes/store';
import { BuildLog, type Job, MOST_LOG, cancel, ended, jobs, retry, startBuild, startPull, takeEvent } from './jobs';
import { pullText } from './jobs_panel';
import { ImagesPage, mayRemove } from './page';
import { folderFiles, tar } from './tar';

const ADMIN = new Rights({ tenant: 'acme', role: 'admin', operator: false, bound: [], tenants: true, quotas: [] });
const image = (name: string, more: object = {}) => ({ name, digest: `d-${name}`, size_bytes: 2048, created_at: '2026-01-01T00:00:00Z', layers: 2, base: null, labels: {}, shared: false, ...more });
const fetched = vi.fn<(path: string, options?: RequestInit) => Promise<Response>>();
let images: object[] = [];

/** An answer with server-sent events, which the test goes on with. */
function stream() {
  let controller!: ReadableStreamDefaultController<Uint8Array>;
  const body = new ReadableStream<Uint8Array>({ start: made => { controller = made; } });
  const send = (name: string, data: unknown): void => controller.enqueue(new TextEncoder().encode(`event: ${name}\ndata: ${JSON.stringify(data)}\n\n`));
  return { answer: new Response(body), send, end: () => controller.close(), fail: () => controller.error(new TypeError('network error')) };
}

function show(address: string): void {
  history.replaceState(null, '', address);
  route.value = parseRoute(address);
}

beforeEach(() => {
  show('#/images');
  images = [];
  known.value = [];
  jobs.value = [];
  fetched.mockReset().mockImplementation(path => Promise.resolve(new Response(JSON.stringify(
    path.startsWith('api/v2/images/pulls') ? { pulls: [] } : path === 'api/v2/images' ? { images } : path.startsWith('api/v2/templates') ? { templates: [] } : {}))));
  vi.stubGlobal('fetch', fetched);
});
afterEach(() => {
  closeDialogs();
  cleanup();
  vi.unstubAllGlobals();
});

const job = (): Job => jobs.value[0]!;

it('lists images with their base, owner and use', async () => {
  images = [image('tools', { base: 'base' }), image('base', { shared: true })];
  known.value = [{ name: 'one', spec: { image: 'tools' } } as Sandbox];
  render(<ImagesPage rights={ADMIN} />);
  const row = (await screen.findByRole('link', { name: 'tools' })).closest('tr')!;
  expect(row.textContent).toContain('on base');
  expect(row.textContent).toContain('2.0 KiB');
  expect(row.textContent).toContain('1 sandbox');
  expect(screen.getByRole('link', { name: 'base' }).closest('tr')!.textContent).toContain('all tenants');
  // What belongs to all is the operator's.
  expect(screen.getByRole('button', { name: 'Delete tools' })).toBeTruthy();
  expect(screen.queryByRole('button', { name: 'Delete base' })).toBeNull();
  expect(mayRemove(new Rights({ ...ADMIN.me, tenant: 'default' }), { shared: true })).toBe(true);
  expect(mayRemove(new Rights({ ...ADMIN.me, role: 'use' }), { shared: false })).toBe(false);
  fireEvent.input(screen.getByRole('searchbox', { name: 'Search images' }), { target: { value: 'nothing' } });
  await screen.findByText('No image matches');
});

it('says what to do without images, and offers nothing to a role that reads', async () => {
  render(<ImagesPage rights={new Rights({ ...ADMIN.me, role: 'read' })} />);
  await screen.findByRole('heading', { name: 'No images yet' });
  expect(screen.queryByRole('button', { name: 'Pull' })).toBeNull();
});

it('shows an image with its layers, and one that is missing', async () => {
  const details = { ...image('team/app:1', { base: 'base' }), source: null, entrypoint: ['/bin/sh'], cmd: ['-c', 'x'], user: null, workdir: '/srv', exposed_ports: ['80/tcp'], history: [{ digest: 'a', size_bytes: 1024, created_by: 'RUN <b>make</b>', created_at: '2026-01-01T00:00:00Z' }] };
  fetched.mockImplementation(path => Promise.resolve(path === 'api/v2/images/team/app%3A1' ? new Response(JSON.stringify(details)) : path.startsWith('api/v2/images/') ? new Response(JSON.stringify({ detail: 'image "none" is not built here', code: 'not_found' }), { status: 404 }) : new Response('{"templates":[]}')));
  show('#/images/team%2Fapp%3A1');
  render(<ImagesPage rights={ADMIN} />);
  await screen.findByText('RUN <b>make</b>');
  expect(screen.getByRole('region', { name: 'Properties' }).textContent).toContain('/bin/sh -c x');
  expect(screen.getByRole('link', { name: 'base' }).getAttribute('href')).toBe('#/images/base');
  cleanup();
  show('#/images/none');
  render(<ImagesPage rights={ADMIN} />);
  expect((await screen.findByRole('alert')).textContent).toContain('Image "none" is not built here');
});

it('pulls with the bytes of the server, and knows when it is done', async () => {
  const pull = stream();
  fetched.mockResolvedValueOnce(pull.answer);
  const before = ended.value;
  startPull('python:3.12');
  const [path, options] = fetched.mock.calls[0]!;
  expect([path, options?.method, options?.body]).toEqual(['api/v2/images/pull', 'POST', '{"image":"python:3.12"}']);
  expect(new Headers(options?.headers).get('accept')).toBe('text/event-stream');
  pull.send('pull', { image: 'docker.io/library/python:3.12', state: 'downloading', layers: 3, layers_done: 1, bytes: 4096, bytes_done: 1024 });
  await waitFor(() => expect(job().pull?.bytes_done).toBe(1024));
  expect(pullText(job().pull!, null)).toBe('Downloading: 1.0 KiB of 4.0 KiB; 1 of 3 layers are here');
  pull.send('pulled', image('python:3.12'));
  await waitFor(() => expect(job()).toMatchObject({ state: 'done', image_bytes: 2048 }));
  expect(ended.value).toBe(before + 1);
});

it('tells apart a refusal, a lost connection, and a cancelled build', async () => {
  render(<><ImagesPage rights={ADMIN} /><Dialogs /></>);
  const refused = stream();
  fetched.mockResolvedValueOnce(refused.answer);
  startBuild({ image: 'a' }, new Blob(['tar']));
  expect(fetched.mock.calls.at(-1)![0]).toBe('api/v2/images/build?image=a');
  refused.send('step', { step: 2, of: 3, text: 'RUN make' });
  refused.send('log', { step: 2, line: 'cc: \u001b[31mno such file\u001b[0m' });
  await waitFor(() => expect(screen.getByRole('log').textContent).toBe('Step 2 of 3: RUN make\n  cc: no such file\n'));
  expect(screen.getByRole('progressbar', { name: 'Steps of a' }).getAttribute('aria-valuenow')).toBe('33');
  refused.send('failed', { status: 422, detail: 'step 2 failed with exit code 1', hint: 'read its output' });
  await waitFor(() => expect(screen.getByRole('listitem', { name: 'Build of a' }).textContent).toContain('Step 2 failed with exit code 1'));
  expect(screen.getByRole('listitem', { name: 'Build of a' }).textContent).toContain('Read its output');

  for (const ends of ['end', 'fail'] as const) {
    const lost = stream();
    fetched.mockResolvedValueOnce(lost.answer);
    startPull('b');
    await waitFor(() => expect(job().state).toBe('running'));
    lost[ends]();
    await waitFor(() => expect(job().state).toBe('lost'));
    expect((await screen.findAllByText(/its result is not known here/)).length).toBeGreaterThan(0);
  }

  fetched.mockImplementationOnce((_, options) => new Promise((_, reject) => options!.signal!.addEventListener('abort', () => reject(new DOMException('aborted', 'AbortError')))));
  startPull('c');
  cancel(job().id);
  await waitFor(() => expect(job().state).toBe('cancelled'));
  const again = stream();
  fetched.mockResolvedValueOnce(again.answer);
  retry(job().id);
  expect(job()).toMatchObject({ image: 'c', state: 'sending' });
  again.end();
  await waitFor(() => expect(job().state).toBe('lost'));
});

it('keeps the end of a long log', () => {
  const log = new BuildLog();
  for (let n = 0; n < 3000; n++) takeEvent(log, 'log', { step: 1, line: `${n} ${'x'.repeat(600)}` });
  expect(log.cut).toBe(true);
  expect(log.text.length).toBeLessThanOrEqual(2 * MOST_LOG);
  expect(log.text).toContain('  2999 x');
  expect(log.text.startsWith('  ')).toBe(true);
  takeEvent(log, 'step_done', { step: 1, cached: true, seconds: 0, bytes: 0 });
  takeEvent(log, 'warning', { line: 3, text: 'unknown' });
  takeEvent(log, 'log', { step: 1, line: 'x', skipped: 12 });
  expect(log.text).toContain('  (kept from an earlier build)\nWarning, line 3: unknown\n  (12 lines are left out)\n  x\n');
});

it('packs files as a tar that names all of them', async () => {
  const long = `${'d/'.repeat(60)}ü.txt`;
  const packed = new Uint8Array(await tar([{ path: 'Dockerfile', content: 'FROM base\n' }, { path: long, content: 'x'.repeat(513) }]).arrayBuffer());
  const text = (from: number, length: number): string => new TextDecoder().decode(packed.subarray(from, from + length)).replace(/\0.*$/s, '');
  expect([text(0, 100), text(124, 12), text(156, 1), text(512, 10)]).toEqual(['Dockerfile', '00000000012', '0', 'FROM base\n']);
  const sum = packed.subarray(0, 512).reduce((all, byte, at) => all + (at >= 148 && at < 156 ? 32 : byte), 0);
  expect(parseInt(text(148, 8), 8)).toBe(sum);
  // The record of a long path, and then the file.
  expect(text(1024 + 156, 1)).toBe('x');
  const record = `${new TextEncoder().encode(` path=${long}\n`).length + 3} path=${long}\n`;
  expect(new TextDecoder().decode(packed.subarray(1536, 1536 + new TextEncoder().encode(record).length))).toBe(record);
  expect(packed.length % 512).toBe(0);
  const file = Object.assign(new File(['x'], 'b'), {});
  Object.defineProperty(file, 'webkitRelativePath', { value: 'top/a/b' });
  expect(folderFiles([file])[0]!.path).toBe('a/b');
});
