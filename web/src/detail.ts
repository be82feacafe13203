// One step, as far as it can be shown: what was asked, what came back, when.

import { request } from './api';
import { asked as askedOf, said } from './conversation';
import { diff } from './diff';
import { bytes, make, milliseconds } from './dom';
import { jsonTree, picture, pictureIn } from './json_tree';
import { type Step, failure, parentOf, pictureAddress, state, title, told, tokens } from './steps';

/** Larger bodies are offered to be saved. */
const MOST_READ = 8 << 20;
const MOST_TEXT = 200_000;

/** A body that was read: JSON, text, or a picture's address. */
type Read = { json: unknown } | { text: string } | { picture: string; bytes: number } | { told: string };
type Fields = Record<string, unknown>;

export class Detail {
  private readonly box: HTMLElement;
  private readonly base: string;
  private readonly all: Map<number, Step>;
  private turn = 0;

  /** `base`: where a step's bodies are, below its number. */
  constructor(box: HTMLElement, base: string, all: Map<number, Step>) {
    this.box = box;
    this.base = base;
    this.all = all;
  }

  async show(step: Step): Promise<void> {
    const turn = ++this.turn;
    const [asked, came] = await Promise.all([this.read(step, 'arguments'), this.read(step, 'observation')]);
    const change = await this.change(step, asked);
    // Another was chosen meanwhile.
    if (turn !== this.turn) return;
    for (const image of this.box.querySelectorAll('img')) URL.revokeObjectURL(image.src);
    const outcome = state(step);
    const head = make('header', {},
      make('h2', {}, make('small', { textContent: String(step.step) }), ` ${title(step.action)}`),
      make('span', { className: 'chip', textContent: failure(step) ? `${outcome}: ${failure(step)}`.slice(0, 80) : outcome }));
    head.dataset.outcome = outcome;
    this.box.replaceChildren(head, facts(step), ...this.part(step, 'arguments', asked, change), ...this.part(step, 'observation', came, []));
    if (step.calls) this.box.append(make('details', { className: 'raw' }, make('summary', { textContent: `its ${step.calls.length} calls` }), jsonTree(step.calls)));
    if (step.error) this.box.append(make('h3', { textContent: 'how it ended' }), make('pre', { textContent: step.error }));
    if (!came) this.box.append(make('p', { className: 'quiet', textContent: step.outcome ? 'No answer.' : 'No answer yet.' }));
    this.box.scrollTop = 0;
  }

  private async read(step: Step, which: 'arguments' | 'observation'): Promise<Read | null> {
    const body = step[which];
    if (!body) return null;
    if ('json' in body || 'text' in body) return body;
    if ('base64' in body) return { text: body.base64 };
    const { blob } = body;
    if (!blob.kept) return { told: `${bytes(blob.bytes)}, of which only the hash was kept: BLAKE3 ${blob.blake3}` };
    if (blob.bytes > MOST_READ) return { told: `${bytes(blob.bytes)}, BLAKE3 ${blob.blake3}` };
    try {
      const answer = await request(`${this.base}${step.step}/${which}`);
      const content = new Uint8Array(await answer.arrayBuffer());
      const address = pictureAddress(content);
      if (address) return { picture: address, bytes: content.length };
      const text = new TextDecoder('utf-8', { fatal: true }).decode(content);
      try {
        return { json: JSON.parse(text) as unknown };
      } catch {
        return { text };
      }
    } catch (error) {
      return { told: `${bytes(blob.bytes)}, BLAKE3 ${blob.blake3} (${(error as Error).message})` };
    }
  }

  private part(step: Step, which: 'arguments' | 'observation', body: Read | null, drawn: Node[]): Node[] {
    if (!body) return [];
    const save = make('a', { href: `${this.base}${step.step}/${which}`, textContent: 'save' });
    save.download = `step-${step.step}-${which}`;
    const nodes: Node[] = [make('h3', {}, `${which} `, save), ...drawn];
    if ('told' in body) return [...nodes, make('p', { className: 'quiet', textContent: body.told })];
    if ('picture' in body) return [...nodes, picture(body.picture, bytes(body.bytes))];
    if ('text' in body) return [...nodes, pictureIn(body.text) ?? terminal([[body.text, '']])];
    const ofModel = step.dialect === 'model' ? (which === 'arguments' ? askedOf(body.json) : said(body.json)) : null;
    const best = ofModel ?? (which === 'arguments' ? command(body.json) : printed(body.json));
    if (!best && drawn.length === 0) return [...nodes, jsonTree(body.json)];
    // What is shown well is there once more as it came.
    const raw = make('details', { className: 'raw' }, make('summary', { textContent: 'as recorded' }), jsonTree(body.json));
    return [...nodes, ...(best ? [best] : []), raw];
  }

