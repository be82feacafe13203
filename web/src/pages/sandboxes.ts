// The first page: all sandboxes, with what can be done to each.

import { call } from '../api';
import { type Choices, CreateDialog, type Created, readChoices, serverAddress } from '../create_dialog';
import { age, byId, bytes, type Deadline, isTyping, make, timeLeft } from '../dom';
import { copyButton } from '../forms';
import { NEXT, type Transition, askToDelete, remove, turn } from '../lifecycle';
import type { Load } from '../load';
import { number } from '../quantities';
import { type Rights, keysRequired } from '../rights';
import { type Sandbox, type SandboxList, dashboardPath, matches, reasonText, sandboxPage } from '../sandbox_list';
import { Trajectory } from '../trajectory';
import type { View } from '../view';

const SHOWN_AT_ONCE = 100;
const MOST_PAST = 30;
/** The most names in the choice of the example. */
const MOST_NAMES = 200;

interface Drawn {
  row: HTMLTableRowElement;
  /** What the row was drawn from; the cells below change more often. */
  signature: string;
  age: HTMLTableCellElement;
  ends: HTMLTableCellElement;
  cpu: HTMLTableCellElement;
  memory: HTMLTableCellElement;
  steps: HTMLButtonElement;
}

export class SandboxesPage implements View {
  readonly box = byId('page-sandboxes');
  readonly title = 'Sandboxes';
  private readonly rights: Rights;
  private readonly list: SandboxList;
  private readonly trajectory = new Trajectory();
  private readonly busy = new Set<string>();
  private readonly drawn = new Map<string, Drawn>();
  private readonly form = byId<HTMLFormElement>('create');
  private readonly nameField = this.form.elements.namedItem('name') as HTMLInputElement;
  private readonly imageField = this.form.elements.namedItem('image') as HTMLSelectElement;
  private readonly typed = byId<HTMLInputElement>('find');
  private choices: Choices | null = null;
  private most = SHOWN_AT_ONCE;
  private lost = false;
  private names = '';
  private past = '';

  constructor(rights: Rights, list: SandboxList) {
    this.rights = rights;
    this.list = list;
    this.form.hidden = byId('create-more').hidden = !rights.may('manage');
    byId('first-call').hidden = !rights.may('use');
    this.form.addEventListener('submit', event => {
      event.preventDefault();
      void this.createQuickly();
    });
    byId('create-more').addEventListener('click', () => void this.openCreate());
    byId('which').addEventListener('change', () => this.drawExample());
    byId('show-more').addEventListener('click', () => {
      this.most += SHOWN_AT_ONCE;
      this.draw();
    });
    this.typed.addEventListener('input', () => {
      this.most = SHOWN_AT_ONCE;
      this.draw();
    });
    for (const [code, label] of [['curl', 'Copy the curl command'], ['python', 'Copy the Python code']] as const) {
      const shown = byId(code);
      const copied = copyButton(() => shown.textContent ?? '', shown);
      copied.ariaLabel = label;
      shown.after(copied);
    }
    this.drawExample();
    if (rights.may('manage')) this.readChoices().catch((error: Error) => this.say(error.message, true));
  }

  open(): void {
    this.draw();
  }

  close(): void { /* The list stays fresh for the other pages. */ }

  /** Shows the list as it is now, and why it could not be read. */
  update(error: Error | null): void {
    if (error) {
      this.lost = true;
      this.say(error.message, true);
      return;
    }
    if (this.lost) this.say('');
    this.lost = false;
    if (!this.box.hidden) this.draw();
  }

  private say(text: string, bad = false): void {
    const message = byId('message');
    message.textContent = text;
    message.classList.toggle('bad', bad);
  }

