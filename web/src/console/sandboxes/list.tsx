// The page of all sandboxes: searched, filtered, sorted, and changed, also many at once.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';

import { all } from '../../client/api';
import { useResource } from '../../client/resource';
import { bytes, timeLeft } from '../../format';
import { number, plural } from '../../quantities';
import { Page, type Rights, replaceQuery, route, sandboxPage, useShortcut } from '../../shell';
import { Button, type Column, EmptyState, ErrorState, FieldReader, FormDialog, IconButton, IconLink, LinkButton, Loading, Menu, Meter, SearchField, type Sort, State, Table, TextField, Time, failed, fieldState, notify, now, openDialog, useFields } from '../../ui';
import { openSteps } from '../steps_dialog';
import { openCreate } from './create';
import { NEXT, type Transition, askToDelete, change, forEach, remove } from './lifecycle';
import { type Filter, NO_FILTER, type Sandbox, dashboardAddress, failure, isFiltered, known, loads, matches, measured, ready, reasonText, recorded, refresh, sandboxes, setFilter } from './store';
import { type ListView, STATES, readView, removeView, saveView, savedViews, viewQuery } from './views';

export function SandboxesPage({ rights }: { rights: Rights }) {
  const view = readView(route.value.query);
  const isOthers = view.filter.tenant !== '' && view.filter.tenant !== rights.me.tenant;
  const manages = rights.may('manage') && !isOthers;
  const show = (part: Partial<ListView>): void => replaceQuery(viewQuery({ ...view, ...part }));
  const filterKey = JSON.stringify(view.filter);
  useEffect(() => setFilter(view.filter), [filterKey]);
  // Other pages show all.
  useEffect(() => () => setFilter(NO_FILTER), []);
  const [picked, setPicked] = useState<ReadonlySet<string>>(new Set());
  const [busy, setBusy] = useState<ReadonlySet<string>>(new Set());
  const search = useRef<HTMLInputElement>(null);
  useShortcut('/', 'Find sandboxes', 'Sandboxes', () => search.current?.focus());
  useShortcut('j', 'The next sandbox; k the previous one', 'Sandboxes', () => document.querySelector<HTMLElement>('tr[data-at] a')?.focus());
  const current = sandboxes.value;
  const found = useMemo(() => current.filter(sandbox => matches(sandbox, view.find)), [current, view.find]);
  // Sandboxes that are gone are not selected.
  const selected = useMemo(() => current.filter(sandbox => picked.has(sandbox.id)), [current, picked]);
  // The loads are read by the cells.
  void measured.value;

  const work = async (name: string, act: () => Promise<unknown>): Promise<void> => {
    setBusy(before => new Set(before).add(name));
    try {
      await act();
    } catch (error) {
      failed(error);
    }
    setBusy(before => {
      const left = new Set(before);
      left.delete(name);
      return left;
    });
    await refresh();
  };
  const removeOne = async (name: string): Promise<void> => {
    if (await askToDelete([name])) await work(name, () => remove(name));
  };
  const hasNodes = useMemo(() => current.some(one => one.node), [current]);
  const columns = useMemo(() => newColumns({ manages, isOthers, hasNodes, busy, work, removeOne }), [manages, isOthers, hasNodes, busy]);
  const sort: Sort = { column: view.sort.replace(/^-/, ''), down: view.sort.startsWith('-') };
  const key = (event: KeyboardEvent, sandbox: Sandbox): void => {
    if (isOthers) return;
    if (event.key === 's') openSteps(sandbox.name, sandbox.id);
    else if (event.key === 'd') location.href = dashboardAddress(sandbox.name);
    else if (event.key === 'Delete' && manages) void removeOne(sandbox.name);
    else return;
    event.preventDefault();
  };
  const narrowed = view.find.trim() !== '' || isFiltered(view.filter);
  const count = !ready.value ? '' : view.find.trim() ? `${number(found.length)} of ${number(current.length)}` : number(current.length);
  return (
    <Page title="Sandboxes" beside={<span class="quiet" role="status" aria-label="Number of sandboxes">{count}</span>}
      actions={manages && <Button kind="primary" icon="plus" onPress={() => openCreate()}>Create sandbox</Button>}>
      <Toolbar rights={rights} view={view} show={show} search={search} />
      <ActiveFilters filter={view.filter} show={next => show({ filter: next })} />
      {failure.value && ready.value && <p class="notice bad" role="alert">{failure.value.message}</p>}
      {manages && selected.length > 0 && <BulkBar selected={selected} clear={() => setPicked(new Set())} />}
      {!ready.value ? (failure.value ? <ErrorState error={failure.value} retry={refresh} /> : <Loading label="Loading sandboxes" />) : (
        <div class="panel">
          <Table label="Sandboxes" columns={columns} rows={found} rowKey={sandbox => sandbox.id} rowName={sandbox => sandbox.name} sort={sort}
            onSort={next => show({ sort: `${next.down ? '-' : ''}${next.column}` })} picked={manages ? picked : undefined} onPick={setPicked} onRowKey={key}
            empty={narrowed ? <EmptyState icon="search" title="No sandbox matches" actions={<Button onPress={() => replaceQuery({})}>Show all</Button>}>Change the search or the filters.</EmptyState> : <NoSandboxes manages={manages} />} />
        </div>
      )}
    </Page>
  );
}

