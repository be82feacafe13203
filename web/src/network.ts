// What a sandbox may reach, and what it reached or was refused: the newest first, read again every few seconds.

import { Refused, call } from './api';
import { bytes, make } from './dom';
import { Field, type Message, button, formDialog, select, workButton } from './forms';
import { number } from './quantities';
import type { Rights } from './rights';
import { sandboxPath } from './sandbox_list';
import { Table } from './table';

type Rule = string | Record<string, unknown>;

interface Rules {
  mode: 'none' | 'allowlist' | 'observe' | 'open';
  allow: Rule[];
  deny: Rule[];
}

/** A decision of the egress proxy, or the end of a connection. */
interface NetworkEvent {
  time: string;
  kind: 'decision' | 'end';
  protocol: 'dns' | 'tls' | 'http' | 'tcp' | 'udp';
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
}

interface Network extends Rules {
  floor: Rules | null;
  allowed: number;
  refused: number;
  events: NetworkEvent[];
  suggested: Rule[];
}

/** Milliseconds between two readings. */
const PERIOD = 2000;
/** Decisions that are shown, the newest; others are in the API. */
const MOST = 200;
const MODES: Record<Rules['mode'], string> = {
  none: 'no network', allowlist: 'what the rules allow', observe: 'all that is public, recorded', open: 'all that is public',
};
const REASONS: Record<string, string> = { observe: 'no rule, observed', no_rule: 'no rule allows it', floor: 'the tenant\'s floor does not allow it' };

export class NetworkSection {
  readonly box = make('section', { className: 'network', hidden: true, ariaLabel: 'Network' });
  private readonly rights: Rights;
  private readonly message: Message;
  private readonly head = make('div', { className: 'head' });
  private readonly rules = make('dl', { className: 'rules' });
  private readonly suggestion = make('div', { className: 'suggestion', hidden: true });
  private readonly table: Table<NetworkEvent>;
  private readonly ends = new Map<number, NetworkEvent>();
  private name = '';
  private shown: Network | null = null;
  private signature = '';
  private timer = 0;

  constructor(rights: Rights, message: Message) {
    this.rights = rights;
    this.message = message;
    this.table = new Table<NetworkEvent>('Decisions of the network policy', [
      { title: 'Time', cell: event => new Date(event.time).toLocaleTimeString(), tip: event => event.time },
      { title: 'Where', className: 'code', cell: event => place(event), tip: event => event.address ?? '' },
      { title: 'Protocol', cell: event => event.protocol },
      { title: 'Verdict', cell: event => make('span', { className: `state ${event.allowed ? 'running' : 'failed'}`, textContent: verdict(event) }) },
      { title: 'Why', cell: event => event.rule ?? REASONS[event.reason] ?? event.reason.replaceAll('_', ' ') },
      { title: 'Sent', number: true, cell: event => this.traffic(event, 'bytes_sent') },
      { title: 'Received', number: true, cell: event => this.traffic(event, 'bytes_received') },
      { title: '', cell: event => this.allowButton(event) },
    ], 'Nothing was decided yet.');
    this.box.append(this.head, this.rules, this.suggestion, this.table.box);
  }

  open(name: string): void {
    this.close();
    this.name = name;
    this.box.hidden = true;
    this.signature = '';
    void this.read();
  }

  close(): void {
    clearTimeout(this.timer);
    this.name = '';
  }

  private async read(): Promise<void> {
    clearTimeout(this.timer);
    const { name } = this;
    if (name === '') return;
    try {
      if (!document.hidden) {
        const network = await call<Network>('GET', sandboxPath(name, '/network'));
        if (this.name !== name) return;
        this.draw(network);
      }
    } catch (error) {
      if (this.name !== name) return;
      // The sandbox is gone, or the server does not answer for now.
      if (error instanceof Refused && error.status === 404) return;
    }
    this.timer = window.setTimeout(() => void this.read(), PERIOD);
  }

  private draw(network: Network): void {
    const signature = JSON.stringify(network);
    if (signature === this.signature) return;
    this.signature = signature;
    this.shown = network;
    this.ends.clear();
    for (const event of network.events) if (event.kind === 'end' && event.connection !== undefined) this.ends.set(event.connection, event);
    const { mode, allowed, refused } = network;
    const counts = mode === 'open' && !network.floor || mode === 'none' ? '' : `${number(allowed)} allowed, ${number(refused)} refused`;
    this.replaceHead(mode, counts);
    const rows: Node[] = [];
    const list = (label: string, rules: Rule[]): void => {
      if (rules.length > 0) rows.push(make('div', {}, make('dt', { textContent: label }), make('dd', {}, ruleList(rules))));
    };
    list('Allow', network.allow);
    list('Deny', network.deny);
    if (network.floor) {
      list('The tenant\'s floor allows', network.floor.allow);
      list('The tenant\'s floor denies', network.floor.deny);
    }
    this.rules.replaceChildren(...rows);
    this.rules.hidden = rows.length === 0;
    this.drawSuggestion(network);
    this.table.box.hidden = counts === '';
    this.table.show(network.events.filter(event => event.kind === 'decision').slice(-MOST).reverse());
    this.box.hidden = false;
  }

