// The overview: what runs, what it uses, what happened, and how to make a first call.

import { useState } from 'preact/hooks';

import { type Schemas, address, api } from '../client/api';
import { useResource } from '../client/resource';
import { bytes, sentence } from '../format';
import { number, plural } from '../quantities';
import { Page, type Rights, keysRequired, pageAddress, sandboxPage } from '../shell';
import { BarChart, Button, CodeTabs, EmptyState, LineChart, Loaded, Loading, Time, localTime } from '../ui';
import { AMOUNTS, type Amount, type UsageRow, amountText, barLabel, bars, byBar, total } from '../usage_report';
import { QuotaBars, limitedQuotas } from './quota_bars';
import { openCreate, serverAddress } from './sandboxes/create';
import { type Recorded, changes, known, measured, ready, recorded, totals } from './sandboxes/store';

const MOST_EVENTS = 8;
const MOST_PAST = 6;
/** Of the live charts: ten minutes. */
const MOST_POINTS = 120;
const SHOWN_AMOUNTS: readonly Amount[] = ['tool_calls', 'core_seconds', 'egress_bytes'];
/** The most names in the choice of the example. */
const MOST_NAMES = 200;

export function OverviewPage({ rights }: { rights: Rights }) {
  const info = useResource('info', signal => api.get('/api/v2/info', { signal }), 30_000);
  return (
    <Page title="Overview" actions={rights.may('manage') && <Button kind="primary" icon="plus" onPress={() => openCreate()}>Create sandbox</Button>}>
      {info.data?.warnings.map(text => <p key={text} class="notice">{sentence(text)}</p>)}
      <Counters info={info.data} />
      <LiveCharts info={info.data} />
      <LastDay />
      <div class="columns">
        <Quotas rights={rights} />
        <Events />
        <Past />
      </div>
      {rights.may('use') && <FirstCall />}
    </Page>
  );
}

function Counters({ info }: { info: Schemas['ServerInfo'] | undefined }) {
  void measured.value;
  const count = (...states: string[]): number => known.value.filter(one => states.includes(one.state)).length;
  const last = totals.value.at(-1);
  const stat = (label: string, value: string, note: string, href?: string) => (
    <div class="stat" key={label}><dt>{href ? <a href={href}>{label}</a> : label}</dt><dd>{value}</dd><dd class="note">{note}</dd></div>
  );
  if (!ready.value) return <div class="panel"><Loading label="Loading counters" /></div>;
  const ended = count('failed', 'lost');
  return (
    <section class="panel" aria-label="Now"><dl class="stats">
      {stat('Running', number(count('running', 'creating')), `of ${plural(known.value.length, 'sandbox', 'sandboxes')}`, pageAddress([], { state: 'running' }))}
      {stat('Paused', number(count('paused')), 'kept without processors', pageAddress([], { state: 'paused' }))}
      {stat('Ended', number(ended), ended > 0 ? 'failed or lost' : 'nothing failed', pageAddress([], { state: 'failed,lost' }))}
      {stat('CPU in use', last ? number(last.cores) : '…', 'cores')}
      {stat('Memory in use', last ? bytes(last.memory_bytes) : '…', info?.capacity ? `${bytes(info.capacity.memory_available_bytes)} free` : 'of all sandboxes')}
    </dl></section>
  );
}

function LiveCharts({ info }: { info: Schemas['ServerInfo'] | undefined }) {
  const points = totals.value.slice(-MOST_POINTS);
  // A new page has few points, which would be at the right end.
  const most = Math.max(12, points.length);
  const at = (time: number): string => localTime(new Date(time).toISOString()).slice(11);
  const last = points.at(-1);
  const top = info?.capacity?.memory_total_bytes;
  return (
    <section class="panel" aria-label="Use of the last minutes"><div class="charts two">
      <LineChart title="CPU of all sandboxes" area axis most={most} series={[{ name: 'CPU', points: points.map(one => ({ label: at(one.at), value: one.cores })) }]} format={value => `${number(value)} cores`} value={last ? `${number(last.cores)} cores` : '…'} />
      <LineChart title="Memory of all sandboxes" area axis most={most} series={[{ name: 'Memory', points: points.map(one => ({ label: at(one.at), value: one.memory_bytes })) }]} format={bytes} value={last ? `${bytes(last.memory_bytes)}${top ? ` of ${bytes(top)}` : ''}` : '…'} />
    </div></section>
  );
}

function LastDay() {
  const resource = useResource('last day', async signal => {
    const { starts, length } = bars('24 hours', Date.now());
    const report = await api.get('/api/v2/usage', { query: { group: 'hour', since: new Date(starts[0]!).toISOString() }, signal });
    const rows = report.rows as UsageRow[];
    return { sums: byBar(rows, starts, length), labels: starts.map(start => barLabel(start, length)), sum: total(rows) };
  }, 60_000);
  return (
    <section class="panel" aria-label="The last 24 hours">
      <div class="panel-head"><h2>The last 24 hours</h2><a href="#/usage">All usage</a></div>
      <Loaded resource={resource}>{({ sums, labels, sum }) => <div class="charts">{SHOWN_AMOUNTS.map(amount => (
        <BarChart key={amount} title={AMOUNTS[amount].label} value={amountText(amount, sum[amount])} points={sums.map((one, n) => ({ label: labels[n]!, value: one[amount] }))} format={value => amountText(amount, value)} />
      ))}</div>}</Loaded>
    </section>
  );
}

