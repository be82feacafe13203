// The states of a sandbox's disk as a line: its beginning, its checkpoints, and now. One can return to each, or fork from it.

import { useState } from 'preact/hooks';

import { type Schemas, all, api } from '../../client/api';
import { ApiError } from '../../client/errors';
import { useResource } from '../../client/resource';
import { bytes } from '../../format';
import { type Rights, go, sandboxPage } from '../../shell';
import { Badge, Button, FormDialog, TextField, Time, confirm, fieldState, notify, openDialog, useFields } from '../../ui';

type Checkpoint = Schemas['CheckpointInfo'];
type Differences = Schemas['Differences'];

/** Changed paths that are shown of one comparison. */
const MOST_PATHS = 200;
/** Checkpoints that are shown, the newest; others are in the API. */
const MOST_CHECKPOINTS = 200;
const SIGNS: Record<string, string> = { added: '+', removed: '−', modified: '~', attributes: 'a' };

export function HistorySection({ name, rights }: { name: string; rights: Rights }) {
  const { data, reload } = useResource(`history ${name}`, async signal => {
    try {
      const { head } = await api.get('/api/v2/sandboxes/{name}/history', { path: { name }, query: { limit: 1 }, signal });
      return { head: head ?? null, checkpoints: await all('/api/v2/sandboxes/{name}/history', 'checkpoints', { path: { name }, signal }) };
    } catch (error) {
      // The server can't seal disks, or the sandbox is gone.
      if (error instanceof ApiError) return null;
      throw error;
    }
  });
  if (!data) return null;
  const { head, checkpoints } = data;
  const shown = checkpoints.slice(-MOST_CHECKPOINTS);
  const numbers = new Map(checkpoints.map(one => [one.id, String(one.number)]));
  const numberOf = (id: string | null | undefined): string => (id ? numbers.get(id) ?? id : 'beginning');
  const manages = rights.may('manage');
  const left = checkpoints.length - shown.length;
  const shared = { name, manages, reload };
  return (
    <section class="panel history" aria-label="Checkpoints">
      <div class="panel-head"><h2>Checkpoints</h2>{manages && <Button small onPress={() => openTake(name, reload)}>Take a checkpoint</Button>}</div>
      <ol>
        <Item {...shared} state="beginning" label="Beginning" facts="as it was created" isHead={head === null} before={null} />
        {left > 0 && <li class="quiet">{left} more</li>}
        {shown.map(one => <Item {...shared} key={one.id} state={String(one.number)} label={`#${one.number}`} checkpoint={one} isHead={one.id === head} before={numberOf(one.parent)} />)}
        <Item {...shared} state="current" label="Now" isHead={false} before={numberOf(head)} />
      </ol>
    </section>
  );
}

interface ItemProps {
  name: string;
  manages: boolean;
  reload: () => Promise<void>;
  state: string;
  label: string;
  facts?: string;
  checkpoint?: Checkpoint;
  isHead: boolean;
  /** The state that its changes are compared with. */
  before: string | null;
}

function Item({ name, manages, reload, state, label, facts, checkpoint, isHead, before }: ItemProps) {
  const [changes, setChanges] = useState<Differences | null>(null);
  const compare = async (): Promise<void> => {
    setChanges(changes ? null : await api.get('/api/v2/sandboxes/{name}/diff', { path: { name }, query: { before: before ?? undefined, after: state, limit: MOST_PATHS } as never }));
  };
  const rollBack = async (): Promise<void> => {
    const yes = await confirm({
      title: `Roll ${name} back to ${label}?`, yes: 'Roll back',
      text: 'This ends its processes, and starts its main command again. Later checkpoints stay, so it can be taken back; changes since the last one are lost.',
    });
    if (!yes) return;
    const { ended } = await api.post('/api/v2/sandboxes/{name}/rollback', { path: { name }, body: { to: state } as Schemas['RollBack'] }) as { ended?: string[] };
    notify(`Rolled back to ${label}.${ended && ended.length > 0 ? ` Ended: ${[...new Set(ended)].join(', ')}.` : ''}`);
    await reload();
  };
  const fork = async (): Promise<void> => {
    const { sandboxes } = await api.post('/api/v2/sandboxes/{name}/fork', { path: { name }, body: { from_checkpoint: state } as Schemas['ForkSandbox'] }) as { sandboxes: { name: string }[] };
    const made = sandboxes[0]?.name;
    if (made) go(sandboxPage(made));
  };
  const { disk_bytes, auto, hash, note, created_at } = checkpoint ?? {};
  const parts = [disk_bytes === undefined || disk_bytes === null ? '' : bytes(disk_bytes), auto ? 'auto' : '', hash ? hash.slice(0, 12) : '', note ?? ''].filter(Boolean).join(', ');
  return (
    <li aria-current={isHead ? 'step' : undefined}>
      <b>{label}</b>
      <span class="quiet grow">{created_at && <><Time at={created_at} />{parts && ', '}</>}{parts || facts}</span>
      {isHead && <Badge tone="good">the disk comes from here</Badge>}
      <span class="row">
        {before !== null && <Button small kind="plain" label={`Changes of ${label === 'Now' ? 'the disk as it is' : label}`} onPress={compare}>Changes</Button>}
        {state !== 'current' && manages && <Button small kind="plain" label={`Roll back to ${label}`} onPress={rollBack}>Roll back</Button>}
        {state !== 'current' && state !== 'beginning' && manages && <Button small kind="plain" label={`Fork from ${label}`} onPress={fork}>Fork</Button>}
      </span>
      {changes && <Changes {...changes} />}
    </li>
  );
}

function Changes({ paths, truncated }: Differences) {
  return (
    <div class="changes">
      {paths.length === 0 ? <p class="quiet">Nothing differs.</p> : (
        <ul tabIndex={0} aria-label="Changed paths">{paths.map(({ path, change, kind, size }) => (
          <li key={path} title={change}><span class="mono" aria-label={change}>{SIGNS[change] ?? change}</span> <code>{path}</code> <span class="quiet">{kind === 'file' && change !== 'removed' ? bytes(size) : kind === 'directory' ? 'directory' : ''}</span></li>
        ))}</ul>
      )}
      {truncated && <p class="quiet">There are more.</p>}
    </div>
  );
}

function openTake(name: string, reload: () => Promise<void>): void {
  openDialog(close => <TakeCheckpoint name={name} reload={reload} close={close} />);
}

function TakeCheckpoint({ name, reload, close }: { name: string; reload: () => Promise<void>; close: () => void }) {
  const note = useFields(() => fieldState());
  const submit = async (): Promise<void> => {
    const taken = await api.post('/api/v2/sandboxes/{name}/checkpoints', { path: { name }, body: { note: note.value.value.trim() || null } as Schemas['NewCheckpoint'] });
    notify(`Took checkpoint #${taken.number}.`);
    await reload();
  };
  return <FormDialog title={`Take a checkpoint of ${name}`} submitText="Take it" onSubmit={submit} onClose={close}><TextField label="Note" state={note} maxLength={1000} note="What this state is; it may be empty" autofocus /></FormDialog>;
}
