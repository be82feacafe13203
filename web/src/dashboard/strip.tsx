// The steps beside the tabs, the newest first. What they contain is shown when it is opened.

import { useEffect, useState } from 'preact/hooks';

import { address, request } from '../client/api';
import { bytes, milliseconds } from '../format';
import { type Recorded, type Step, circumstances, failure, pictureAddress, state, subject, title, told } from '../steps';
import { Dialog, IconButton, openDialog } from '../ui';
import { type Feed, newest } from './feed';

/** Characters of a body; the rest can be saved. */
const MOST_SHOWN = 20_000;

export function Strip({ feed, onClose }: { feed: Feed; onClose: () => void }) {
  const steps = newest(feed.steps.value);
  const { state: live, why } = feed.live.value;
  return (
    <aside id="strip" aria-labelledby="strip-title">
      <div class="strip-head">
        <h2 id="strip-title">Steps</h2>
        <span id="live" role="status" data-state={live}>{live === 'live' ? 'live' : why}</span>
        <IconButton kind="plain" small icon="close" label="Hide the steps" onPress={onClose} />
      </div>
      <ol id="steps" class="steps" aria-live="off">{steps.map(step => <StepItem key={step.step} step={step} />)}</ol>
      {steps.length === 0 && <p class="quiet">No steps yet. Every call to this sandbox appears here.</p>}
    </aside>
  );
}

function StepItem({ step }: { step: Step }) {
  const [opened, setOpened] = useState(false);
  const about = subject(step);
  const failed = step.outcome === 'ok' ? failure(step).slice(0, 40) : step.outcome ? (step.status && step.outcome === 'error' ? String(step.status) : step.outcome) : '';
  const took = step.outcome ? (step.duration_ms === null ? '' : milliseconds(step.duration_ms)) : 'under way';
  return (
    <li class="step" data-step={step.step} data-outcome={state(step)}>
      <details onToggle={event => setOpened(event.currentTarget.open)}>
        <summary>
          <span class="dot" title={told(step)} />
          <span class="what" title={step.action}><small>{step.step}</small>{title(step.action)}</span>
          <span class="took">{failed && <b>{failed} </b>}{took}</span>
          {about && <span class="about" title={about}>{about}</span>}
        </summary>
        {opened && <More step={step} />}
      </details>
      {isPicture(step) && <Picture number={step.step} />}
    </li>
  );
}

function More({ step }: { step: Step }) {
  const bodies = [['arguments', step.arguments], ['observation', step.observation]] as const;
  return (
    <div class="more">
      {bodies.map(([name, body]) => body && (
        <section key={name} aria-label={name}>
          <h3>{name} <a href={address(`steps/${step.step}/${name}`)} download={`step-${step.step}-${name}`}>Save</a></h3>
          <pre tabIndex={0}>{shown(body)}</pre>
        </section>
      ))}
      {step.error && <section aria-label="How it ended"><h3>how it ended</h3><pre tabIndex={0}>{step.error}</pre></section>}
      <p class="quiet">{circumstances(step)}</p>
      {step.calls && <section aria-label="Calls"><h3>{`its ${step.calls.length} calls`}</h3><pre tabIndex={0}>{cut(JSON.stringify(step.calls, null, 2))}</pre></section>}
    </div>
  );
}

function cut(text: string): string {
  return text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n… ${text.length - MOST_SHOWN} more characters` : text;
}

function shown(body: Recorded): string {
  if ('json' in body) return cut(JSON.stringify(body.json, null, 2));
  if ('text' in body) return cut(body.text);
  if ('base64' in body) return cut(body.base64);
  return body.blob.kept ? `${bytes(body.blob.bytes)}, BLAKE3 ${body.blob.blake3}` : `${bytes(body.blob.bytes)}, of which only the hash was kept`;
}

function isPicture(step: Step): boolean {
  const body = step.observation;
  return step.outcome === 'ok' && body !== null && 'blob' in body && body.blob.kept && /\/screenshot(\?|$)/.test(step.action);
}

function Picture({ number }: { number: number }) {
  const [source, setSource] = useState('');
  useEffect(() => {
    const controller = new AbortController();
    let made: string | null = null;
    const load = async (): Promise<void> => {
      const answer = await request(`steps/${number}/observation`, { signal: controller.signal });
      const content = new Uint8Array(await answer.arrayBuffer());
      if (controller.signal.aborted) return;
      made = pictureAddress(content);
      setSource(made ?? '');
    };
    load().catch(() => {});
    return () => {
      controller.abort();
      if (made) URL.revokeObjectURL(made);
    };
  }, [number]);
  if (!source) return null;
  const name = `Screenshot of step ${number}`;
  const enlarge = (): void => {
    openDialog(close => <Dialog title={name} className="shown" onClose={close}><img src={source} alt={name} /></Dialog>);
  };
  return <button type="button" class="picture" title="Enlarge" onClick={enlarge}><img src={source} alt={name} /></button>;
}
