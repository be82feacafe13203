// Names of runs.

import type { Run, Summary } from './store';

export function summaryName(of: Summary): string {
  return of.worker ?? (of.sandbox_name || of.trajectory);
}

export function nameOf(run: Run): string {
  return run.summary ? summaryName(run.summary) : run.id;
}
