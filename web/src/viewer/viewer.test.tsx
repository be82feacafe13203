import { cleanup, fireEvent, render, screen } from '@testing-library/preact';
import { useState } from 'preact/hooks';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { Rights, rights } from '../shell/rights';
import { align, nextDifference } from './align';
import { DEFAULT_EXPORT, exportCommand, exportCurl, exportPath, firstRecords } from './export';
import { buildTrack, eventAt, lengthOf, sceneAt, toFilm, toReal } from './film';
import { type Annotation, byStep, fitsNote, noteChoices, parseLabels, ratingOf, summaryText } from './annotations';
import { AnnotationSection } from './annotations_view';
import { NO_FILTERS, filterRows, findFailure, formatAddress, parseAddress, toolsOf } from './filters';
import { containing, nearest, neighbour, offset, spanOf, ticks, zoomed } from './lanes';
import { type Row, buildRows, networkRow } from './rows';
import { StepRow, StepsList } from './steps_list';
import { Run } from './store';
import { type Step, title } from './step';

const BEGAN = Date.parse('2026-01-01T00:00:00Z');

function step(number: number, part: Partial<Step> = {}, { command = `echo ${number}`, exit = 0, at = number * 1000, took = 100 } = {}): Step {
  return {
    step: number, dialect: 'aio', action: 'POST /v1/bash/exec', arguments: { json: { command } }, observation: { json: { success: true, data: { stdout: `${command}\n`, exit_code: exit } } },
    sandbox_name: 'demo', bytes_in: 10, bytes_out: 10, started_at: new Date(BEGAN + at).toISOString(), ended_at: new Date(BEGAN + at + took).toISOString(), duration_ms: took, outcome: 'ok', status: 200,
    result: exit === 0 ? 'succeeded' : { failed: { exit_code: exit } }, class: exit === 0 ? null : 'agent', error: null, origin: 'agent', client: null, ...part,
  };
}

const rowsOf = (...steps: Step[]): Row[] => buildRows(steps, [], []);

describe('rows', () => {
  it('have records after the step that they name', () => {
    const network = { at: '2026-01-01T00:00:01.500Z', allowed: false, protocol: 'dns', port: 53, reason: 'no_rule', name: 'refused.example', count: 2, bytes_sent: 0, bytes_received: 0, duration_ms: 0, after: 1 };
    const session = { at: '2026-01-01T00:00:00Z', event: 'begin' as const, id: 's1', resource_type: 'bash', after: 0 };
    const rows = buildRows([step(1), step(2)], [network], [session]);
    expect(rows.map(row => row.id)).toEqual(['session-1', 'step-1', 'network-1', 'step-2']);
    expect(rows[2]).toMatchObject({ outcome: 'refused', about: 'refused.example:53 2 times, no rule' });
  });

  it('are indented where they branch', () => {
    const work = (parent: number) => ({ worker: 'w', parent, trace_id: 't', queued_at: '2026-01-01T00:00:00Z' });
    expect(rowsOf(step(1), step(2), step(3, { work: work(1) }), step(4), step(5, { work: work(0) })).map(row => [row.depth, row.from])).toEqual([[0, null], [0, null], [1, 1], [1, null], [0, 0]]);
  });

  it('tell refusals from failures, and calls of models from tools', () => {
    const model = { route: 'main', model: 'gpt', stream: false, prompt_tokens: 1, completion_tokens: 2, cached_tokens: null, estimated: false, cost_usd: null, first_token_ms: null, finish_reason: 'stop' };
    const rows = rowsOf(step(1, { outcome: 'error', status: 402 }), step(2, { outcome: 'error', status: 404 }), step(3, {}, { exit: 3 }), step(4, { outcome: null, ended_at: null }), step(5, { dialect: 'model', model }), step(6, { action: 'GET /v1/browser/screenshot' }));
    expect(rows.map(row => row.outcome)).toEqual(['refused', 'failed', 'failed', 'running', 'ok', 'ok']);
    expect(rows.map(row => row.kind)).toEqual(['tool', 'tool', 'tool', 'tool', 'model', 'screen']);
    expect(rows[2]!.note).toBe('exit 3');
  });
});

