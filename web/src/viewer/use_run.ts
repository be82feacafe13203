// A run as long as a component shows it.

import { useEffect, useState } from 'preact/hooks';

import { Bodies } from './bodies';
import { Run } from './store';

export interface RunHandle {
  run: Run | null;
  bodies: Bodies | null;
  /** Counts changes: the run itself is changed in place. */
  version: number;
}

export function useRun(id: string | null, wanted: number): RunHandle {
  const [version, setVersion] = useState(0);
  const [handle, setHandle] = useState<{ id: string | null; run: Run | null; bodies: Bodies | null }>(() => open(id, wanted, setVersion));
  let current = handle;
  if (handle.id !== id) {
    current = open(id, wanted, setVersion);
    setHandle(current);
  }
  useEffect(() => () => {
    current.run?.close();
    current.bodies?.close();
  }, [current]);
  return { run: current.run, bodies: current.bodies, version };
}

function open(id: string | null, wanted: number, setVersion: (change: (before: number) => number) => void): { id: string | null; run: Run | null; bodies: Bodies | null } {
  if (id === null) return { id, run: null, bodies: null };
  const run = new Run(id, wanted, () => setVersion(before => before + 1));
  return { id, run, bodies: new Bodies(run.path) };
}
