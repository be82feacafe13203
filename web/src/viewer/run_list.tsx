// All runs: what they are of, and how large.

import { useState } from 'preact/hooks';

import { address, all } from '../client/api';
import { useResource } from '../client/resource';
import { Page } from '../shell';
import { Badge, Bytes, Check, type Column, EmptyState, Loaded, SearchField, State, Table, Time } from '../ui';
import { Stars } from './annotations_view';
import { summaryName } from './names';
import type { Summary } from './store';

const REFRESH = 15_000;
const MOST = 10_000;

const COLUMNS: readonly Column<Summary>[] = [
  { id: 'name', title: 'Sandbox or worker', sort: summaryName, tip: summaryName, cell: one => <><a class="title" href={address(`/trajectory/${encodeURIComponent(one.trajectory)}`)}>{summaryName(one)}</a><small class="mono">{one.trajectory}</small></> },
  { id: 'state', title: 'State', sort: one => (one.ended ? 1 : 0), cell: one => <State name={one.ended ? 'ended' : 'live'} text={one.ended ? 'ended' : 'recording'} /> },
  { id: 'task', title: 'Task', sort: one => one.task ?? '', cell: one => one.task ?? '', className: 'clip-cell' },
  { id: 'rating', title: 'Rating', low: true, sort: one => one.annotations?.rating ?? 0, cell: one => (one.annotations?.rating == null ? '' : <Stars rating={one.annotations.rating} />) },
  { id: 'labels', title: 'Labels', low: true, sort: one => one.annotations?.labels.join(' ') ?? '', tip: one => one.annotations?.labels.join(', '), cell: one => one.annotations?.labels.map(label => <Badge key={label} tone="accent">{label}</Badge>) },
  { id: 'steps', title: 'Steps', number: true, sort: one => one.steps, cell: one => one.steps.toLocaleString('en') },
  { id: 'failed', title: 'Failed', number: true, sort: one => one.failures?.steps ?? 0, cell: one => <FailedCell run={one} /> },
  { id: 'size', title: 'Size', number: true, low: true, sort: one => one.bytes, cell: one => <Bytes value={one.bytes} /> },
  { id: 'begun', title: 'Started', number: true, low: true, sort: one => one.first_at, cell: one => <Time at={one.first_at} /> },
  { id: 'last', title: 'Last step', number: true, sort: one => one.last_at, cell: one => <Time at={one.last_at} /> },
];

/** Steps that failed, with the way to the last of them. */
function FailedCell({ run: { trajectory, failures } }: { run: Summary }) {
  if (!failures?.last) return null;
  return <a class="title bad" href={`${address(`/trajectory/${encodeURIComponent(trajectory)}`)}#step-${failures.last}`} title={`Show step ${failures.last}, the last that failed`}>{failures.steps.toLocaleString('en')}</a>;
}

export function RunList({ query }: { query: string }) {
  const [text, setText] = useState('');
  const [note, setNote] = useState('');
  const [failed, setFailed] = useState(false);
  const params = Object.fromEntries(new URLSearchParams(query));
  const list = useResource(`runs ${query}`, signal => all('/api/v1/trajectories', 'trajectories', { query: params, signal, most: MOST }), REFRESH);
  const typed = text.toLowerCase();
  const fits = ({ annotations }: Summary): boolean => !note || (note === 'any' ? Boolean(annotations) : note.startsWith('label-') ? Boolean(annotations?.labels.includes(note.slice(6))) : (annotations?.rating ?? 0) >= Number(note));
  const matches = (one: Summary): boolean => fits(one) && (!failed || (one.failures?.steps ?? 0) > 0) && `${summaryName(one)} ${one.task ?? ''} ${one.trajectory} ${one.sandbox_name}`.toLowerCase().includes(typed);
  const known = [...new Set((list.data ?? []).flatMap(one => one.annotations?.labels ?? []))].sort();
  const limits = Object.entries(params).map(([name, value]) => `${name} ${value}`).join(', ');
  return (
    <Page title="Trajectories" beside={list.data && <span class="quiet">{list.data.length.toLocaleString('en')}</span>}>
      <div class="toolbar">
        <SearchField label="Search trajectories" placeholder="Name, task or id" value={text} onInput={setText} />
        {(list.data?.some(one => one.annotations) || note) && (
          <select class="input" aria-label="Notes" value={note} onChange={event => setNote(event.currentTarget.value)}>
            <option value="">All trajectories</option>
            <option value="any">Annotated</option>
            {[5, 4, 3].map(least => <option key={least} value={String(least)}>{least === 5 ? 'Rated 5' : `Rated ${least} or more`}</option>)}
            {known.map(label => <option key={label} value={`label-${label}`}>Label {label}</option>)}
          </select>
        )}
        <Check label="with failed steps" checked={failed} onChange={setFailed} />
        {limits && <span class="quiet">Only {limits}. <a href={address('/trajectories')}>Show all</a></span>}
      </div>
      <Loaded resource={list}>{runs => (
        <Table label="Trajectories" columns={COLUMNS} rows={runs.filter(matches)} rowKey={one => one.trajectory} sort={{ column: 'last', down: true }}
          empty={typed || note || failed ? <EmptyState icon="search" title="No trajectory matches">Search for another name, task or id, or show all.</EmptyState> : <EmptyState icon="trajectory" title="No trajectories yet">The first call of a sandbox or a worker starts one.</EmptyState>} />
      )}</Loaded>
    </Page>
  );
}
