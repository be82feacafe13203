// The frame of all pages: navigation, palette, shortcuts, notifications, dialogs, and signing in.

import { signal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useMemo } from 'preact/hooks';

import { Button, IconButton } from '../ui/button';
import { Dialog, Dialogs, openDialog } from '../ui/dialog';
import { Icon, Mark } from '../ui/icons';
import { Badge } from '../ui/state';
import { Toasts } from '../ui/toast';
import { type NavGroup, type NavItem, navigation } from './nav';
import { type Command, Palette, listenForPalette, paletteOpen } from './palette';
import { type Rights, keysRequired, signOut } from './rights';
import { listenForShortcuts, shortcuts, singleKeys, useShortcut } from './shortcuts';
import { SignIn } from './sign_in';
import { theme } from './theme';

export interface ShellProps {
  /** Null on pages without the control API, such as a sandbox's own host: there, only the console's link is offered. */
  rights: Rights | null;
  /** The console's address, as seen from this page; empty on the console. */
  base: string;
  /** The id of the navigation's entry that is shown. */
  current: string;
  /** Commands of the palette, besides the pages. */
  commands?: readonly Command[];
  onPalette?: () => void;
  children: ComponentChildren;
}

const LISTED: readonly string[] = ['', 'overview', 'trajectories'];
const drawerOpen = signal(false);
const isApple = /Mac|iPhone|iPad/.test(navigator.platform);
export const MOD = isApple ? '⌘' : 'Ctrl';

export function Shell({ rights, base, current, commands = [], onPalette, children }: ShellProps) {
  const groups = useMemo(() => (rights ? navigation(rights, base) : []), [rights, base]);
  // With the first page, and not after its first paint.
  useLayoutEffect(() => {
    const ends = [listenForShortcuts(), listenForPalette()];
    return () => ends.forEach(end => end());
  }, []);
  useShortcut('?', 'Keyboard shortcuts', 'General', showShortcuts);
  const items = groups.flatMap(group => group.items);
  const everything = useMemo<Command[]>(() => [...items.map(pageCommand), ...commands, ...generalCommands()], [groups, commands]);
  return (
    <>
      <a class="button skip" href="#main" onClick={event => { event.preventDefault(); document.getElementById('main')?.focus(); }}>Skip to content</a>
      {items.filter(item => item.key).map(item => <PageShortcut key={item.id} item={item} />)}
      <div class="shell">
        <aside class="sidebar" aria-label="Sidebar">
          <a class="brand" href={base || '#/'}><Mark />Arenite</a>
          <PaletteButton />
          <Nav groups={groups} current={current} />
          {rights && <Account rights={rights} />}
        </aside>
        <header class="top-bar">
          <a class="brand" href={base || '#/'}><Mark />Arenite</a>
          <IconButton kind="plain" icon="search" label="Search" onPress={() => { paletteOpen.value = true; }} />
        </header>
        <main id="main" class="page" tabIndex={-1}>{children}</main>
        {items.length > 0 && (
          <nav class="bottom-nav" aria-label="Pages">
            {items.filter(item => LISTED.includes(item.id)).map(item => <a key={item.id} href={item.href} aria-current={item.id === current ? 'page' : undefined}><Icon name={item.icon} />{item.text}</a>)}
            <button type="button" aria-haspopup="dialog" onClick={() => { drawerOpen.value = true; }}><Icon name="menu" />More</button>
          </nav>
        )}
      </div>
      {drawerOpen.value && <Drawer groups={groups} current={current} rights={rights} />}
      <Dialogs />
      <Palette commands={everything} onOpen={onPalette} />
      <SignIn />
      <Toasts />
    </>
  );
}

function PageShortcut({ item }: { item: NavItem }) {
  useShortcut(`g ${item.key}`, `Go to ${item.text}`, 'Pages', () => { location.href = item.href; });
  return null;
}

function PaletteButton() {
  return (
    <Button className="palette-button" icon="search" onPress={() => { paletteOpen.value = true; }}>
      Search<kbd>{MOD} K</kbd>
    </Button>
  );
}