function NoSandboxes({ manages }: { manages: boolean }) {
  return (
    <EmptyState icon="sandbox" title="No sandboxes yet" actions={<>
      {manages && <Button kind="primary" icon="plus" onPress={() => openCreate()}>Create the first one</Button>}
      <LinkButton href="#/overview">A first call</LinkButton>
    </>}>A sandbox is a computer for an agent. Create one here, with <code>arenite create</code>, or make a call, which creates the sandbox <code>default</code>.</EmptyState>
  );
}

function Toolbar({ rights, view, show, search }: { rights: Rights; view: ListView; show: (part: Partial<ListView>) => void; search: { current: HTMLInputElement | null } }) {
  const { filter: active } = view;
  const choices = useResource('filters', async signal => {
    const [templates, groups, tenants] = await Promise.all([
      all('/api/v2/templates', 'templates', { signal }).catch(() => []),
      all('/api/v2/groups', 'groups', { signal }).catch(() => []),
      rights.managesTenants ? all('/api/v2/tenants', 'tenants', { signal }).catch(() => []) : [],
    ]);
    const names = (of: readonly { name: string }[]): string[] => of.map(one => one.name);
    return { templates: names(templates), groups: names(groups), tenants: names(tenants) };
  });
  const set = (part: Partial<Filter>): void => show({ filter: { ...active, ...part } });
  const toggle = (state: (typeof STATES)[number]): void => set({ states: active.states.includes(state) ? active.states.filter(one => one !== state) : [...active.states, state] });
  const one = (names: readonly string[], chosen: string, choose: (name: string) => void) =>
    names.map(name => ({ text: name, checked: name === chosen, onPress: () => choose(name === chosen ? '' : name) }));
  const templates = choices.data?.templates ?? [];
  const groups = choices.data?.groups ?? [];
  const tenants = choices.data?.tenants ?? [];
  const everything = known.value;
  const nodes = useMemo(() => [...new Set(everything.flatMap(one => one.node ?? []))].sort(), [everything]);
  return (
    <div class="toolbar" role="search" aria-label="Sandboxes">
      <SearchField label="Find sandboxes" placeholder="Find by name, image, state or label" hotkey="/" value={view.find} onInput={find => show({ find })} inputRef={search} />
      <div class="row">
        <Menu label="Filter by state" items={STATES.map(state => ({ text: state, checked: active.states.includes(state), onPress: () => toggle(state) }))}>State</Menu>
        {templates.length > 0 && <Menu label="Filter by template" items={one(templates, active.template, template => set({ template }))}>Template</Menu>}
        {groups.length > 0 && <Menu label="Filter by group" items={one(groups, active.group, group => set({ group }))}>Group</Menu>}
        {nodes.length > 1 && <Menu label="Filter by node" items={one(nodes, active.node, node => set({ node }))}>Node</Menu>}
        {tenants.length > 1 && <Menu label="Filter by tenant" items={one(tenants, active.tenant || rights.me.tenant, tenant => set({ tenant: tenant === rights.me.tenant ? '' : tenant }))}>Tenant</Menu>}
        <Button label="Filter by label" onPress={() => openLabelFilter(label => set({ labels: [...new Set([...active.labels, label])] }))}>Label</Button>
        <Views view={view} />
      </div>
    </div>
  );
}

function openLabelFilter(add: (label: string) => void): void {
  openDialog(close => <LabelFilter close={close} add={add} />);
}

function LabelFilter({ close, add }: { close: () => void; add: (label: string) => void }) {
  const label = useFields(() => fieldState());
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const text = reader.text(label, 'Enter a label.');
    reader.done();
    add(text);
  };
  return <FormDialog title="Filter by label" submitText="Filter" onSubmit={submit} onClose={close}><TextField label="Label" state={label} placeholder="team=red" note="KEY=VALUE, or KEY for any value" autofocus /></FormDialog>;
}