  private replaceHead(mode: Rules['mode'], counts: string): void {
    const key = `${mode} ${counts}`;
    if (this.head.dataset.shown === key) return;
    const hadFocus = this.head.contains(document.activeElement);
    this.head.replaceChildren(make('h3', { textContent: 'Network' }), make('span', { className: 'chip', textContent: mode }),
      make('span', { className: 'quiet', textContent: [MODES[mode], counts].filter(Boolean).join(', ') }));
    // A sandbox neither gets a network later nor loses it.
    if (this.mayChange && mode !== 'none') {
      const change = button('Change the network', () => this.change());
      this.head.append(change);
      if (hadFocus) change.focus();
    }
    this.head.dataset.shown = key;
  }

  private get mayChange(): boolean {
    return this.rights.may('manage');
  }

  private drawSuggestion({ mode, suggested }: Network): void {
    this.suggestion.hidden = mode !== 'observe' || suggested.length === 0;
    if (this.suggestion.hidden) return;
    this.suggestion.replaceChildren(make('p', { textContent: 'An allowlist of what it reached so far:' }), ruleList(suggested));
    if (!this.mayChange) return;
    this.suggestion.append(workButton('Use this allowlist', async () => {
      await this.set({ mode: 'allowlist', allow: suggested, deny: this.shown?.deny ?? [] });
    }, this.message.fail));
  }

  private traffic(event: NetworkEvent, of: 'bytes_sent' | 'bytes_received'): string {
    const end = event.connection === undefined ? undefined : this.ends.get(event.connection);
    return event.allowed && end ? bytes(end[of]) : '';
  }

  private allowButton(event: NetworkEvent): Node | string {
    const rule = ruleFor(event);
    const shown = this.shown;
    if (!this.mayChange || !rule || shown?.mode !== 'allowlist' || shown.allow.includes(rule)) return '';
    return workButton('Allow', () => this.set({ mode: 'allowlist', allow: [...shown.allow, rule], deny: shown.deny }), this.message.fail, { label: `Allow ${rule}` });
  }

  private async set(network: Rules): Promise<void> {
    await call('PATCH', sandboxPath(this.name), { network });
    await this.read();
    this.message.say('The network was changed.');
  }

  private change(): void {
    const now = this.shown;
    if (!now) return;
    const mode = new Field('Mode', select([['allowlist', 'allowlist: what the rules allow'], ['observe', 'observe: all that is public, recorded'], ['open', 'open: all that is public']], 'mode'));
    mode.input.value = now.mode;
    const area = (label: string, note: string, rules: Rule[]): Field<HTMLTextAreaElement> => new Field(label, make('textarea', { name: label.toLowerCase(), rows: 5, spellcheck: false, value: rules.map(ruleText).join('\n') }), note);
    const allow = area('Allow', 'One rule a line, such as pypi.org, *.example.com:443, or 192.0.2.0/24:5432/tcp. For an allowlist only.', now.allow);
    const deny = area('Deny', 'The same; not for an open network', now.deny);
    formDialog(`Network of ${this.name}`, [mode.box, allow.box, deny.box], 'Change', async () => {
      await this.set({ mode: mode.value as Rules['mode'], allow: rulesOf(allow.value), deny: rulesOf(deny.value) });
    });
  }
}

/** A rule is text, or an object as JSON. */
function rulesOf(text: string): Rule[] {
  return text.split('\n').map(line => line.trim()).filter(Boolean).map(line => line.startsWith('{') ? JSON.parse(line) as Rule : line);
}

function ruleText(rule: Rule): string {
  return typeof rule === 'string' ? rule : JSON.stringify(rule);
}

function ruleList(rules: Rule[]): HTMLElement {
  return make('ul', {}, ...rules.map(rule => make('li', {}, make('code', { textContent: ruleText(rule) }))));
}

function place({ name, address, port, method, path }: NetworkEvent): string {
  const host = name ?? address ?? 'various';
  return `${method ? `${method} ` : ''}${host}${port > 0 ? `:${port}` : ''}${path ?? ''}`;
}

function verdict({ allowed, count }: NetworkEvent): string {
  return (allowed ? 'allowed' : 'refused') + (count > 1 ? ` ${number(count)} times` : '');
}

/** The rule that would have allowed it. Without one, no rule can. */
function ruleFor({ allowed, reason, protocol, name, address, port }: NetworkEvent): string | null {
  if (allowed || reason !== 'no_rule') return null;
  if (name === undefined) return address === undefined ? null : `${address}:${port}`;
  return protocol === 'dns' ? name : `${name}:${port}`;
}
