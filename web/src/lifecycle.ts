// Changes of a sandbox that buttons ask for.

import { call } from './api';
import { ask } from './forms';
import { type Sandbox, sandboxPath } from './sandbox_list';

export type Transition = 'pause' | 'resume' | 'start';

/** The transition that a state allows. */
export const NEXT: Record<string, { transition: Transition; label: string; doing: string } | undefined> = {
  running: { transition: 'pause', label: 'Pause', doing: 'pausing' },
  paused: { transition: 'resume', label: 'Resume', doing: 'resuming' },
  failed: { transition: 'start', label: 'Start', doing: 'starting' },
  lost: { transition: 'start', label: 'Start', doing: 'starting' },
};

export async function turn(name: string, transition: Transition): Promise<Sandbox> {
  return call<Sandbox>('POST', sandboxPath(name, `/${transition}`), {});
}

export async function remove(name: string): Promise<void> {
  await call('DELETE', sandboxPath(name));
}

export function askToDelete(name: string): Promise<boolean> {
  return ask({ title: `Delete the sandbox ${name}?`, text: 'This deletes its processes and files. Its trajectory stays.', yes: 'Delete', no: 'Keep it', id: 'confirm' });
}
