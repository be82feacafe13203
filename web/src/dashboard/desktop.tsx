// The desktop, with a bar that says who acts. A person only watches until they take control, and hands it back.

import { useEffect, useRef, useState } from 'preact/hooks';

import type { Step } from '../steps';
import { title } from '../steps';
import { Button, now } from '../ui';
import { type Feed, newest } from './feed';
import { Frame, PAGES } from './frames';

const TYPE = 'arenite-desktop';
/** After this time without a call, the agent is not said to act. */
const RECENT = 15_000;
const OF_DESKTOP = /^[A-Z]+ \/(?:v1\/(?:browser|display)\/|v1\/mcp\/hub\/tools\/(?:browser|display|screen|gui)|cdp|json)/;

export interface Actors {
  /** What the agent does on the desktop now, or did a moment ago. */
  agent: string;
  /** A person has typed or clicked, on this page or another one. */
  person: boolean;
}

/** Who acts on the desktop, by the steps. */
export function actors(steps: ReadonlyMap<number, Step>, at: number): Actors {
  const found: Actors = { agent: '', person: false };
  for (const step of newest(steps)) {
    const underWay = step.outcome === null;
    if (step.origin === 'person') {
      found.person ||= underWay && step.action.includes('/websockify');
    } else if (!found.agent && step.origin === 'agent' && OF_DESKTOP.test(step.action) && (underWay || at - Date.parse(step.ended_at ?? step.started_at) < RECENT)) {
      found.agent = title(step.action);
    }
  }
  return found;
}

export function Desktop({ name, feed, shown, onKey }: { name: string; feed: Feed; shown: boolean; onKey: (event: KeyboardEvent) => void }) {
  const frame = useRef<HTMLIFrameElement | null>(null);
  const [controls, setControls] = useState(false);
  /** From then on, the step of a person may be this one's. */
  const [controlled, setControlled] = useState(false);
  const control = (on: boolean): void => {
    setControls(on);
    if (on) setControlled(true);
    frame.current?.contentWindow?.postMessage({ type: TYPE, watching: !on }, location.origin);
    if (on) frame.current?.focus();
  };
  useEffect(() => {
    // The desktop's own page has a button for the same.
    const said = (event: MessageEvent<unknown>): void => {
      if (event.source !== frame.current?.contentWindow || event.origin !== location.origin) return;
      const { type, watching } = (event.data ?? {}) as { type?: unknown; watching?: unknown };
      if (type === TYPE && typeof watching === 'boolean') {
        setControls(!watching);
        if (!watching) setControlled(true);
      }
    };
    addEventListener('message', said);
    return () => removeEventListener('message', said);
  }, []);
  // Who goes to another tab no longer sees what their keys do.
  useEffect(() => { if (!shown && controls) control(false); }, [shown]);
  /** Also from within the frame. */
  const handOver = (event: KeyboardEvent): boolean => {
    if (!event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.code !== 'KeyH') return false;
    event.preventDefault();
    event.stopPropagation();
    control(!controls);
    return true;
  };
  useEffect(() => {
    if (!shown) return;
    document.addEventListener('keydown', handOver);
    return () => document.removeEventListener('keydown', handOver);
  });
  const { agent, person } = actors(feed.steps.value, now.value);
  return (
    <div class="desktop" data-controls={controls}>
      <div class="hand-over" role="group" aria-label="Who acts">
        <p role="status"><b>{controls ? 'You control the desktop' : 'You only watch'}</b>
          <span class="quiet">{controls ? 'Your keys and clicks go in. The agent is not stopped: its calls still work.' : 'Keys and clicks do not go in.'}</span></p>
        {agent && <span class="actor" data-actor="agent">Agent: {agent}</span>}
        {person && !controlled && <span class="actor" data-actor="person">Another person controls it, too</span>}
        <Button kind={controls ? 'default' : 'primary'} icon="hand" title={`${controls ? 'Hand the desktop back' : 'Take control'} (Alt H)`} onPress={() => control(!controls)}>
          {controls ? 'Hand back' : 'Take control'}
        </Button>
      </div>
      <Frame title={name} page={PAGES.browser} onKey={event => { if (!handOver(event)) onKey(event); }} frame={found => { frame.current = found; }} />
    </div>
  );
}
