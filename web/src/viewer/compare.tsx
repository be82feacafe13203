// Two runs side by side, aligned by step.

import { useEffect, useMemo, useState } from 'preact/hooks';

import { milliseconds } from '../format';
import { useShortcut } from '../shell';
import { plural } from '../quantities';
import { Badge, Button, EmptyState, IconButton, LinkButton, Loading, SearchField, Dialog } from '../ui';
import { useResource } from '../client/resource';
import { address, all } from '../client/api';
import { type Difference, type Pair, align, bodyAsText, nextDifference } from './align';
import type { Bodies, Part, Read } from './bodies';
import { plain, printed } from './content';
import { DiffView } from './pieces';
import { nameOf } from './names';
import { MOST, type Run } from './store';
import { type Step, failure, state, subject, title } from './step';
import { VirtualList } from './virtual';

const MARKS: Record<Difference, string> = { same: '=', arguments: '≠', result: '≠', observation: '≈', left: '−', right: '+' };
const PAIR_HEIGHT = 46;

export interface CompareProps {
  left: Run;
  right: Run;
  leftBodies: Bodies;
  rightBodies: Bodies;
  version: number;
  chosen: string;
  onChoose: (id: string) => void;
  onClose: () => void;
}

function isWhole(run: Run): boolean {
  return run.state === 'gone' || (!run.reading && run.size > 0 && (run.steps[0]?.step === 1 || run.size >= MOST)) || (run.state !== 'loading' && run.summary?.steps === 0);
}

export function Compare({ left, right, leftBodies, rightBodies, version, chosen, onChoose, onClose }: CompareProps) {
  const ready = isWhole(left) && isWhole(right);
  const pairs = useMemo(() => (ready ? align(left.steps, right.steps) : []), [version, ready, left, right]);
  const first = nextDifference(pairs, 0);
  const at = pairs.findIndex(pair => pair.id === chosen);
  const pair = pairs[at];
  const count = pairs.reduce((sum, { difference }) => sum + (difference === 'same' ? 0 : 1), 0);
  useEffect(() => { if (ready && at < 0 && first >= 0) onChoose(pairs[first]!.id); }, [ready, first]);
  const go = (ways: 1 | -1): void => {
    const found = ways > 0 ? nextDifference(pairs, at + 1) : pairs.findLastIndex((one, n) => n < at && one.difference !== 'same');
    if (found >= 0) onChoose(pairs[found]!.id);
  };
  useShortcut('f', 'Next difference', 'Comparison', () => go(1));
  useShortcut('F', 'Previous difference', 'Comparison', () => go(-1));
  if (right.state === 'gone') return <section class="panel"><EmptyState icon="alert" title="The other run can't be read" actions={<Button onPress={onClose}>End the comparison</Button>}>{right.reason}</EmptyState></section>;
  return (
    <section class="compare" aria-label="Comparison">
      <div class="compare-head">
        <span class="clip"><small class="quiet">First</small> <b>{nameOf(left)}</b> <small class="quiet mono">{left.id}</small></span>
        <span class="clip"><small class="quiet">Second</small> <b>{nameOf(right)}</b> <small class="quiet mono">{right.id}</small></span>
        <LinkButton small icon="external" href={address(`/trajectory/${encodeURIComponent(right.id)}`)}>Open</LinkButton>
        <IconButton small kind="plain" icon="close" label="End the comparison" onPress={onClose} />
      </div>
      {!ready ? <Loading label="Loading both runs" /> : (
        <>
          <div class="divergence" role="status" data-same={first < 0 ? '' : undefined}>
            {first < 0 ? <span>Both runs are equal: {plural(pairs.length, 'step')}.</span> : (
              <>
                <span><b>First difference at {placeOf(pairs[first]!)}</b>: {describe(pairs[first]!)}. {plural(count, 'difference')} in {plural(pairs.length, 'step')}.</span>
                <span class="grow" />
                <Button small onPress={() => onChoose(pairs[first]!.id)}>Go to the first</Button>
                <IconButton small kind="plain" icon="down" className="up" label="Previous difference" onPress={() => go(-1)} />
                <IconButton small kind="plain" icon="down" label="Next difference" onPress={() => go(1)} />
              </>
            )}
          </div>
          <div class="compare-body">
            <VirtualList label="Steps of both runs" rows={pairs} height={PAIR_HEIGHT} rowKey={one => one.id} chosen={chosen} onChoose={one => onChoose(one.id)}
              attributes={one => ({ 'data-id': one.id, 'data-difference': one.difference, 'data-first': one === pairs[first] ? '' : undefined })}>
              {one => <PairRow pair={one} />}
            </VirtualList>
            <div class="pane" tabIndex={0} role="group" aria-label="Difference">{pair ? <PairDetail key={pair.id} pair={pair} leftBodies={leftBodies} rightBodies={rightBodies} /> : <EmptyState icon="compare" title="Choose a pair" />}</div>
          </div>
        </>
      )}
    </section>
  );
}

