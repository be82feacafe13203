// Exports: the formats, their options, and the same as commands. A preview reads the beginning of a file.

import { fill, request } from '../client/api';

export const FORMATS: readonly (readonly [format: string, text: string, extension: string])[] = [
  ['jsonl', 'every step as recorded, one per line', 'jsonl'],
  ['openai-messages', 'messages with tool calls, a line for each branch', 'jsonl'],
  ['sharegpt', 'conversations with function calls, a line for each branch', 'jsonl'],
  ['atif', 'Agent Trajectory Interchange Format 1.7', 'json'],
  ['agentflow-rollout', 'AgentFlow\'s rollout, a line for each branch', 'jsonl'],
  ['agentflow-synthesis', 'AgentFlow\'s tree of nodes', 'json'],
  ['asciicast', 'commands and their output as a terminal recording', 'cast'],
];

export interface ExportOptions {
  format: string;
  /** Empty: the agent's steps. */
  origin: string;
  result: string;
  class: string;
  /** With `jsonl`: network records, too. */
  network: boolean;
  /** With `jsonl`: large bodies inline. Such a file has all steps, unless an origin is chosen, and no annotations. */
  inline: boolean;
  /** With annotations; null: if the format has a place for them. */
  annotations: boolean | null;
}

export const DEFAULT_EXPORT: ExportOptions = { format: 'jsonl', origin: '', result: '', class: '', network: false, inline: false, annotations: null };

/** Whether a file has annotations. Programs that read the other formats refuse unknown fields. */
export function hasAnnotations({ format, inline, annotations }: ExportOptions): boolean {
  if (format === 'jsonl' && inline) return false;
  return annotations ?? !['openai-messages', 'sharegpt'].includes(format);
}

export function exportPath(id: string, { format, origin, result, class: side, network, inline, annotations }: ExportOptions): string {
  const path = { id };
  if (format === 'jsonl' && inline) return fill('/api/v1/trajectories/{id}', { path, query: { format, bodies: 'inline', origin: origin || 'agent', result, class: side } });
  return fill('/api/v1/trajectories/{id}/export', { path, query: { format, origin, result, class: side, ...(network && format === 'jsonl' ? { network } : {}), ...(annotations === null ? {} : { annotations }) } });
}

export function exportName(id: string, { format }: ExportOptions): string {
  const extension = FORMATS.find(([name]) => name === format)?.[2] ?? 'jsonl';
  return format === 'jsonl' ? `${id}.jsonl` : `${id}.${format}.${extension}`;
}

const quoted = (text: string): string => (/^[\w./:@%+=-]+$/.test(text) ? text : `'${text.replaceAll('\'', '\'\\\'\'')}'`);

/** The same export by the command line; null if only the API has its options. */
export function exportCommand(id: string, options: ExportOptions): string | null {
  if (options.format === 'jsonl' && (options.network || options.inline)) return null;
  const flags = [['--format', options.format], ['--origin', options.origin], ['--result', options.result], ['--class', options.class]].filter(([, value]) => value).map(([flag, value]) => `${flag} ${quoted(value!)}`);
  const annotations = options.annotations === null ? [] : [options.annotations ? '--annotations' : '--no-annotations'];
  return ['arenite trajectory export', quoted(id), ...flags, ...annotations, '-o', quoted(exportName(id, options))].join(' ');
}

export function exportCurl(server: string, id: string, options: ExportOptions): string {
  return `curl -f -H "Authorization: Bearer $ARENITE_API_KEY" -o ${quoted(exportName(id, options))} '${server}${exportPath(id, options)}'`;
}

/** What of a file is previewed, and how far its size is counted. */
const MOST_PREVIEW = 48 << 10;
const MOST_COUNTED = 32 << 20;
const MOST_RECORDS = 3;
const MOST_RECORD = 6000;

export interface Preview {
  records: string[];
  /** Bytes that were counted. */
  size: number;
  /** The file is larger than what was counted. */
  isMore: boolean;
}

/** Reads the first records of an export, and its size as far as it is counted. */
export async function previewExport(id: string, options: ExportOptions, signal: AbortSignal): Promise<Preview> {
  const answer = await request(exportPath(id, options), { signal });
  const reader = answer.body?.getReader();
  const decoder = new TextDecoder();
  let text = '';
  let size = 0;
  let isMore = false;
  for (let piece = await reader?.read(); piece && !piece.done; piece = await reader?.read()) {
    if (size < MOST_PREVIEW) text += decoder.decode(piece.value.slice(0, MOST_PREVIEW - size), { stream: true });
    size += piece.value.length;
    if (size >= MOST_COUNTED) {
      isMore = true;
      await reader?.cancel();
      break;
    }
  }
  return { records: firstRecords(text, options.format), size, isMore };
}

/** The first lines of a file of lines, or the beginning of a document; JSON is indented. */
export function firstRecords(text: string, format: string): string[] {
  const isLines = FORMATS.find(([name]) => name === format)?.[2] !== 'json';
  const parts = isLines ? text.split('\n').filter(Boolean).slice(0, MOST_RECORDS) : text ? [text] : [];
  return parts.map(part => {
    let shown = part;
    try {
      shown = format === 'asciicast' ? part : JSON.stringify(JSON.parse(part), null, 2);
    } catch {
      // A record that is longer than the preview.
    }
    return shown.length > MOST_RECORD ? `${shown.slice(0, MOST_RECORD)}\n…` : shown;
  });
}
