// The pages of trajectories: the list of all runs, and one run.

import { render } from 'preact';
import { useEffect } from 'preact/hooks';

import { setRoot } from '../client/api';
import { Shell, applyTheme, readRights, rights, watchSession } from '../shell';
import { RunList } from './run_list';
import { RunPage } from './run_page';

function App({ id, base }: { id: string | null; base: string }) {
  // Without rights, the page works without navigation.
  useEffect(() => { readRights().catch(() => null); }, []);
  return <Shell rights={rights.value} base={base} current="trajectories">{id === null ? <RunList query={location.search} /> : <RunPage key={id} id={id} base={base} />}</Shell>;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function start(): void {
  const match = /\/trajectory\/([^/]+)\/?$/.exec(location.pathname);
  // Relative addresses of `/trajectory/ID` start one level below the server's root; of `/trajectory/ID/`, two.
  const base = match ? (location.pathname.endsWith('/') ? '../../' : '../') : './';
  setRoot(base);
  applyTheme();
  watchSession(() => void readRights().catch(() => null));
  const box = document.getElementById('app')!;
  // What the page shows before its script runs.
  box.replaceChildren();
  render(<App id={match ? decoded(match[1]!) : null} base={base} />, box);
}