function placeOf({ left, right }: Pair): string {
  return left && right ? (left.step === right.step ? `step ${left.step}` : `step ${left.step} and ${right.step}`) : `step ${(left ?? right)!.step}`;
}

function describe({ left, right, note }: Pair): string {
  const one = (left ?? right)!;
  return left && right ? `${title(one.action)}, ${note}` : `${title(one.action)} is ${note}`;
}

function Side({ step }: { step: Step | null }) {
  if (!step) return <span class="side missing" aria-hidden="true" />;
  const wrong = failure(step);
  return (
    <span class="side">
      <span class="clip"><small>{step.step}</small>{step.model ? step.model.model : title(step.action)}</span>
      <span class="took">{(wrong || step.outcome !== 'ok') && <b>{(wrong || state(step)).slice(0, 30)}</b>} {step.duration_ms === null ? '' : milliseconds(step.duration_ms)}</span>
      <span class="about clip">{subject(step)}</span>
    </span>
  );
}

function PairRow({ pair }: { pair: Pair }) {
  return <><Side step={pair.left} /><span class="mark" title={pair.note}><span aria-hidden="true">{MARKS[pair.difference]}</span><span class="unseen">{pair.note ? `differs: ${pair.note}` : 'equal'}</span></span><Side step={pair.right} /></>;
}

function PairDetail({ pair, leftBodies, rightBodies }: { pair: Pair; leftBodies: Bodies; rightBodies: Bodies }) {
  return (
    <>
      <header class="detail-head"><h2 class="clip">{placeOf(pair)}: {title((pair.left ?? pair.right)!.action)}</h2><Badge tone={pair.difference === 'same' ? 'good' : 'bad'}>{pair.note || 'equal'}</Badge></header>
      {(['arguments', 'observation'] as const).map(part => <PartDifference key={part} pair={pair} part={part} leftBodies={leftBodies} rightBodies={rightBodies} />)}
    </>
  );
}

function readText(read: Read | null): string {
  if (!read) return '';
  if ('json' in read) {
    const shown = printed(read.json);
    return shown && 'terminal' in shown ? shown.terminal.map(([text]) => plain(text)).join('\n') : bodyAsText(read);
  }
  return 'text' in read ? read.text : 'picture' in read ? `a picture of ${read.bytes} bytes` : read.why;
}

function PartDifference({ pair, part, leftBodies, rightBodies }: { pair: Pair; part: Part; leftBodies: Bodies; rightBodies: Bodies }) {
  const [texts, setTexts] = useState<[string, string] | null>(null);
  useEffect(() => {
    let isCurrent = true;
    void Promise.all([pair.left ? leftBodies.read(pair.left, part) : null, pair.right ? rightBodies.read(pair.right, part) : null]).then(([a, b]) => { if (isCurrent) setTexts([readText(a), readText(b)]); });
    return () => { isCurrent = false; };
  }, [pair, part]);
  if (!texts || (!texts[0] && !texts[1])) return null;
  const name = part === 'arguments' ? 'Arguments' : 'Observation';
  return <section class="body"><div class="body-head"><h3>{name}</h3><span class="quiet">{texts[0] === texts[1] ? 'equal' : '− first, + second'}</span></div>{texts[0] !== texts[1] && <DiffView path={name} before={lined(texts[0])} after={lined(texts[1])} />}</section>;
}

/** Lines within texts of JSON are lines here, too. */
function lined(text: string): string {
  return text.replaceAll('\\n', '\n');
}

/** Chooses the run to compare with. */
export function ChooseRun({ run, onChoose, close }: { run: Run; onChoose: (id: string) => void; close: () => void }) {
  const [text, setText] = useState('');
  const list = useResource('runs', signal => all('/api/v1/trajectories', 'trajectories', { signal, most: 2000 }));
  const others = (list.data ?? []).filter(one => one.trajectory !== run.id && `${one.worker ?? ''} ${one.sandbox_name} ${one.task ?? ''} ${one.trajectory}`.toLowerCase().includes(text.toLowerCase()));
  // Runs of the same task or sandbox are first.
  const rank = (one: (typeof others)[number]): number => (run.summary?.task && one.task === run.summary.task ? 2 : 0) + (one.sandbox_name && one.sandbox_name === run.summary?.sandbox_name ? 1 : 0);
  others.sort((a, b) => rank(b) - rank(a) || b.last_at.localeCompare(a.last_at));
  return (
    <Dialog title="Compare with another run" onClose={close}>
      <SearchField label="Search runs" value={text} onInput={setText} placeholder="Name, task or id" />
      {!list.data ? <Loading /> : others.length === 0 ? <p class="quiet">No other run matches.</p> : (
        <ul class="choices" aria-label="Runs">{others.slice(0, 50).map(one => (
          <li key={one.trajectory}><button type="button" onClick={() => { close(); onChoose(one.trajectory); }}><b class="clip">{one.worker ?? (one.sandbox_name || one.trajectory)}</b><span class="quiet clip">{[one.task, plural(one.steps, 'step'), one.trajectory].filter(Boolean).join(', ')}</span></button></li>
        ))}</ul>
      )}
    </Dialog>
  );
}
