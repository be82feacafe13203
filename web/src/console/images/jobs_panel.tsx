// Pulls and builds: how far they are, what builds print, and how they ended. Also the pulls of others.

import { useLayoutEffect, useRef } from 'preact/hooks';

import { all } from '../../client/api';
import { useResource } from '../../client/resource';
import { bytes, duration } from '../../format';
import { plain } from '../../log';
import { Button, IconButton, Meter, Problem, State, type Tone, now } from '../../ui';
import { imagePage } from './addresses';
import { type Job, type JobState, type PullProgress, cancel, dismiss, isActive, jobs, retry } from './jobs';

const PERIOD = 2000;
/** How long the server may need to end a pull that was cancelled, in milliseconds. */
const ENDING = 5000;

const TEXTS: Record<JobState, { text: string; tone: Tone }> = {
  sending: { text: 'starting', tone: 'busy' }, running: { text: 'running', tone: 'busy' }, done: { text: 'done', tone: 'good' },
  failed: { text: 'failed', tone: 'bad' }, cancelled: { text: 'cancelled', tone: 'none' }, lost: { text: 'connection lost', tone: 'bad' },
};

const ENDS: Partial<Record<`${Job['kind']} ${JobState}`, string>> = {
  'pull cancelled': 'The pull goes on if others wait for it. What was downloaded is kept for the next try.',
  'build cancelled': 'The server stops the step. Steps that ended are kept for the next build.',
  'pull lost': 'The connection to the server ended before the pull did, so its result is not known here. What was downloaded is kept for the next try.',
  'build lost': 'The connection to the server ended before the build did, so its result is not known here. The server stops a build when its client is gone.',
};

export function JobsPanel() {
  const own = jobs.value;
  const { data } = useResource('pulls', async signal => ({ at: Date.now(), pulls: await all('/api/v2/images/pulls', 'pulls', { signal }) }), PERIOD);
  const isMine = (job: Job): boolean => isActive(job) || (job.endedAt ?? 0) + ENDING >= (data?.at ?? 0);
  const mine = new Set(own.filter(isMine).flatMap(job => (job.pull ? [job.pull.image] : [])));
  // A pull of this page has no whole reference before its first event.
  const starting = own.some(job => isActive(job) && job.kind === 'pull' && !job.pull);
  const others = starting ? [] : (data?.pulls ?? []).filter(one => !mine.has(one.image));
  if (own.length === 0 && others.length === 0) return null;
  return (
    <section class="panel" aria-label="Pulls and builds">
      <div class="panel-head"><h2>Pulls and builds</h2></div>
      <ul class="jobs">
        {own.map(job => <JobItem key={job.id} job={job} />)}
        {others.map(one => <li key={one.image} aria-label={`Pull of ${one.image}`}><div class="row"><State name="running" tone="busy" text="pull" /><b class="clip grow">{one.image}</b><span class="quiet">started elsewhere</span></div><PullMeter progress={one} rate={null} /></li>)}
      </ul>
    </section>
  );
}

function JobItem({ job }: { job: Job }) {
  const { id, kind, image, state, error } = job;
  const isOn = isActive(job);
  void now.value;
  const took = duration(((job.endedAt ?? Date.now()) - job.startedAt) / 1000);
  const what = kind === 'pull' ? 'pull' : 'build';
  const end = ENDS[`${kind} ${state}`];
  const size = job.image_bytes === null ? '' : `${bytes(job.image_bytes)}, `;
  return (
    <li aria-label={`${what === 'pull' ? 'Pull' : 'Build'} of ${image}`}>
      <div class="row">
        <State name={state} tone={TEXTS[state].tone} text={`${what} ${TEXTS[state].text}`} />
        <b class="clip grow">{state === 'done' ? <a class="title" href={imagePage(image)}>{image}</a> : image}</b>
        <span class="quiet">{size}{isOn ? took : `after ${took}`}</span>
        {isOn ? <Button small label={`Cancel the ${what} of ${image}`} onPress={() => cancel(id)}>Cancel</Button> : (
          <>
            {state !== 'done' && <Button small icon="refresh" label={`Try again: the ${what} of ${image}`} onPress={() => retry(id)}>Try again</Button>}
            <IconButton small kind="plain" icon="close" label={`Dismiss the ${what} of ${image}`} title="Dismiss" onPress={() => dismiss(id)} />
          </>
        )}
      </div>
      {isOn && <JobMeter job={job} />}
      {end && <p class="quiet">{end}</p>}
      <Problem error={error} />
      {kind === 'build' && job.log && <LogText text={job.log} cut={job.cut} image={image} />}
    </li>
  );
}

function JobMeter({ job }: { job: Job }) {
  if (job.pull) return <PullMeter progress={job.pull} rate={job.rate} />;
  if (job.state === 'sending') return <p class="quiet" role="status">{job.kind === 'build' ? `Sending the context: ${bytes(job.sent)}` : 'Waiting for the server'}</p>;
  if (job.kind === 'pull') return <p class="quiet" role="status">Waiting for the registry</p>;
  if (job.steps === 0) return <p class="quiet" role="status">Reading the Dockerfile</p>;
  return <Meter share={(job.step - 1) / job.steps} busy label={`Steps of ${job.image}`}>Step {job.step} of {job.steps}<small class="quiet mono clip"> {job.text}</small></Meter>;
}

/** What a pull does, in bytes. The number of bytes is known with the image. */
export function pullText({ state, bytes: most, bytes_done: done, layers, layers_done }: PullProgress, rate: number | null): string {
  if (state === 'queued') return 'Waiting for other pulls';
  if (state === 'resolving' || layers === 0) return 'Asking the registry';
  const left = rate && rate > 0 && most > done ? `, ${duration((most - done) / rate)} left` : '';
  const sizes = `${bytes(done)} of ${bytes(most)}${rate && rate > 0 && state === 'downloading' ? `, ${bytes(Math.round(rate))} a second${left}` : ''}`;
  return `${state === 'unpacking' ? 'Unpacking' : 'Downloading'}: ${sizes}; ${layers_done} of ${layers} layers are here`;
}

function PullMeter({ progress, rate }: { progress: PullProgress; rate: number | null }) {
  const share = progress.bytes > 0 ? progress.bytes_done / progress.bytes : 0;
  return <Meter share={share} busy label={`Download of ${progress.image}`}>{pullText(progress, rate)}</Meter>;
}

function LogText({ text, cut, image }: { text: string; cut: boolean; image: string }) {
  const pre = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    if (pre.current && atEnd.current) pre.current.scrollTop = pre.current.scrollHeight;
  }, [text]);
  const scrolled = (): void => {
    const node = pre.current;
    if (node) atEnd.current = node.scrollTop + node.clientHeight >= node.scrollHeight - 4;
  };
  return (
    <>
      {cut && <p class="quiet">Only the end is shown.</p>}
      <div class="code wrap"><pre ref={pre} class="log" role="log" aria-label={`Output of the build of ${image}`} tabIndex={0} onScroll={scrolled}>{plain(text)}</pre></div>
    </>
  );
}
