// The header: which sandbox this is, its state, the time that is left, and what it uses.

import type { ComponentChildren } from 'preact';

import { bytes, duration } from '../format';
import { LineChart, State, now } from '../ui';
import { Mark } from '../ui/icons';
import { MOST_SAMPLES, type OwnState, type Sample } from './state';

/** In two units, such as `1 h 59 min`. */
function precise(seconds: number): string {
  const first = duration(seconds);
  const rest = seconds % (seconds >= 86_400 ? 86_400 : 3600);
  return seconds >= 3600 && rest >= 60 ? `${first} ${duration(rest)}` : first;
}

/** What ends the sandbox, and when: `short` for the header, `long` as its tooltip. */
export function timeLeft({ deadline, idle_policy, idle_timeout_seconds }: OwnState, at: number): { short: string; long: string } | null {
  const done = { delete: 'deleted', pause: 'paused', disk: 'moved to disk' };
  if (deadline && (deadline.reason !== 'idle' || !idle_timeout_seconds)) {
    const left = precise((Date.parse(deadline.at) - at) / 1000);
    return { short: `${left} left`, long: `${done[deadline.action]} in ${left} (${deadline.at})` };
  }
  // The page itself uses the sandbox, so that this deadline moves all the time.
  if (idle_timeout_seconds && idle_policy !== 'never' && idle_policy !== 'none') {
    const what = deadline ? done[deadline.action] : idle_policy === 'delete' ? 'deleted' : 'paused';
    return { short: `${what} after ${duration(idle_timeout_seconds)} idle`, long: `${what} after ${duration(idle_timeout_seconds)} without a call` };
  }
  return null;
}

function Usage({ state, samples }: { state: OwnState; samples: readonly Sample[] }) {
  const limit = state.limits.cpu_millis / 1000;
  const newest = samples.at(-1);
  const label = (at: number): string => (at === newest?.at ? 'now' : `${Math.round(((newest?.at ?? at) - at) / 1000)} s ago`);
  const cpu = samples.flatMap(({ at, cores }) => (cores === null ? [] : [{ label: label(at), value: cores }]));
  const memory = samples.map(({ at, memory }) => ({ label: label(at), value: memory }));
  const percent = (cores: number): string => `${Math.round((cores / limit) * 100)} %`;
  return (
    <div class="usage" role="group" aria-label="Use of resources">
      <LineChart title="CPU" value={newest?.cores == null ? '–' : percent(newest.cores)} amount="cpu" format={percent} top={limit} most={MOST_SAMPLES} area series={[{ name: 'CPU', points: cpu }]} />
      <LineChart title="Memory" value={newest ? bytes(newest.memory) : '–'} amount="memory" format={bytes} top={state.limits.memory_bytes} most={MOST_SAMPLES} area series={[{ name: 'Memory', points: memory }]} />
    </div>
  );
}

export interface HeadProps {
  name: string;
  console: string;
  state: OwnState | undefined;
  samples: readonly Sample[];
  children?: ComponentChildren;
}

export function Head({ name, console, state, samples, children }: HeadProps) {
  const left = state && timeLeft(state, now.value);
  return (
    <header class="dash-head">
      <a class="brand" href={console} title="All sandboxes, in the console"><Mark /><span>Arenite</span></a>
      <div class="who">
        <h1>{name}</h1>
        {state && (
          <p class="about-sandbox">
            <State name={state.state} />
            {left && <span title={left.long}>{left.short}</span>}
            <span class="image clip" title={`Image ${state.image}, ${state.limits.cpu_millis / 1000} cores, ${bytes(state.limits.memory_bytes)} of memory`}>{state.image}</span>
          </p>
        )}
      </div>
      {state?.usage && <Usage state={state} samples={samples} />}
      <div class="row actions">{children}</div>
    </header>
  );
}
