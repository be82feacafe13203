// Calls of this sandbox's own API. Their types are those of its OpenAPI document.

import { request } from '../client/api';
import { ApiError } from '../client/errors';
import type { components } from '../../generated/sandbox';

export type Schemas = components['schemas'];

interface Envelope<T> {
  success?: boolean;
  message?: string | null;
  data: T;
}

async function answered<T>(answer: Response): Promise<T> {
  const value = (await answer.json()) as T & { success?: boolean; message?: string };
  // AIO reports a failure within an answer of 200.
  if (value.success === false) throw new ApiError(answer.status, { ...value, message: value.message || 'the call failed' });
  return value;
}

export async function read<T>(path: string, signal?: AbortSignal): Promise<T> {
  return answered<T>(await request(path, { headers: { accept: 'application/json' }, ...(signal && { signal }) }));
}

/** The `data` of an answer. */
export async function readData<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await read<Envelope<T>>(path, signal)).data;
}

export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  const headers = { accept: 'application/json', 'content-type': 'application/json' };
  const answer = await request(path, { method: 'POST', headers, body: JSON.stringify(body), ...(signal && { signal }) });
  return (await answered<Envelope<T>>(answer)).data;
}

/** What the sandbox is: its directories, services and ports. Reading it starts a sandbox that is paused. */
export function readSandbox(signal?: AbortSignal): Promise<Schemas['SandboxResponse']> {
  return read('v1/sandbox', signal);
}
