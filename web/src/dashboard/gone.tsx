// What fills the page when the sandbox can't be shown: why, and what to do.

import { useRef } from 'preact/hooks';

import { sentence } from '../format';
import { Button, EmptyState, LinkButton, Loading, failed } from '../ui';
import { readSandbox } from './calls';
import type { Own, OwnState } from './state';

/** A deadline that has just passed explains the end, give or take what clocks differ. */
const NEAR = 20_000;

/** Why a sandbox is gone, by the last that was known of it. */
export function endOf(last: OwnState | undefined, at: number): string {
  const deadline = last?.deadline;
  if (deadline?.action === 'delete' && Date.parse(deadline.at) - at < NEAR) {
    if (deadline.reason === 'idle') return 'It was deleted because nobody used it.';
    if (deadline.reason === 'timeout') return 'It was deleted because its lifetime was over.';
    return 'It had ended, and its disk was kept long enough.';
  }
  return 'It was deleted. Its files are gone with it.';
}

export function Gone({ own, console }: { own: Own; console: string }) {
  const noticed = useRef(Date.now());
  const last = own.state;
  return (
    <Filled>
      <EmptyState icon="trash" title="This sandbox is gone"
        actions={<>{last && <LinkButton icon="trajectory" href={`${console}trajectory/${last.id}`}>Its steps</LinkButton>}<LinkButton icon="sandbox" href={console}>All sandboxes</LinkButton></>}>
        {endOf(last, noticed.current)} What was recorded of it stays.
      </EmptyState>
    </Filled>
  );
}

const TITLES: Partial<Record<OwnState['state'], string>> = {
  creating: 'This sandbox is being created', deleting: 'This sandbox is being deleted', failed: 'This sandbox has failed', lost: 'The processes of this sandbox have ended',
};

/** For all states but running. */
export function NotRunning({ own, state, console }: { own: Own; state: OwnState; console: string }) {
  const manage = `${console}#/sandboxes/${encodeURIComponent(state.name)}`;
  if (state.state === 'paused') {
    const resume = async (): Promise<void> => {
      // Any call resumes it.
      await readSandbox();
      await own.reload();
    };
    return (
      <Filled>
        <EmptyState icon="pause" title="This sandbox is paused" actions={<><Button kind="primary" icon="play" onPress={() => resume().catch(failed)}>Resume</Button><LinkButton href={manage}>Manage</LinkButton></>}>
          {state.reason ? `${sentence(state.reason)} ` : ''}It uses no CPU, and its next call resumes it.
        </EmptyState>
      </Filled>
    );
  }
  if (state.state === 'creating' || state.state === 'deleting') return <Filled><div role="status" class="empty"><Loading label={TITLES[state.state]!} /><h2>{TITLES[state.state]}</h2></div></Filled>;
  return (
    <Filled>
      <EmptyState icon="alert" title={TITLES[state.state] ?? `This sandbox is ${state.state}`}
        actions={<><LinkButton kind="primary" icon="play" href={manage}>Start it in the console</LinkButton><LinkButton icon="trajectory" href={`${console}trajectory/${state.id}`}>Its steps</LinkButton></>}>
        {sentence(state.reason ?? 'No reason is known')} Its disk is kept{state.deadline ? ' for some time' : ''}.
      </EmptyState>
    </Filled>
  );
}

export function Filled({ children }: { children: preact.ComponentChildren }) {
  return <main id="main" class="filled" tabIndex={-1} role="main"><div role="alert">{children}</div></main>;
}
