// Rollouts: what the server recorded of attempts, by task; and the results of a run, from its file.

import { useMemo, useRef } from 'preact/hooks';

import { address, all } from '../../client/api';
import { ApiError } from '../../client/errors';
import { useResource } from '../../client/resource';
import { milliseconds } from '../../format';
import { number, plural } from '../../quantities';
import { Page, pageAddress, replaceQuery, route } from '../../shell';
import { Button, CodeBlock, type Column, EmptyState, Loaded, SearchField, State, Table, Time, failed } from '../../ui';
import type { Recorded } from '../sandboxes/store';
import { Warnings, type Workers, readWorkers, trajectoriesOf, trajectoryAddress } from '../workers';
import { ResultsSection } from './results_section';
import { openResults, opened } from './results';

const PERIOD = 15_000;
const MOST = 20_000;
const NO_TASK = '';

/** The recorded attempts of a task. */
export interface Task {
  task: string;
  runs: Recorded[];
  steps: number;
  /** Of its workers, those with a session. The trajectory of a worker has no end. */
  active: number;
  firstAt: string;
  lastAt: string;
}

/** Trajectories of workers, by their task. Those without a task come together. */
export function byTask(all: Iterable<Recorded>, active: ReadonlySet<string>): Task[] {
  const tasks = new Map<string, Task>();
  for (const one of all) {
    if (!one.worker) continue;
    const key = one.task ?? NO_TASK;
    const task = tasks.get(key) ?? { task: key, runs: [], steps: 0, active: 0, firstAt: one.first_at, lastAt: one.last_at };
    task.runs.push(one);
    task.steps += one.steps;
    if (active.has(one.worker)) task.active++;
    if (one.first_at < task.firstAt) task.firstAt = one.first_at;
    if (one.last_at > task.lastAt) task.lastAt = one.last_at;
    tasks.set(key, task);
  }
  return [...tasks.values()];
}

interface Records {
  runs: Recorded[];
  active: ReadonlySet<string>;
  warnings: readonly string[];
}

async function read(signal: AbortSignal): Promise<Records> {
  const warnings = new Set<string>();
  const [runs, { workers }] = await Promise.all([
    all('/api/v1/trajectories', 'trajectories', { signal, most: MOST, warnings }),
    // A server may have no workers, and trajectories of earlier ones.
    readWorkers(signal).catch((error: unknown): Workers => {
      if (error instanceof ApiError) return { workers: [], warnings: [] };
      throw error;
    }),
  ]);
  return { runs, active: new Set(workers.filter(one => one.sessions.length > 0).map(one => one.worker_id)), warnings: [...warnings] };
}

function TaskState({ active }: { active: number }) {
  return active > 0 ? <State name="live" text={`${number(active)} at work`} /> : <span class="quiet">not at work</span>;
}

