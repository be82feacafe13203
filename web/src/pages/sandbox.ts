// The page of one sandbox: its state, use, settings and log, and what can be done to it.

import { Refused, call } from '../api';
import { LineChart } from '../chart';
import { age, byId, bytes, make, timeLeft } from '../dom';
import { Field, FieldsWrong, Message, button, formDialog, textInput, workButton } from '../forms';
import { History } from '../history';
import { NEXT, askToDelete, remove, turn } from '../lifecycle';
import { Loads, type Measured } from '../load';
import { plain, readLog } from '../log';
import { NetworkSection } from '../network';
import { cores, number, parseTime } from '../quantities';
import type { Rights } from '../rights';
import { type Sandbox, type SandboxList, dashboardPath, reasonText, sandboxPath } from '../sandbox_list';
import type { View } from '../view';

/** Interval of measurements, in milliseconds, and how many the charts show. */
const PERIOD = 2000;
const MOST_VALUES = 90;
const LOG_PERIOD = 2000;

export class SandboxPage implements View {
  readonly box = byId('page-sandbox');
  private readonly rights: Rights;
  private readonly list: SandboxList;
  private readonly openSteps: (sandbox: Sandbox) => void;
  private readonly message = new Message();
  private readonly history: History;
  private readonly network: NetworkSection;
  private name = '';
  private sandbox: Sandbox | null = null;
  private parts: Parts | null = null;
  private loads = new Loads();
  private timer = 0;
  private logTimer = 0;
  private logRead: AbortController | null = null;
  private signature = '';

  constructor(rights: Rights, list: SandboxList, openSteps: (sandbox: Sandbox) => void) {
    this.rights = rights;
    this.list = list;
    this.openSteps = openSteps;
    this.history = new History(rights, this.message);
    this.network = new NetworkSection(rights, this.message);
  }

  get title(): string {
    return this.name;
  }

  open([name = '']: string[]): void {
    this.name = name;
    this.sandbox = null;
    this.signature = '';
    this.loads = new Loads();
    this.parts = newParts();
    this.message.say('');
    this.box.replaceChildren(
      make('p', { className: 'back' }, make('a', { href: '#/', textContent: 'All sandboxes' })),
      this.parts.head, this.message.box, this.parts.reason,
      this.parts.charts,
      this.parts.facts, this.network.box, this.history.box, this.parts.log);
    this.parts.head.replaceChildren(make('h2', { textContent: name, tabIndex: -1 }));
    void this.read();
    this.history.box.hidden = true;
    this.history.open(name).catch(this.message.fail);
    this.network.open(name);
  }

  close(): void {
    clearTimeout(this.timer);
    clearTimeout(this.logTimer);
    this.logRead?.abort();
    this.network.close();
    this.parts = null;
  }

  /** The list has changed. */
  update(): void {
    if (!this.parts || !this.sandbox) return;
    const found = this.list.sandboxes.find(sandbox => sandbox.id === this.sandbox?.id);
    if (found) this.draw(found);
    else if (this.list.ready) this.gone();
  }

  private gone(): void {
    clearTimeout(this.timer);
    clearTimeout(this.logTimer);
    this.sandbox = null;
    this.parts?.head.querySelector('.tools')?.remove();
    this.message.say('This sandbox was deleted. Its trajectory stays.');
  }

  private async read(): Promise<void> {
    const { parts, name } = this;
    try {
      const sandbox = await call<Sandbox>('GET', sandboxPath(name));
      if (this.parts !== parts) return;
      this.draw(sandbox);
      void this.measure();
      this.startLog();
    } catch (error) {
      if (this.parts === parts) this.message.fail(error as Error);
    }
  }

  private draw(sandbox: Sandbox): void {
    const { parts } = this;
    if (!parts) return;
    const before = this.sandbox;
    this.sandbox = sandbox;
    const runs = sandbox.state === 'running' || sandbox.state === 'paused';
    parts.charts.hidden = !runs;
    if (!runs) parts.now.textContent = 'nothing';
    const signature = JSON.stringify(sandbox);
    if (signature === this.signature) {
      parts.deadline.textContent = deadlineText(sandbox);
      parts.deadline.title = sandbox.deadline?.at ?? '';
      return;
    }
    this.signature = signature;
    const focused = document.activeElement instanceof HTMLElement && parts.head.contains(document.activeElement) ? document.activeElement.textContent : null;
    parts.head.replaceChildren(
      make('h2', { textContent: sandbox.name, tabIndex: -1 }),
      make('span', { className: `state ${sandbox.state}`, textContent: sandbox.state }),
      this.tools(sandbox));
    if (focused) [...parts.head.querySelectorAll<HTMLElement>('button, a, h2')].find(node => node.textContent === focused)?.focus();
    const reason = reasonText(sandbox);
    const { died } = sandbox;
    parts.reason.replaceChildren(...(died ? [make('b', { textContent: died.reason.replaceAll('_', ' ') }), `, ${age(died.at)} ago: `] : []), reason);
    parts.reason.hidden = reason === '';
    parts.facts.replaceChildren(...facts(sandbox, parts.deadline, parts.now));
    parts.deadline.textContent = deadlineText(sandbox);
    if (before && before.state !== sandbox.state) this.startLog();
  }

