// The page of one sandbox: its state, use, settings and log, and what can be done to it.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';

import { type Schemas, api } from '../../client/api';
import { ApiError } from '../../client/errors';
import { useResource } from '../../client/resource';
import { bytes, timeLeft } from '../../format';
import { Loads, type Load } from '../../load';
import { cores, number, parseTime } from '../../quantities';
import { Page, type Rights, go, useShortcut } from '../../shell';
import { Button, ErrorState, Facts, FieldReader, FormDialog, LineChart, LinkButton, Loading, type Point, State, TextField, Time, fieldState, localTime, notify, now, openDialog, useFields } from '../../ui';
import { NEXT, askToDelete, change, remove } from '../sandboxes/lifecycle';
import { type Sandbox, changes, dashboardAddress, reasonText } from '../sandboxes/store';
import { openSteps } from '../steps_dialog';
import { HistorySection } from './history';
import { LogSection } from './log';
import { NetworkSection } from './network';

/** Intervals, in milliseconds, and the measurements that the charts show. */
const PERIOD = 10_000;
const MEASURE_PERIOD = 2000;
const MOST_VALUES = 90;

export function SandboxPage({ name, rights }: { name: string; rights: Rights }) {
  const resource = useResource(`sandbox ${name}`, signal => api.get('/api/v2/sandboxes/{name}', { path: { name }, signal }), PERIOD);
  const { data, error, reload } = resource;
  useEffect(() => { if (changes.value > 0) void reload(); }, [changes.value]);
  const isGone = data !== undefined && error instanceof ApiError && error.status === 404;
  const crumbs = <a href="#/">All sandboxes</a>;
  if (!data) return <Page title={name} crumbs={crumbs}>{error ? <ErrorState error={error} retry={reload} /> : <Loading />}</Page>;
  return (
    <Page title={data.name} crumbs={crumbs} beside={isGone ? null : <State name={data.state} />} actions={isGone ? null : <Tools sandbox={data} rights={rights} reload={reload} />}>
      {isGone ? <p class="notice" role="status">This sandbox was deleted. Its trajectory stays.</p> : error && <p class="notice bad" role="alert">{error.message}</p>}
      <Died sandbox={data} />
      {(data.state === 'running' || data.state === 'paused') && !isGone && <Charts sandbox={data} />}
      <Settings sandbox={data} />
      {!isGone && <NetworkSection key={`network ${data.id}`} name={name} rights={rights} />}
      {!isGone && <HistorySection key={`history ${data.id}`} name={name} rights={rights} />}
      {!isGone && rights.may('use') && (data.spec.args ?? []).length > 0 && <LogSection key={`log ${data.id}`} sandbox={data} />}
    </Page>
  );
}

function Died({ sandbox }: { sandbox: Sandbox }) {
  const { died } = sandbox;
  const reason = reasonText(sandbox);
  if (!reason) return null;
  return <p class="notice bad died">{died && <><b>{died.reason.replaceAll('_', ' ')}</b>, <Time at={died.at} />: </>}{reason}</p>;
}

function Tools({ sandbox, rights, reload }: { sandbox: Sandbox; rights: Rights; reload: () => Promise<void> }) {
  const { name, state, id } = sandbox;
  useShortcut('s', 'Its steps', 'Sandbox', () => openSteps(name, id));
  useShortcut('d', 'Its dashboard', 'Sandbox', () => { location.href = dashboardAddress(name); });
  const next = NEXT[state];
  const deleteIt = async (): Promise<void> => {
    if (!await askToDelete([name])) return;
    await remove(name);
    notify(`Deleted ${name}.`);
    go('#/');
  };
  const move = async (): Promise<void> => {
    await change(name, next!.transition);
    await reload();
  };
  return (
    <>
      <LinkButton kind="primary" icon="dashboard" href={dashboardAddress(name)}>Dashboard</LinkButton>
      <Button icon="trajectory" onPress={() => openSteps(name, id)}>Steps</Button>
      {rights.may('manage') && next && <Button icon={next.icon} onPress={move}>{next.label}</Button>}
      {rights.may('manage') && <Button onPress={() => openExtend(sandbox, reload)}>Extend</Button>}
      {rights.may('manage') && <Button icon="trash" onPress={deleteIt}>Delete</Button>}
    </>
  );
}

function openExtend(sandbox: Sandbox, reload: () => Promise<void>): void {
  openDialog(close => <Extend sandbox={sandbox} reload={reload} close={close} />);
}

