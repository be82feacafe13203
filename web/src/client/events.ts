// Server-sent events in the answer to one request, such as the progress of a build. `Stream` follows those without an end.

import { ApiError } from './errors';

/** The most characters of an event. */
const MOST_EVENT = 4 << 20;

export interface ServerEvent {
  name: string;
  data: unknown;
}

function parse(block: string): ServerEvent | null {
  let name = 'message';
  const data: string[] = [];
  for (const line of block.split('\n')) {
    if (line.startsWith('event:')) name = line.slice(6).trim();
    else if (line.startsWith('data:')) data.push(line.slice(5).replace(/^ /, ''));
  }
  if (data.length === 0) return null;
  const text = data.join('\n');
  try {
    return { name, data: JSON.parse(text) };
  } catch {
    return { name, data: text };
  }
}

/** The events of an answer, until it ends. Comments keep the connection open, and are left out. */
export async function* readEvents(answer: Response): AsyncGenerator<ServerEvent> {
  const reader = answer.body?.getReader();
  if (!reader) return;
  const decoder = new TextDecoder();
  let rest = '';
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const blocks = (rest + decoder.decode(piece.value, { stream: true })).replace(/\r\n/g, '\n').split('\n\n');
      rest = blocks.pop() ?? '';
      if (rest.length > MOST_EVENT) throw new ApiError(0, { message: 'the server sent an event that is too large' });
      for (const block of blocks) {
        const event = parse(block);
        if (event) yield event;
      }
    }
  } finally {
    // Also if the caller has what it needs.
    await reader.cancel().catch(() => null);
  }
}
