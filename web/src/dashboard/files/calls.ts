// What the Files tab does in the sandbox. Names reach commands by their environment, so that they may have any character.

import { address, request } from '../../client/api';
import { ApiError } from '../../client/errors';
import { type Schemas, post } from '../calls';

export type Entry = Schemas['FileInfo'];
export type Listing = Schemas['FileListResult'];
export type FoundFile = Schemas['GlobFileInfo'];
export type FoundLine = Schemas['GrepMatch'];

export const MOST_FOUND = 200;
const SECONDS = 60;

export function parent(path: string): string {
  return path.replace(/\/[^/]+\/?$/, '') || '/';
}

export function join(directory: string, name: string): string {
  return directory.endsWith('/') ? directory + name : `${directory}/${name}`;
}

export function lastPart(path: string): string {
  return path.split('/').pop() || '/';
}

/** What is wrong with a new name; empty if nothing is. */
export function nameError(name: string): string {
  if (!name) return 'Enter a name.';
  if (name.includes('/') || name.includes('\0')) return 'A name has no slash.';
  if (name === '.' || name === '..') return 'This name means a folder that exists.';
  if (new TextEncoder().encode(name).length > 255) return 'A name has 255 bytes at most.';
  return '';
}

/** The address at which a file is downloaded. */
export function download(path: string): string {
  return `v1/file/download?path=${encodeURIComponent(path)}`;
}

export function list(path: string, hidden: boolean, signal?: AbortSignal): Promise<Listing> {
  return post('v1/file/list', { path, show_hidden: hidden, include_size: true }, signal);
}

/** Files and folders below a folder whose names contain a text. */
export async function findNames(path: string, text: string, hidden: boolean, signal?: AbortSignal): Promise<{ found: FoundFile[]; truncated: boolean }> {
  // What the pattern gives a meaning to is any one character.
  const pattern = `**/*${text.replace(/[[\]{}*?!\\]/g, '?')}*`;
  const { files, truncated } = await post<Schemas['FileGlobResult']>('v1/file/glob', { path, pattern, include_hidden: hidden, files_only: false, max_results: MOST_FOUND }, signal);
  return { found: files, truncated };
}

/** Lines of files below a folder that contain a text. */
export async function findLines(path: string, text: string, signal?: AbortSignal): Promise<{ found: FoundLine[]; truncated: boolean }> {
  const { matches, truncated } = await post<Schemas['FileGrepResult']>('v1/file/grep', { path, pattern: text, fixed_strings: true, case_insensitive: true, max_results: MOST_FOUND }, signal);
  return { found: matches, truncated };
}

/** What identifies the present content of a file; null if there is none. */
export async function version(path: string): Promise<string | null> {
  try {
    return (await request(download(path), { method: 'HEAD' })).headers.get('etag') ?? '';
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

export async function write(path: string, content: string): Promise<void> {
  await post('v1/file/write', { file: path, content });
}

let session: string | undefined;

/** Runs a command of the shell. It is a step, as what an agent does. */
async function run(command: string, env: Record<string, string>): Promise<void> {
  const body = { command, env, timeout: SECONDS, hard_timeout: SECONDS, close_stdin: true };
  let result: Schemas['BashExecResult'];
  try {
    result = await post('v1/bash/exec', { ...body, ...(session !== undefined && { session_id: session }) });
  } catch (error) {
    // The session ended, as with a restart of the sandbox; nothing was run.
    if (session === undefined || !(error instanceof ApiError && error.status === 404)) throw error;
    session = undefined;
    result = await post('v1/bash/exec', body);
  }
  session = result.session_id;
  if (result.exit_code === 0) return;
  const why = (result.stderr ?? '').trim().split('\n')[0];
  throw new Error(why || (result.exit_code === null ? `it takes longer than ${SECONDS} seconds and goes on` : `the command ended with ${result.exit_code}`));
}

const FREE = 'if [ -e "$TO" ] || [ -L "$TO" ]; then echo "there is a file with this name already" >&2; exit 1; fi; ';

export function rename(from: string, to: string): Promise<void> {
  return run(`${FREE}mv -- "$FROM" "$TO"`, { FROM: from, TO: to });
}

export function remove(path: string): Promise<void> {
  return run('rm -r -- "$TARGET"', { TARGET: path });
}

export function makeFolder(path: string): Promise<void> {
  return run(`${FREE}mkdir -- "$TO"`, { TO: path });
}

export function makeFile(path: string): Promise<void> {
  return run(`${FREE}: > "$TO"`, { TO: path });
}

export interface Progress {
  sent: number;
  total: number;
}

/** Uploads one file. `fetch` reports no progress, so this is an older kind of request. */
export function upload(path: string, file: File, progress: (progress: Progress) => void, signal: AbortSignal): Promise<void> {
  return new Promise((done, fail) => {
    const call = new XMLHttpRequest();
    call.open('POST', address('v1/file/upload'));
    call.setRequestHeader('x-arenite-origin', 'person');
    call.setRequestHeader('accept', 'application/json');
    call.upload.addEventListener('progress', event => progress({ sent: Math.min(event.loaded, file.size), total: file.size }));
    call.addEventListener('load', () => {
      const answer = parsed(call.responseText);
      if (call.status >= 200 && call.status < 300 && answer.success !== false) return done();
      fail(new ApiError(call.status, answer));
    });
    call.addEventListener('error', () => fail(new ApiError(0, { message: 'the server can\'t be reached' })));
    call.addEventListener('abort', () => fail(new DOMException('cancelled', 'AbortError')));
    signal.addEventListener('abort', () => call.abort());
    const form = new FormData();
    form.append('path', path);
    form.append('file', file);
    call.send(form);
  });
}

function parsed(text: string): { success?: boolean; message?: string } {
  try {
    return (JSON.parse(text) ?? {}) as { success?: boolean; message?: string };
  } catch {
    return {};
  }
}
