// One row in full: what was asked, what came back, when, and what it did to the disk.

import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';

import { address } from '../client/api';
import { bytes, milliseconds } from '../format';
import { sandboxPage } from '../shell';
import { Badge, CopyButton, EmptyState, LinkButton, Loading, type Tone } from '../ui';
import type { Bodies, Part, Read } from './bodies';
import { type Edit, command, edited, mayWrite, printed, written } from './content';
import { askedMessages, saidMessages } from './conversation';
import { Conversation, DiffView, Folded, InlinePicture, JsonTree, Picture, ShownBody, Terminal } from './pieces';
import type { Outcome, Row } from './rows';
import type { Run } from './store';
import { type Step, failure, parentOf, state, told, tokens } from './step';

export const TONES: Record<Outcome, Tone> = { ok: 'good', failed: 'bad', refused: 'bad', running: 'busy', unknown: 'wait' };

export interface DetailProps {
  row: Row | null;
  run: Run;
  bodies: Bodies;
  /** The console's address, as seen from here. */
  base: string;
  onGo: (id: string) => void;
  /** What else is shown of a step, such as its annotations. */
  beside?: ComponentChildren;
}

export function Detail({ row, ...shared }: DetailProps) {
  if (!row) return <EmptyState icon="trajectory" title="Choose a step">The arrow keys move through the list, and f goes to the next failure.</EmptyState>;
  return (
    <>
      <header class="detail-head" data-outcome={row.outcome}>
        <h2 class="clip">{row.step && <span class="quiet">{row.step.step}</span>} {row.tool}</h2>
        <Badge tone={row.outcome === 'ok' ? 'good' : row.outcome === 'running' || row.outcome === 'unknown' ? 'wait' : 'bad'}>{chip(row)}</Badge>
      </header>
      {row.step ? <StepDetail key={row.id} step={row.step} {...shared} /> : row.network ? <Facts facts={networkFacts(row)} /> : <SessionDetail row={row} />}
    </>
  );
}

function chip(row: Row): string {
  if (!row.step) return row.note || 'recorded';
  const wrong = failure(row.step);
  return wrong ? `${state(row.step)}: ${wrong}`.slice(0, 80) : state(row.step);
}

interface Content {
  asked: Read | null;
  came: Read | null;
  change: (Edit & { whole: boolean }) | null;
}

function StepDetail({ step, run, bodies, base, onGo, beside }: Omit<DetailProps, 'row'> & { step: Step }) {
  const [content, setContent] = useState<Content | null>(null);
  useEffect(() => {
    let isCurrent = true;
    void (async () => {
      const [asked, came] = await Promise.all([bodies.read(step, 'arguments'), bodies.read(step, 'observation')]);
      const change = await changeOf(step, asked, run, bodies);
      if (isCurrent) setContent({ asked, came, change });
    })();
    return () => { isCurrent = false; };
  }, [step, run, bodies]);
  return (
    <>
      <StepFacts step={step} onGo={onGo} />
      {beside}
      {step.state && <DiskState step={step} base={base} isGone={run.state === 'ended'} />}
      {content ? (
        <>
          <BodySection step={step} part="arguments" body={content.asked} bodies={bodies} change={content.change} />
          <BodySection step={step} part="observation" body={content.came} bodies={bodies} change={null} />
          {!content.came && <p class="quiet">{step.outcome ? 'No answer.' : 'No answer yet.'}</p>}
        </>
      ) : <Loading label="Loading the step" />}
      {step.calls && step.calls.length > 0 && <Folded summary={`its ${step.calls.length} calls`}>{() => <JsonTree value={step.calls} />}</Folded>}
      {step.error && <section class="body"><div class="body-head"><h3>How it ended</h3></div><Terminal pieces={[[step.error, 'stderr']]} label="How it ended" /></section>}
    </>
  );
}

/** What a step did to a file: an edit, or a write against the last one of the same file. */
async function changeOf(step: Step, asked: Read | null, run: Run, bodies: Bodies): Promise<Content['change']> {
  if (!asked || !('json' in asked)) return null;
  const edit = edited(asked.json);
  if (edit) return { ...edit, whole: false };
  const wrote = written(step, asked.json);
  if (!wrote) return null;
  const before = await writtenBefore(step, wrote.path, run, bodies);
  return { path: wrote.path, before: before ?? '', after: wrote.content, whole: before === null };
}

