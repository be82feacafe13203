// What a sandbox may reach, and what it reached or was refused: the newest first, read again every few seconds.

import { type Schemas, api } from '../../client/api';
import { useResource } from '../../client/resource';
import { bytes } from '../../format';
import { number } from '../../quantities';
import type { Rights } from '../../shell';
import { AreaField, Badge, Button, type Column, FormDialog, SelectField, State, Table, Time, fieldState, notify, openDialog, useFields } from '../../ui';
import { type NetworkRule as Rule, RULE_NOTE, ruleLabel, ruleText, rulesOf } from '../network_rules';

type Network = Schemas['NetworkInfo'];
type Mode = Schemas['RequestedMode'];

/** A decision of the egress proxy, or the end of a connection. */
interface NetworkEvent {
  time: string;
  kind: 'decision' | 'end';
  protocol: string;
  connection?: number;
  name?: string;
  address?: string;
  port: number;
  method?: string;
  path?: string;
  rule?: string;
  allowed: boolean;
  reason: string;
  count: number;
  bytes_sent: number;
  bytes_received: number;
  process?: { pid: number; name: string; command: string };
  /** A login that the SSH agent signed, or not. */
  ssh?: Schemas['SshLogin'];
}

/** Milliseconds between two readings. */
const PERIOD = 2000;
/** Decisions that are shown, the newest; others are in the API. */
const MOST = 200;
const MODES: Record<string, string> = { none: 'no network', allowlist: 'what the rules allow', observe: 'all that is public, recorded', open: 'all that is public' };
const REASONS: Record<string, string> = { observe: 'no rule, observed', no_rule: 'no rule allows it', floor: 'the tenant\'s floor does not allow it' };

export function NetworkSection({ name, rights }: { name: string; rights: Rights }) {
  const { data, reload } = useResource(`network ${name}`, signal => api.get('/api/v2/sandboxes/{name}/network', { path: { name }, signal }), PERIOD);
  if (!data) return null;
  const { mode, allowed, refused, floor, suggested } = data;
  const events = data.events as unknown as NetworkEvent[];
  const mayChange = rights.may('manage');
  const isDecided = !(mode === 'none' || (mode === 'open' && !floor));
  const ends = new Map(events.filter(event => event.kind === 'end' && event.connection !== undefined).map(event => [event.connection, event]));
  const set = async (network: { mode: Mode; allow: Rule[]; deny: Rule[] }): Promise<void> => {
    await api.patch('/api/v2/sandboxes/{name}', { path: { name }, body: { network } as Schemas['ChangeSandbox'] });
    await reload();
    notify('The network was changed.');
  };
  return (
    <section class="panel network" aria-label="Network">
      <div class="panel-head">
        <h2>Network</h2>
        <Badge tone={mode === 'allowlist' ? 'good' : 'none'}>{mode}</Badge>
        <span class="quiet grow">{MODES[mode]}{isDecided && `, ${number(allowed)} allowed, ${number(refused)} refused`}</span>
        {/* A sandbox neither gets a network later nor loses it. */}
        {mayChange && mode !== 'none' && <Button small label="Change the network" onPress={() => openChange(name, data, set)}>Change the network</Button>}
      </div>
      <div class="stack">
        <Rules network={data} />
        {mode === 'observe' && suggested.length > 0 && (
          <div class="notice">
            <p>An allowlist of what it reached so far:</p>
            <RuleList rules={suggested} />
            {mayChange && <Button small onPress={() => set({ mode: 'allowlist', allow: suggested, deny: data.deny })}>Use this allowlist</Button>}
          </div>
        )}
        {isDecided && <div class="scroll-box" role="group" aria-label="Decisions" tabIndex={0}>
          <Table label="Decisions of the network policy" rows={events.filter(event => event.kind === 'decision').slice(-MOST).reverse()} columns={columns(data, ends, mayChange, set)}
            rowKey={event => `${event.time} ${event.protocol} ${place(event)} ${event.connection ?? ''} ${event.reason}`} empty={<p class="quiet">Nothing was decided yet.</p>} />
        </div>}
      </div>
    </section>
  );
}

