// The dialog with the files of a snapshot.

import { page } from '../api';
import { age, bytes, make } from '../dom';
import { Message, button, dialog } from '../forms';
import { Table } from '../table';

/** Files of one page. */
const PAGE = 200;

interface SnapshotFile {
  name: string;
  /** The name for a path, if it is not UTF-8. */
  encoded_name?: string;
  kind: string;
  size_bytes: number;
  mode: string;
  modified_at: string;
}

export class SnapshotFiles {
  private readonly url: string;
  private readonly message = new Message();
  private readonly table: Table<SnapshotFile>;
  private readonly place = make('p', { className: 'quiet url' });
  private readonly up = button('Up', () => void this.show(this.path.slice(0, -1)));
  private readonly more = button('Show more', () => void this.read(true));
  /** Names of directories, encoded for a URL. */
  private path: string[] = [];
  private all: SnapshotFile[] = [];
  private next: string | null = null;

  constructor(snapshot: string) {
    this.url = `api/v2/snapshots/${encodeURIComponent(snapshot)}`;
    this.table = new Table<SnapshotFile>('Files', [
      { title: 'Name', className: 'name', cell: file => this.name(file) },
      { title: 'Kind', cell: file => file.kind },
      { title: 'Size', number: true, cell: file => file.kind === 'file' ? bytes(file.size_bytes) : '–' },
      { title: 'Mode', cell: file => make('code', { textContent: file.mode }) },
      { title: 'Age', number: true, cell: file => age(file.modified_at), tip: file => file.modified_at },
    ], 'The directory is empty.');
    const node = dialog(`Files of ${snapshot}`, this.place, this.message.box, this.table.box, this.more,
      make('form', { method: 'dialog', className: 'buttons' }, this.up, make('button', { textContent: 'Close', autofocus: true })));
    node.classList.add('wide', 'fitted');
    node.showModal();
    void this.show([]);
  }

  private name(file: SnapshotFile): Node | string {
    const path = [...this.path, file.encoded_name ?? encodeURIComponent(file.name)];
    if (file.kind === 'directory') return button(`${file.name}/`, () => void this.show(path), { label: `Open ${file.name}` });
    if (file.kind !== 'file') return file.name;
    return make('a', { href: `${this.url}/content?path=${path.join('/')}`, download: file.name, textContent: file.name });
  }

  private async show(path: string[]): Promise<void> {
    this.path = path;
    this.place.textContent = `/${path.map(part => readable(part)).join('/')}`;
    this.up.hidden = path.length === 0;
    await this.read(false);
  }

  private async read(goesOn: boolean): Promise<void> {
    try {
      const found = await page<SnapshotFile>(`${this.url}/files?limit=${PAGE}&path=${this.path.join('/')}`, 'files', goesOn ? this.next : null);
      this.all = goesOn ? [...this.all, ...found.items] : found.items;
      this.next = found.next;
      this.more.hidden = this.next === null;
      this.table.show(this.all, this.all.length);
    } catch (error) {
      this.message.fail(error as Error);
    }
  }
}

/** Bytes that are not UTF-8 stay encoded. */
function readable(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
