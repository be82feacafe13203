// The steps of one sandbox in a dialog: the newest first, live, and back to the first.

import { useEffect, useRef, useState } from 'preact/hooks';

import { address, api } from '../client/api';
import { plural } from '../quantities';
import { Feed, type Step, StepList } from '../steps';
import { Button, Dialog, LinkButton, failed, openDialog } from '../ui';

const PAGE = 100;
/** Beyond it the oldest leave the list; the export has all. */
const MOST = 2000;

/** `id`: of the trajectory, which is that of its sandbox. */
export function openSteps(name: string, id: string): void {
  openDialog(close => <StepsDialog name={name} id={id} close={close} />);
}

function StepsDialog({ name, id, close }: { name: string; id: string; close: () => void }) {
  const box = useRef<HTMLOListElement>(null);
  const list = useRef<StepList | null>(null);
  const [live, setLive] = useState('');
  const [size, setSize] = useState(0);
  const [hasOlder, setHasOlder] = useState(false);
  const base = address(`/api/v1/trajectories/${encodeURIComponent(id)}`);
  const bounds = (): void => {
    const steps = list.current;
    if (!steps) return;
    setSize(steps.size);
    setHasOlder(steps.size > 0 && steps.oldest > 1 && steps.size < MOST);
  };
  useEffect(() => {
    const steps = new StepList(box.current!, `${base}/steps/`, MOST);
    list.current = steps;
    const began = Date.now();
    const feed = new Feed(`${base}/steps?follow=true&tail=${PAGE}`, step => {
      steps.put(step, Date.parse(step.started_at) >= began);
      bounds();
    }, (state, why) => setLive(state === 'live' ? 'live' : why));
    return () => feed.close();
  }, [base]);
  const older = async (): Promise<void> => {
    const steps = list.current;
    if (!steps) return;
    const before = steps.oldest;
    try {
      const page = await api.get('/api/v1/trajectories/{id}/steps', { path: { id }, query: { after: Math.max(0, before - 1 - PAGE), limit: Math.min(PAGE, before - 1) } });
      for (const step of page.steps) steps.put(step as unknown as Step, false);
      bounds();
    } catch (error) {
      failed(error);
    }
  };
  return (
    <Dialog title={`Steps of ${name}`} id="steps" className="wide" onClose={close} foot={<>
      <span class="quiet grow" role="status">{live}{size > 0 && `, ${plural(size, 'step')}`}</span>
      <LinkButton href={address(`/trajectory/${encodeURIComponent(id)}`)} icon="external">Open as a page</LinkButton>
      <LinkButton href={`${base}?format=jsonl&bodies=inline`} download={`${name}-${id}.jsonl`}>Export as JSON lines</LinkButton>
    </>}>
      <ol ref={box} class="steps" />
      {size === 0 && live === 'live' && <p class="quiet">No steps yet.</p>}
      {hasOlder && <div><Button onPress={older}>Show older ones</Button></div>}
    </Dialog>
  );
}
