// Workers of AgentFlow: agents at work, with their sessions, their sandboxes, and their trajectories.

import { type Schemas, address, all } from '../client/api';
import { useResource } from '../client/resource';
import { sentence } from '../format';
import { number, plural } from '../quantities';
import { Page, pageAddress, replaceQuery, route, sandboxPage } from '../shell';
import { CodeBlock, type Column, EmptyState, Facts, LinkButton, Loaded, SearchField, State, Table, Time, fullTime } from '../ui';
import { type Recorded, type Sandbox, known, recorded } from './sandboxes/store';

type Worker = Schemas['WorkerInfo'];
type Session = Schemas['SessionInfo'];

const PERIOD = 5000;
/** The label of a worker's sandboxes. */
const LABEL = 'agentflow.worker';

/** The workers, and why some are missing. */
export interface Workers {
  workers: Worker[];
  warnings: readonly string[];
}

export async function readWorkers(signal: AbortSignal): Promise<Workers> {
  const warnings = new Set<string>();
  const workers = await all('/api/v2/workers', 'workers', { signal, warnings });
  return { workers, warnings: [...warnings] };
}

export function Warnings({ texts }: { texts: readonly string[] }) {
  return <>{texts.map(text => <p key={text} class="notice" role="status">{sentence(text)}</p>)}</>;
}

/** AgentFlow's times are UTC, and don't say so. */
function utc(at: string): string {
  return at && !/(Z|[+-]\d\d:?\d\d)$/.test(at) ? `${at}Z` : at;
}

/** The newest use of a worker's sessions; empty without one. */
export function lastUse({ sessions }: Worker): string {
  return utc(sessions.map(one => one.last_activity).sort().at(-1) ?? '');
}

/** The trajectories of each worker, the newest first. */
export function trajectoriesOf(all: Iterable<Recorded>): ReadonlyMap<string, Recorded[]> {
  const by = new Map<string, Recorded[]>();
  for (const one of all) if (one.worker) by.set(one.worker, [...(by.get(one.worker) ?? []), one]);
  for (const found of by.values()) found.sort((a, b) => b.last_at.localeCompare(a.last_at));
  return by;
}

function sandboxesOf(worker: string): Sandbox[] {
  // The label has at most this number of characters.
  const label = [...worker].slice(0, 128).join('');
  return known.value.filter(one => one.spec.labels?.[LABEL] === label);
}

/** One trajectory is opened; of several, the list. */
export function trajectoryAddress(worker: string, found: readonly Recorded[] | undefined): string {
  const [only, ...others] = found ?? [];
  return address(only && others.length === 0 ? `/trajectory/${encodeURIComponent(only.trajectory)}` : `/trajectories?worker=${encodeURIComponent(worker)}`);
}

