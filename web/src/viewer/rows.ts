// Rows of a run: its steps, and between them the records of its network and its sessions, in their order.

import type { Schemas } from '../client/api';
import { bytes, milliseconds } from '../format';
import { saidMessages } from './conversation';
import { type Recorded, type Step, failure, parentOf, state, subject, title, told, tokens } from './step';

export type NetworkRecord = Schemas['NetworkEvent'];
export type SessionRecord = Schemas['SessionEvent'];
export type Kind = 'tool' | 'screen' | 'model' | 'network' | 'session';
export const KINDS: readonly (readonly [Kind, string])[] = [['tool', 'Tools'], ['model', 'Model calls'], ['screen', 'Screen and browser'], ['network', 'Network'], ['session', 'Sessions']];
/** How a row ended, for colours and filters. */
export type Outcome = 'ok' | 'failed' | 'refused' | 'running' | 'unknown';

export interface Row {
  /** As in the address: `step-7`, `network-2`. */
  id: string;
  kind: Kind;
  /** What the tool filter selects: the title of an action, or what a record is. */
  tool: string;
  about: string;
  outcome: Outcome;
  /** What is said about the outcome, if it is not simply well. */
  note: string;
  /** Milliseconds since 1970. */
  start: number;
  end: number | null;
  duration: number | null;
  origin: string;
  /** How far it is indented: branches are to the right of what they continue. */
  depth: number;
  /** The step that it continues, if that is not the one before; 0 is the start. */
  from: number | null;
  step: Step | null;
  network: NetworkRecord | null;
  session: SessionRecord | null;
}

const SCREEN = /\/screenshot|\/browser|\/cdp|\/websockify|\/desktop|\/computer|screenshot|^(?:browser|vm|desktop|gui)[:_]/i;
/** The server refused the call before it reached its tool: rights, limits, budgets, space. */
const REFUSED = new Set([401, 402, 403, 407, 423, 429, 451, 507]);
const DEEPEST = 8;

export function kindOf(step: Step): Kind {
  if (step.dialect === 'model' || step.model) return 'model';
  return SCREEN.test(step.action) ? 'screen' : 'tool';
}

export function outcomeOf(step: Step): Outcome {
  if (step.outcome === null) return 'running';
  if (step.outcome === 'error' && step.status !== null && REFUSED.has(step.status)) return 'refused';
  if (step.outcome === 'ok') return failure(step) ? 'failed' : 'ok';
  return step.outcome === 'aborted' ? 'unknown' : 'failed';
}

function noteOf(step: Step): string {
  if (step.outcome === null) return 'running';
  const wrong = failure(step);
  if (step.outcome === 'ok') return wrong;
  return wrong && step.outcome === 'error' ? `${step.status ?? 'error'}: ${wrong}` : wrong || state(step);
}

/** Of a call of a model, what it said; of others, what they are about. */
function aboutOf(step: Step): string {
  if (!step.model) return subject(step);
  const said = step.observation && 'json' in step.observation ? saidMessages(step.observation.json) ?? [] : [];
  const text = said.filter(({ role }) => role !== 'reasoning').map(message => message.text).join(' ');
  return [tokens(step.model), text.replace(/\s+/g, ' ').slice(0, 200)].filter(Boolean).join(': ');
}

function stepRow(step: Step, depths: Map<number, number>): Row {
  const parent = parentOf(step);
  const branches = parent !== step.step - 1;
  const known = depths.get(parent);
  const depth = branches ? (known === undefined ? 0 : Math.min(DEEPEST, known + 1)) : known ?? 0;
  depths.set(step.step, depth);
  const start = Date.parse(step.started_at);
  return {
    id: `step-${step.step}`, kind: kindOf(step), tool: step.model ? step.model.model : title(step.action), about: aboutOf(step), outcome: outcomeOf(step), note: noteOf(step),
    start, end: step.ended_at === null ? null : Date.parse(step.ended_at), duration: step.duration_ms, origin: step.origin, depth, from: branches ? parent : null,
    step, network: null, session: null,
  };
}

