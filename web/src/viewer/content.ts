// What bodies say: commands, output, pictures, edits of files. All of it is hostile, and only ever becomes text and pictures.

import { pictureBytes } from './bodies';
import type { Step } from './step';

export type Fields = Record<string, unknown>;
export type PieceKind = 'output' | 'prompt' | 'stderr' | 'exit';
export type Piece = readonly [text: string, kind: PieceKind];
export type Shown = { terminal: Piece[] } | { picture: string } | { parts: unknown[] };

export function isFields(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function text(fields: Fields, ...names: string[]): string | null {
  for (const name of names) if (typeof fields[name] === 'string') return fields[name] as string;
  return null;
}

/** A command line as it was given. */
export function command(asked: unknown): Piece[] | null {
  if (!isFields(asked)) return null;
  const line = text(asked, 'command', 'cmd');
  if (line && text(asked, 'path', 'file_path') === null) return [['$ ', 'prompt'], [line, 'output']];
  const code = text(asked, 'code');
  return code ? [[code, 'output']] : null;
}

/** The text of an answer: streams, a file's content, a result. */
export function printed(came: unknown): Shown | null {
  if (!isFields(came)) return null;
  const failed = came.success === false || (typeof came.code === 'number' && came.code !== 0);
  const data = 'data' in came ? came.data : came;
  if (failed && typeof came.message === 'string' && (data === null || !isFields(data) || Object.keys(data).every(key => key === 'traceback'))) return { terminal: [[came.message, 'stderr']] };
  if (typeof data === 'string') return pictureBytes(data) ? { picture: data } : { terminal: [[data, 'output']] };
  if (!isFields(data)) return null;
  const exit = ['exit_code', 'return_code', 'returncode'].map(name => data[name]).find(code => typeof code === 'number');
  const end: Piece[] = exit === undefined || exit === 0 ? [] : [[`\nexit code ${exit}`, 'exit']];
  if ('stdout' in data || 'stderr' in data) return { terminal: [[text(data, 'stdout') ?? '', 'output'], [text(data, 'stderr') ?? '', 'stderr'], ...end] };
  const image = text(data, 'image', 'screenshot');
  if (image && pictureBytes(image)) return { picture: image };
  if (Array.isArray(data.content)) return { parts: data.content as unknown[] };
  const said = text(data, 'output', 'content', 'result', 'context', 'text', 'accessibility_tree');
  return said === null ? null : { terminal: [[said, 'output'], ...end] };
}

/** A part of an answer as the Model Context Protocol has it. */
export function partOf(part: unknown): Shown | null {
  if (!isFields(part)) return null;
  const data = part.type === 'image' ? text(part, 'data') : null;
  if (data && pictureBytes(data)) return { picture: data };
  return typeof part.text === 'string' ? { terminal: [[part.text, 'output']] } : null;
}

/** Text as a terminal has it at the end: without colours, and with what a carriage return wrote over. */
export function plain(text: string): string {
  return text.replace(/\u001b(\[[0-9;?]*[ -/]*[@-~]|\][^\u0007\u001b]*(\u0007|\u001b\\)?|[@-_])/g, '').replace(/\r\n/g, '\n').replace(/^.*\r(?!$)/gm, '');
}

export interface Edit {
  path: string;
  before: string;
  after: string;
}

export function edited(asked: unknown): Edit | null {
  if (!isFields(asked)) return null;
  const path = text(asked, 'path', 'file', 'file_path');
  const before = text(asked, 'old_str', 'old_string', 'old_text');
  if (!path || before === null || (asked.command !== undefined && asked.command !== 'str_replace')) return null;
  return { path, before, after: text(asked, 'new_str', 'new_string', 'new_text') ?? '' };
}

export function mayWrite(action: string): boolean {
  return /write|create|edit|replace/i.test(action);
}

/** The whole content that a step gave a file. */
export function written(step: Step, asked: unknown): { path: string; content: string } | null {
  if (!isFields(asked)) return null;
  const path = text(asked, 'path', 'file', 'file_path');
  const content = asked.command === 'create' ? text(asked, 'file_text') : /write/i.test(step.action) ? text(asked, 'content') : null;
  const part = asked.append === true || (typeof asked.encoding === 'string' && asked.encoding !== 'utf-8');
  return path && content !== null && !part ? { path, content } : null;
}