describe('filters', () => {
  const rows = rowsOf(step(1, {}, { command: 'ls /etc' }), step(2, { origin: 'person' }, { command: 'rm "a b"', exit: 1, took: 2500 }), step(3, { outcome: 'damaged', result: null }), step(4, { action: 'POST /v1/file/read' }, { command: 'Ünïcode' }));
  const found = (part: Partial<typeof NO_FILTERS>): string[] => filterRows(rows, { ...NO_FILTERS, ...part }).map(row => row.id);

  it('search arguments and observations, all words, in any case', () => {
    expect(found({ text: 'LS /etc' })).toEqual(['step-1']);
    expect(found({ text: '"a b" exit_code' })).toEqual(['step-2']);
    expect(found({ text: 'ünïcode' })).toEqual(['step-4']);
    expect(found({ text: 'ls nothing' })).toEqual([]);
  });

  it('combine; a gap of the record is nobody\'s', () => {
    expect(found({ outcome: 'failed' })).toEqual(['step-2', 'step-3']);
    expect(found({ origin: 'agent' })).toEqual(['step-1', 'step-3', 'step-4']);
    expect(found({ origin: 'person' })).toEqual(['step-2', 'step-3']);
    expect(found({ least: 1000 })).toEqual(['step-2']);
    expect(found({ tool: 'file read' })).toEqual(['step-4']);
    expect(found({ kind: 'network' })).toEqual([]);
    expect(toolsOf(rows)[0]).toEqual(['bash exec', 3]);
  });

  it('are in the address, which can say anything', () => {
    const address = parseAddress('?q=a%26b&kind=model&tool=bash+exec&outcome=failed&origin=agent&min=250&view=film&compare=other', '#step-7');
    expect(address).toMatchObject({ filters: { text: 'a&b', kind: 'model', tool: 'bash exec', outcome: 'failed', origin: 'agent', least: 250 }, view: 'film', compare: 'other', row: 'step-7' });
    expect(parseAddress(formatAddress(address).split('#')[0]!, '#step-7')).toEqual(address);
    expect(parseAddress('?kind=<img>&outcome=x&min=-1&view=y', '#<script>')).toEqual({ filters: NO_FILTERS, view: 'step', compare: '', row: '' });
    expect(formatAddress(parseAddress('', ''))).toBe('');
  });

  it('find the next and the previous failure', () => {
    expect(findFailure(rows, 'step-1', 1)?.id).toBe('step-2');
    expect(findFailure(rows, 'step-2', 1)?.id).toBe('step-3');
    expect(findFailure(rows, 'step-3', 1)).toBeNull();
    expect(findFailure(rows, 'step-2', -1)).toBeNull();
    expect(findFailure(rows, '', -1)?.id).toBe('step-3');
  });
});

it('names user, server, and secret of a login by SSH', () => {
  const login = { at: '2026-01-01T00:00:03Z', protocol: 'ssh', count: 1, bytes_sent: 0, bytes_received: 0, duration_ms: 0 };
  const known = networkRow({ ...login, allowed: true, name: 'git.example.com', port: 22, reason: 'signed', ssh: { secret: 'deploy', user: 'git', fingerprint: 'SHA256:x' } }, 0);
  const unknown = networkRow({ ...login, allowed: false, port: 0, reason: 'no_login', ssh: { fingerprint: 'SHA256:x' } }, 1);
  expect([known.tool, known.about]).toEqual(['SSH login', 'git at git.example.com:22, signed, deploy']);
  expect([unknown.tool, unknown.about]).toEqual(['refused SSH login', 'an unknown server, no login']);
});