  private draw(): void {
    if (!this.list.ready) return;
    const all = this.list.sandboxes;
    const typed = this.typed.value.trim();
    const found = typed ? all.filter(sandbox => matches(sandbox, typed)) : all;
    const shown = found.slice(0, this.most);
    const body = byId<HTMLTableElement>('list').tBodies[0]!;
    // A redrawn button or link keeps the focus.
    const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.key : undefined;
    const rows = shown.map(sandbox => this.row(sandbox));
    rows.forEach((row, n) => {
      if (body.rows[n] !== row) body.insertBefore(row, body.rows[n] ?? null);
    });
    while (body.rows.length > rows.length) body.rows[rows.length]!.remove();
    const ids = new Set(shown.map(sandbox => sandbox.id));
    for (const id of this.drawn.keys()) if (!ids.has(id)) this.drawn.delete(id);
    if (focused && document.activeElement?.getAttribute('data-key') !== focused) {
      [...body.querySelectorAll<HTMLElement>('[data-key]')].find(node => node.dataset.key === focused)?.focus();
    }
    byId('list').hidden = found.length === 0;
    byId('none').hidden = all.length > 0;
    byId('none-found').hidden = all.length === 0 || found.length > 0;
    byId('find-box').hidden = all.length === 0;
    byId('count').textContent = all.length === 0 ? '' : typed ? `${number(found.length)} of ${number(all.length)}` : number(all.length);
    const left = found.length - shown.length;
    byId('show-more').hidden = left <= 0;
    byId('show-more').textContent = `Show ${Math.min(left, SHOWN_AT_ONCE)} more of ${number(left)}`;
    this.drawNames();
    this.drawPast();
  }

  private row(sandbox: Sandbox): HTMLTableRowElement {
    const signature = JSON.stringify([sandbox.name, sandbox.state, reasonText(sandbox), sandbox.spec.image, this.busy.has(sandbox.name)]);
    let drawn = this.drawn.get(sandbox.id);
    if (drawn?.signature !== signature) {
      drawn = this.newRow(sandbox, signature);
      this.drawn.set(sandbox.id, drawn);
    }
    setText(drawn.age, age(sandbox.created_at), sandbox.created_at);
    const ends = endsText(sandbox.deadline);
    setText(drawn.ends, ends.short, ends.long);
    drawLoad(drawn, this.list.loads.get(sandbox.id));
    const steps = stepsText(this.list.counts.get(sandbox.id)?.steps ?? 0);
    setText(drawn.steps, steps, 'What was recorded');
    // A label that lacks the text can't be spoken.
    drawn.steps.ariaLabel = `${steps} of ${sandbox.name}`;
    return drawn.row;
  }

  private newRow(sandbox: Sandbox, signature: string): Drawn {
    const { name, state } = sandbox;
    const button = (text: string, act: () => void, label = text): HTMLButtonElement => {
      const node = make('button', { type: 'button', textContent: text, disabled: this.busy.has(name), ariaLabel: `${label} ${name}` });
      node.dataset.key = `${text} ${name}`;
      node.addEventListener('click', act);
      return node;
    };
    const open = make('a', { href: dashboardPath(name), textContent: name, title: 'Dashboard' });
    open.dataset.key = `open ${name}`;
    const actions = cell('actions', '');
    const details = make('a', { href: sandboxPage(name), textContent: 'Details', ariaLabel: `Details of ${name}` });
    details.dataset.key = `details ${name}`;
    const steps = button('Steps', () => this.openSteps(sandbox), 'Steps of');
    actions.append(details, steps);
    const next = NEXT[state];
    if (this.rights.may('manage')) {
      if (next) actions.append(button(next.label, () => void this.turn(name, next.doing, next.transition)));
      actions.append(button('Delete', () => void this.delete(name)));
    }
    const stateBox = make('div', {}, make('span', { className: `state ${state}`, textContent: state }));
    const reason = reasonText(sandbox);
    if (reason) stateBox.append(make('small', { className: 'reason', textContent: reason, title: reason }));
    const image = cell('image', 'Image', sandbox.spec.image);
    image.title = sandbox.spec.image;
    const drawn = {
      signature,
      age: cell('number', 'Age'), ends: cell('number ends', 'Ends in'), cpu: cell('load cpu', 'CPU'), memory: cell('load memory', 'Memory'), steps,
      row: make('tr', { role: 'row' }, cell('name', '', open, make('small', { textContent: sandbox.id })), cell('', 'State', stateBox), image),
    };
    drawn.row.append(drawn.age, drawn.ends, drawn.cpu, drawn.memory, actions);
    drawn.row.dataset.name = name;
    return drawn;
  }

