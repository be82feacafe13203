// Volumes: storage that outlives sandboxes.

import { call, entries } from '../api';
import { age, byId, bytes, make } from '../dom';
import { Field, FieldsWrong, Message, ask, button, formDialog, textInput } from '../forms';
import { parseSize } from '../quantities';
import type { Rights } from '../rights';
import { sandboxPage } from '../sandbox_list';
import { Table } from '../table';
import type { View } from '../view';

interface Volume {
  name: string;
  id: string;
  state: string;
  size_bytes: number;
  used_bytes: number | null;
  sandboxes: string[];
  created_at: string;
  node: string | null;
}

/** Sandboxes that a row names. */
const MOST_NAMED = 3;

export class VolumesPage implements View {
  readonly box = byId('page-volumes');
  readonly title = 'Volumes';
  private readonly message = new Message();
  private readonly table: Table<Volume>;

  constructor(rights: Rights) {
    const manages = rights.may('manage');
    this.table = new Table<Volume>('Volumes', [
      { title: 'Name', className: 'name', cell: volume => make('b', { textContent: volume.name }), tip: volume => volume.id },
      { title: 'State', cell: volume => make('span', { className: `state ${volume.state === 'ready' ? 'running' : 'failed'}`, textContent: volume.state }) },
      { title: 'Used', number: true, cell: volume => volume.used_bytes === null ? '–' : bytes(volume.used_bytes) },
      { title: 'Size', number: true, cell: volume => bytes(volume.size_bytes) },
      { title: 'Sandboxes', cell: volume => users(volume.sandboxes) },
      { title: 'Age', number: true, cell: volume => age(volume.created_at), tip: volume => volume.created_at },
      ...(manages ? [{ title: '', cell: (volume: Volume) => this.actions(volume) }] : []),
    ], 'There are no volumes. A volume keeps files beyond the life of sandboxes, and several can mount it at once.');
    const head = make('div', { className: 'head' }, make('h2', { textContent: 'Volumes', tabIndex: -1 }));
    if (manages) head.append(button('Create a volume', () => this.create(), { className: 'primary' }));
    this.box.replaceChildren(make('section', {}, head, this.message.box, this.table.box));
  }

  open(): void {
    this.message.say('');
    void this.read();
  }

  close(): void { /* Nothing is read by itself. */ }

  private async read(): Promise<void> {
    try {
      this.table.show(await entries<Volume>('api/v2/volumes', 'volumes'));
    } catch (error) {
      this.message.fail(error as Error);
    }
  }

  private actions(volume: Volume): Node {
    const { name } = volume;
    return make('span', { className: 'buttons-inline' },
      button('Copy', () => this.copy(name), { label: `Copy ${name}` }),
      button('Resize', () => this.resize(volume), { label: `Resize ${name}` }),
      button('Delete', () => void this.remove(volume), { label: `Delete ${name}` }));
  }

  private create(): void {
    const name = new Field('Name', textInput({ name: 'name', autofocus: true }));
    const size = new Field('Size', textInput({ name: 'size', value: '10GiB' }), 'What it may hold, such as 512MiB or 1TiB');
    formDialog('Create a volume', [name.box, size.box], 'Create', async () => {
      if (!name.value.trim()) name.error = 'Give it a name.';
      const size_bytes = sizeOf(size);
      if (!name.value.trim()) throw new FieldsWrong();
      await call('POST', 'api/v2/volumes', { name: name.value.trim(), size_bytes });
      await this.read();
    });
  }

  private resize(volume: Volume): void {
    const size = new Field('Size', textInput({ name: 'size', autofocus: true }), `It is ${bytes(volume.size_bytes)}. Below what the volume holds, all further writes fail.`);
    formDialog(`Resize ${volume.name}`, [size.box], 'Resize', async () => {
      await call('PATCH', path(volume.name), { size_bytes: sizeOf(size) });
      await this.read();
    });
  }

  private copy(name: string): void {
    const to = new Field('Name of the copy', textInput({ name: 'name', autofocus: true }), 'A copy takes no space until files change.');
    formDialog(`Copy ${name}`, [to.box], 'Copy', async () => {
      await call('POST', `${path(name)}/copy`, { name: to.value.trim() });
      await this.read();
    });
  }

  private async remove({ name, sandboxes }: Volume): Promise<void> {
    const used = sandboxes.length > 0 ? ` Sandboxes have it (${sandboxes.slice(0, MOST_NAMED).join(', ')}), so this is refused.` : '';
    const yes = await ask({ title: `Delete the volume ${name}?`, text: `This deletes all of its files.${used}`, yes: 'Delete', no: 'Keep it' });
    if (!yes) return;
    try {
      await call('DELETE', path(name));
    } catch (error) {
      this.message.fail(error as Error);
    }
    await this.read();
  }
}

function sizeOf(field: Field): number {
  const parsed = parseSize(field.value);
  if ('error' in parsed) {
    field.error = parsed.error;
    throw new FieldsWrong();
  }
  return parsed.value;
}

function users(sandboxes: string[]): Node {
  const named = sandboxes.slice(0, MOST_NAMED).map(name => make('a', { href: sandboxPage(name), textContent: name }));
  const more = sandboxes.length - named.length;
  const parts = named.flatMap((link, at) => at > 0 ? [', ', link] : [link]);
  return make('span', {}, ...parts, ...(more > 0 ? [` and ${more} more`] : []));
}

function path(name: string): string {
  return `api/v2/volumes/${encodeURIComponent(name)}`;
}