describe('the time line', () => {
  const rows = [...rowsOf(step(1), step(2, {}, { took: 5000 }), step(10)), networkRow({ at: '2026-01-01T00:00:03Z', allowed: true, protocol: 'tls', port: 443, reason: 'rule', count: 1, bytes_sent: 1, bytes_received: 1, duration_ms: 500 }, 0)];
  const whole = spanOf(rows, 0);

  it('has the whole run, zooms around a point, and stays within', () => {
    expect(whole).toEqual({ from: BEGAN + 1000, to: BEGAN + 10_100 });
    const near = zoomed(whole, whole, 0.5, BEGAN + 2000);
    expect(near.to - near.from).toBeCloseTo(4550);
    expect(near.from).toBeGreaterThanOrEqual(whole.from);
    expect(zoomed(near, whole, 100, BEGAN + 2000)).toEqual(whole);
    expect(containing(near, whole, rows[2]!).to).toBe(whole.to);
    expect(ticks(whole, whole.from, 10)).toEqual([0, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000]);
  });

  it('finds rows of a lane', () => {
    expect(nearest(rows, 'tool', BEGAN + 6000, 50)?.id).toBe('step-2');
    expect(nearest(rows, 'tool', BEGAN + 8500, 50)).toBeNull();
    expect(nearest(rows, 'network', BEGAN + 2600, 50)?.id).toBe('network-1');
    expect(neighbour(rows, 'tool', 'step-2', 1)?.id).toBe('step-10');
    expect(neighbour(rows, 'network', 'step-1', 1)?.id).toBe('network-1');
    expect(neighbour(rows, 'tool', 'step-1', -1)).toBeNull();
  });
});

describe('the film', () => {
  const rows = rowsOf(step(1), step(2, {}, { at: 60_000, exit: 2 }));

  it('shortens pauses, and converts both ways', () => {
    const track = buildTrack(rows, true);
    expect(lengthOf(track)).toBe(100 + 2000 + 100);
    expect(lengthOf(buildTrack(rows, false))).toBe(59_100);
    for (const film of [0, 50, 100, 1100, 2150, 2200]) expect(toFilm(track, toReal(track, film))).toBeCloseTo(film);
    expect(eventAt(track, 1500)).toBe(100);
  });

  it('shows commands when they start, and output when they have ended', () => {
    const text = (at: number): string => sceneAt(rows, BEGAN + at).terminal.map(([piece]) => piece).join('');
    expect(text(1000)).toBe('$ echo 1');
    expect(text(30_000)).toBe('$ echo 1\necho 1\n');
    expect(text(60_200)).toContain('exit code 2');
    expect(sceneAt(rows, BEGAN + 60_050).row?.id).toBe('step-2');
    expect(sceneAt(rows, BEGAN).row).toBeNull();
  });
});

describe('a comparison', () => {
  it('aligns steps, and finds the first difference', () => {
    const left = [step(1), step(2), step(3, {}, { command: 'make' }), step(4)];
    const right = [step(1, {}, { took: 900 }), step(2, {}, { command: 'inserted' }), step(3, {}, { command: 'echo 2' }), step(4, {}, { command: 'make', exit: 2 }), step(5, {}, { command: 'echo 4' })];
    const pairs = align(left, right);
    expect(pairs.map(pair => [pair.left?.step ?? 0, pair.right?.step ?? 0, pair.difference])).toEqual([[1, 1, 'same'], [0, 2, 'right'], [2, 3, 'same'], [3, 4, 'result'], [4, 5, 'same']]);
    expect(nextDifference(pairs, 0)).toBe(1);
    expect(pairs[3]!.note).toBe('ok, then exit 2');
  });

  it('ignores what differs in each run', () => {
    const answer = (text: string) => ({ observation: { json: { data: { stdout: text, exit_code: 0, session_id: text } } } });
    const pairs = align([step(1, answer('at 2026-01-01T10:00:00Z in 1.2 s, /tmp/tmp.abc'))], [step(1, answer('at 2026-02-03T11:00:00Z in 7 s, /tmp/tmp.xyz'))]);
    expect(pairs[0]!.difference).toBe('same');
    expect(align([step(1, answer('a'))], [step(1, answer('b'))])[0]!.difference).toBe('observation');
    expect(align([step(1)], [step(1, {}, { command: 'other' })])[0]!.difference).toBe('arguments');
  });

  it('stays fast with 10,000 steps', () => {
    const left = Array.from({ length: 10_000 }, (_, n) => step(n + 1));
    const right = Array.from({ length: 10_000 }, (_, n) => step(n + 1, {}, n === 5000 ? { command: 'other' } : {}));
    const pairs = align(left, right);
    expect(pairs).toHaveLength(10_000);
    expect(nextDifference(pairs, 0)).toBe(5000);
  });
});

