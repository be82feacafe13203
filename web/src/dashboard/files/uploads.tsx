// Uploads: one after the other, each with its bytes, and a button that stops it.

import { signal } from '@preact/signals';

import { isAbort } from '../../client/errors';
import { bytes } from '../../format';
import { Button, IconButton, confirm } from '../../ui';
import { type Progress, join, upload } from './calls';

interface Upload extends Progress {
  id: number;
  name: string;
  state: 'waiting' | 'sending' | 'done' | 'stopped' | 'failed';
  error: string;
  controller: AbortController;
}

const uploads = signal<readonly Upload[]>([]);
let numbered = 0;
let last: Promise<unknown> = Promise.resolve();

function change(id: number, part: Partial<Upload>): void {
  uploads.value = uploads.value.map(one => (one.id === id ? { ...one, ...part } : one));
}

/** Files of a drop. Folders are left out, since browsers give them no content. */
export function dropped(transfer: DataTransfer | null): { files: File[]; folders: number } {
  const files: File[] = [];
  let folders = 0;
  for (const item of transfer?.items ?? []) {
    if (item.kind !== 'file') continue;
    if (item.webkitGetAsEntry?.()?.isDirectory) folders += 1;
    else {
      const file = item.getAsFile();
      if (file) files.push(file);
    }
  }
  return { files, folders };
}

/** Uploads files to a folder, after a question if some of them would be replaced. `present`: the names in the folder. */
export async function uploadAll(directory: string, files: readonly File[], present: ReadonlySet<string>, done: () => void): Promise<void> {
  const replaced = files.filter(file => present.has(file.name)).map(file => file.name);
  if (replaced.length > 0 && !await confirm({
    title: replaced.length === 1 ? `Replace ${replaced[0]}?` : `Replace ${replaced.length} files?`,
    text: replaced.length === 1 ? 'There is a file with this name already.' : `There are files with these names already: ${replaced.slice(0, 10).join(', ')}${replaced.length > 10 ? ', …' : ''}.`,
    yes: 'Replace', no: 'Keep them',
  })) return;
  const added = files.map((file): Upload => ({ id: ++numbered, name: file.name, sent: 0, total: file.size, state: 'waiting', error: '', controller: new AbortController() }));
  uploads.value = [...uploads.value.filter(one => one.state !== 'done'), ...added];
  const work = last.then(async () => {
    for (const [n, { id, controller }] of added.entries()) {
      const file = files[n];
      if (!file || controller.signal.aborted) continue;
      change(id, { state: 'sending' });
      try {
        await upload(join(directory, file.name), file, progress => change(id, progress), controller.signal);
        change(id, { state: 'done', sent: file.size });
        done();
      } catch (error) {
        change(id, isAbort(error) ? { state: 'stopped' } : { state: 'failed', error: (error as Error).message });
      }
    }
  });
  last = work;
  await work;
}

function text({ state, sent, total, error }: Upload): string {
  switch (state) {
    case 'waiting': return `${bytes(total)}, waiting`;
    case 'sending': return sent >= total ? `${bytes(total)}, being written` : `${bytes(sent)} of ${bytes(total)}`;
    case 'done': return `${bytes(total)}, uploaded`;
    case 'stopped': return 'stopped';
    case 'failed': return error;
  }
}

export function Uploads() {
  const all = uploads.value;
  if (all.length === 0) return null;
  const left = all.filter(one => one.state === 'waiting' || one.state === 'sending').length;
  const failures = all.filter(one => one.state === 'failed').length;
  const stop = (id: number): void => {
    const one = uploads.value.find(other => other.id === id);
    one?.controller.abort();
    if (one?.state === 'waiting') change(id, { state: 'stopped' });
  };
  return (
    <section class="uploads" aria-label="Uploads">
      <div class="row">
        <b role="status">{left > 0 ? `Uploading ${left} ${left === 1 ? 'file' : 'files'}` : failures > 0 ? `${failures} of ${all.length} not uploaded` : 'Uploaded'}</b>
        <span class="grow" />
        {left === 0 && <Button small kind="plain" onPress={() => { uploads.value = []; }}>Clear</Button>}
      </div>
      <ul>{all.map(one => (
        <li key={one.id} data-state={one.state}>
          <span class="clip">{one.name}</span>
          <span class={one.state === 'failed' ? 'bad' : 'quiet'}>{text(one)}</span>
          {(one.state === 'waiting' || one.state === 'sending') && <IconButton small kind="plain" icon="close" label={`Stop the upload of ${one.name}`} onPress={() => stop(one.id)} />}
          {one.state === 'sending' && <progress max={Math.max(1, one.total)} value={one.sent} aria-label={`Upload of ${one.name}`} />}
        </li>
      ))}</ul>
    </section>
  );
}
