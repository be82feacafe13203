// Bodies of steps: read from the server if they are not in the record itself, and kept for a while.

import { request } from '../client/api';
import { bytes } from '../format';
import { type Recorded, type Step, pictureAddress } from './step';

export type Part = 'arguments' | 'observation';
/** A body that was read: JSON, text, a picture's address, or why it is not shown. */
export type Read = { json: unknown } | { text: string } | { picture: string; bytes: number } | { why: string };

/** Larger bodies can only be saved. */
const MOST_READ = 8 << 20;
const MOST_KEPT = 48;
const MIN_PICTURE = 256;

/** Reads bodies of one run. Object URLs of pictures are released with the oldest bodies. */
export class Bodies {
  private readonly path: string;
  private readonly kept = new Map<string, Promise<Read | null>>();

  constructor(path: string) {
    this.path = path;
  }

  address(step: Step, part: Part): string {
    return `${this.path}/steps/${step.step}/${part}`;
  }

  read(step: Step, part: Part): Promise<Read | null> {
    const body = step[part];
    if (!body) return Promise.resolve(null);
    if ('json' in body || 'text' in body) return Promise.resolve(body);
    if ('base64' in body) return Promise.resolve({ text: body.base64 });
    const key = `${step.step} ${part}`;
    const known = this.kept.get(key);
    if (known) return known;
    const reading = this.fetch(step, part, body);
    this.kept.set(key, reading);
    for (const [oldest, gone] of this.kept) {
      if (this.kept.size <= MOST_KEPT) break;
      this.kept.delete(oldest);
      void gone.then(release);
    }
    return reading;
  }

  close(): void {
    for (const reading of this.kept.values()) void reading.then(release);
    this.kept.clear();
  }

  private async fetch(step: Step, part: Part, { blob }: Extract<Recorded, { blob: unknown }>): Promise<Read> {
    const named = blob.blake3 ? `, BLAKE3 ${blob.blake3}` : '';
    if (!blob.kept) return { why: `${bytes(blob.bytes)}, of which only the hash was kept${named}` };
    if (blob.bytes > MOST_READ) return { why: `${bytes(blob.bytes)}: too large to be shown here${named}` };
    try {
      const content = new Uint8Array(await (await request(this.address(step, part))).arrayBuffer());
      const picture = pictureAddress(content);
      if (picture) return { picture, bytes: content.length };
      const text = new TextDecoder('utf-8', { fatal: true }).decode(content);
      try {
        return { json: JSON.parse(text) as unknown };
      } catch {
        return { text };
      }
    } catch (error) {
      this.kept.delete(`${step.step} ${part}`);
      return { why: `${bytes(blob.bytes)}${named} (${(error as Error).message})` };
    }
  }
}

function release(read: Read | null): void {
  if (read && 'picture' in read) URL.revokeObjectURL(read.picture);
}

/** The bytes of a picture in Base64; null for any other text. */
export function pictureBytes(text: string): Uint8Array<ArrayBuffer> | null {
  if (text.length < MIN_PICTURE || !/^(data:image\/[a-z+.-]+;base64,)?[A-Za-z0-9+/\s]{64}/.test(text)) return null;
  try {
    return Uint8Array.from(atob(text.replace(/^data:[^,]*,/, '')), sign => sign.charCodeAt(0));
  } catch {
    return null;
  }
}