describe('exports', () => {
  it('have the same options as addresses and commands', () => {
    const options = { ...DEFAULT_EXPORT, format: 'atif', origin: 'all', result: 'failed', class: 'agent' };
    expect(exportPath('a/b', options)).toBe('/api/v1/trajectories/a%2Fb/export?format=atif&origin=all&result=failed&class=agent');
    expect(exportCommand('id', options)).toBe('arenite trajectory export id --format atif --origin all --result failed --class agent -o id.atif.json');
    expect(exportCommand('it\'s', DEFAULT_EXPORT)).toBe('arenite trajectory export \'it\'\\\'\'s\' --format jsonl -o \'it\'\\\'\'s.jsonl\'');
    expect(exportCommand('id', { ...DEFAULT_EXPORT, network: true })).toBeNull();
    expect(exportPath('id', { ...DEFAULT_EXPORT, inline: true })).toBe('/api/v1/trajectories/id?format=jsonl&bodies=inline&origin=agent');
    expect(exportCurl('http://h', 'id', DEFAULT_EXPORT)).toContain('\'http://h/api/v1/trajectories/id/export?format=jsonl\'');
  });

  it('are previewed by their first records', () => {
    expect(firstRecords('{"a":1}\n{"b":2}\n{"c":3}\n{"d":4}\n', 'jsonl')).toEqual(['{\n  "a": 1\n}', '{\n  "b": 2\n}', '{\n  "c": 3\n}']);
    expect(firstRecords('{"steps":[1,', 'atif')).toEqual(['{"steps":[1,']);
    expect(firstRecords('', 'jsonl')).toEqual([]);
  });
});

describe('the list', () => {
  beforeEach(() => cleanup());
  afterEach(() => cleanup());

  it('draws only what is in view of 10,000 rows, and moves by keyboard', () => {
    const rows = buildRows(Array.from({ length: 10_000 }, (_, n) => step(n + 1)), [], []);
    function List() {
      const [chosen, setChosen] = useState('step-1');
      return <StepsList rows={rows} chosen={chosen} onChoose={row => setChosen(row.id)} empty={null} />;
    }
    render(<List />);
    const list = screen.getByRole('listbox', { name: 'Steps' });
    expect(screen.getAllByRole('option').length).toBeLessThan(60);
    expect(screen.getAllByRole('option')[0]!.getAttribute('aria-setsize')).toBe('10000');
    fireEvent.keyDown(list, { key: 'ArrowDown' });
    expect(screen.getByRole('option', { selected: true }).getAttribute('data-id')).toBe('step-2');
    expect(list.getAttribute('aria-activedescendant')).toBe('row-step-2');
    fireEvent.keyDown(list, { key: 'End' });
    expect(list.scrollTop).toBeGreaterThan(400_000);
  });

  it('shows what steps say as text', () => {
    render(<StepRow row={rowsOf(step(1, {}, { command: '<img src=x onerror=alert(1)>' }))[0]!} />);
    expect(screen.getByText('<img src=x onerror=alert(1)>')).toBeTruthy();
    expect(document.querySelector('img')).toBeNull();
  });
});

