// Changes of sandboxes that buttons ask for.

import { type Schemas, api } from '../../client/api';
import { plural } from '../../quantities';
import { confirm } from '../../ui';
import type { IconName } from '../../ui';

export type Transition = 'pause' | 'resume' | 'start';

interface Next {
  transition: Transition;
  label: string;
  icon: IconName;
}

/** The transition that a state allows. */
export const NEXT: Partial<Record<string, Next>> = {
  running: { transition: 'pause', label: 'Pause', icon: 'pause' },
  paused: { transition: 'resume', label: 'Resume', icon: 'play' },
  failed: { transition: 'start', label: 'Start', icon: 'play' },
  lost: { transition: 'start', label: 'Start', icon: 'play' },
};

export function change(name: string, transition: Transition): Promise<Schemas['SandboxInfo']> {
  const path = { name };
  if (transition === 'pause') return api.post('/api/v2/sandboxes/{name}/pause', { path, body: {} });
  if (transition === 'resume') return api.post('/api/v2/sandboxes/{name}/resume', { path, body: {} });
  return api.post('/api/v2/sandboxes/{name}/start', { path, body: {} });
}

export async function remove(name: string): Promise<void> {
  await api.delete('/api/v2/sandboxes/{name}', { path: { name } });
}

export function askToDelete(names: readonly string[]): Promise<boolean> {
  const one = names.length === 1;
  return confirm({
    title: one ? `Delete the sandbox ${names[0]}?` : `Delete ${plural(names.length, 'sandbox', 'sandboxes')}?`,
    text: one ? 'This deletes its processes and files. Its trajectory stays.' : 'This deletes their processes and files. Their trajectories stay.',
    yes: 'Delete', no: one ? 'Keep it' : 'Keep them',
  });
}

/** Calls that run at a time. */
const AT_ONCE = 6;

/** Does the same to each of several; the errors by name. `progress` gets the number that is done. */
export async function forEach(names: readonly string[], work: (name: string) => Promise<unknown>, progress: (done: number) => void): Promise<Map<string, Error>> {
  const failed = new Map<string, Error>();
  const left = [...names];
  let done = 0;
  const worker = async (): Promise<void> => {
    for (let name = left.shift(); name !== undefined; name = left.shift()) {
      await work(name).catch((error: Error) => failed.set(name!, error));
      progress(++done);
    }
  };
  await Promise.all(Array.from({ length: Math.min(AT_ONCE, names.length) }, worker));
  return failed;
}
