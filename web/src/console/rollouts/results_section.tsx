// The results of a run: how many tasks succeeded, how long they took, and each task with its trajectory.

import { useState } from 'preact/hooks';

import { milliseconds } from '../../format';
import { number, plural } from '../../quantities';
import { Button, type Column, EmptyState, IconButton, SelectField, State, Table, type Tone, fieldState, useFields } from '../../ui';
import type { Recorded } from '../sandboxes/store';
import { trajectoryAddress } from '../workers';
import { type Result, type Results, opened, totals } from './results';

const TONES: Record<string, Tone> = { success: 'good', agent: 'bad', timeout: 'bad', infrastructure: 'wait' };
/** The status `agent` is a failure of the agent. */
const TEXTS: Record<string, string> = { agent: 'agent failed', infrastructure: 'infrastructure failed' };
const MOST_SHORT = 160;

export function ResultsSection({ results: { file, results, wrong }, workers }: { results: Results; workers: ReadonlyMap<string, readonly Recorded[]> }) {
  const fields = useFields(() => ({ status: fieldState() }));
  const sum = totals(results);
  const status = fields.status.value.value;
  const stat = (label: string, value: string, note: string) => <div class="stat"><dt>{label}</dt><dd>{value}</dd><dd class="note">{note}</dd></div>;
  const columns: Column<Result>[] = [
    { id: 'task', title: 'Task', className: 'clip-cell', sort: one => one.task, cell: one => <span class="title">{one.task}</span>, tip: one => one.task },
    { id: 'status', title: 'Outcome', sort: one => one.status, cell: one => <State name={one.status} text={TEXTS[one.status]} tone={TONES[one.status] ?? 'none'} /> },
    { id: 'answer', title: 'Answer or error', className: 'wrap', cell: one => <Text text={one.error || one.answer} task={one.task} /> },
    { id: 'steps', title: 'Steps', number: true, sort: one => steps(one, workers) ?? -1, cell: one => { const count = steps(one, workers); return count === null ? '–' : number(count); } },
    { id: 'attempts', title: 'Attempts', number: true, low: true, sort: one => one.attempts, cell: one => number(one.attempts) },
    { id: 'took', title: 'Duration', number: true, sort: one => one.ms ?? -1, cell: one => (one.ms === null ? '–' : milliseconds(one.ms)) },
    { id: 'run', title: 'Trajectory', cell: one => { const runs = workers.get(one.worker); return runs ? <a href={trajectoryAddress(one.worker, runs)} aria-label={`Open the trajectory of ${one.task}`}>Open</a> : <span class="quiet">not here</span>; } },
  ];
  const shown = status ? results.filter(one => one.status === status) : results;
  return (
    <section class="panel stack" aria-label="Results of the run">
      <div class="panel-head">
        <h2>Results of {file}</h2>
        <IconButton small kind="plain" icon="close" label={`Close ${file}`} title="Close" onPress={() => { opened.value = null; }} />
      </div>
      {wrong > 0 && <p class="notice" role="status">{plural(wrong, 'line is', 'lines are')} left out: not a result, or beyond the most that are shown.</p>}
      <dl class="stats">
        {stat('Success', sum.rate === null ? '–' : `${(sum.rate * 100).toFixed(1)} %`, `${number(sum.succeeded)} of ${plural(sum.tasks - (sum.byStatus.find(([name]) => name === 'infrastructure')?.[1] ?? 0), 'rated task')}`)}
        {stat('Tasks', number(sum.tasks), sum.byStatus.map(([name, count]) => `${number(count)} ${TEXTS[name] ?? name}`).join(', '))}
        {stat('Median duration', sum.median === null ? '–' : milliseconds(sum.median), sum.p95 === null ? '' : `95 % within ${milliseconds(sum.p95)}`)}
      </dl>
      <div class="row"><SelectField label="Outcome" inline state={fields.status} options={[['', 'all'], ...sum.byStatus.map(([name, count]) => [name, `${TEXTS[name] ?? name} (${number(count)})`] as const)]} /></div>
      <Table label="Results" columns={columns} rows={shown} rowKey={one => String(one.row)} empty={<EmptyState icon="search" title="No task has this outcome" />} />
    </section>
  );
}

/** Recorded steps of the attempt that decided; null if it is not on this server. */
function steps({ worker }: Result, workers: ReadonlyMap<string, readonly Recorded[]>): number | null {
  const runs = workers.get(worker);
  return runs ? runs.reduce((sum, one) => sum + one.steps, 0) : null;
}

function Text({ text, task }: { text: string; task: string }) {
  const [whole, setWhole] = useState(false);
  if (text.length <= MOST_SHORT || whole) return <>{text || '–'}</>;
  return <>{text.slice(0, MOST_SHORT)}… <Button small kind="plain" label={`Show all of ${task}`} onPress={() => setWhole(true)}>Show all</Button></>;
}
