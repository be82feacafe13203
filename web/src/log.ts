// The log of a main command: the end of it, read again while it is followed.

import { requestAddress as request } from './client/api';

/** Characters that are kept: the end of the log. */
export const MOST_KEPT = 256 << 10;
/** A longer log is not read again by itself. */
const MOST_FOLLOWED = 4 << 20;

export interface LogPart {
  text: string;
  /** Bytes of the whole log. */
  length: number;
  /** The beginning is left out. */
  cut: boolean;
  mayFollow: boolean;
}

/** Reads a log to its end, and keeps the last part. */
export async function readLog(path: string, signal: AbortSignal): Promise<LogPart> {
  const answer = await request(path, { signal });
  let text = '';
  let length = 0;
  let cut = false;
  const decoder = new TextDecoder();
  const reader = answer.body?.getReader();
  for (let piece = await reader?.read(); piece && !piece.done; piece = await reader?.read()) {
    length += piece.value.length;
    text += decoder.decode(piece.value, { stream: true });
    if (text.length > 2 * MOST_KEPT) {
      text = text.slice(-MOST_KEPT);
      cut = true;
    }
  }
  text += decoder.decode();
  if (text.length > MOST_KEPT) {
    text = text.slice(-MOST_KEPT);
    cut = true;
  }
  if (cut) text = text.slice(text.indexOf('\n') + 1);
  return { text, length, cut, mayFollow: length <= MOST_FOLLOWED };
}

/** Terminal colours and carriage returns mean nothing on this page. */
export function plain(text: string): string {
  return text.replace(/\u001b\[[0-9;?]*[ -/]*[@-~]/g, '').replace(/\r\n/g, '\n');
}