describe('a run', () => {
  class ControlledSource extends EventTarget {
    static readonly CLOSED = 2;
    static all: ControlledSource[] = [];
    readyState = 0;
    onopen: (() => void) | null = null;
    onerror: (() => void) | null = null;
    readonly url: string;
    constructor(url: string) {
      super();
      this.url = url;
      ControlledSource.all.push(this);
    }
    close(): void { this.readyState = 2; }
    step(one: Step): void { this.dispatchEvent(new MessageEvent('step', { data: JSON.stringify(one), lastEventId: String(one.step) })); }
  }
  const fetched = vi.fn<(path: string) => Promise<Response>>();
  beforeEach(() => {
    ControlledSource.all = [];
    vi.stubGlobal('EventSource', ControlledSource);
    vi.stubGlobal('fetch', fetched);
  });
  afterEach(() => { vi.unstubAllGlobals(); });
  const source = (): Promise<ControlledSource> => vi.waitFor(() => {
    expect(ControlledSource.all).toHaveLength(1);
    return ControlledSource.all[0]!;
  });

  it('has its newest steps first, and reads the earlier ones in pages', async () => {
    fetched.mockImplementation(path => {
      const query = new URLSearchParams(path.split('?')[1]);
      const after = Number(query.get('after'));
      const answer = path.includes('/steps?') ? { steps: Array.from({ length: Number(query.get('limit')) }, (_, n) => step(after + n + 1)) } : { trajectories: [], network: [], sessions: [], left_out: 0 };
      return Promise.resolve(new Response(JSON.stringify(answer)));
    });
    const run = new Run('id', 0, () => {});
    const events = await source();
    expect(events.url).toContain('api/v1/trajectories/id?follow=true&tail=300');
    events.onopen?.();
    for (let n = 2501; n <= 2800; n++) events.step(step(n));
    expect(run.size).toBe(300);
    await vi.waitFor(() => expect(run.size).toBe(2800), { timeout: 10_000 });
    expect(run.steps.map(one => one.step)).toEqual(Array.from({ length: 2800 }, (_, n) => n + 1));
    expect(fetched.mock.calls.filter(([path]) => path.includes('/steps?'))).toHaveLength(3);
    events.step(step(2801, { outcome: null }));
    events.step(step(2801));
    expect(run.step(2801)?.outcome).toBe('ok');
    events.dispatchEvent(new Event('end'));
    expect(run.state).toBe('ended');
    run.close();
  });

  it('says why it is gone', async () => {
    fetched.mockImplementation(() => Promise.resolve(new Response(JSON.stringify({ message: 'there is no trajectory id' }), { status: 404 })));
    const run = new Run('id', 0, () => {});
    const events = await source();
    events.readyState = 2;
    events.onerror?.();
    await vi.waitFor(() => expect([run.state, run.reason]).toEqual(['gone', 'There is no trajectory id.']));
    run.close();
  });
});