async function writtenBefore(step: Step, path: string, run: Run, bodies: Bodies): Promise<string | null> {
  let earlier: Step | undefined = step;
  while ((earlier = run.step(parentOf(earlier)))) {
    if (earlier.outcome !== 'ok' || !mayWrite(earlier.action)) continue;
    const body = await bodies.read(earlier, 'arguments');
    if (!body || !('json' in body)) continue;
    const wrote = written(earlier, body.json);
    if (wrote?.path === path) return wrote.content;
    // It was changed since then, so its content is not known.
    if (edited(body.json)?.path === path) return null;
  }
  return null;
}

interface BodyProps {
  step: Step;
  part: Part;
  body: Read | null;
  bodies: Bodies;
  change: Content['change'];
}

function BodySection({ step, part, body, bodies, change }: BodyProps) {
  if (!body) return null;
  const label = part === 'arguments' ? `Arguments of step ${step.step}` : `Observation of step ${step.step}`;
  const raw = 'json' in body ? JSON.stringify(body.json, null, 2) : 'text' in body ? body.text : null;
  return (
    <section class="body" aria-label={label}>
      <div class="body-head">
        <h3>{part === 'arguments' ? 'Arguments' : 'Observation'}</h3>
        {raw !== null && <CopyButton small text={() => raw} label={`Copy: ${label}`} />}
        <LinkButton small href={address(bodies.address(step, part))} download={`step-${step.step}-${part}`} label={`Save: ${label}`}>Save</LinkButton>
      </div>
      {change && <DiffView {...change} />}
      <BodyContent step={step} part={part} body={body} label={label} hasChange={change !== null} />
    </section>
  );
}

function BodyContent({ step, part, body, label, hasChange }: { step: Step; part: Part; body: Read; label: string; hasChange: boolean }) {
  if ('why' in body) return <p class="quiet wrapped">{body.why}</p>;
  if ('picture' in body) return <Picture address={body.picture} about={`Picture of step ${step.step}, ${bytes(body.bytes)}`} />;
  if ('text' in body) return <ShownText text={body.text} label={label} />;
  const messages = step.dialect === 'model' ? (part === 'arguments' ? askedMessages(body.json) : saidMessages(body.json)) : null;
  const pieces = part === 'arguments' ? command(body.json) : null;
  const shown = pieces ? { terminal: pieces } : part === 'observation' ? printed(body.json) : null;
  if (!messages && !shown && !hasChange) return <JsonTree value={body.json} />;
  return (
    <>
      {messages ? <Conversation messages={messages} last={part === 'arguments'} /> : shown && <ShownBody shown={shown} label={label} />}
      <Folded summary="as recorded">{() => <JsonTree value={body.json} />}</Folded>
    </>
  );
}

function ShownText({ text, label }: { text: string; label: string }) {
  const shown = printed({ data: text });
  return shown && 'picture' in shown ? <InlinePicture text={text} about={label} /> : <Terminal pieces={[[text, 'output']]} label={label} />;
}

type Fact = readonly [name: string, value: string | null | undefined, title?: string];

function Facts({ facts }: { facts: readonly Fact[] }) {
  return <dl class="step-facts">{facts.filter(([, value]) => value).map(([name, value, title], n) => <div key={n}><dt>{name}</dt><dd title={title}>{value}</dd></div>)}</dl>;
}

function clock(at: string): string {
  return new Date(at).toLocaleTimeString(undefined, { hour12: false, hour: '2-digit', minute: '2-digit', second: '2-digit', fractionalSecondDigits: 3 });
}

