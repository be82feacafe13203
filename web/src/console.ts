// The whole installation: sandboxes made, found and deleted, and what was recorded of each.

import './console.css';
import { call, request } from './api';
import { age, byId, bytes, type Deadline, isTyping, keysDialog, make, timeLeft } from './dom';
import { signInDialog } from './sign_in';
import { Trajectory } from './trajectory';

interface Sandbox {
  name: string;
  id: string;
  state: string;
  reason: string | null;
  created_at: string;
  deadline: Deadline | null;
  spec: { image: string };
}

interface Recorded {
  trajectory: string;
  sandbox_name: string;
  worker?: string;
  task?: string;
  steps: number;
  last_at: string;
  ended: boolean;
}

interface Usage {
  memory_bytes: number;
  limits: { memory_bytes: number };
}

/** Interval for reading ages and usage, which no event reports. */
const PERIOD = 5000;
/** Changes that come together are drawn together. */
const TOGETHER = 60;
const MOST_MEASURED = 60;
const MOST_PAST = 30;

const busy = new Set<string>();
const usages = new Map<string, Usage>();
const trajectory = new Trajectory();
let shown: Sandbox[] = [];
let counts = new Map<string, Recorded>();
let lost = false;

function say(text: string, bad = false): void {
  const message = byId('message');
  message.textContent = text;
  message.classList.toggle('bad', bad);
}

signInDialog();

function dashboard(name: string): string {
  return `sandbox/${encodeURIComponent(name)}/index.html`;
}

function row(sandbox: Sandbox): HTMLTableRowElement {
  const { name, state } = sandbox;
  const button = (text: string, act: () => void, label = text): HTMLButtonElement => {
    const node = make('button', { type: 'button', textContent: text, disabled: busy.has(name) });
    node.setAttribute('aria-label', `${label} ${name}`);
    node.dataset.key = `${text} ${name}`;
    node.addEventListener('click', act);
    return node;
  };
  const open = make('a', { href: dashboard(name), textContent: name });
  open.dataset.key = `open ${name}`;
  const actions = make('td', { className: 'actions' });
  const link = make('a', { href: dashboard(name), textContent: 'Dashboard' });
  link.setAttribute('aria-label', `Dashboard of ${name}`);
  link.dataset.key = `dashboard ${name}`;
  actions.append(link, button('Steps', () => openSteps(sandbox), 'Steps of'));
  if (state === 'running') actions.append(button('Pause', () => void turn(name, 'pausing', 'pause')));
  if (state === 'failed' || state === 'lost') actions.append(button('Start', () => void turn(name, 'starting', 'start')));
  if (state === 'paused') actions.append(button('Resume', () => void turn(name, 'resuming', 'resume')));
  actions.append(button('Delete', () => void askToDelete(name)));
  const stateCell = make('td', {}, make('span', { className: `state ${state}`, textContent: state }));
  if (sandbox.reason) stateCell.append(make('small', { className: 'reason', textContent: sandbox.reason, title: sandbox.reason }));
  const node = make('tr', {},
    make('td', { className: 'name' }, open, make('small', { textContent: sandbox.id })),
    stateCell,
    make('td', { className: 'image', textContent: sandbox.spec.image, title: sandbox.spec.image }),
    make('td', { className: 'number', textContent: age(sandbox.created_at), title: sandbox.created_at }),
    ends(sandbox.deadline),
    memory(usages.get(sandbox.id)),
    make('td', { className: 'number', textContent: String(counts.get(sandbox.id)?.steps ?? 0) }),
    actions);
  node.dataset.name = name;
  return node;
}

function ends(deadline: Deadline | null): HTMLTableCellElement {
  if (!deadline) return make('td', { className: 'number quiet ends', textContent: '–', title: 'no time limit' });
  const left = timeLeft(deadline);
  return make('td', { className: 'number ends', textContent: left.short, title: left.long });
}

function memory(usage: Usage | undefined): HTMLTableCellElement {
  if (!usage) return make('td', { className: 'memory quiet', textContent: '–' });
  const { memory_bytes: used, limits } = usage;
  const cell = make('td', { className: 'memory', title: `${bytes(used)} of ${bytes(limits.memory_bytes)}` },
    bytes(used), make('small', { textContent: ` of ${bytes(limits.memory_bytes)}` }));
  cell.append(make('meter', { max: limits.memory_bytes, low: limits.memory_bytes * 0.75, high: limits.memory_bytes * 0.92, optimum: 0, value: used, ariaLabel: 'memory used' }));
  return cell;
}