export function RolloutsPage() {
  const resource = useResource('rollouts', read, PERIOD);
  const tasks = useMemo(() => byTask(resource.data?.runs ?? [], resource.data?.active ?? new Set()), [resource.data]);
  const workers = useMemo(() => trajectoriesOf(resource.data?.runs ?? []), [resource.data]);
  const [name] = route.value.parts;
  if (name !== undefined) return <TaskPage name={name} resource={resource} task={tasks.find(one => one.task === name)} />;
  const find = route.value.query.get('find') ?? '';
  const typed = find.trim().toLowerCase();
  const rows = typed ? tasks.filter(one => `${one.task}\n${one.runs.map(run => run.worker).join('\n')}`.toLowerCase().includes(typed)) : tasks;
  const columns: Column<Task>[] = [
    { id: 'task', title: 'Task', className: 'clip-cell', sort: one => one.task, cell: one => (one.task ? <a class="title" href={pageAddress(['rollouts', one.task])}>{one.task}</a> : <span class="title">without a task</span>), tip: one => one.task },
    { id: 'attempts', title: 'Attempts', number: true, sort: one => one.runs.length, cell: one => (one.runs.length === 1 ? <a href={trajectoryAddress(one.runs[0]!.worker!, one.runs)} aria-label={`1 attempt: the trajectory of ${one.task || one.runs[0]!.worker!}`}>1</a> : number(one.runs.length)) },
    { id: 'state', title: 'State', sort: one => one.active, cell: one => <TaskState active={one.active} /> },
    { id: 'steps', title: 'Steps', number: true, sort: one => one.steps, cell: one => number(one.steps) },
    { id: 'began', title: 'Started', number: true, low: true, sort: one => one.firstAt, cell: one => <Time at={one.firstAt} /> },
    { id: 'last', title: 'Last step', number: true, sort: one => one.lastAt, cell: one => <Time at={one.lastAt} /> },
    { id: 'took', title: 'Duration', number: true, low: true, sort: one => length(one), cell: one => milliseconds(length(one)) },
  ];
  return (
    <Page title="Rollouts" beside={resource.data && tasks.length > 0 && <span class="quiet">{plural(tasks.length, 'task')}</span>} actions={<OpenButton />}>
      <Warnings texts={resource.data?.warnings ?? []} />
      {opened.value && <ResultsSection results={opened.value} workers={workers} />}
      {tasks.length > 0 && <div class="toolbar"><SearchField label="Search tasks" placeholder="Task or worker" value={find} onInput={text => replaceQuery({ find: text })} /></div>}
      <section class="panel" aria-label="Recorded tasks">
        <div class="panel-head"><h2>Recorded on this server</h2></div>
        <Loaded resource={resource}>{() => (
          <Table label="Tasks" columns={columns} rows={rows} rowKey={one => one.task} sort={{ column: 'last', down: true }} empty={
            typed ? <EmptyState icon="search" title="No task matches">Search for another task or worker.</EmptyState>
              : <EmptyState icon="rollout" title="No rollouts yet" actions={<CodeBlock label="The command" code={'arenite rollout run tasks.jsonl --agent "python3 $PWD/agent.py" --out runs/first'} />}>A rollout runs an agent over many tasks. The server records each attempt as the trajectory of a worker; results are in the run's directory.</EmptyState>} />
        )}</Loaded>
      </section>
    </Page>
  );
}

function length({ firstAt, lastAt }: Task): number {
  return Math.max(0, Date.parse(lastAt) - Date.parse(firstAt));
}

function OpenButton() {
  const input = useRef<HTMLInputElement>(null);
  const choose = (): void => {
    const node = input.current;
    const file = node?.files?.[0];
    if (!node || !file) return;
    openResults(file).catch(failed).finally(() => { node.value = ''; });
  };
  return (
    <>
      <input ref={input} type="file" hidden aria-label="Results of a run" accept=".jsonl,.json" onChange={choose} />
      <Button icon="folder" title="The results.jsonl of a run; it stays in this browser" onPress={() => input.current?.click()}>Open results</Button>
    </>
  );
}

const attemptColumns = (active: ReadonlySet<string>): Column<Recorded>[] => [
  { id: 'worker', title: 'Attempt', sort: one => one.worker ?? '', cell: one => <><a class="title" href={address(`/trajectory/${encodeURIComponent(one.trajectory)}`)}>{one.worker}</a><small class="mono">{one.trajectory}</small></> },
  { id: 'state', title: 'State', cell: one => (active.has(one.worker ?? '') ? <State name="live" text="at work" /> : <span class="quiet">not at work</span>) },
  { id: 'steps', title: 'Steps', number: true, sort: one => one.steps, cell: one => number(one.steps) },
  { id: 'began', title: 'Started', number: true, sort: one => one.first_at, cell: one => <Time at={one.first_at} /> },
  { id: 'last', title: 'Last step', number: true, sort: one => one.last_at, cell: one => <Time at={one.last_at} /> },
];

function TaskPage({ name, task, resource }: { name: string; task: Task | undefined; resource: ReturnType<typeof useResource<Records>> }) {
  const results = opened.value?.results.filter(one => one.task === name) ?? [];
  const workers = useMemo(() => trajectoriesOf(resource.data?.runs ?? []), [resource.data]);
  const [first, second] = task?.runs ?? [];
  return (
    <Page title={name} crumbs={<a href="#/rollouts">All rollouts</a>} beside={task && <span class="quiet">{plural(task.runs.length, 'attempt')}</span>}
      actions={first && second && <a class="button" href={address(`/trajectory/${encodeURIComponent(first.trajectory)}?compare=${encodeURIComponent(second.trajectory)}`)}>Compare two attempts</a>}>
      {opened.value && results.length > 0 && <ResultsSection results={{ ...opened.value, results }} workers={workers} />}
      <Loaded resource={resource}>{({ active }) => (task
        ? <section class="panel" aria-label="Attempts of the task"><div class="panel-head"><h2>Attempts</h2></div><Table label="Attempts" columns={attemptColumns(active)} rows={task.runs} rowKey={one => one.trajectory} sort={{ column: 'last', down: true }} /></section>
        : <EmptyState icon="rollout" title="No attempt of this task is recorded here">Its trajectories were removed, or are on another server.</EmptyState>)}</Loaded>
    </Page>
  );
}