  private tools(sandbox: Sandbox): HTMLElement {
    const { name, state } = sandbox;
    const tools = make('div', { className: 'tools' }, make('a', { href: dashboardPath(name), textContent: 'Dashboard', className: 'button primary' }),
      button('Steps', () => this.openSteps(sandbox)));
    if (!this.rights.may('manage')) return tools;
    const next = NEXT[state];
    const { fail } = this.message;
    if (next) tools.append(workButton(next.label, async () => { this.draw(await turn(name, next.transition)); }, fail));
    tools.append(button('Extend', () => this.extend(sandbox)));
    tools.append(workButton('Delete', async () => {
      if (!await askToDelete(name)) return;
      await remove(name);
      location.hash = '#/';
    }, fail));
    return tools;
  }

  /** Moves the end of the lifetime. */
  private extend(sandbox: Sandbox): void {
    const field = new Field('By', textInput({ value: '1h', name: 'by' }), sandbox.expires_at ? 'Such as 30m, 2h or 1d' : 'It has no lifetime yet, so this starts one.');
    formDialog(`Extend ${sandbox.name}`, [field.box], 'Extend', async () => {
      const parsed = parseTime(field.value);
      if ('error' in parsed) {
        field.error = parsed.error;
        throw new FieldsWrong();
      }
      // An unlimited lifetime has no end to move.
      this.draw(sandbox.expires_at
        ? await call<Sandbox>('POST', sandboxPath(sandbox.name, '/extend'), { seconds: parsed.value })
        : await call<Sandbox>('PATCH', sandboxPath(sandbox.name), { expires_in_seconds: parsed.value }));
      this.message.say(`Extended by ${field.value.trim()}.`);
    });
  }

  private async measure(): Promise<void> {
    clearTimeout(this.timer);
    const { parts, sandbox } = this;
    if (!parts || !sandbox) return;
    if (!document.hidden && !parts.charts.hidden) {
      const usage = await call<Measured['usage']>('GET', sandboxPath(sandbox.name, '/usage')).catch(() => null);
      if (this.parts !== parts) return;
      if (usage) this.drawLoad(sandbox.id, usage);
    }
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.measure(), PERIOD);
  }

  private drawLoad(id: string, usage: Measured['usage']): void {
    this.loads.take([{ id, usage }], performance.now());
    const load = this.loads.get(id);
    if (!load || !this.parts) return;
    const { limits } = usage;
    if (load.cores !== null) this.parts.cpu.add(load.cores * 1000, limits.cpu_millis, `${number(load.cores)} of ${cores(limits.cpu_millis)}`);
    this.parts.memory.add(usage.memory_bytes, limits.memory_bytes, `${bytes(usage.memory_bytes)} of ${bytes(limits.memory_bytes)}`);
    this.parts.now.textContent = `${number(usage.pids)} of ${number(limits.pids)} processes` + (usage.disk_bytes === null ? '' : `, ${bytes(usage.disk_bytes)} of ${bytes(limits.disk_bytes)} on disk`);
  }

  /** The log, or why it is not shown. Reading it wakes a paused sandbox, so that has to be asked for. */
  private startLog(): void {
    clearTimeout(this.logTimer);
    const { parts, sandbox } = this;
    if (!parts || !sandbox) return;
    // Without a main command there is no log.
    parts.log.hidden = !this.rights.may('use') || sandbox.spec.args.length === 0;
    if (parts.log.hidden) return;
    if (sandbox.state === 'running') {
      void this.readLog();
    } else {
      parts.logSaid.textContent = sandbox.state === 'paused' ? 'The sandbox is paused. Resume it to read its log.' : `The sandbox is ${sandbox.state}.`;
    }
  }

  private async readLog(): Promise<void> {
    clearTimeout(this.logTimer);
    const { parts, sandbox } = this;
    if (!parts || !sandbox || sandbox.state !== 'running') return;
    if (!document.hidden) {
      this.logRead = new AbortController();
      const read = await readLog(sandboxPath(sandbox.name, '/logs'), this.logRead.signal).catch((error: Error) => error);
      if (this.parts !== parts) return;
      if (read instanceof Error) {
        parts.logSaid.textContent = read instanceof Refused ? read.message : 'The log could not be read.';
      } else {
        const atEnd = parts.logText.scrollTop + parts.logText.clientHeight >= parts.logText.scrollHeight - 4;
        const text = plain(read.text);
        if (parts.logText.textContent !== text) parts.logText.textContent = text;
        if (atEnd) parts.logText.scrollTop = parts.logText.scrollHeight;
        parts.logSaid.textContent = [`${bytes(read.length)}`, read.cut ? 'only its end is shown' : '', read.mayFollow ? '' : 'too long to be followed'].filter(Boolean).join(', ');
        if (!read.mayFollow) parts.follow.checked = false;
      }
    }
    if (parts.follow.checked) this.logTimer = window.setTimeout(() => void this.readLog(), LOG_PERIOD);
    parts.follow.onchange = () => { if (parts.follow.checked) void this.readLog(); };
  }
}

