// A step as it is recorded, and how it is described in a word or a line.

import { bytes } from '../format';

/** A body: `json`, `text`, or what stands outside the record. */
export type Recorded = { json: unknown } | { text: string } | { base64: string } | { blob: { blake3: string; bytes: number; kept: boolean } };

/** Whose step it is in AgentFlow's words. */
export interface Work {
  worker: string;
  task?: string;
  parent?: number;
  trace_id: string;
  queued_at: string;
  sandbox?: string;
  tokens?: unknown;
}

/** A call of a model. */
export interface ModelCall {
  route: string;
  model: string;
  stream: boolean;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  cached_tokens: number | null;
  estimated: boolean;
  cost_usd: number | null;
  first_token_ms: number | null;
  finish_reason: string | null;
}

/** The numbers of the checkpoints that equal the disk before and after a step, and the hash of its content. */
export interface StepState {
  before: number;
  after: number;
  hash?: string | null;
  changed: boolean;
}

export interface Step {
  step: number;
  dialect: string;
  action: string;
  arguments: Recorded | null;
  observation: Recorded | null;
  sandbox_name: string;
  bytes_in: number;
  bytes_out: number;
  started_at: string;
  ended_at: string | null;
  duration_ms: number | null;
  outcome: string | null;
  status: number | null;
  /** Whether it did what it was asked; null where there is no whole answer. */
  result: 'succeeded' | { failed: { exit_code: number } | { error: string } } | null;
  /** The side at fault for a failure; null where there is none, or nobody knows. */
  class: 'agent' | 'infrastructure' | null;
  error: string | null;
  origin: 'agent' | 'person' | 'system';
  client: string | null;
  /** The disk around it, of a sandbox with automatic checkpoints. */
  state?: StepState | null;
  /** The calls of a step that stands for several. */
  calls?: unknown[];
  work?: Work | null;
  model?: ModelCall | null;
  /** The first part of bodies that the page has dropped to save memory. */
  cut?: string;
}

/** What went wrong, in a word or two; empty when nothing did, as far as it is known. */
export function failure(step: Step): string {
  if (step.result === null || step.result === 'succeeded') return '';
  const { failed } = step.result;
  return 'exit_code' in failed ? `exit ${failed.exit_code}` : failed.error;
}

/** For colours: how it went on the wire, and `failed` of an answer that came and says so. */
export function state(step: Step): string {
  const outcome = step.outcome ?? 'under way';
  return outcome === 'ok' && failure(step) ? 'failed' : outcome;
}

/** How it went, to be read: the wire's outcome, then the result. */
export function told(step: Step): string {
  const outcome = step.outcome ?? 'under way';
  const wrong = failure(step);
  const fault = step.class ? ` (${step.class})` : '';
  return wrong ? `${outcome}, failed: ${wrong}${fault}` : step.result === 'succeeded' ? `${outcome}, succeeded` : `${outcome}${fault}`;
}

/** The step that one goes on from, 0 for none. One that was not before it can't be: clients say what they like. */
export function parentOf(step: Step): number {
  const parent = step.work?.parent ?? step.step - 1;
  return parent >= 0 && parent < step.step ? parent : step.step - 1;
}

/** What says best what a call was about, in the order in which it is looked for. */
const TELLING = ['command', 'cmd', 'code', 'url', 'path', 'file', 'file_path', 'name', 'pattern', 'query', 'text', 'action_type', 'tool', 'image', 'input'];

/** WebSockets: one step each, as long as they last. */
const STREAMS: Record<string, string> = { '/websockify': 'the desktop is watched', '/v1/shell/ws': 'a terminal is open' };