  /** What a step did to a file. */
  private async change(step: Step, asked: Read | null): Promise<Node[]> {
    if (!asked || !('json' in asked) || !isFields(asked.json)) return [];
    const edit = edited(asked.json);
    if (edit) return [lines(edit.path, edit.before, edit.after)];
    const wrote = written(step, asked.json);
    if (!wrote) return [];
    const before = await this.before(step, wrote.path);
    return [lines(wrote.path, before ?? '', wrote.content, before === null)];
  }

  /** What an earlier step on the same way wrote to the same file; null when none is in the list. */
  private async before(step: Step, path: string): Promise<string | null> {
    let earlier: Step | undefined = step;
    while ((earlier = this.all.get(parentOf(earlier)))) {
      if (earlier.outcome !== 'ok' || !mayWrite(earlier.action)) continue;
      const body = await this.read(earlier, 'arguments');
      if (!body || !('json' in body) || !isFields(body.json)) continue;
      const wrote = written(earlier, body.json);
      if (wrote?.path === path) return wrote.content;
      // Since then something else was done to it, so what it was is not known.
      if (edited(body.json)?.path === path) return null;
    }
    return null;
  }
}

function isFields(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function text(fields: Fields, ...names: string[]): string | null {
  for (const name of names) if (typeof fields[name] === 'string') return fields[name] as string;
  return null;
}

function facts(step: Step): HTMLElement {
  const list = make('dl', { className: 'facts' });
  const add = (name: string, value: string | null | undefined, about = ''): void => {
    if (value) list.append(make('div', {}, make('dt', { textContent: name }), make('dd', { textContent: value, title: about })));
  };
  const clock = (at: string): string => new Date(at).toLocaleTimeString(undefined, { hour12: false, hour: '2-digit', minute: '2-digit', second: '2-digit', fractionalSecondDigits: 3 });
  const work = step.work;
  if (work) {
    const waited = Date.parse(step.started_at) - Date.parse(work.queued_at);
    add('asked', clock(work.queued_at), work.queued_at);
    add('waited', waited >= 1 ? milliseconds(waited) : '');
  }
  add('started', clock(step.started_at), step.started_at);
  add('ended', step.ended_at && clock(step.ended_at), step.ended_at ?? '');
  add('took', step.duration_ms === null ? '' : milliseconds(step.duration_ms));
  add('status', step.status === null ? '' : String(step.status));
  add('dialect', step.dialect);
  add('action', step.action);
  add('worker', work?.worker);
  add('task', work?.task);
  const parent = parentOf(step);
  add('goes on from', parent === step.step - 1 ? '' : parent === 0 ? 'the start' : `step ${parent}`);
  add('sandbox', work?.sandbox ?? step.sandbox_name);
  add('tokens', work?.tokens === undefined ? '' : JSON.stringify(work.tokens));
  const model = step.model;
  add('model', model?.model);
  add('route', model?.route);
  add('tokens', model && tokens(model), model?.cached_tokens ? `${model.cached_tokens} from the cache` : '');
  add('cost', model && model.cost_usd !== null ? `$${model.cost_usd.toPrecision(3)}` : '');
  add('first token', model && model.first_token_ms !== null ? milliseconds(model.first_token_ms) : '');
  add('finished by', model?.finish_reason);
  add('trace', work?.trace_id);
  add('went', told(step));
  add('caused by', step.origin);
  add('from', step.client);
  return list;
}

/** A command line as it was given. */
function command(asked: unknown): HTMLElement | null {
  if (!isFields(asked)) return null;
  const line = text(asked, 'command', 'cmd');
  if (line && text(asked, 'path', 'file_path') === null) return terminal([['$ ', 'prompt'], [line, '']]);
  const code = text(asked, 'code');
  return code ? terminal([[code, '']]) : null;
}

/** The text of an answer: streams, a file's content, a result. */
function printed(came: unknown): HTMLElement | null {
  if (!isFields(came)) return null;
  const failed = came.success === false || (typeof came.code === 'number' && came.code !== 0);
  const data = 'data' in came ? came.data : came;
  if (failed && typeof came.message === 'string' && (data === null || !isFields(data) || Object.keys(data).every(key => key === 'traceback'))) {
    return terminal([[came.message, 'stderr']]);
  }
  if (typeof data === 'string') return pictureIn(data) ?? terminal([[data, '']]);
  if (!isFields(data)) return null;
  const exit = ['exit_code', 'return_code', 'returncode'].map(name => data[name]).find(code => typeof code === 'number');
  const end: [string, string][] = exit === undefined || exit === 0 ? [] : [[`\nexit code ${exit}`, 'exit']];
  if ('stdout' in data || 'stderr' in data) {
    return terminal([[text(data, 'stdout') ?? '', ''], [text(data, 'stderr') ?? '', 'stderr'], ...end]);
  }
  const image = text(data, 'image', 'screenshot');
  const shown = image ? pictureIn(image) : null;
  if (shown) return shown;
  if (Array.isArray(data.content)) return parts(data.content as unknown[]);
  const told = text(data, 'output', 'content', 'result', 'context', 'text', 'accessibility_tree');
  return told === null ? null : terminal([[told, ''], ...end]);
}

/** Parts of an answer as the Model Context Protocol has them. */
function parts(content: unknown[]): HTMLElement {
  const box = make('div', { className: 'parts' });
  for (const part of content) {
    const image = isFields(part) && part.type === 'image' ? pictureIn(text(part, 'data') ?? '') : null;
    box.append(image ?? (isFields(part) && typeof part.text === 'string' ? terminal([[part.text, '']]) : jsonTree(part)));
  }
  return box;
}

/** Text as a terminal has it when all is said: without colours, and with what a carriage return wrote over. */
function terminal(pieces: [string, string][]): HTMLElement {
  const node = make('pre', { className: 'terminal', tabIndex: 0 });
  let room = MOST_TEXT;
  for (const [piece, kind] of pieces) {
    if (!piece || room <= 0) continue;
    const plain = piece.slice(0, room).replace(/\u001b(\[[0-9;?]*[ -/]*[@-~]|\][^\u0007\u001b]*(\u0007|\u001b\\)?|[@-_])/g, '').replace(/\r\n/g, '\n').replace(/^.*\r(?!$)/gm, '');
    node.append(make('span', { className: kind, textContent: plain }));
    if (piece.length > room) node.append(make('span', { className: 'exit', textContent: `\n… ${piece.length - room} more characters` }));
    room -= piece.length;
  }
  if (!node.textContent) node.append(make('span', { className: 'quiet', textContent: 'nothing was printed' }));
  return node;
}

function edited(asked: Fields): { path: string; before: string; after: string } | null {
  const path = text(asked, 'path', 'file', 'file_path');
  const before = text(asked, 'old_str', 'old_string', 'old_text');
  if (!path || before === null || (asked.command !== undefined && asked.command !== 'str_replace')) return null;
  return { path, before, after: text(asked, 'new_str', 'new_string', 'new_text') ?? '' };
}

function mayWrite(action: string): boolean {
  return /write|create|edit|replace/i.test(action);
}

/** What a step made of a whole file. */
function written(step: Step, asked: Fields): { path: string; content: string } | null {
  const path = text(asked, 'path', 'file', 'file_path');
  const content = asked.command === 'create' ? text(asked, 'file_text') : /write/i.test(step.action) ? text(asked, 'content') : null;
  const part = asked.append === true || (typeof asked.encoding === 'string' && asked.encoding !== 'utf-8');
  return path && content !== null && !part ? { path, content } : null;
}

function lines(path: string, before: string, after: string, whole = false): HTMLElement {
  const box = make('div', { className: 'diff', tabIndex: 0 }, make('p', { className: 'quiet', textContent: path }));
  const found = whole ? after.slice(0, MOST_TEXT).split('\n').map(line => ({ kind: 'new' as const, text: line })) : diff(before.slice(0, MOST_TEXT), after.slice(0, MOST_TEXT));
  const mark = { same: ' ', gone: '−', new: '+', gap: '⋯' };
  for (const line of found) box.append(make('div', { className: line.kind }, make('i', { textContent: mark[line.kind] }), make('span', { textContent: line.text })));
  return box;
}
