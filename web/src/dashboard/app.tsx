// The page: the header, the tabs with their panels, and the steps beside them.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';

import { address } from '../client/api';
import { useResource } from '../client/resource';
import { Palette, type Command, listenForPalette, paletteOpen } from '../shell/palette';
import { listenForShortcuts, useShortcut } from '../shell/shortcuts';
import { stored } from '../shell/storage';
import { theme } from '../shell/theme';
import { Button, Dialog, ErrorState, Icon, LinkButton, Menu, openDialog } from '../ui';
import { Dialogs } from '../ui/dialog';
import { Toasts } from '../ui/toast';
import { readSandbox } from './calls';
import { Desktop } from './desktop';
import { Feed } from './feed';
import { Files } from './files/files';
import { Missing, PAGES, Program, Terminal, keepFocus } from './frames';
import { Filled, Gone, NotRunning } from './gone';
import { Head } from './head';
import { Logs } from './logs';
import { Ports } from './ports';
import { Processes } from './processes';
import { share } from './share';
import { useOwnState } from './state';
import { Strip } from './strip';
import { type TabId, type TabState, isTab, tabStates } from './tabs';

export interface DashboardProps {
  name: string;
  /** The page is on the sandbox's own host. */
  ownHost: boolean;
  /** The console's address. */
  console: string;
}

const NARROW = 960;
const stripOpen = stored<boolean>('steps-shown', innerWidth > NARROW, (value): value is boolean => typeof value === 'boolean');

export function Dashboard({ name, ownHost, console }: DashboardProps) {
  const own = useOwnState();
  const { state, error, gone } = own;
  useEffect(() => {
    document.title = `${name}: Arenite`;
    const ends = [listenForShortcuts(), listenForPalette()];
    return () => ends.forEach(end => end());
  }, []);
  useShortcut('?', 'Keyboard shortcuts', 'General', showKeys);
  const running = !gone && state?.state === 'running';
  const steps = { shown: running && stripOpen.value, toggle: () => { stripOpen.value = !stripOpen.value; } };
  const look = (value: 'light' | 'dark' | 'system', text: string) => ({ text, checked: theme.value === value, onPress: () => { theme.value = value; } });
  return (
    <>
      <a class="button skip" href="#main" onClick={event => { event.preventDefault(); document.getElementById('main')?.focus(); }}>Skip to content</a>
      <div class="dash">
        <Head name={name} console={console} state={gone ? undefined : state} samples={own.samples}>
          {running && <Button icon="share" onPress={() => share(name, state.keys, console)}>Share</Button>}
          <LinkButton icon="sandbox" href={`${console}#/sandboxes/${encodeURIComponent(name)}`}>Manage</LinkButton>
          {running && <Button id="toggle" icon="trajectory" aria={{ 'aria-expanded': steps.shown, 'aria-controls': 'strip' }} title="Show or hide the steps (Alt S)" onPress={steps.toggle}>Steps</Button>}
          <Menu icon="more" className="icon-only" label="More" items={[
            { text: 'API of this sandbox', icon: 'docs', href: address('v1/docs') },
            { text: 'Keyboard shortcuts', icon: 'keyboard', onPress: showKeys },
            null, look('system', 'Theme of the system'), look('light', 'Light theme'), look('dark', 'Dark theme'),
          ]} />
        </Head>
        {error && !gone && state && <p class="notice bad stale" role="alert">{error.message} What is shown may be out of date.</p>}
        {gone ? <Gone own={own} console={console} />
          : !state ? error ? <Filled><ErrorState error={error} retry={own.reload} /></Filled> : <main id="main" class="filled" tabIndex={-1} />
            : state.state !== 'running' ? <NotRunning own={own} state={state} console={console} />
              : <Workspace ownHost={ownHost} strip={steps} />}
      </div>
      <Dialogs />
      <Toasts />
    </>
  );
}

interface StripState {
  shown: boolean;
  toggle: () => void;
}

function wantedTab(): TabId | null {
  const wanted = location.hash.slice(1);
  return isTab(wanted) ? wanted : null;
}