function columns(network: Network, ends: Map<number | undefined, NetworkEvent>, mayChange: boolean, set: (network: { mode: Mode; allow: Rule[]; deny: Rule[] }) => Promise<void>): Column<NetworkEvent>[] {
  const traffic = (event: NetworkEvent, of: 'bytes_sent' | 'bytes_received'): string => {
    const end = event.connection === undefined ? undefined : ends.get(event.connection);
    return event.allowed && end ? bytes(end[of]) : '';
  };
  return [
    { id: 'where', title: 'Where', className: 'clip-cell', cell: event => <code>{place(event)}</code>, tip: event => event.address },
    { id: 'time', title: 'Time', cell: event => <Time at={event.time} /> },
    { id: 'protocol', title: 'Protocol', low: true, cell: event => event.protocol },
    { id: 'verdict', title: 'Verdict', cell: event => <State name={event.allowed ? 'allowed' : 'refused'} text={(event.allowed ? 'allowed' : 'refused') + (event.count > 1 ? ` ${number(event.count)} times` : '')} /> },
    { id: 'why', title: 'Why', className: 'clip-cell', cell: why, tip: event => event.ssh?.fingerprint },
    { id: 'process', title: 'Process', className: 'clip-cell', low: true, cell: ({ process }) => process && <code>{process.name} ({process.pid})</code>, tip: event => event.process?.command },
    { id: 'sent', title: 'Sent', number: true, low: true, cell: event => traffic(event, 'bytes_sent') },
    { id: 'received', title: 'Received', number: true, low: true, cell: event => traffic(event, 'bytes_received') },
    { id: 'actions', title: '', cell: event => {
      const rule = ruleFor(event);
      if (!mayChange || !rule || network.mode !== 'allowlist' || network.allow.includes(rule)) return null;
      return <Button small label={`Allow ${rule}`} onPress={() => set({ mode: 'allowlist', allow: [...network.allow, rule], deny: network.deny })}>Allow</Button>;
    } },
  ];
}

function Rules({ network: { allow, deny, floor } }: { network: Network }) {
  const lists = ([['Allow', allow], ['Deny', deny], ['The tenant\'s floor allows', floor?.allow ?? []], ['The tenant\'s floor denies', floor?.deny ?? []]] as const).filter(([, rules]) => rules.length > 0);
  if (lists.length === 0) return null;
  return <dl class="facts">{lists.map(([label, rules]) => <div key={label}><dt>{label}</dt><dd><RuleList rules={rules} /></dd></div>)}</dl>;
}

function RuleList({ rules }: { rules: readonly Rule[] }) {
  return <ul class="rules">{rules.map(rule => <li key={ruleText(rule)}><code>{ruleLabel(rule)}</code></li>)}</ul>;
}

function openChange(name: string, network: Network, set: (network: { mode: Mode; allow: Rule[]; deny: Rule[] }) => Promise<void>): void {
  openDialog(close => <ChangeNetwork name={name} network={network} set={set} close={close} />);
}

function ChangeNetwork({ name, network, set, close }: { name: string; network: Network; set: (network: { mode: Mode; allow: Rule[]; deny: Rule[] }) => Promise<void>; close: () => void }) {
  const fields = useFields(() => ({ mode: fieldState(network.mode), allow: fieldState(network.allow.map(ruleText).join('\n')), deny: fieldState(network.deny.map(ruleText).join('\n')) }));
  return (
    <FormDialog title={`Network of ${name}`} submitText="Change" onClose={close} onSubmit={() => set({ mode: fields.mode.value.value as Mode, allow: rulesOf(fields.allow.value.value), deny: rulesOf(fields.deny.value.value) })}>
      <SelectField label="Mode" state={fields.mode} options={[['allowlist', 'allowlist: what the rules allow'], ['observe', 'observe: all that is public, recorded'], ['open', 'open: all that is public']]} />
      <AreaField label="Allow" state={fields.allow} rows={5} note={`${RULE_NOTE}. For an allowlist only.`} />
      <AreaField label="Deny" state={fields.deny} rows={5} note="The same; not for an open network" />
    </FormDialog>
  );
}

function why({ rule, reason, ssh }: NetworkEvent): string {
  const text = rule ?? REASONS[reason] ?? reason.replaceAll('_', ' ');
  return ssh?.secret ? `${text}, ${ssh.secret}` : text;
}

function place({ name, address, port, method, path, ssh }: NetworkEvent): string {
  if (ssh) return `${ssh.user ?? 'no login'}${name ? `@${name}:${port}` : ''}`;
  const host = name ?? address ?? 'various';
  return `${method ? `${method} ` : ''}${host}${port > 0 ? `:${port}` : ''}${path ?? ''}`;
}

/** The rule that would have allowed it. Without one, no rule can. */
function ruleFor({ allowed, reason, protocol, name, address, port }: NetworkEvent): string | null {
  if (allowed || reason !== 'no_rule') return null;
  if (name === undefined) return address === undefined ? null : `${address}:${port}${protocol === 'udp' ? '/udp' : ''}`;
  return protocol === 'dns' ? name : `${name}:${port}`;
}