/** Moves the end of the lifetime. */
function Extend({ sandbox: { name, expires_at }, reload, close }: { sandbox: Sandbox; reload: () => Promise<void>; close: () => void }) {
  const by = useFields(() => fieldState('1h'));
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    reader.text(by, 'Enter a time.');
    const seconds = reader.parsed(by, parseTime, 0);
    reader.done();
    // An unlimited lifetime has no end to move.
    if (expires_at) await api.post('/api/v2/sandboxes/{name}/extend', { path: { name }, body: { seconds } });
    else await api.patch('/api/v2/sandboxes/{name}', { path: { name }, body: { expires_in_seconds: seconds } as Schemas['ChangeSandbox'] });
    notify(`Extended by ${by.value.value.trim()}.`);
    await reload();
  };
  return <FormDialog title={`Extend ${name}`} submitText="Extend" onSubmit={submit} onClose={close}><TextField label="By" state={by} note={expires_at ? 'Such as 30m, 2h or 1d' : 'It has no lifetime yet, so this starts one.'} autofocus /></FormDialog>;
}

function Charts({ sandbox: { name, id } }: { sandbox: Sandbox }) {
  const measurements = useRef(new Loads());
  const [values, setValues] = useState<{ at: string; load: Load }[]>([]);
  const { data } = useResource(`usage ${id}`, signal => api.get('/api/v2/sandboxes/{name}/usage', { path: { name }, signal }).catch(error => {
    if (error instanceof ApiError) return null;
    throw error;
  }), MEASURE_PERIOD);
  useEffect(() => {
    if (!data) return;
    measurements.current.take([{ id, usage: data as Parameters<Loads['take']>[0][number]['usage'] }], performance.now());
    const load = measurements.current.get(id);
    if (load) setValues(before => [...before, { at: localTime(new Date().toISOString()).slice(11), load }].slice(-MOST_VALUES));
  }, [data]);
  const last = values.at(-1)?.load;
  const point = (value: (load: Load) => number | null): Point[] => values.flatMap(({ at, load }) => {
    const amount = value(load);
    return amount === null ? [] : [{ label: at, value: amount }];
  });
  const limits = last?.limits;
  return (
    <section class="panel" aria-label="Use">
      <div class="charts two">
        <LineChart title="CPU" area most={MOST_VALUES} top={(limits?.cpu_millis ?? 1000) / 1000} series={[{ name: 'CPU', points: point(load => load.cores) }]} format={value => `${number(value)} cores`}
          value={last && last.cores !== null ? `${number(last.cores)} of ${cores(last.limits.cpu_millis)}` : '…'} />
        <LineChart title="Memory" area most={MOST_VALUES} top={limits?.memory_bytes ?? 1} series={[{ name: 'Memory', points: point(load => load.memory_bytes) }]} format={bytes}
          value={last ? `${bytes(last.memory_bytes)} of ${bytes(last.limits.memory_bytes)}` : '…'} />
      </div>
      {last && <p class="quiet">In use: {number(last.pids)} of {number(last.limits.pids)} processes{last.disk_bytes === null ? '' : `, ${bytes(last.disk_bytes)} of ${bytes(last.limits.disk_bytes)} on disk`}</p>}
    </section>
  );
}

function Settings({ sandbox }: { sandbox: Schemas['SandboxInfo'] }) {
  const { spec } = sandbox;
  const { resources } = spec;
  void now.value;
  const ends = sandbox.deadline ? timeLeft(sandbox.deadline).long.replace(/ \([^()]*\)$/, '') : 'no time limit';
  const limits = resources && [resources.cpu_millis && cores(resources.cpu_millis), resources.memory_bytes && `${bytes(resources.memory_bytes)} memory`, resources.disk_bytes && `${bytes(resources.disk_bytes)} disk`, resources.pids && `${number(resources.pids)} processes`].filter(Boolean).join(', ');
  const all: [string, ComponentChildren][] = [
    ['Id', <code>{sandbox.id}</code>],
    ['Image', <code>{spec.image}</code>],
    ['Template', sandbox.template],
    ['Created', <><Time at={sandbox.created_at} />, by {sandbox.origin}</>],
    ['Last used', <Time at={sandbox.last_used_at} />],
    ['Ends', <span title={sandbox.deadline?.at}>{ends}</span>],
    ['Limits', limits],
    ['Main command', spec.args && spec.args.length > 0 ? <code>{spec.args.join(' ')}</code> : null],
    ['Group', sandbox.group],
    ['Parent', sandbox.parent && <code>{sandbox.parent}</code>],
    ['Client tag', sandbox.client_tag],
    ['Tier', sandbox.tier],
    ['Isolation', sandbox.isolation.join(', ')],
    ['Labels', pairs(spec.labels)],
    ['Environment', pairs(spec.env)],
  ];
  return (
    <section class="panel" aria-label="Settings">
      <Facts facts={all} />
    </section>
  );
}

function pairs(of: Record<string, string> | undefined): ComponentChildren {
  const entries = Object.entries(of ?? {});
  return entries.length === 0 ? null : <ul>{entries.map(([key, value]) => <li key={key}><code>{`${key}=${value}`}</code></li>)}</ul>;
}
