// One sandbox: its services in tabs, and its steps as they are recorded. All addresses are relative, so that the page works
// under /sandbox/{name}/, on the sandbox's own host, and behind a path of a proxy.

import './dashboard.css';
import { onUnauthorized, request, Refused } from './api';
import { byId, duration, keysDialog, make } from './dom';
import { Files } from './files';
import { Feed, StepList } from './steps';

interface Service {
  name: string;
  page: string;
  /** The sandbox itself serves it: on a host of its own, and it says by the status of its answer what it lacks. */
  hostile: boolean;
}

const SERVICES: Service[] = [
  { name: 'code', page: 'code-server/', hostile: true },
  { name: 'browser', page: 'vnc/index.html?autoconnect=true', hostile: false },
  { name: 'terminal', page: 'terminal', hostile: false },
  { name: 'jupyter', page: 'jupyter', hostile: true },
];
const TABS = ['code', 'browser', 'terminal', 'jupyter', 'files'];
const PAST = 100;
/** What remembers the terminal's session when the page is loaded again. */
const SESSION = 'terminal';
const MOST = 300;

// The page that lies at this address knows what to do: it asks for a key, or says where one is asked for.
onUnauthorized(async () => {
  location.reload();
  await new Promise(() => {});
});

const loaded = new Set<string>();
let files: Files | null = null;
let current = '';

function frame(service: Service): HTMLIFrameElement {
  const label = byId(`tab-${service.name}`).textContent ?? service.name;
  const node = make('iframe', { title: label, allow: 'clipboard-read; clipboard-write; fullscreen' });
  node.setAttribute('src', service.name === 'terminal' ? `${service.page}${sessionStorage.getItem(SESSION) ?? ''}` : service.page);
  // What has the focus in there is of this origin, too, unless the server has no hosts for sandboxes.
  node.addEventListener('load', () => {
    try {
      node.contentWindow?.addEventListener('keydown', event => tabKey(event), true);
    } catch { /* Its keys are its own then. */ }
  });
  return node;
}

async function load(name: string): Promise<void> {
  const panel = byId(`panel-${name}`);
  if (name === 'files') {
    files ??= new Files();
    await files.open();
    return;
  }
  const service = SERVICES.find(service => service.name === name)!;
  if (service.hostile && document.querySelector('main')!.dataset.place !== 'own') {
    const why = new Refused(421, {
      message: 'it is shown on the sandbox\'s own host, and there is none at this address',
      hint: 'open this page by localhost, or start the server with --domain and a name with subdomains that lead here',
    });
    panel.replaceChildren(missing(name, why));
    return;
  }
  if (!service.hostile) {
    panel.replaceChildren(frame(service));
    return;
  }
  panel.replaceChildren(make('div', { className: 'notice' }, make('span', { className: 'spinner' }), make('p', { className: 'quiet', textContent: 'starting …', role: 'status' })));
  try {
    // Its answer's body is for the frame.
    const answer = await request(service.page, { headers: { accept: 'application/json' } });
    void answer.body?.cancel();
    panel.replaceChildren(frame(service));
  } catch (error) {
    panel.replaceChildren(missing(name, error as Error));
  }
}

function missing(name: string, error: Error): HTMLElement {
  const label = byId(`tab-${name}`).textContent;
  const again = make('button', { type: 'button', textContent: 'Try again' });
  again.addEventListener('click', () => void load(name));
  const notThere = error instanceof Refused && (error.status === 404 || error.status === 424);
  const hint = error instanceof Refused && error.hint ? error.hint : '';
  const why = error instanceof Refused ? error.reason : error.message;
  const box = make('div', { className: 'notice', role: 'alert' },
    make('p', { className: 'title', textContent: notThere ? `${label} is not there in this sandbox` : `${label} can't be shown` }),
    make('p', { textContent: why }));
  if (hint) box.append(make('p', { className: 'quiet', textContent: hint }));
  box.append(again);
  return box;
}

function show(name: string, focus: boolean): void {
  current = name;
  for (const other of TABS) {
    const tab = byId(`tab-${other}`);
    const selected = other === name;
    tab.setAttribute('aria-selected', String(selected));
    tab.tabIndex = selected ? 0 : -1;
    byId(`panel-${other}`).hidden = !selected;
  }
  if (focus) byId(`tab-${name}`).focus();
  const alone = byId<HTMLAnchorElement>('alone');
  const service = SERVICES.find(service => service.name === name);
  alone.hidden = !service;
  if (service) alone.href = service.page;
  history.replaceState(null, '', `#${name}`);
  if (!loaded.has(name)) {
    loaded.add(name);
    void load(name);
  }
}

byId('tabs').addEventListener('click', event => {
  const tab = (event.target as Element).closest('[role=tab]');
  if (tab) show(tab.id.slice(4), true);
});
byId('tabs').addEventListener('keydown', event => {
  const at = TABS.indexOf(current);
  const to: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: TABS.length - 1 };
  const next = to[event.key];
  if (next === undefined) return;
  event.preventDefault();
  show(TABS[(next + TABS.length) % TABS.length]!, true);
});

const toggle = byId<HTMLButtonElement>('toggle');
function setStrip(open: boolean): void {
  byId('strip').hidden = !open;
  document.querySelector('main')!.classList.toggle('alone', !open);
  toggle.setAttribute('aria-expanded', String(open));
}
toggle.addEventListener('click', () => setStrip(byId('strip').hidden));

/** By place, since with Alt some layouts type other characters. */
function tabKey(event: KeyboardEvent): void {
  if (!event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const number = /^Digit([1-5])$/.exec(event.code)?.[1];
  if (!number) return;
  event.preventDefault();
  event.stopPropagation();
  show(TABS[Number(number) - 1]!, true);
}
document.addEventListener('keydown', tabKey);
document.addEventListener('keydown', event => {
  if (!event.altKey || event.ctrlKey || event.metaKey || event.code !== 'KeyS') return;
  event.preventDefault();
  setStrip(byId('strip').hidden);
});
keysDialog();

const list = new StepList(byId<HTMLOListElement>('steps'), 'steps/', MOST);
const began = Date.now();
new Feed(`steps?follow=true&tail=${PAST}`,
  step => {
    list.put(step, Date.parse(step.started_at) >= began);
    byId('no-steps').hidden = true;
  },
  (state, why) => {
    const live = byId('live');
    live.dataset.state = state;
    live.textContent = state === 'live' ? 'live' : why;
  });

/** How long the sandbox lives, as far as its settings say: using it moves the end for want of use. */
function showEnd(): void {
  const node = byId('ends');
  const { expires, idle } = node.dataset;
  const left = expires ? `ends in ${duration((Date.parse(expires) - Date.now()) / 1000)}` : '';
  const unused = idle ? `after ${duration(Number(idle))} without use` : '';
  node.textContent = left || (unused && `ends ${unused}`);
  node.title = [left && `${left} (${expires})`, unused && `${left ? 'or ' : 'ends '}${unused}`].filter(Boolean).join(', ');
}
showEnd();
setInterval(showEnd, 10_000);

addEventListener('pagehide', () => {
  try {
    const search = document.querySelector<HTMLIFrameElement>('#panel-terminal iframe')?.contentWindow?.location.search;
    if (search?.startsWith('?session_id=')) sessionStorage.setItem(SESSION, search);
  } catch { /* Of another origin: a new session is made. */ }
});

const wanted = location.hash.slice(1);
show(TABS.includes(wanted) ? wanted : 'terminal', false);
addEventListener('hashchange', () => {
  const to = location.hash.slice(1);
  if (TABS.includes(to) && to !== current) show(to, false);
});