export function networkRow(record: NetworkRecord, n: number): Row {
  const end = Date.parse(record.at);
  const { ssh } = record;
  const host = record.name ?? record.address ?? (ssh ? 'an unknown server' : 'various');
  const place = `${ssh?.user ? `${ssh.user} at ` : ''}${host}${record.port > 0 ? `:${record.port}` : ''}`;
  const how = ssh ? `${record.reason.replaceAll('_', ' ')}${ssh.secret ? `, ${ssh.secret}` : ''}` : record.allowed ? `${bytes(record.bytes_sent)} sent, ${bytes(record.bytes_received)} received` : record.rule ?? record.reason.replaceAll('_', ' ');
  return {
    id: `network-${n + 1}`, kind: 'network', tool: `${record.allowed ? '' : 'refused '}${ssh ? 'SSH login' : 'connection'}`, outcome: record.allowed ? 'ok' : 'refused', note: record.allowed ? '' : 'refused',
    about: `${place}${record.count > 1 ? ` ${record.count} times` : ''}, ${how}`, start: end - (record.allowed ? record.duration_ms : 0), end, duration: record.allowed ? record.duration_ms : null,
    origin: '', depth: 0, from: null, step: null, network: record, session: null,
  };
}

function sessionRow(session: SessionRecord, n: number): Row {
  const at = Date.parse(session.at);
  return {
    id: `session-${n + 1}`, kind: 'session', tool: `${session.resource_type} session`, about: `${session.event === 'begin' ? 'starts' : 'ends'}: ${session.id}`, outcome: 'ok', note: '',
    start: at, end: at, duration: null, origin: '', depth: 0, from: null, step: null, network: null, session,
  };
}

/** All rows: a record stands after the step that its `after` names. */
export function buildRows(steps: readonly Step[], network: readonly NetworkRecord[], sessions: readonly SessionRecord[]): Row[] {
  const depths = new Map<number, number>();
  const records = [
    ...network.map((record, n) => ({ after: record.after ?? 0, at: record.at, row: networkRow(record, n) })),
    ...sessions.map((session, n) => ({ after: session.after ?? 0, at: session.at, row: sessionRow(session, n) })),
  ].sort((a, b) => a.after - b.after || a.at.localeCompare(b.at));
  const rows: Row[] = [];
  let next = 0;
  for (const step of steps) {
    while (next < records.length && records[next]!.after < step.step) rows.push(records[next++]!.row);
    rows.push(stepRow(step, depths));
  }
  while (next < records.length) rows.push(records[next++]!.row);
  return rows;
}

/** What a row says to a screen reader. */
export function rowText(row: Row): string {
  const took = row.duration === null ? '' : milliseconds(row.duration);
  return [row.step ? `Step ${row.step.step}` : '', row.tool, row.about, row.step ? told(row.step) : row.note, took].filter(Boolean).join(', ');
}

const MOST_SEARCHED = 20_000;
const searchable = new WeakMap<object, string>();

function bodyText(body: Recorded | null): string {
  if (!body) return '';
  const text = 'json' in body ? JSON.stringify(body.json) : 'text' in body ? body.text : '';
  return (text ?? '').slice(0, MOST_SEARCHED).replaceAll('\\n', '\n').replaceAll('\\"', '"');
}

/** What the search looks through, in lower case: what is in the log itself, the first part of long bodies. */
export function searchText(row: Row): string {
  const key = row.step ?? row.network ?? row.session!;
  let text = searchable.get(key);
  if (text === undefined) {
    const { step } = row;
    const parts = step ? [`#${step.step}`, step.action, row.tool, row.note, step.error ?? '', step.cut ?? '', bodyText(step.arguments), bodyText(step.observation)] : [row.tool, row.about, row.note, row.session ? JSON.stringify(row.session) : ''];
    text = parts.join('\n').toLowerCase();
    searchable.set(key, text);
  }
  return text;
}