function Workspace({ ownHost, strip }: { ownHost: boolean; strip: StripState }) {
  const sandbox = useResource('sandbox', readSandbox);
  const services = sandbox.data?.detail.services;
  const tabs = useMemo(() => tabStates(services), [services]);
  const feed = useMemo(() => new Feed(), []);
  useEffect(() => () => feed.close(), []);
  const [chosen, setChosen] = useState<TabId>(() => wantedTab() ?? 'terminal');
  /** Those that were shown: their frames stay. */
  const [loaded, setLoaded] = useState<ReadonlySet<TabId>>(() => new Set([chosen]));
  const list = useRef<HTMLDivElement>(null);
  const listed = tabs.filter(tab => tab.id === chosen || (services ? tab.available : tab.usual));
  const lacking = tabs.filter(tab => !tab.available);

  const show = (id: TabId, focus = false): void => {
    setChosen(id);
    setLoaded(before => (before.has(id) ? before : new Set([...before, id])));
    history.replaceState(null, '', `#${id}`);
    keepFocus(focus ? `tab-${id}` : '');
    if (focus) requestAnimationFrame(() => document.getElementById(`tab-${id}`)?.focus());
  };
  useEffect(() => {
    const changed = (): void => {
      const to = wantedTab();
      if (to) show(to);
    };
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  useEffect(() => { document.getElementById(`tab-${chosen}`)?.scrollIntoView({ block: 'nearest', inline: 'nearest' }); }, [chosen]);

  /** By place, since with Alt some layouts type other characters. */
  const key = (event: KeyboardEvent): void => {
    if (!event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const at = /^Digit([1-9])$/.exec(event.code)?.[1];
    const tab = at === undefined ? undefined : listed[Number(at) - 1];
    if (tab) show(tab.id, true);
    else if (event.code === 'KeyS') strip.toggle();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const latest = useRef(key);
  latest.current = key;
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => latest.current(event);
    document.addEventListener('keydown', pressed);
    return () => document.removeEventListener('keydown', pressed);
  }, []);
  const fromFrame = (event: KeyboardEvent): void => latest.current(event);

  const move = (event: KeyboardEvent): void => {
    const at = listed.findIndex(tab => tab.id === chosen);
    const moves: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: listed.length - 1 };
    const to = moves[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey || !(event.target as HTMLElement).matches('[role="tab"]')) return;
    event.preventDefault();
    show(listed[(to + listed.length) % listed.length]!.id, true);
  };
  const page = chosen in PAGES ? PAGES[chosen as keyof typeof PAGES] : null;
  const commands: Command[] = listed.map((tab, n) => ({ id: `tab-${tab.id}`, text: tab.title, group: 'Tabs', icon: tab.icon, hint: `Alt ${n + 1}`, run: () => show(tab.id, true) }));
  commands.push({ id: 'steps', text: strip.shown ? 'Hide the steps' : 'Show the steps', group: 'General', icon: 'trajectory', hint: 'Alt S', run: strip.toggle }, { id: 'keys', text: 'Keyboard shortcuts', group: 'General', icon: 'keyboard', hint: '?', run: showKeys });

  const content = (tab: TabState) => {
    if (!tab.available) return <Missing tab={tab} retry={sandbox.reload} />;
    const shown = tab.id === chosen;
    switch (tab.id) {
      case 'terminal': return <Terminal onKey={fromFrame} />;
      case 'browser': return <Desktop name={tab.title} feed={feed} shown={shown} onKey={fromFrame} />;
      case 'code': case 'jupyter': return <Program tab={tab} page={PAGES[tab.id]} ownHost={ownHost} onKey={fromFrame} />;
      case 'files': return <Files canRun={services?.find(one => one.name === 'bash')?.available ?? true} />;
      case 'ports': return <Ports ownHost={ownHost} shown={shown} />;
      case 'logs': return <Logs shown={shown} />;
      case 'processes': return <Processes shown={shown} />;
    }
  };
  return (
    <>
      <div class="dash-tabs">
        <div ref={list} class="tabs" role="tablist" aria-label="Parts of this sandbox" onKeyDown={move}>
          {listed.map(tab => (
            <button key={tab.id} type="button" role="tab" id={`tab-${tab.id}`} aria-selected={tab.id === chosen} aria-controls={loaded.has(tab.id) ? `panel-${tab.id}` : undefined} tabIndex={tab.id === chosen ? 0 : -1} onClick={() => show(tab.id)}>
              <Icon name={tab.icon} />{tab.title}
            </button>
          ))}
        </div>
        {lacking.length > 0 && <Menu small kind="plain" icon="down" label="Not in this image: what would bring it" items={lacking.map(tab => ({ text: tab.title, icon: tab.icon, onPress: () => show(tab.id, true) }))}>Not in this image</Menu>}
        <span class="grow" />
        {page && <a id="alone" class="button small plain" href={address(page)} target="_blank" rel="noopener" title="Open this tab in a new window"><Icon name="external" /><span class="unseen">Open this tab in a new window</span></a>}
      </div>
      <main id="main" class="work" data-steps={strip.shown} tabIndex={-1}>
        <div class="panels">
          {tabs.filter(tab => loaded.has(tab.id)).map(tab => (
            <section key={tab.id} role="tabpanel" id={`panel-${tab.id}`} aria-labelledby={`tab-${tab.id}`} tabIndex={-1} hidden={tab.id !== chosen}>{content(tab)}</section>
          ))}
        </div>
        {strip.shown && <Strip feed={feed} onClose={strip.toggle} />}
      </main>
      {paletteOpen.value && <Palette commands={commands} />}
    </>
  );
}

const KEYS: readonly (readonly [string, string])[] = [
  ['Alt 1 … 9', 'The tabs in their order, from within them too'],
  ['← → Home End', 'The other tabs, if one has the focus'],
  ['Alt S', 'Show or hide the steps'],
  ['Alt H', 'Take control of the desktop, and hand it back'],
  ['Ctrl K', 'Search tabs and actions'],
  ['Ctrl S', 'Save the file'],
  ['↑ ↓', 'Move among files'],
  ['Enter', 'Open a file, a folder or a step'],
  ['F2', 'Rename the file'],
  ['Delete', 'Delete the file, after a question'],
  ['Backspace', 'Go to the folder above'],
  ['?', 'These shortcuts'],
];

function showKeys(): void {
  openDialog(close => (
    <Dialog title="Keyboard shortcuts" id="keys" onClose={close} foot={<Button autofocus onPress={close}>Close</Button>}>
      <dl class="keys-list">{KEYS.map(([keys, text]) => [<dt key={`t${keys}`}>{text}</dt>, <dd key={`d${keys}`}>{keys.split(' ').map((key, n) => <span key={n}>{n > 0 && ' '}{key === '…' ? key : <kbd>{key}</kbd>}</span>)}</dd>])}</dl>
      <p class="quiet">All other keys go to the page in the tab.</p>
    </Dialog>
  ));
}