function StepFacts({ step, onGo }: { step: Step; onGo: (id: string) => void }) {
  const { work, model } = step;
  const waited = work ? Date.parse(step.started_at) - Date.parse(work.queued_at) : 0;
  const parent = parentOf(step);
  const main: Fact[] = [
    ['started', clock(step.started_at), step.started_at],
    ['took', step.duration_ms === null ? '' : milliseconds(step.duration_ms)],
    ['result', told(step)],
    ['fault', step.class],
    ['caused by', step.origin],
    ['model', model?.model],
    ['tokens', model && tokens(model), model?.cached_tokens ? `${model.cached_tokens} from the cache` : ''],
    ['cost', model && model.cost_usd !== null ? `$${model.cost_usd.toPrecision(3)}` : ''],
    ['first token', model && model.first_token_ms !== null ? milliseconds(model.first_token_ms) : ''],
    ['finished by', model?.finish_reason],
  ];
  const more: Fact[] = [
    ['action', step.action],
    ['status', step.status === null ? '' : String(step.status)],
    ['dialect', step.dialect],
    ['ended', step.ended_at && clock(step.ended_at), step.ended_at ?? ''],
    ['asked', work && clock(work.queued_at), work?.queued_at],
    ['waited', waited >= 1 ? milliseconds(waited) : ''],
    ['worker', work?.worker],
    ['task', work?.task],
    ['sandbox', work?.sandbox ?? step.sandbox_name],
    ['tokens', work?.tokens === undefined ? '' : JSON.stringify(work.tokens)],
    ['route', model?.route],
    ['trace', work?.trace_id],
    ['client', step.client],
    ['bytes', `${bytes(step.bytes_in)} in, ${bytes(step.bytes_out)} out`],
  ];
  return (
    <>
      <Facts facts={main} />
      {parent !== step.step - 1 && <p>Continues {parent === 0 ? 'the start' : <a href={`#step-${parent}`} onClick={event => { event.preventDefault(); onGo(`step-${parent}`); }}>step {parent}</a>}.</p>}
      <Folded summary="More facts">{() => <Facts facts={more} />}</Folded>
    </>
  );
}

/** The disk before and after. The console rolls back to these states, and forks from them. */
function DiskState({ step, base, isGone }: { step: Step; base: string; isGone: boolean }) {
  const { before, after, changed, hash } = step.state!;
  return (
    <section class="disk" aria-label={`Disk around step ${step.step}`}>
      <span><Badge tone={changed ? 'accent' : 'none'}>{changed ? 'changed the disk' : 'disk unchanged'}</Badge></span>
      <span>checkpoint <b>#{before}</b> before, <b>#{after}</b> after</span>
      {hash && <span class="mono clip" title={`Hash of the content after the step: ${hash}`}>{hash.slice(0, 16)}…</span>}
      {!isGone && <LinkButton small icon="bookmark" href={`${base}${sandboxPage(step.sandbox_name)}`} label={`Checkpoints of ${step.sandbox_name}: roll back or fork in the console`}>Roll back or fork</LinkButton>}
    </section>
  );
}

function networkFacts({ network }: Row): Fact[] {
  const record = network!;
  return [
    ['decision', record.allowed ? 'allowed' : 'refused'], ['at', clock(record.at), record.at], ['name', record.name], ['address', record.address], ['port', record.port > 0 ? String(record.port) : ''],
    ['protocol', record.protocol], ['request', record.method ? `${record.method} ${record.path ?? ''}` : ''], ['rule', record.rule], ['reason', record.reason.replaceAll('_', ' ')],
    ['times', record.count > 1 ? String(record.count) : ''], ['lasted', record.allowed ? milliseconds(record.duration_ms) : ''],
    ['bytes', record.allowed ? `${bytes(record.bytes_sent)} sent, ${bytes(record.bytes_received)} received` : ''], ['after step', String(record.after ?? 0)],
  ];
}

function SessionDetail({ row }: { row: Row }) {
  const session = row.session!;
  return (
    <>
      <Facts facts={[['session', session.id], ['kind', session.resource_type], ['event', session.event], ['at', clock(session.at), session.at], ['sandbox', session.sandbox], ['after step', String(session.after ?? 0)]]} />
      {session.config !== undefined && session.config !== null && <section class="body"><div class="body-head"><h3>Configuration</h3></div><JsonTree value={session.config} /></section>}
    </>
  );
}