function Views({ view }: { view: ListView }) {
  const query = viewQuery(view);
  const isSaved = (of: Record<string, string>): boolean => Object.entries(query).every(([name, value]) => (of[name] ?? '') === value);
  const chosen = savedViews.value.find(saved => isSaved(saved.query));
  return (
    <Menu icon="bookmark" label={chosen ? `View: ${chosen.name}` : 'Views'} items={[
      { text: 'All sandboxes', onPress: () => replaceQuery({}) },
      ...savedViews.value.map(saved => ({ text: saved.name, checked: saved === chosen, onPress: () => replaceQuery(saved.query) })),
      null,
      { text: 'Save this view', icon: 'plus', onPress: () => openSaveView(query) },
      ...(chosen ? [{ text: `Remove ${chosen.name}`, icon: 'trash' as const, danger: true, onPress: () => removeView(chosen.name) }] : []),
    ]}>{chosen ? chosen.name : 'Views'}</Menu>
  );
}

function openSaveView(query: Record<string, string>): void {
  openDialog(close => <SaveView close={close} query={query} />);
}

function SaveView({ close, query }: { close: () => void; query: Record<string, string> }) {
  const name = useFields(() => fieldState());
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const text = reader.text(name, 'Give it a name.');
    reader.done();
    saveView(text, query);
    notify(`Saved the view ${text} in this browser.`);
  };
  return <FormDialog title="Save this view" submitText="Save" onSubmit={submit} onClose={close}><TextField label="Name" state={name} maxLength={80} note="It keeps the search, the filters and the order, in this browser." autofocus /></FormDialog>;
}

function ActiveFilters({ filter: active, show }: { filter: Filter; show: (next: Filter) => void }) {
  if (!isFiltered(active)) return null;
  const chip = (text: string, next: Filter) => <Button key={text} small label={`Remove the filter ${text}`} onPress={() => show(next)}>{text} <span aria-hidden="true">×</span></Button>;
  return (
    <div class="row" role="group" aria-label="Active filters">
      {active.states.map(state => chip(`state: ${state}`, { ...active, states: active.states.filter(one => one !== state) }))}
      {active.labels.map(label => chip(`label: ${label}`, { ...active, labels: active.labels.filter(one => one !== label) }))}
      {active.template && chip(`template: ${active.template}`, { ...active, template: '' })}
      {active.group && chip(`group: ${active.group}`, { ...active, group: '' })}
      {active.image && chip(`image: ${active.image}`, { ...active, image: '' })}
      {active.node && chip(`node: ${active.node}`, { ...active, node: '' })}
      {active.tenant && chip(`tenant: ${active.tenant}`, { ...active, tenant: '' })}
      <Button small kind="plain" onPress={() => show(NO_FILTER)}>Clear filters</Button>
    </div>
  );
}

const DONE: Record<Transition | 'delete', string> = { pause: 'Paused', resume: 'Resumed', start: 'Started', delete: 'Deleted' };

function BulkBar({ selected, clear }: { selected: readonly Sandbox[]; clear: () => void }) {
  const [progress, setProgress] = useState('');
  const run = async (what: Transition | 'delete', names: readonly string[]): Promise<void> => {
    const errors = await forEach(names, name => (what === 'delete' ? remove(name) : change(name, what)), done => setProgress(`${done} of ${names.length}`));
    setProgress('');
    const done = names.length - errors.size;
    if (done > 0) notify(`${DONE[what]} ${plural(done, 'sandbox', 'sandboxes')}.`);
    const [first] = errors;
    if (first) failed(new Error(errors.size === 1 ? `${first[0]}: ${first[1].message}` : `${errors.size} were refused; ${first[0]}: ${first[1].message}`));
    if (what === 'delete' && errors.size === 0) clear();
    await refresh();
  };
  const names = (state: (name: string) => boolean): string[] => selected.filter(one => state(one.state)).map(one => one.name);
  const pausable = names(state => state === 'running');
  const resumable = names(state => state === 'paused');
  const removeAll = async (): Promise<void> => {
    const all = selected.map(one => one.name);
    if (await askToDelete(all)) await run('delete', all);
  };
  return (
    <div class="bulk" role="group" aria-label="Selected sandboxes">
      <b role="status">{plural(selected.length, 'sandbox', 'sandboxes')} selected{progress && `: ${progress}`}</b>
      <Button small icon="pause" disabled={pausable.length === 0} onPress={() => run('pause', pausable)}>Pause selected</Button>
      <Button small icon="play" disabled={resumable.length === 0} onPress={() => run('resume', resumable)}>Resume selected</Button>
      <Button small icon="trash" onPress={removeAll}>Delete selected</Button>
      <Button small kind="plain" onPress={clear}>Clear selection</Button>
    </div>
  );
}

