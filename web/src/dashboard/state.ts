// The state of the sandbox, as its host reports it. Reading it does not resume the sandbox, and is no use of it.

import { useRef } from 'preact/hooks';

import { request } from '../client/api';
import { ApiError } from '../client/errors';
import { useResource } from '../client/resource';
import type { Deadline } from '../format';

export interface OwnState {
  id: string;
  name: string;
  state: 'creating' | 'running' | 'paused' | 'deleting' | 'failed' | 'lost';
  reason: string | null;
  image: string;
  created_at: string;
  state_since: string;
  expires_at: string | null;
  deadline: Deadline | null;
  idle_timeout_seconds: number | null;
  idle_policy: string;
  limits: { memory_bytes: number; cpu_millis: number };
  usage: { memory_bytes: number; cpu_nanoseconds: number; pids: number; disk_bytes: number | null } | null;
  /** The server requires keys. */
  keys: boolean;
}

/** What was used at a time. `cores` needs two readings. */
export interface Sample {
  at: number;
  cores: number | null;
  memory: number;
}

const EVERY = 3000;
export const MOST_SAMPLES = 60;

export interface Own {
  state: OwnState | undefined;
  error: Error | null;
  /** The sandbox no longer exists. */
  gone: boolean;
  samples: readonly Sample[];
  reload: () => Promise<void>;
}

export function useOwnState(): Own {
  const samples = useRef<readonly Sample[]>([]);
  const counted = useRef<{ at: number; nanoseconds: number } | null>(null);
  const { data, error, reload } = useResource('state', async signal => {
    const state = (await (await request('state', { signal })).json()) as OwnState;
    const at = Date.now();
    if (state.usage) {
      const before = counted.current;
      const nanoseconds = state.usage.cpu_nanoseconds;
      const passed = before ? (at - before.at) * 1e6 : 0;
      // The counter starts again when the sandbox does.
      const cores = before && passed > 0 && nanoseconds >= before.nanoseconds ? (nanoseconds - before.nanoseconds) / passed : null;
      counted.current = { at, nanoseconds };
      samples.current = [...samples.current, { at, cores, memory: state.usage.memory_bytes }].slice(-MOST_SAMPLES);
    }
    return state;
  }, EVERY);
  const gone = error instanceof ApiError && error.status === 404;
  return { state: data, error, gone, samples: samples.current, reload };
}