  private drawNames(): void {
    const names = ['default', ...this.list.sandboxes.map(s => s.name).filter(name => name !== 'default').slice(0, MOST_NAMES)];
    // A choice that is open would be closed.
    if (names.join() === this.names) return;
    this.names = names.join();
    const which = byId<HTMLSelectElement>('which');
    const chosen = which.value;
    which.replaceChildren(...names.map(name => make('option', { value: name, textContent: name })));
    which.value = names.includes(chosen) ? chosen : names[0]!;
    this.drawExample();
  }

  private drawPast(): void {
    const living = new Set(this.list.sandboxes.map(s => s.id));
    const past = [...this.list.counts.values()].filter(t => !living.has(t.trajectory)).sort((a, b) => b.last_at.localeCompare(a.last_at)).slice(0, MOST_PAST);
    const signature = past.map(t => `${t.trajectory} ${t.steps} ${age(t.last_at)}`).join();
    if (signature === this.past) return;
    this.past = signature;
    byId('past').hidden = past.length === 0;
    byId('past-list').replaceChildren(...past.map(t => {
      const name = t.worker ? [t.worker, t.task].filter(Boolean).join(', ') : t.sandbox_name;
      const button = make('button', { type: 'button', textContent: name, title: t.trajectory });
      button.addEventListener('click', () => this.trajectory.open(name, t.trajectory, `api/v1/trajectories/${t.trajectory}/steps`));
      return make('li', {}, button, make('span', { className: 'quiet', textContent: `${t.steps} ${t.steps === 1 ? 'step' : 'steps'}, ${age(t.last_at)} ago` }));
    }));
  }

  openSteps(sandbox: Sandbox): void {
    this.trajectory.open(sandbox.name, sandbox.id, `api/v2/sandboxes/${encodeURIComponent(sandbox.name)}/steps`);
  }

  private turn(name: string, doing: string, transition: Transition): Promise<void> {
    return this.act(name, doing, () => turn(name, transition));
  }

  private async delete(name: string): Promise<void> {
    if (await askToDelete(name)) await this.act(name, 'deleting', () => remove(name));
  }

  private async act(name: string, doing: string, work: () => Promise<unknown>): Promise<void> {
    this.busy.add(name);
    this.draw();
    this.say(`${doing} ${name} …`);
    try {
      await work();
      this.say('');
    } catch (error) {
      this.say((error as Error).message, true);
    }
    this.busy.delete(name);
    this.draw();
    await this.list.refresh();
  }

  private async createQuickly(): Promise<void> {
    const wanted: Record<string, string> = {};
    if (this.nameField.value.trim()) wanted.name = this.nameField.value.trim();
    const [kind, chosen] = this.imageField.value.split(':', 2);
    if (kind && chosen) wanted[kind] = this.imageField.value.slice(kind.length + 1);
    const submit = this.form.querySelector('button')!;
    submit.disabled = true;
    this.say('creating …');
    try {
      this.created([await call<Created>('POST', 'api/v2/sandboxes', wanted)]);
      this.nameField.value = '';
    } catch (error) {
      this.say((error as Error).message, true);
    }
    submit.disabled = false;
    await this.list.refresh();
  }

  private created(made: readonly Created[]): void {
    const took = made.flatMap(one => one.stages).reduce((sum, stage) => sum + stage.ms, 0);
    const names = made.length <= 3 ? made.map(one => one.name).join(', ') : `${made.length} sandboxes`;
    this.say(`Created ${names}${made.length === 1 && took ? ` in ${took.toFixed(0)} ms` : ''}.`);
  }

  private async openCreate(): Promise<void> {
    this.choices ??= await readChoices().catch((error: Error) => {
      this.say(error.message, true);
      return null;
    });
    if (!this.choices) return;
    new CreateDialog(this.choices, serverAddress(), keysRequired(), made => {
      this.nameField.value = '';
      this.created(made);
      void this.list.refresh();
    }).open(this.nameField.value.trim());
  }

  private async readChoices(): Promise<void> {
    const { images, templates } = this.choices = await readChoices();
    const group = (label: string, options: HTMLOptionElement[]): HTMLOptGroupElement => make('optgroup', { label }, ...options);
    this.imageField.replaceChildren(make('option', { value: '', textContent: 'default' }));
    if (images.length > 0) this.imageField.append(group('Images', images.map(name => make('option', { value: `image:${name}`, textContent: name }))));
    if (templates.length > 0) this.imageField.append(group('Templates', templates.map(t => make('option', { value: `template:${t.name}`, textContent: t.name, title: t.description }))));
  }