interface RowTools {
  manages: boolean;
  /** Another tenant's: they have no pages here, and are not measured. */
  isOthers: boolean;
  /** Its server is one of several. */
  hasNodes: boolean;
  busy: ReadonlySet<string>;
  work: (name: string, act: () => Promise<unknown>) => Promise<void>;
  removeOne: (name: string) => Promise<void>;
}

function newColumns({ manages, isOthers, hasNodes, busy, work, removeOne }: RowTools): Column<Sandbox>[] {
  return [
    { id: 'name', title: 'Name', className: 'clip-cell', sort: one => one.name, cell: one => <>{isOthers ? <span class="title">{one.name}</span> : <a class="title" href={sandboxPage(one.name)}>{one.name}</a>}<small class="mono">{one.id}</small></> },
    { id: 'state', title: 'State', sort: one => one.state, className: 'clip-cell', cell: one => {
      const reason = reasonText(one);
      return <div><State name={one.state} />{reason && <small class="reason" title={reason}>{reason}</small>}</div>;
    } },
    { id: 'image', title: 'Image', low: true, className: 'clip-cell', sort: one => one.spec.image, cell: one => <code>{one.spec.image}</code>, tip: one => one.spec.image },
    ...(hasNodes ? [{ id: 'node', title: 'Node', low: true, className: 'clip-cell', sort: one => one.node ?? '', cell: one => one.node }] satisfies Column<Sandbox>[] : []),
    ...(isOthers ? [] : [
      { id: 'cpu', title: 'CPU', sort: one => loads.get(one.id)?.cores ?? -1, cell: one => <CpuCell id={one.id} /> },
      { id: 'memory', title: 'Memory', sort: one => loads.get(one.id)?.memory_bytes ?? -1, cell: one => <MemoryCell id={one.id} /> },
    ] satisfies Column<Sandbox>[]),
    { id: 'age', title: 'Age', number: true, sort: one => Date.parse(one.created_at), cell: one => <Time at={one.created_at} form="age" /> },
    { id: 'ends', title: 'Ends in', number: true, low: true, sort: one => (one.deadline ? Date.parse(one.deadline.at) : Infinity), cell: one => <EndsCell sandbox={one} /> },
    ...(isOthers ? [] : [{ id: 'actions', title: '', cell: one => {
      const next = NEXT[one.state];
      const steps = recorded.value.get(one.id)?.steps ?? 0;
      const isBusy = busy.has(one.name);
      return (
        <div class="row">
          <Button small kind="plain" label={`${plural(steps, 'step')} of ${one.name}`} title="What was recorded" onPress={() => openSteps(one.name, one.id)}>{plural(steps, 'step')}</Button>
          <IconLink small kind="plain" icon="dashboard" href={dashboardAddress(one.name)} label={`Dashboard of ${one.name}`} title="Dashboard" />
          {manages && next && <IconButton small kind="plain" icon={next.icon} label={`${next.label} ${one.name}`} title={next.label} busy={isBusy} onPress={() => work(one.name, () => change(one.name, next.transition))} />}
          {manages && <IconButton small kind="plain" icon="trash" label={`Delete ${one.name}`} title="Delete" disabled={isBusy} onPress={() => removeOne(one.name)} />}
        </div>
      );
    } }] satisfies Column<Sandbox>[]),
  ];
}

function EndsCell({ sandbox }: { sandbox: Sandbox }) {
  void now.value;
  if (!sandbox.deadline) return <span title="no time limit">–</span>;
  const { short, long } = timeLeft(sandbox.deadline);
  return <span title={long}>{short}</span>;
}

function CpuCell({ id }: { id: string }) {
  void measured.value;
  const load = loads.get(id);
  if (!load) return <>–</>;
  if (load.cores === null) return <>…</>;
  const limit = load.limits.cpu_millis / 1000;
  return <Meter share={load.cores / limit} label="CPU used">{number(load.cores)}<small class="quiet"> of {number(limit)}</small></Meter>;
}

function MemoryCell({ id }: { id: string }) {
  void measured.value;
  const load = loads.get(id);
  if (!load) return <>–</>;
  return <Meter share={load.memory_bytes / load.limits.memory_bytes} label="Memory used">{bytes(load.memory_bytes)}<small class="quiet"> of {bytes(load.limits.memory_bytes)}</small></Meter>;
}

