// The console: pages for the sandboxes of a tenant, and for those who manage tenants, keys and usage.

import './console.css';
import { call } from './api';
import { byId, bytes, keysDialog, make } from './dom';
import { AuditPage } from './pages/audit';
import { GroupsPage } from './pages/groups';
import { KeysPage } from './pages/keys';
import { SandboxPage } from './pages/sandbox';
import { SandboxesPage } from './pages/sandboxes';
import { SnapshotsPage } from './pages/snapshots';
import { TenantsPage } from './pages/tenants';
import { UsagePage } from './pages/usage';
import { VolumesPage } from './pages/volumes';
import { WebhooksPage } from './pages/webhooks';
import { type Me, Rights, keysRequired } from './rights';
import { SandboxList } from './sandbox_list';
import { signInDialog } from './sign_in';
import type { View } from './view';

interface Info {
  version: string;
  engine: string;
  capacity: { memory_available_bytes: number; disk_available_bytes: number } | null;
  warnings: string[];
}

/** A page by its name in the address, and whether the caller may see it. */
interface Entry {
  label: string;
  offered: boolean;
  make: () => View;
}

let shownRights: Rights | null = null;
signInDialog('', () => {
  // Another user sees other pages and may do other things.
  Rights.read().then(now => { if (shownRights && !now.equals(shownRights)) location.reload(); }, () => { /* The next call asks again. */ });
});
keysDialog();
Rights.read().then(start, (error: Error) => {
  byId('message').textContent = error.message;
  byId('message').classList.add('bad');
});

function start(rights: Rights): void {
  shownRights = rights;
  drawAccount(rights.me);
  const list = new SandboxList(error => {
    sandboxes.update(error);
    one.update();
  });
  const sandboxes = new SandboxesPage(rights, list);
  const one = new SandboxPage(rights, list, sandbox => sandboxes.openSteps(sandbox));
  const entries: Record<string, Entry> = {
    '': { label: 'Sandboxes', offered: true, make: () => sandboxes },
    snapshots: { label: 'Snapshots', offered: rights.wholeTenant, make: () => new SnapshotsPage(rights) },
    volumes: { label: 'Volumes', offered: rights.wholeTenant, make: () => new VolumesPage(rights) },
    groups: { label: 'Groups', offered: rights.wholeTenant, make: () => new GroupsPage(rights) },
    usage: { label: 'Usage', offered: rights.wholeTenant, make: () => new UsagePage(rights) },
    keys: { label: 'Keys', offered: rights.managesKeys, make: () => new KeysPage(rights) },
    webhooks: { label: 'Webhooks', offered: rights.managesWebhooks, make: () => new WebhooksPage() },
    audit: { label: 'Audit log', offered: rights.managesKeys, make: () => new AuditPage(rights) },
    tenants: { label: 'Tenants', offered: rights.managesTenants, make: () => new TenantsPage() },
  };
  const views = new Map<string, View>();
  const links = new Map<string, HTMLAnchorElement>();
  for (const [name, entry] of Object.entries(entries)) {
    if (!entry.offered) continue;
    const link = make('a', { href: `#/${name}`, textContent: entry.label });
    links.set(name, link);
    byId('pages').append(make('li', {}, link));
  }
  let shown: View | null = null;
  const show = (moveFocus: boolean): void => {
    const [path = '', query = ''] = location.hash.replace(/^#\/?/, '').split('?', 2) as [string, string?];
    const [first = '', ...parts] = path.split('/').map(decoded);
    const name = first === 'sandboxes' ? '' : first in entries && entries[first]!.offered ? first : '';
    let view: View = one;
    if (first !== 'sandboxes' || !parts[0]) {
      view = views.get(name) ?? entries[name]!.make();
      views.set(name, view);
    }
    // Going back leaves a page with its dialogs.
    for (const open of document.querySelectorAll<HTMLDialogElement>('dialog[open]:not(#sign-in)')) open.close();
    shown?.close();
    for (const section of document.querySelectorAll<HTMLElement>('main > [id^="page-"]')) section.hidden = section !== view.box;
    for (const [of, link] of links) {
      if (of === name) link.ariaCurrent = 'page';
      else link.removeAttribute('aria-current');
    }
    shown = view;
    view.open(parts, new URLSearchParams(query));
    document.title = `${view.title}: Arenite`;
    if (moveFocus) view.box.querySelector<HTMLElement>('h2[tabindex], h2')?.focus();
  };
  addEventListener('hashchange', () => show(true));
  document.addEventListener('keydown', event => { if (shown === sandboxes) sandboxes.key(event); });
  show(false);
  about(rights).catch(() => { /* The page works without it. */ });
  void list.keepFresh();
}

/** A part of an address; a malformed one names nothing. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return '';
  }
}

/** Who is signed in. A server without keys has only one user, so it shows nothing. */
function drawAccount({ tenant, role, operator, name, key, subject, bound }: Me): void {
  if (!keysRequired()) return;
  const who = name ?? subject ?? key ?? '';
  const rights = operator ? 'operator' : role ?? 'no role';
  const account = byId('account');
  account.hidden = false;
  const title = bound.length > 0 ? `only ${bound.join(', ')}` : '';
  const out = make('button', { type: 'button', textContent: 'Sign out', id: 'sign-out' });
  out.addEventListener('click', () => void signOut(out));
  account.replaceChildren(make('span', { className: 'who', title }, make('b', { textContent: tenant }), make('span', { className: 'chip', textContent: bound.length > 0 ? `${rights}, bound` : rights }), make('span', { className: 'quiet key-name', textContent: who })), out);
}

async function signOut(button: HTMLButtonElement): Promise<void> {
  button.disabled = true;
  await fetch('logout', { method: 'POST' }).catch(() => null);
  location.reload();
}

async function about({ me }: Rights): Promise<void> {
  const info = await call<Info>('GET', 'api/v2/info');
  const capacity = info.capacity ? `, ${bytes(info.capacity.memory_available_bytes)} memory and ${bytes(info.capacity.disk_available_bytes)} disk free` : '';
  byId('about').textContent = `Arenite ${info.version}, ${info.engine} engine${capacity}`;
  byId('metrics').hidden = !me.operator;
  byId('warnings').replaceChildren(...info.warnings.map(text => make('li', { textContent: text })));
  byId('warnings').hidden = info.warnings.length === 0;
}