function draw(): void {
  const list = byId<HTMLTableElement>('list');
  // A button or a link keeps the focus when its row is redrawn.
  const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.key : undefined;
  list.tBodies[0]!.replaceChildren(...shown.map(row));
  if (focused) [...list.querySelectorAll<HTMLElement>('[data-key]')].find(node => node.dataset.key === focused)?.focus();
  list.hidden = shown.length === 0;
  byId('none').hidden = shown.length > 0;
  byId('count').textContent = shown.length > 0 ? String(shown.length) : '';
  const which = byId<HTMLSelectElement>('which');
  const chosen = which.value;
  const names = ['default', ...shown.map(s => s.name).filter(name => name !== 'default')];
  which.replaceChildren(...names.map(name => make('option', { value: name, textContent: name })));
  which.value = names.includes(chosen) ? chosen : names[0]!;
  example();
  drawPast();
}

function drawPast(): void {
  const living = new Set(shown.map(s => s.id));
  const past = [...counts.values()].filter(t => !living.has(t.trajectory)).slice(0, MOST_PAST);
  byId('past').hidden = past.length === 0;
  byId('past-list').replaceChildren(...past.map(t => {
    const name = t.worker ? [t.worker, t.task].filter(Boolean).join(', ') : t.sandbox_name;
    const button = make('button', { type: 'button', textContent: name, title: t.trajectory });
    button.addEventListener('click', () => trajectory.open(name, t.trajectory, `api/v1/trajectories/${t.trajectory}/steps`));
    return make('li', {}, button, make('span', { className: 'quiet', textContent: `${t.steps} ${t.steps === 1 ? 'step' : 'steps'}, ${age(t.last_at)} ago` }));
  }));
}

async function refresh(): Promise<void> {
  try {
    const [list, recorded] = await Promise.all([
      call<{ sandboxes: Sandbox[] }>('GET', 'api/v2/sandboxes'),
      call<{ trajectories: Recorded[] }>('GET', 'api/v1/trajectories'),
    ]);
    shown = list.sandboxes;
    counts = new Map(recorded.trajectories.map(t => [t.trajectory, t]));
    draw();
    if (lost) say('');
    lost = false;
  } catch (error) {
    lost = true;
    say((error as Error).message, true);
  }
}

async function measure(): Promise<void> {
  const measured = shown.filter(s => s.state === 'running' || s.state === 'paused').slice(0, MOST_MEASURED);
  const read = await Promise.all(measured.map(s =>
    call<Usage>('GET', `api/v2/sandboxes/${encodeURIComponent(s.name)}/usage`).then(usage => [s.id, usage] as const).catch(() => null)));
  usages.clear();
  for (const one of read) if (one) usages.set(...one);
  draw();
}

let soon = 0;
function refreshSoon(): void {
  clearTimeout(soon);
  soon = window.setTimeout(() => void refresh(), TOGETHER);
}

let changes: EventSource | null = null;
/** Events, while someone looks. */
function follow(): void {
  if (document.hidden) {
    changes?.close();
    changes = null;
  } else if (!changes || changes.readyState === EventSource.CLOSED) {
    changes = new EventSource('api/v2/sandboxes?follow=true');
    changes.onopen = refreshSoon;
    changes.addEventListener('change', refreshSoon);
  }
}

let timer = 0;
async function keepFresh(): Promise<void> {
  clearTimeout(timer);
  follow();
  if (document.hidden) return;
  await refresh();
  await measure();
  timer = window.setTimeout(() => void keepFresh(), PERIOD);
}

async function act(name: string, doing: string, method: string, tail: string): Promise<void> {
  busy.add(name);
  draw();
  say(`${name}: ${doing} …`);
  try {
    await call(method, `api/v2/sandboxes/${encodeURIComponent(name)}${tail}`, method === 'POST' ? {} : undefined);
    say('');
  } catch (error) {
    say((error as Error).message, true);
  }
  busy.delete(name);
  await refresh();
}

function turn(name: string, doing: string, verb: string): Promise<void> {
  return act(name, doing, 'POST', `/${verb}`);
}

async function askToDelete(name: string): Promise<void> {
  const dialog = byId<HTMLDialogElement>('confirm');
  byId('confirm-title').textContent = `Delete the sandbox ${name}?`;
  dialog.returnValue = 'no';
  dialog.showModal();
  await new Promise(done => dialog.addEventListener('close', done, { once: true }));
  if (dialog.returnValue === 'yes') await act(name, 'deleting', 'DELETE', '');
}

function openSteps(sandbox: Sandbox): void {
  trajectory.open(sandbox.name, sandbox.id, `api/v2/sandboxes/${encodeURIComponent(sandbox.name)}/steps`);
}

