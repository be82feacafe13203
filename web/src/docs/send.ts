// Sends a call with the reader's sign-in, and shows the answer as it comes, up to a bound.

import { address } from '../client/api';
import { type Call, isStream, pathOf, prefixOf } from './call';

/** The most characters that are shown: the first ones, and of a stream the last ones. */
export const MOST_SHOWN = 200_000;
/** The most bytes that are kept for saving. A call with a larger answer is stopped. */
export const MOST_KEPT = 64 * 1024 * 1024;
/** The largest picture that is shown. */
const LARGEST_PICTURE = 16 * 1024 * 1024;
const PICTURES = ['image/png', 'image/jpeg', 'image/webp', 'image/gif'];

export interface Received {
  status: number;
  statusText: string;
  headers: [name: string, value: string][];
  milliseconds: number;
  bytes: number;
  /** Null for what is not text. */
  text: string | null;
  /** Characters that are not shown. */
  hidden: number;
  /** The whole body, when it has come and can be saved. */
  blob: Blob | null;
  /** It is a picture that can be shown. */
  isPicture: boolean;
  state: 'coming' | 'complete' | 'stopped' | 'too_large' | 'broken';
}

function isText(type: string): boolean {
  return type === '' || /^(text\/|multipart\/)|json|xml|javascript|x-www-form-urlencoded|asciicast|autoconfig/.test(type);
}

/** JSON with a field a line, if it is complete and not too long. */
function pretty(text: string, type: string): string {
  if (!/json/.test(type) || /ndjson|jsonl/.test(type) || text.length > MOST_SHOWN) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function bodyOf(call: Call): BodyInit | undefined {
  if (call.json !== undefined) return JSON.stringify(call.json);
  if (call.files[0]?.[0] === '') return call.files[0][1] ?? new Blob([]);
  if (call.files.length === 0 && call.fields.length === 0) return undefined;
  const form = new FormData();
  for (const [name, value] of call.fields) form.append(name, value);
  for (const [name, file] of call.files) if (file) form.append(name, file);
  return form;
}

function headersOf(call: Call): Headers {
  const headers = new Headers(call.headers);
  // It is for the record only: a person causes this call.
  headers.set('x-arenite-origin', 'person');
  if (call.accept) headers.set('accept', call.accept);
  if (call.json !== undefined) headers.set('content-type', 'application/json');
  else if (call.files[0]?.[0] === '') headers.set('content-type', call.type);
  return headers;
}

/** Sends a call. `changed` gets what has come so far. Throws if no answer comes. */
export async function sendCall(call: Call, signal: AbortSignal, changed: (received: Received) => void): Promise<void> {
  const start = performance.now();
  const aborter = new AbortController();
  const stop = (): void => aborter.abort();
  signal.addEventListener('abort', stop);
  const body = bodyOf(call);
  try {
    const answer = await fetch(address(prefixOf(call) + pathOf(call)), { method: call.operation.method, headers: headersOf(call), signal: aborter.signal, ...(body !== undefined && { body }) });
    const type = (answer.headers.get('content-type') ?? '').split(';')[0]!.trim().toLowerCase();
    const received: Received = {
      status: answer.status, statusText: answer.statusText, headers: [...answer.headers], milliseconds: performance.now() - start,
      bytes: 0, text: isText(type) ? '' : null, hidden: 0, blob: null, isPicture: false, state: 'coming',
    };
    changed({ ...received });
    await readBody(answer, type, received, signal, () => {
      received.milliseconds = performance.now() - start;
      changed({ ...received });
    }, isStream(call) && answer.ok);
    if (received.state === 'too_large') stop();
  } finally {
    signal.removeEventListener('abort', stop);
  }
}

async function readBody(answer: Response, type: string, received: Received, signal: AbortSignal, changed: () => void, keepsEnd: boolean): Promise<void> {
  const reader = answer.body?.getReader();
  const decoder = new TextDecoder();
  const parts: Uint8Array<ArrayBuffer>[] = [];
  const add = (text: string): void => {
    const whole = received.text! + text;
    received.hidden += Math.max(0, whole.length - MOST_SHOWN);
    received.text = keepsEnd ? whole.slice(-MOST_SHOWN) : whole.slice(0, MOST_SHOWN);
  };
  let end: Received['state'] = 'complete';
  try {
    while (reader) {
      const { done, value } = await reader.read();
      if (done) break;
      received.bytes += value.byteLength;
      if (received.bytes > MOST_KEPT) {
        end = 'too_large';
        break;
      }
      parts.push(value);
      if (received.text !== null) add(decoder.decode(value, { stream: true }));
      changed();
    }
    if (received.text !== null) add(decoder.decode());
  } catch {
    end = signal.aborted ? 'stopped' : 'broken';
  }
  received.state = end;
  if (received.state !== 'too_large' && received.bytes > 0) {
    // Pictures alone keep their type: anything else is only saved.
    received.isPicture = PICTURES.includes(type) && received.bytes <= LARGEST_PICTURE && received.state === 'complete';
    received.blob = new Blob(parts, { type: received.isPicture ? type : 'application/octet-stream' });
  }
  if (received.text !== null && received.hidden === 0) received.text = pretty(received.text, type);
  changed();
}

/** A name for the saved answer. */
export function fileName(call: Call, headers: readonly [string, string][]): string {
  const header = headers.find(([name]) => name === 'content-disposition')?.[1] ?? '';
  const named = /filename="?([^";]+)"?/.exec(header)?.[1] ?? '';
  const type = headers.find(([name]) => name === 'content-type')?.[1] ?? '';
  const ending = /json/.test(type) ? 'json' : /^text\//.test(type) ? 'txt' : /^image\/(png|jpeg|webp|gif)/.exec(type)?.[1] ?? 'bin';
  return named.replace(/[^\w.-]/g, '_') || `${call.operation.id}.${ending}`;
}