interface Parts {
  head: HTMLElement;
  reason: HTMLElement;
  charts: HTMLElement;
  cpu: LineChart;
  memory: LineChart;
  now: HTMLElement;
  deadline: HTMLElement;
  facts: HTMLElement;
  log: HTMLElement;
  logText: HTMLElement;
  logSaid: HTMLElement;
  follow: HTMLInputElement;
}

function newParts(): Parts {
  const follow = make('input', { type: 'checkbox', checked: true });
  const logText = make('pre', { className: 'log', tabIndex: 0, ariaLabel: 'Log of the main command' });
  logText.role = 'log';
  const logSaid = make('span', { className: 'quiet' });
  const now = make('dd', { textContent: '…' });
  const cpu = new LineChart('CPU', MOST_VALUES);
  const memory = new LineChart('Memory', MOST_VALUES);
  const log = make('div', { className: 'log-box', hidden: true },
    make('div', { className: 'head' }, make('h3', { textContent: 'Log' }), logSaid, make('label', { className: 'check', title: 'Reading the log counts as use, so the sandbox does not become idle' }, follow, 'Follow')), logText);
  return {
    head: make('div', { className: 'head' }), reason: make('p', { className: 'died', hidden: true }), cpu, memory,
    charts: make('div', { className: 'charts two' }, cpu.box, memory.box),
    now, deadline: make('dd'), facts: make('dl', { className: 'facts' }), log, logText, logSaid, follow,
  };
}

function deadlineText({ deadline }: Sandbox): string {
  return deadline ? timeLeft(deadline).long.replace(/ \([^()]*\)$/, '') : 'no time limit';
}

function facts(sandbox: Sandbox, deadline: HTMLElement, now: HTMLElement): Node[] {
  const { spec } = sandbox;
  const { resources } = spec;
  const rows: Node[] = [];
  const fact = (label: string, value: string | HTMLElement, code = false): void => {
    if (value === '') return;
    const shown = typeof value === 'string' ? make('dd', {}, code ? make('code', { textContent: value }) : value) : value;
    rows.push(make('div', {}, make('dt', { textContent: label }), shown));
  };
  const pairs = (all: Record<string, string>): HTMLElement | string => {
    const entries = Object.entries(all);
    if (entries.length === 0) return '';
    return make('dd', {}, make('ul', {}, ...entries.map(([key, value]) => make('li', {}, make('code', { textContent: `${key}=${value}` })))));
  };
  fact('Id', sandbox.id, true);
  fact('Image', spec.image, true);
  fact('Template', sandbox.template ?? '');
  fact('Created', `${age(sandbox.created_at)} ago, by ${sandbox.origin}`);
  fact('Last used', `${age(sandbox.last_used_at)} ago`);
  fact('Ends', deadline);
  fact('In use', now);
  fact('Limits', `${cores(resources.cpu_millis)}, ${bytes(resources.memory_bytes)} memory, ${bytes(resources.disk_bytes)} disk, ${number(resources.pids)} processes`);
  fact('Main command', spec.args.join(' '), true);
  fact('Group', sandbox.group ?? '');
  fact('Parent', sandbox.parent ?? '', true);
  fact('Client tag', sandbox.client_tag ?? '');
  fact('Tier', sandbox.tier);
  fact('Isolation', sandbox.isolation.join(', '));
  fact('Labels', pairs(spec.labels));
  fact('Environment', pairs(spec.env));
  return rows;
}