function Quotas({ rights }: { rights: Rights }) {
  const resource = useResource('quotas', async signal => (await api.get('/api/v2/me', { signal })).quotas, 30_000);
  return (
    <section class="panel" aria-label="Quotas">
      <div class="panel-head"><h2>Quotas</h2><span class="quiet">{rights.me.tenant}</span></div>
      <Loaded resource={resource}>{quotas => {
        const limited = limitedQuotas(quotas);
        return limited.length > 0 ? <QuotaBars quotas={limited} /> : <EmptyState icon="usage" title="No limits">This tenant may use what the server has.</EmptyState>;
      }}</Loaded>
    </section>
  );
}

const EVENT_TEXTS: Partial<Record<Schemas['EventKind'], string>> = { 'sandbox.create_failed': 'could not be created' };

function Events() {
  const resource = useResource(`events ${changes.value}`, async signal => (await api.get('/api/v2/events', { query: { limit: MOST_EVENTS }, signal })).events.reverse());
  const [last, setLast] = useState<Schemas['EventInfo'][]>([]);
  if (resource.data && resource.data !== last) setLast(resource.data);
  const events = resource.data ?? last;
  return (
    <section class="panel" aria-label="Events">
      <div class="panel-head"><h2>Events</h2></div>
      {resource.loading && last.length === 0 ? <Loading /> : events.length === 0 ? <EmptyState icon="webhook" title="Nothing happened yet" /> : (
        <ul class="lines">{events.map(event => (
          <li key={event.id}><a class="clip" href={sandboxPage(event.sandbox.name)}>{event.sandbox.name}</a><span class="quiet grow">{EVENT_TEXTS[event.type] ?? event.type.replace('sandbox.', '').replaceAll('_', ' ')}</span><Time at={event.at} /></li>
        ))}</ul>
      )}
    </section>
  );
}

function pastName({ worker, task, sandbox_name: name }: Recorded): string {
  return worker ? [worker, task].filter(Boolean).join(', ') : name;
}

/** Trajectories outlive their sandboxes. */
function Past() {
  const living = new Set(known.value.map(one => one.id));
  const past = [...recorded.value.values()].filter(one => !living.has(one.trajectory)).sort((a, b) => b.last_at.localeCompare(a.last_at)).slice(0, MOST_PAST);
  return (
    <section class="panel" aria-label="Trajectories of deleted sandboxes">
      <div class="panel-head"><h2>Past trajectories</h2><a href={address('/trajectories')}>All trajectories</a></div>
      {past.length === 0 ? <EmptyState icon="trajectory" title="None yet">What a sandbox did stays when it is deleted.</EmptyState> : (
        <ul class="lines">{past.map(one => (
          <li key={one.trajectory}><a class="clip" href={address(`/trajectory/${encodeURIComponent(one.trajectory)}`)}>{pastName(one)}</a><span class="quiet grow">{plural(one.steps, 'step')}</span><Time at={one.last_at} /></li>
        ))}</ul>
      )}
    </section>
  );
}

function FirstCall() {
  const names = ['default', ...known.value.map(one => one.name).filter(name => name !== 'default').slice(0, MOST_NAMES)];
  const [chosen, setChosen] = useState('default');
  const name = names.includes(chosen) ? chosen : 'default';
  const server = serverAddress();
  const base = name === 'default' ? server : `${server}/sandbox/${name}`;
  const withKey = keysRequired();
  const key = withKey ? '  -H "x-api-key: $ARENITE_API_KEY" \\\n' : '';
  const headers = withKey ? ', headers={"x-api-key": os.environ["ARENITE_API_KEY"]}' : '';
  return (
    <section class="panel stack" aria-label="A first call">
      <div class="panel-head"><h2>A first call</h2>
        <label class="field inline"><span class="quiet">Sandbox</span><select class="input" value={name} onChange={event => setChosen(event.currentTarget.value)}>{names.map(one => <option key={one} value={one}>{one}</option>)}</select></label>
      </div>
      <CodeTabs label="The call" codes={{
        curl: `curl ${base}/v1/bash/exec \\\n${key}  -H 'content-type: application/json' \\\n  -d '{"command": "uname -a"}'`,
        'Command line': `arenite exec ${name} -- uname -a`,
        Python: `${withKey ? 'import os\n' : ''}from agent_sandbox import Sandbox  # pip install agent-sandbox\n\nsandbox = Sandbox(base_url="${base}"${headers})\nprint(sandbox.bash.exec(command="uname -a").data.stdout)`,
      }} />
    </section>
  );
}