  private drawExample(): void {
    const name = byId<HTMLSelectElement>('which').value || 'default';
    const server = serverAddress();
    const base = name === 'default' ? server : `${server}/sandbox/${name}`;
    const withKey = keysRequired();
    const key = withKey ? '  -H "x-api-key: $ARENITE_API_KEY" \\\n' : '';
    const headers = withKey ? ', headers={"x-api-key": os.environ["ARENITE_API_KEY"]}' : '';
    byId('curl').textContent = `curl ${base}/v1/bash/exec \\\n${key}  -H 'content-type: application/json' \\\n  -d '{"command": "uname -a"}'`;
    byId('python').textContent = `${withKey ? 'import os\n' : ''}from agent_sandbox import Sandbox  # pip install agent-sandbox\n\nsandbox = Sandbox(base_url="${base}"${headers})\nprint(sandbox.bash.exec(command="uname -a").data.stdout)`;
  }

  /** Shortcuts. Rows are walked by their first link. */
  key(event: KeyboardEvent): void {
    if (event.altKey || event.ctrlKey || event.metaKey || isTyping(event) || document.querySelector('dialog[open]')) return;
    const links = [...byId('list').querySelectorAll<HTMLElement>('td.name a')];
    const at = document.activeElement?.closest<HTMLElement>('tr[data-name]') ?? null;
    const index = at ? links.findIndex(link => at.contains(link)) : -1;
    const name = at?.dataset.name;
    const sandbox = this.list.sandboxes.find(s => s.name === name);
    const manages = this.rights.may('manage');
    if (event.key === 'n' && manages) this.nameField.focus();
    else if (event.key === 'c' && manages) void this.openCreate();
    else if (event.key === '/' && !byId('find-box').hidden) this.typed.focus();
    else if (event.key === 'j' || (event.key === 'ArrowDown' && at)) links[Math.min(index + 1, links.length - 1)]?.focus();
    else if (event.key === 'k' || (event.key === 'ArrowUp' && at)) links[Math.max(index - 1, 0)]?.focus();
    else if (event.key === 's' && sandbox) this.openSteps(sandbox);
    else if (event.key === 'd' && sandbox) location.hash = sandboxPage(sandbox.name);
    else if (event.key === 'Delete' && sandbox && manages) void this.delete(sandbox.name);
    else return;
    event.preventDefault();
  }
}

function cell(className: string, label: string, ...content: (Node | string)[]): HTMLTableCellElement {
  const node = make('td', { className, role: 'cell' }, ...content);
  if (label) node.dataset.label = label;
  return node;
}

/** Sets only what changed: most cells of most rows don't. */
function setText(node: HTMLElement, text: string, title = ''): void {
  if (node.textContent !== text) node.textContent = text;
  if (node.title !== title) node.title = title;
}

function stepsText(count: number): string {
  return count === 1 ? '1 step' : `${number(count)} steps`;
}

function endsText(deadline: Deadline | null): { short: string; long: string } {
  return deadline ? timeLeft(deadline) : { short: '–', long: 'no time limit' };
}

function drawLoad({ cpu, memory }: Pick<Drawn, 'cpu' | 'memory'>, load: Load | undefined): void {
  if (!load) {
    setText(cpu, '–');
    setText(memory, '–');
    return;
  }
  const { limits } = load;
  const limit = number(limits.cpu_millis / 1000);
  if (load.cores === null) setText(cpu, '…');
  else drawMeter(cpu, number(load.cores), limit, 'CPU used', load.cores * 1000, limits.cpu_millis);
  drawMeter(memory, bytes(load.memory_bytes), bytes(limits.memory_bytes), 'memory used', load.memory_bytes, limits.memory_bytes);
}

function drawMeter(node: HTMLTableCellElement, used: string, limit: string, label: string, value: number, max: number): void {
  const title = `${used} of ${limit}`;
  if (node.title === title && node.querySelector('meter')) return;
  node.title = title;
  node.replaceChildren(make('span', {}, used, make('small', { textContent: ` of ${limit}` })),
    make('meter', { max, low: max * 0.75, high: max * 0.92, optimum: 0, value: Math.min(value, max), ariaLabel: label }));
}