/** Operations of a sandbox's life, by the method and the last part of the path, or by the part before a name. */
const OPERATIONS: Record<string, string> = {
  'POST sandbox': 'create the sandbox', 'POST sandboxes': 'create the sandbox', 'PATCH sandboxes/': 'change the sandbox', 'DELETE sandbox/': 'delete the sandbox', 'DELETE sandboxes/': 'delete the sandbox',
  'POST pause': 'pause the sandbox', 'POST resume': 'resume the sandbox', 'POST start': 'start the sandbox', 'POST reset': 'reset the sandbox', 'POST fork': 'fork the sandbox',
  'POST checkpoints': 'take a checkpoint', 'DELETE checkpoints/': 'remove a checkpoint', 'POST rollback': 'roll back the disk', 'POST snapshots': 'take a snapshot',
};

/** `POST /v1/bash/exec?x=1` is `bash exec`. */
export function title(action: string): string {
  const [method, place = ''] = action.split(' ', 2);
  const path = place.split('?', 1)[0]!.replace(/\/$/, '');
  const stream = STREAMS[path];
  if (stream) return stream;
  if (path.startsWith('/code-server/')) return 'VS Code is open';
  if (path.startsWith('/jupyter/')) return 'JupyterLab is open';
  if (path.startsWith('/cdp') || path.startsWith('/json')) return 'a client of the browser';
  if (path.startsWith('/v1/mcp/hub/tools/')) return path.slice(18).replaceAll('_', ' ');
  if (path.startsWith('/v1/')) return path.slice(4).replaceAll('/', ' ').replaceAll('_', ' ');
  if (path.startsWith('/api/v')) {
    const parts = path.split('/');
    const verb = OPERATIONS[`${method} ${parts.at(-1)}`] ?? OPERATIONS[`${method} ${parts.at(-2)}/`];
    if (verb) return verb;
  }
  return path || action;
}

/** The tokens of a call of a model, in and out. */
export function tokens({ prompt_tokens, completion_tokens, estimated }: ModelCall): string {
  if (prompt_tokens === null || completion_tokens === null) return '';
  return `${estimated ? 'about ' : ''}${prompt_tokens} tokens in, ${completion_tokens} out`;
}

/** How a call was made, and how it ended, in a line. */
export function circumstances(step: Step): string {
  return `${step.action}, ${step.dialect}, ${step.started_at.replace(/(\.\d{3})\d+/, '$1')}, ${told(step)}, by ${step.origin}, from ${step.client ?? 'unknown'}`;
}

export function subject(step: Step): string {
  const body = step.arguments;
  if (step.model) return [step.model.model, tokens(step.model)].filter(Boolean).join(', ');
  if (!body) return '';
  if ('text' in body) return line(body.text);
  if ('base64' in body) return '';
  if ('blob' in body) return `${bytes(body.blob.bytes)} of arguments`;
  if (typeof body.json !== 'object' || body.json === null) return '';
  const fields = body.json as Record<string, unknown>;
  // An editor's command is one word; the file says more.
  if (typeof fields.command === 'string' && typeof fields.path === 'string') return line(`${fields.command} ${fields.path}`);
  for (const name of TELLING) {
    const value = fields[name];
    if (typeof value === 'string' && value) return line(value);
  }
  return '';
}

function line(text: string): string {
  return text.trim().replace(/\s+/g, ' ').slice(0, 300);
}

/** By its first bytes: what a name or a header claims proves nothing. No format of these runs scripts. */
export function pictureAddress(content: Uint8Array<ArrayBuffer>): string | null {
  const begins = (at: number, ...wanted: number[]): boolean => wanted.every((byte, i) => content[at + i] === byte);
  let type = '';
  if (begins(0, 0x89, 0x50, 0x4e, 0x47)) type = 'image/png';
  else if (begins(0, 0xff, 0xd8, 0xff)) type = 'image/jpeg';
  else if (begins(0, 0x47, 0x49, 0x46, 0x38)) type = 'image/gif';
  else if (begins(0, 0x52, 0x49, 0x46, 0x46) && begins(8, 0x57, 0x45, 0x42, 0x50)) type = 'image/webp';
  else if (begins(0, 0x42, 0x4d)) type = 'image/bmp';
  return type ? URL.createObjectURL(new Blob([content], { type })) : null;
}
