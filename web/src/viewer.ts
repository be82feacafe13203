// One trajectory on a page of its own, live; or, without one, the list of all.

import './viewer.css';
import { call, entries } from './api';
import { Detail } from './detail';
import { age, byId, bytes, isTyping, keysDialog, make } from './dom';
import { signInDialog } from './sign_in';
import { Feed, type Step, failure, parentOf } from './steps';
import { Timeline } from './timeline';

interface Recorded {
  trajectory: string;
  sandbox_name: string;
  worker?: string;
  task?: string;
  first_at: string;
  last_at: string;
  steps: number;
  bytes: number;
  ended: boolean;
}

/** Steps read at once. */
const PAGE = 300;
/** Beyond it no older ones are read, and the oldest leave the list; the exports have all. */
const MOST = 5000;
/** Network records that are shown. */
const MOST_RECORDS = 500;
const FORMATS = ['jsonl', 'agentflow-rollout', 'agentflow-synthesis', 'atif', 'openai-messages', 'sharegpt', 'asciicast'];

const match = /^(.*\/)trajectory\/([^/]+)\/?$/.exec(location.pathname);
/** Where the server's own paths begin, as this page sees it. */
const root = match ? match[1]! : location.pathname.replace(/trajectories\/?$/, '');

signInDialog(root);
keysDialog();
byId<HTMLAnchorElement>('home').href = root;
byId<HTMLAnchorElement>('list').href = `${root}trajectories`;

function say(text: string): void {
  byId('message').textContent = text;
}

function name(of: Recorded): string {
  return of.worker ?? (of.sandbox_name || of.trajectory);
}

if (match) one(decodeURIComponent(match[2]!));
else void all();

async function all(): Promise<void> {
  byId('all').hidden = false;
  byId('list').hidden = true;
  try {
    const query = location.search;
    const trajectories = await entries<Recorded>(`${root}api/v1/trajectories${query}`, 'trajectories');
    trajectories.sort((a, b) => b.last_at.localeCompare(a.last_at));
    byId('none').hidden = trajectories.length > 0;
    byId('rows').replaceChildren(...trajectories.map(of => make('tr', {},
      make('td', { className: 'name' }, make('a', { href: `${root}trajectory/${encodeURIComponent(of.trajectory)}`, textContent: name(of) }), make('small', { textContent: of.trajectory })),
      make('td', { textContent: of.task ?? '' }),
      make('td', { className: 'number', textContent: String(of.steps) }),
      make('td', { className: 'number', textContent: bytes(of.bytes) }),
      make('td', { className: 'number', textContent: `${age(of.first_at)} ago`, title: of.first_at }),
      make('td', { className: 'number', textContent: `${age(of.last_at)} ago`, title: of.last_at }),
      make('td', { className: 'quiet', textContent: of.ended ? 'ended' : '' }))));
  } catch (error) {
    say((error as Error).message);
  }
}

