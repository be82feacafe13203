// Snapshots: named states of disks, from which sandboxes are created.

import { call, entries } from '../api';
import { age, byId, bytes, make } from '../dom';
import { Message, ask, button, workButton } from '../forms';
import type { Rights } from '../rights';
import { type Sandbox, sandboxPage } from '../sandbox_list';
import { Table } from '../table';
import type { View } from '../view';
import { SnapshotFiles } from './snapshot_files';

interface Snapshot {
  name: string;
  sandbox: string;
  image: string;
  tier: string;
  labels: Record<string, string>;
  note: string | null;
  disk_bytes: number | null;
  created_at: string;
  node: string | null;
}

export class SnapshotsPage implements View {
  readonly box = byId('page-snapshots');
  readonly title = 'Snapshots';
  private readonly message = new Message();
  private readonly table: Table<Snapshot>;

  constructor(rights: Rights) {
    const manages = rights.may('manage');
    this.table = new Table<Snapshot>('Snapshots', [
      { title: 'Name', className: 'name', cell: snapshot => make('b', { textContent: snapshot.name }) },
      { title: 'Of', cell: snapshot => snapshot.sandbox },
      { title: 'Image', cell: snapshot => make('code', { textContent: snapshot.image }) },
      { title: 'Disk', number: true, cell: snapshot => snapshot.disk_bytes === null ? '–' : bytes(snapshot.disk_bytes) },
      { title: 'Age', number: true, cell: snapshot => age(snapshot.created_at), tip: snapshot => snapshot.created_at },
      { title: 'Note', cell: snapshot => [snapshot.note ?? '', ...Object.entries(snapshot.labels).map(([key, value]) => `${key}=${value}`)].filter(Boolean).join(', ') },
      ...(rights.may('use') ? [{ title: '', cell: (snapshot: Snapshot) => this.actions(snapshot, manages) }] : []),
    ], 'There are no snapshots. Seal the disk of a sandbox with: arenite snapshot create SANDBOX NAME');
    this.box.replaceChildren(make('section', {}, make('div', { className: 'head' }, make('h2', { textContent: 'Snapshots', tabIndex: -1 })), this.message.box, this.table.box));
  }

  open(): void {
    this.message.say('');
    void this.read();
  }

  close(): void { /* Nothing is read by itself. */ }

  private async read(): Promise<void> {
    try {
      this.table.show(await entries<Snapshot>('api/v2/snapshots', 'snapshots'));
    } catch (error) {
      this.message.fail(error as Error);
    }
  }

  private actions({ name }: Snapshot, manages: boolean): Node {
    const files = button('Files', () => void new SnapshotFiles(name), { label: `Files of ${name}` });
    if (!manages) return files;
    const create = workButton('Create a sandbox', async () => {
      const made = await call<Sandbox>('POST', 'api/v2/sandboxes', { snapshot: name });
      location.hash = sandboxPage(made.name);
    }, this.message.fail, { label: `Create a sandbox from ${name}` });
    return make('span', { className: 'buttons-inline' }, files, create, button('Delete', () => void this.remove(name), { label: `Delete ${name}` }));
  }

  private async remove(name: string): Promise<void> {
    const yes = await ask({ title: `Delete the snapshot ${name}?`, text: 'Sandboxes that were created from it keep their disks.', yes: 'Delete', no: 'Keep it' });
    if (!yes) return;
    try {
      await call('DELETE', `api/v2/snapshots/${encodeURIComponent(name)}`);
    } catch (error) {
      this.message.fail(error as Error);
    }
    await this.read();
  }
}
