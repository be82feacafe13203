import { cleanup, fireEvent, render, screen } from '@testing-library/preact';
import { afterEach, expect, it, vi } from 'vitest';

import { type Log, Logs, MOST_KEPT, readLog } from './logs';
import { answering, json } from './testing';

const PATH = 'GET /v1/file/download';
const signal = new AbortController().signal;
let file = new Uint8Array();

function serve(): void {
  answering({ [PATH]: (_, { headers }) => {
    const [, from, to] = /^bytes=(\d*)-(\d*)$/.exec(new Headers(headers).get('range')!)!;
    const start = from ? Number(from) : Math.max(0, file.length - Number(to));
    if (start >= file.length) return json({ message: 'nothing there' }, 416);
    return new Response(file.subarray(start), { status: 206, headers: { 'content-range': `bytes ${start}-${file.length - 1}/${file.length}` } });
  } });
}

const put = (text: string): void => { file = new TextEncoder().encode(text); };

afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

it('reads what was added, and begins again with a new file', async () => {
  serve();
  put('one\n');
  let log: Log | null = await readLog(null, signal);
  expect(log).toEqual({ text: 'one\n', end: 4, cut: false });
  expect(await readLog(log, signal)).toBe(log);
  put('one\ntwo\n');
  log = await readLog(log, signal);
  expect(log).toEqual({ text: 'one\ntwo\n', end: 8, cut: false });
});

it('does not cut characters in two', async () => {
  serve();
  const whole = new TextEncoder().encode('größe €');
  file = whole.subarray(0, whole.length - 1);
  const log = await readLog(null, signal);
  expect(log?.text).toBe('größe ');
  file = whole;
  expect((await readLog(log, signal))?.text).toBe('größe €');
});

it('keeps the end of a long log, from the beginning of a line', async () => {
  serve();
  put(`${'x'.repeat(100)}\n`.repeat(10_000));
  const log = await readLog(null, signal);
  expect(log?.cut).toBe(true);
  expect(log!.text.length).toBeLessThanOrEqual(MOST_KEPT);
  expect(log!.text.startsWith('xxx')).toBe(true);
  expect(log?.end).toBe(file.length);
});

it('has no log without a main command', async () => {
  answering({ [PATH]: () => json({ message: 'no such file' }, 404) });
  expect(await readLog(null, signal)).toBeNull();
  render(<Logs shown />);
  expect(await screen.findByText('No output')).toBeTruthy();
});

it('shows only lines with what is searched, as text', async () => {
  serve();
  put('started\n<b>error</b> at Port 80\nstopped\n');
  const { container } = render(<Logs shown />);
  const log = await screen.findByRole('log');
  expect(log.textContent).toContain('<b>error</b>');
  fireEvent.input(screen.getByRole('searchbox', { name: 'Search in the log' }), { target: { value: 'port' } });
  expect((await screen.findByText('1 line')).getAttribute('role')).toBe('status');
  expect(log.textContent).toBe('<b>error</b> at Port 80\n');
  expect(container.querySelector('mark')?.textContent).toBe('Port');
  expect(container.querySelector('pre b')).toBeNull();
});