function one(id: string): void {
  const base = `${root}api/v1/trajectories/${encodeURIComponent(id)}`;
  const steps = new Map<number, Step>();
  const detail = new Detail(byId('detail'), `${base}/steps/`, steps);
  const timeline = new Timeline(byId<HTMLOListElement>('steps'), step => {
    void detail.show(step);
    history.replaceState(null, '', `#step-${step.step}`);
  });
  const origin = byId<HTMLSelectElement>('origin');
  const failed = byId<HTMLInputElement>('failed');
  byId('choosing').hidden = false;
  byId('failing').hidden = false;
  // A gap in the record is nobody's, and always shown.
  timeline.shows = step => step.outcome === 'damaged'
    || (origin.value === 'all' || step.origin === origin.value) && (!failed.checked || failure(step) !== '');
  origin.addEventListener('change', () => timeline.refilter());
  failed.addEventListener('change', () => timeline.refilter());
  void sessions(base);
  void network(base);
  const follow = byId<HTMLInputElement>('follow');
  let wanted = Number(/^#step-(\d+)$/.exec(location.hash)?.[1] ?? 0);
  follow.checked = wanted === 0;
  byId('one').hidden = false;
  byId('following').hidden = false;
  document.title = `${id}: Arenite`;
  byId('title').textContent = id;
  exports(id, base);
  void about(id);

  const take = (step: Step): void => {
    steps.set(step.step, step);
    timeline.put(step);
    while (steps.size > MOST) steps.delete(timeline.drop());
    if (step.step === wanted || (follow.checked && step.step >= timeline.last)) {
      wanted = 0;
      timeline.choose(step.step);
    } else if (step.step === timeline.chosen) {
      void detail.show(step);
    }
    byId('older').hidden = timeline.first <= 1 || steps.size >= MOST;
  };
  // A step that the address names is among the first that are read.
  const tail = wanted > 0 ? '' : `&tail=${PAGE}`;
  const after = wanted > 0 ? `&after=${Math.max(0, wanted - PAGE)}` : '';
  new Feed(`${base}?follow=true${tail}${after}`, take, (state, why) => {
    byId('live').textContent = state === 'live' ? 'live' : why === 'the sandbox is gone' ? 'ended' : why;
    byId('live').dataset.state = state;
    if (state === 'over' && steps.size === 0) say(why);
    if (state === 'over') byId('following').hidden = true;
  });

  byId('older').addEventListener('click', async () => {
    const before = timeline.first;
    try {
      const page = await call<{ steps: Step[] }>('GET', `${base}?after=${Math.max(0, before - 1 - PAGE)}&limit=${Math.min(PAGE, before - 1)}`);
      follow.checked = false;
      page.steps.forEach(take);
    } catch (error) {
      say((error as Error).message);
    }
  });

  byId('steps').addEventListener('click', () => { follow.checked = timeline.chosen === timeline.last; });
  follow.addEventListener('change', () => { if (follow.checked) timeline.choose(timeline.last); });
  document.addEventListener('keydown', event => {
    if (event.altKey || event.ctrlKey || event.metaKey || isTyping(event) && event.target !== follow || document.querySelector('dialog[open]')) return;
    // Within the step, arrows scroll.
    const inside = byId('detail').contains(document.activeElement);
    const by = (ways: number): void => {
      timeline.move(ways);
      follow.checked = timeline.chosen === timeline.last;
    };
    if (event.key === 'j' || (event.key === 'ArrowDown' && !inside)) by(1);
    else if (event.key === 'k' || (event.key === 'ArrowUp' && !inside)) by(-1);
    else if (event.key === 'Home' && !inside) by(-Infinity);
    else if (event.key === 'End' && !inside) by(Infinity);
    else if (event.key === 'p') {
      const chosen = steps.get(timeline.chosen);
      if (chosen) timeline.choose(parentOf(chosen));
    }
    else if (event.key === 'f') follow.click();
    else if (event.key === 'Enter' && !inside && event.target instanceof HTMLElement && !event.target.matches('a, summary, select')) byId('detail').focus();
    else if (event.key === 'Escape' && inside) timeline.focus();
    else return;
    event.preventDefault();
  });
}

interface SessionEvent {
  event: 'begin' | 'end';
  id: string;
  resource_type: string;
  config?: unknown;
  at: string;
  after: number;
}

/** Begins and ends of sessions, with what they were made. */
async function sessions(base: string): Promise<void> {
  const sessions = await entries<SessionEvent>(`${base}/sessions`, 'sessions').catch(() => []);
  byId('sessions').hidden = sessions.length === 0;
  byId('session-list').replaceChildren(...sessions.map(of => make('li', {},
    `${of.resource_type} ${of.event === 'begin' ? 'begins' : 'ends'} after step ${of.after} `,
    make('small', { className: 'quiet', textContent: of.id }),
    ...(of.config === undefined ? [] : [make('pre', { textContent: JSON.stringify(of.config, null, 1) })]))));
}

interface NetworkRecord {
  at: string;
  allowed: boolean;
  name?: string;
  address?: string;
  port: number;
  rule?: string;
  reason: string;
  count: number;
  bytes_sent: number;
  bytes_received: number;
  after: number;
}

/** The newest decisions of the network policy. */
async function network(base: string): Promise<void> {
  const records = await entries<NetworkRecord>(`${base}/network`, 'network').catch(() => []);
  byId('network').hidden = records.length === 0;
  const left = records.length - MOST_RECORDS;
  byId('network-left-out').textContent = left > 0 ? `${left} earlier ones are in the API` : '';
  byId('network-list').replaceChildren(...records.slice(-MOST_RECORDS).map(of => make('li', { title: of.at },
    `${of.allowed ? 'reached' : 'refused'} ${of.name ?? of.address ?? 'various'}${of.port > 0 ? `:${of.port}` : ''}${of.count > 1 ? ` ${of.count} times` : ''} after step ${of.after} `,
    make('small', { className: 'quiet', textContent: of.allowed ? `${bytes(of.bytes_sent)} sent, ${bytes(of.bytes_received)} received` : of.rule ?? of.reason.replaceAll('_', ' ') }))));
}

async function about(id: string): Promise<void> {
  try {
    const trajectories = await entries<Recorded>(`${root}api/v1/trajectories?sandbox=${encodeURIComponent(id)}`, 'trajectories');
    const found = trajectories.find(of => of.trajectory === id);
    if (!found) return;
    document.title = `${name(found)}: Arenite`;
    byId('title').textContent = name(found);
    byId('title').title = id;
    byId('about').textContent = [found.task, `begun ${age(found.first_at)} ago`].filter(Boolean).join(', ');
  } catch {
    // The steps are there without it.
  }
}

function exports(id: string, base: string): void {
  const choice = byId<HTMLSelectElement>('export');
  byId('exporting').hidden = false;
  choice.append(...FORMATS.map(format => make('option', { value: format, textContent: format })));
  choice.addEventListener('change', () => {
    const origin = byId<HTMLSelectElement>('origin').value;
    // An export is what an agent did, unless another is chosen.
    const link = make('a', { href: `${base}/export?format=${choice.value}${origin === 'all' ? '' : `&origin=${origin}`}` });
    link.download = id;
    if (choice.value) link.click();
    choice.value = '';
  });
}