function Nav({ groups, current, onGo }: { groups: readonly NavGroup[]; current: string; onGo?: () => void }) {
  return (
    <nav aria-label="Main">
      {groups.map((group, n) => (
        <div class="nav-group" key={n}>
          {group.title && <h2>{group.title}</h2>}
          <ul>{group.items.map(item => (
            <li key={item.id}><a class="nav-link" href={item.href} aria-current={item.id === current ? 'page' : undefined} onClick={onGo}><Icon name={item.icon} />{item.text}</a></li>
          ))}</ul>
        </div>
      ))}
    </nav>
  );
}

/** Who is signed in. A server without keys has only one user, so it shows only the tools. */
function Account({ rights }: { rights: Rights }) {
  const { tenant, role, operator, name, key, subject, bound } = rights.me;
  const title = operator ? 'operator' : role ?? 'no role';
  return (
    <div class="account" role="group" aria-label="Account">
      {keysRequired() && (
        <div class="who" title={bound.length > 0 ? `only ${bound.join(', ')}` : undefined}>
          <span class="row"><b class="clip">{tenant}</b><Badge>{bound.length > 0 ? `${title}, bound` : title}</Badge></span>
          <span class="quiet clip">{name ?? subject ?? key ?? ''}</span>
        </div>
      )}
      <div class="row">
        <IconButton kind="plain" small icon="keyboard" label="Keyboard shortcuts" onPress={showShortcuts} />
        <span class="grow" />
        {keysRequired() && <Button kind="plain" small icon="signout" onPress={signOut}>Sign out</Button>}
      </div>
    </div>
  );
}

function Drawer({ groups, current, rights }: { groups: readonly NavGroup[]; current: string; rights: Rights | null }) {
  const close = (): void => { drawerOpen.value = false; };
  return <Dialog title="Pages" className="sheet" onClose={close}><Nav groups={groups} current={current} onGo={close} />{rights && <Account rights={rights} />}</Dialog>;
}

function pageCommand({ id, text, icon, href, key, words }: NavItem): Command {
  return { id: `page-${id}`, text, group: 'Pages', icon, words: words ?? '', hint: key ? `g ${key}` : '', run: () => { location.href = href; } };
}

function generalCommands(): Command[] {
  const setTheme = (name: 'light' | 'dark' | 'system', text: string): Command => ({ id: `theme-${name}`, text, group: 'Appearance', icon: 'settings', words: 'theme', run: () => { theme.value = name; } });
  return [
    { id: 'shortcuts', text: 'Keyboard shortcuts', group: 'General', icon: 'keyboard', hint: '?', run: showShortcuts },
    setTheme('light', 'Use the light theme'), setTheme('dark', 'Use the dark theme'), setTheme('system', 'Use the system\'s theme'),
    ...(keysRequired() ? [{ id: 'sign-out', text: 'Sign out', group: 'General', icon: 'signout' as const, run: signOut }] : []),
  ];
}

function showShortcuts(): void {
  openDialog(close => <ShortcutsDialog close={close} />);
}

function Keys({ keys }: { keys: string }) {
  return <>{keys.split(' ').map((key, n) => <span key={n}>{n > 0 && ' '}<kbd>{key}</kbd></span>)}</>;
}

/** The shortcuts of the present page. Single keys can be switched off, since speech input can press them by accident. */
function ShortcutsDialog({ close }: { close: () => void }) {
  const groups = new Map<string, { keys: string; text: string }[]>([['General', [{ keys: `${MOD}+K`, text: 'Search pages, sandboxes and actions' }, { keys: 'Esc', text: 'Close what is open' }]]]);
  for (const { keys, text, group } of shortcuts.value) groups.set(group, [...(groups.get(group) ?? []), { keys, text }]);
  return (
    <Dialog title="Keyboard shortcuts" onClose={close} foot={<Button autofocus onPress={close}>Close</Button>}>
      {[...groups].map(([group, all]) => (
        <section key={group} class="stack" aria-label={group}>
          <h3>{group}</h3>
          <dl class="keys-list">{all.map(({ keys, text }) => [<dt key={`t${keys}`}>{text}</dt>, <dd key={`d${keys}`}><Keys keys={keys} /></dd>])}</dl>
        </section>
      ))}
      <label class="check"><input type="checkbox" checked={singleKeys.value} onChange={event => { singleKeys.value = event.currentTarget.checked; }} />Single keys are shortcuts</label>
    </Dialog>
  );
}