export function WorkersPage() {
  const resource = useResource('workers', readWorkers, PERIOD);
  const listed = resource.data?.workers ?? [];
  const id = route.value.parts[0];
  if (id !== undefined) return <WorkerPage id={id} resource={resource} />;
  const find = route.value.query.get('find') ?? '';
  const typed = find.trim().toLowerCase();
  const runs = trajectoriesOf(recorded.value.values());
  const columns: Column<Worker>[] = [
    { id: 'id', title: 'Worker', sort: one => one.worker_id, cell: one => <a class="title" href={pageAddress(['workers', one.worker_id])}>{one.worker_id}</a> },
    { id: 'state', title: 'State', sort: one => stateOf(one), cell: one => <WorkerState worker={one} /> },
    { id: 'sessions', title: 'Sessions', className: 'wrap', sort: one => one.sessions.length, cell: one => one.sessions.map(session => session.resource_type).join(', ') || 'none' },
    { id: 'sandbox', title: 'Sandbox', cell: one => <SandboxLinks worker={one.worker_id} /> },
    // Only a cluster has nodes.
    ...(listed.some(one => one.node) ? [{ id: 'node', title: 'Node', sort: (one: Worker) => one.node ?? '', cell: (one: Worker) => one.node ?? '–' }] : []),
    { id: 'last', title: 'Last used', number: true, sort: lastUse, cell: one => (lastUse(one) ? <Time at={lastUse(one)} /> : '–') },
    { id: 'run', title: 'Trajectory', number: true, cell: one => <RunLink worker={one.worker_id} runs={runs.get(one.worker_id)} /> },
  ];
  return (
    <Page title="Workers" beside={listed.length > 0 && <span class="quiet">{number(listed.length)}</span>}>
      <Warnings texts={resource.data?.warnings ?? []} />
      {listed.length > 0 && <div class="toolbar"><SearchField label="Search workers" placeholder="Worker or resource" value={find} onInput={text => replaceQuery({ find: text })} /></div>}
      <div class="panel"><Loaded resource={resource}>{({ workers: rows }) => (
        <Table label="Workers" columns={columns} rows={typed ? rows.filter(one => `${one.worker_id}\n${one.sessions.map(session => `${session.resource_type} ${session.session_name}`).join('\n')}`.toLowerCase().includes(typed)) : rows} rowKey={one => one.worker_id} sort={{ column: 'last', down: true }} empty={
          typed ? <EmptyState icon="search" title="No worker matches">Search for another worker or resource.</EmptyState>
            : <EmptyState icon="worker" title="No workers at present" actions={<CodeBlock label="The command" code={'arenite rollout run tasks.jsonl --agent "python3 $PWD/agent.py"'} />}>A worker is one agent at work over AgentFlow's API. It is here while it has a session; its trajectory stays.</EmptyState>} />
      )}</Loaded></div>
    </Page>
  );
}

function stateOf({ sessions }: Worker): string {
  if (sessions.some(one => one.status === 'error')) return 'error';
  if (sessions.some(one => one.status === 'initializing')) return 'initializing';
  return sessions.length > 0 ? 'active' : 'idle';
}

const TONES = { error: 'bad', initializing: 'busy', active: 'good', idle: 'none' } as const;

function WorkerState({ worker }: { worker: Worker }) {
  const state = stateOf(worker) as keyof typeof TONES;
  return <State name={state} tone={TONES[state]} />;
}

function SandboxLinks({ worker }: { worker: string }) {
  const found = sandboxesOf(worker);
  return found.length === 0 ? <>–</> : <>{found.map((one, n) => <span key={one.id}>{n > 0 && ', '}<a href={sandboxPage(one.name)}>{one.name}</a></span>)}</>;
}

function RunLink({ worker, runs }: { worker: string; runs: readonly Recorded[] | undefined }) {
  if (!runs) return <>–</>;
  const steps = runs.reduce((sum, one) => sum + one.steps, 0);
  return <a href={trajectoryAddress(worker, runs)} aria-label={`Trajectory of ${worker}: ${plural(steps, 'step')}`}>{plural(steps, 'step')}</a>;
}

const SESSIONS: readonly Column<Session>[] = [
  { id: 'type', title: 'Resource', sort: one => one.resource_type, cell: one => <span class="title">{one.resource_type}</span> },
  { id: 'name', title: 'Session', sort: one => one.session_name, cell: one => <>{one.session_name}<small class="mono">{one.session_id}</small></> },
  { id: 'state', title: 'State', cell: one => <State name={one.status} tone={TONES[one.status as keyof typeof TONES] ?? 'none'} /> },
  { id: 'made', title: 'Started by', low: true, cell: one => (one.auto_created ? 'a call' : 'the worker') },
  { id: 'created', title: 'Age', number: true, sort: one => one.created_at, cell: one => <Time at={utc(one.created_at)} form="age" /> },
  { id: 'last', title: 'Last used', number: true, sort: one => one.last_activity, cell: one => <Time at={utc(one.last_activity)} /> },
  { id: 'ends', title: 'Ends if idle', number: true, low: true, cell: one => <Time at={utc(one.expires_at)} />, tip: one => fullTime(utc(one.expires_at)) },
];


function WorkerPage({ id, resource }: { id: string; resource: ReturnType<typeof useResource<Workers>> }) {
  const worker = resource.data?.workers.find(one => one.worker_id === id);
  const runs = trajectoriesOf(recorded.value.values()).get(id) ?? [];
  const tasks = [...new Set(runs.flatMap(one => (one.task ? [one.task] : [])))];
  return (
    <Page title={id} crumbs={<a href="#/workers">All workers</a>} beside={worker && <WorkerState worker={worker} />}
      actions={(worker || runs.length > 0) && <LinkButton kind="primary" icon="trajectory" href={trajectoryAddress(id, runs)}>Trajectory</LinkButton>}>
      <Warnings texts={resource.data?.warnings ?? []} />
      <Loaded resource={resource}>{() => (
        <>
          {!worker && <p class="notice" role="status">{runs.length > 0 ? 'This worker has no session at present. Its trajectory stays.' : 'There is no such worker, and no trajectory of it.'}</p>}
          {(worker || runs.length > 0) && <section class="panel" aria-label="Properties"><Facts facts={[
            ['Sandbox', worker && <SandboxLinks worker={id} />],
            ['Node', worker?.node],
            ['Last used', worker && lastUse(worker) && <Time at={lastUse(worker)} />],
            ['Trajectories', runs.length > 0 && `${plural(runs.length, 'trajectory', 'trajectories')} with ${plural(runs.reduce((sum, one) => sum + one.steps, 0), 'step')}`],
            ['Tasks', tasks.length > 0 && tasks.map((task, n) => <span key={task}>{n > 0 && ', '}<a href={pageAddress(['rollouts', task])}>{task}</a></span>)],
          ]} /></section>}
          {worker && <section class="panel" aria-label="Sessions of the worker">
            <div class="panel-head"><h2>Sessions</h2></div>
            <Table label="Sessions" columns={SESSIONS} rows={worker.sessions} rowKey={one => one.session_id} empty={<EmptyState icon="worker" title="No sessions">The worker has a sandbox, and no session.</EmptyState>} />
          </section>}
        </>
      )}</Loaded>
    </Page>
  );
}