describe('annotations', () => {
  const note = (id: string, part: Partial<Annotation> = {}): Annotation => ({
    id, step: 2, text: '', labels: [], rating: null, author: null, created_at: '2026-01-01T00:00:00Z', changed_at: '2026-01-01T00:00:00Z', revision: 1, ...part,
  });
  const calls: { method: string; url: string; body: unknown; match: string | null }[] = [];
  let answer: () => Response = () => new Response('{}');
  const signIn = (role: 'read' | 'use'): void => {
    rights.value = new Rights({ role, bound: [], tenant: 'default', tenants: false, operator: false, name: null, subject: null, key: null, expires_at: null, quotas: [] } as unknown as Rights['me']);
  };
  beforeEach(() => {
    calls.length = 0;
    HTMLDialogElement.prototype.showModal ??= function show(this: HTMLDialogElement) { this.open = true; };
    HTMLDialogElement.prototype.close ??= function close(this: HTMLDialogElement) { this.open = false; };
    vi.stubGlobal('fetch', (url: string, { method = 'GET', body, headers }: RequestInit) => {
      calls.push({ method, url, body: body ? JSON.parse(body as string) : null, match: new Headers(headers).get('if-match') });
      return Promise.resolve(answer());
    });
    answer = () => new Response('{}');
    signIn('use');
  });
  afterEach(() => {
    cleanup();
    vi.unstubAllGlobals();
    rights.value = null;
  });
  const section = (annotations: Annotation[], reload = () => Promise.resolve()) => render(<AnnotationSection id="s1" step={2} annotations={annotations} labels={['good']} reload={reload} />);
  const type = (label: string, value: string): void => { fireEvent.input(screen.getByLabelText(label), { target: { value } }); };

  it('are summed up, and select steps', () => {
    const all = [note('a', { rating: 5, labels: ['good'] }), note('b', { rating: 2, text: 'why' }), note('c', { step: null, rating: 1 })];
    const map = byStep(all);
    expect(ratingOf(map.get(2)!)).toBe(3.5);
    expect(summaryText(map.get(2)!)).toBe('rated 3.5 of 5, good, 1 note');
    expect(fitsNote(map.get(2)!, 'high')).toBe(false);
    expect(fitsNote([], 'none')).toBe(true);
    const rows = rowsOf(step(1), step(2), step(3));
    const found = (choice: string): string[] => filterRows(rows, { ...NO_FILTERS, note: choice }, map).map(row => row.id);
    expect(found('any')).toEqual(['step-2']);
    expect(found('none')).toEqual(['step-1', 'step-3']);
    expect(found('label-good')).toEqual(['step-2']);
    expect(found('label-goo')).toEqual([]);
    expect(noteChoices(all, 'label-old').map(([value]) => value)).toEqual(['', 'any', 'none', 'high', 'low', 'label-good', 'label-old']);
    expect(parseAddress('?note=label-good', '').filters.note).toBe('label-good');
    expect(parseAddress('?note=<img>', '').filters.note).toBe('');
  });

  it('have labels as the server takes them', () => {
    expect(parseLabels(' Good, phase:plan good ')).toEqual({ labels: ['good', 'phase:plan'] });
    expect(parseLabels('')).toEqual({ labels: [] });
    for (const wrong of ['-a', 'ä', 'x'.repeat(64), '<b>', Array.from({ length: 17 }, (_, n) => `l${n}`).join(' ')]) expect(parseLabels(wrong)).toHaveProperty('error');
  });

  it('are added with a note, labels and a rating', async () => {
    const reload = vi.fn(() => Promise.resolve());
    section([], reload);
    fireEvent.click(screen.getByRole('button', { name: 'Add a note, labels or a rating to step 2' }));
    fireEvent.click(screen.getByRole('button', { name: 'Save' }));
    expect(await screen.findByText('Write a note, add a label, or choose a rating.')).toBeTruthy();
    expect(calls).toEqual([]);
    fireEvent.click(screen.getByRole('radio', { name: '4 of 5' }));
    type('Labels', 'Good, tool-use');
    type('Note', '  <b>why</b> ');
    fireEvent.click(screen.getByRole('button', { name: 'Save' }));
    await vi.waitFor(() => expect(reload).toHaveBeenCalled());
    expect(calls).toMatchObject([{ method: 'POST', url: 'api/v1/trajectories/s1/annotations', body: { step: 2, text: '<b>why</b>', labels: ['good', 'tool-use'], rating: 4 } }]);
  });

  it('are shown as text, and changed only as they were read', async () => {
    const one = note('n1', { text: '<img src=x onerror=alert(1)>\nline', rating: 2, author: 'user:ada', revision: 3 });
    const { container } = section([one]);
    expect(container.querySelector('img[src]')).toBeNull();
    expect(screen.getByText(/<img src=x/)).toBeTruthy();
    expect(screen.getByRole('img', { name: 'Rated 2 of 5' })).toBeTruthy();
    fireEvent.click(screen.getByRole('button', { name: /^Edit the annotation/ }));
    fireEvent.click(screen.getByRole('button', { name: 'No rating' }));
    answer = () => new Response(JSON.stringify({ detail: 'annotation n1 has changed' }), { status: 412, headers: { 'content-type': 'application/problem+json' } });
    fireEvent.click(screen.getByRole('button', { name: 'Save' }));
    expect(await screen.findByRole('alert')).toBeTruthy();
    expect(calls).toMatchObject([{ method: 'PATCH', match: '"n1-3"', body: { rating: null } }]);
  });

  it('of another writer are not replaced unseen', async () => {
    const one = note('n1', { text: 'mine' });
    const shown = section([one]);
    fireEvent.click(screen.getByRole('button', { name: /^Edit the annotation/ }));
    type('Note', 'mine, changed');
    shown.rerender(<AnnotationSection id="s1" step={2} annotations={[{ ...one, text: 'theirs', revision: 2 }]} labels={[]} reload={() => Promise.resolve()} />);
    expect(screen.getByText('theirs')).toBeTruthy();
    expect((screen.getByRole('button', { name: 'Save' }) as HTMLButtonElement).disabled).toBe(true);
    fireEvent.click(screen.getByRole('button', { name: 'Replace it with mine' }));
    fireEvent.click(screen.getByRole('button', { name: 'Save' }));
    await vi.waitFor(() => expect(calls).toMatchObject([{ match: '"n1-2"', body: { text: 'mine, changed' } }]));
    shown.rerender(<AnnotationSection id="s1" step={2} annotations={[]} labels={[]} reload={() => Promise.resolve()} />);
  });

  it('are only shown to those who may only read', () => {
    signIn('read');
    section([note('n1', { text: 'a note' })]);
    expect(screen.getByText('a note')).toBeTruthy();
    expect(screen.queryByRole('button')).toBeNull();
    cleanup();
    section([]);
    expect(screen.queryByRole('region')).toBeNull();
  });

  it('are marked in the list, and said', () => {
    const rows = rowsOf(step(1), step(2));
    render(<StepsList rows={rows} chosen="" onChoose={() => null} empty={null} annotations={byStep([note('a', { rating: 4, labels: ['good'] })])} />);
    const [first, second] = screen.getAllByRole('option');
    expect(second!.textContent).toContain('annotated: rated 4 of 5, good');
    expect(first!.textContent).not.toContain('annotated');
  });

  it('are in exports unless they are not wanted', () => {
    expect(exportPath('a', { ...DEFAULT_EXPORT, format: 'sharegpt', annotations: true })).toBe('/api/v1/trajectories/a/export?format=sharegpt&annotations=true');
    expect(exportCommand('a', { ...DEFAULT_EXPORT, format: 'atif', annotations: false })).toBe('arenite trajectory export a --format atif --no-annotations -o a.atif.json');
  });
});

it('names what a step did, and when', () => {
  for (const [action, name] of [
    ['POST /v1/bash/exec?x=1', 'bash exec'], ['POST /api/v1/sandbox', 'create the sandbox'], ['POST /api/v2/sandboxes', 'create the sandbox'], ['DELETE /api/v2/sandboxes/a', 'delete the sandbox'],
    ['POST /api/v2/sandboxes/a/checkpoints', 'take a checkpoint'], ['DELETE /api/v2/sandboxes/a/checkpoints/s1', 'remove a checkpoint'], ['POST /api/v2/sandboxes/a/rollback', 'roll back the disk'],
    ['POST /api/v2/snapshots', 'take a snapshot'], ['PATCH /api/v2/sandboxes/a', 'change the sandbox'], ['POST /api/v2/else', '/api/v2/else'],
  ] as const) expect(title(action)).toBe(name);
  expect([0, 10, 500, 1000, 61_250, 3_600_000].map(offset)).toEqual(['0:00', '0:00.010', '0:00.5', '0:01', '1:01.250', '1:00:00']);
});