function example(): void {
  const name = byId<HTMLSelectElement>('which').value || 'default';
  const server = location.href.replace(/[?#].*$/, '').replace(/\/$/, '');
  const base = name === 'default' ? server : `${server}/sandbox/${name}`;
  byId('curl').textContent = `curl ${base}/v1/bash/exec \\\n  -H 'content-type: application/json' \\\n  -d '{"command": "uname -a"}'`;
  byId('python').textContent = `from agent_sandbox import Sandbox  # pip install agent-sandbox\n\nsandbox = Sandbox(base_url="${base}")\nprint(sandbox.bash.exec(command="uname -a").data.stdout)`;
}

byId('which').addEventListener('change', example);
document.addEventListener('visibilitychange', () => void keepFresh());
for (const button of document.querySelectorAll<HTMLButtonElement>('[data-copy]')) {
  button.addEventListener('click', () => void copy(button));
}

async function copy(button: HTMLButtonElement): Promise<void> {
  const from = byId(button.dataset.copy!);
  try {
    await navigator.clipboard.writeText(from.textContent ?? '');
    button.textContent = 'Copied';
  } catch {
    getSelection()?.selectAllChildren(from);
    button.textContent = 'Selected';
  }
  setTimeout(() => { button.textContent = 'Copy'; }, 1500);
}

const form = byId<HTMLFormElement>('create');
const nameField = form.elements.namedItem('name') as HTMLInputElement;
const imageField = form.elements.namedItem('image') as HTMLSelectElement;
form.addEventListener('submit', event => {
  event.preventDefault();
  void create();
});

async function create(): Promise<void> {
  const wanted: Record<string, string> = {};
  if (nameField.value.trim()) wanted.name = nameField.value.trim();
  const [kind, chosen] = imageField.value.split(':', 2);
  if (kind && chosen) wanted[kind] = imageField.value.slice(kind.length + 1);
  const submit = form.querySelector('button')!;
  submit.disabled = true;
  say('creating …');
  try {
    const made = await call<{ name: string; stages: { ms: number }[] }>('POST', 'api/v2/sandboxes', wanted);
    const took = made.stages.reduce((sum, stage) => sum + stage.ms, 0);
    say(`${made.name} is there${took ? `, made in ${took.toFixed(0)} ms` : ''}.`);
    nameField.value = '';
  } catch (error) {
    say((error as Error).message, true);
  }
  submit.disabled = false;
  await refresh();
}

/** Keys for who is not typing. Rows are walked by their first link. */
document.addEventListener('keydown', event => {
  if (event.altKey || event.ctrlKey || event.metaKey || isTyping(event) || document.querySelector('dialog[open]')) return;
  const links = [...byId('list').querySelectorAll<HTMLElement>('td.name a')];
  const at = document.activeElement?.closest<HTMLElement>('tr[data-name]') ?? null;
  const index = at ? links.findIndex(link => at.contains(link)) : -1;
  const name = at?.dataset.name;
  const sandbox = shown.find(s => s.name === name);
  if (event.key === 'n') nameField.focus();
  else if (event.key === 'j' || (event.key === 'ArrowDown' && at)) links[Math.min(index + 1, links.length - 1)]?.focus();
  else if (event.key === 'k' || (event.key === 'ArrowUp' && at)) links[Math.max(index - 1, 0)]?.focus();
  else if (event.key === 's' && sandbox) openSteps(sandbox);
  else if (event.key === 'Delete' && sandbox) void askToDelete(sandbox.name);
  else return;
  event.preventDefault();
});
keysDialog();

async function about(): Promise<void> {
  interface Info { version: string; engine: string; capacity: { memory_available_bytes: number; disk_available_bytes: number } | null; warnings: string[] }
  const info = await call<Info>('GET', 'api/v2/info');
  const capacity = info.capacity ? `, ${bytes(info.capacity.memory_available_bytes)} memory and ${bytes(info.capacity.disk_available_bytes)} disk free` : '';
  byId('about').textContent = `${info.version}, ${info.engine} engine${capacity}`;
  byId('warnings').replaceChildren(...info.warnings.map(text => make('li', { textContent: text })));
  byId('warnings').hidden = info.warnings.length === 0;
}

/** Images that are there, and templates, which name an image and more. An engine may keep no list of images. */
async function choices(): Promise<void> {
  const [images, templates] = await Promise.all([
    request('api/v2/images').then(answer => answer.json() as Promise<{ images: { name: string; size_bytes: number }[] }>).catch(() => ({ images: [] })),
    call<{ templates: { name: string; description: string }[] }>('GET', 'api/v2/templates'),
  ]);
  const group = (label: string, options: HTMLOptionElement[]): HTMLOptGroupElement => make('optgroup', { label }, ...options);
  imageField.replaceChildren(make('option', { value: '', textContent: 'default' }));
  if (images.images.length > 0) imageField.append(group('Images', images.images.map(i => make('option', { value: `image:${i.name}`, textContent: i.name }))));
  if (templates.templates.length > 0) imageField.append(group('Templates', templates.templates.map(t => make('option', { value: `template:${t.name}`, textContent: t.name, title: t.description }))));
}

example();
Promise.all([about(), choices()]).catch((error: Error) => say(error.message, true));
void keepFresh();
