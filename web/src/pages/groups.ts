// Groups of sandboxes that end together, with a lease.

import { call, entries } from '../api';
import { byId, duration, make } from '../dom';
import { Field, FieldsWrong, Message, ask, button, formDialog, textInput, workButton } from '../forms';
import { exactTime, parseTime, plural } from '../quantities';
import type { Rights } from '../rights';
import { Table } from '../table';
import type { View } from '../view';

interface Group {
  name: string;
  created_at: string;
  ttl_seconds: number;
  expires_at: string;
  ending: boolean;
  sandboxes: number;
}

/** Interval of reading the leases' ends. */
const PERIOD = 5000;

export class GroupsPage implements View {
  readonly box = byId('page-groups');
  readonly title = 'Groups';
  private readonly message = new Message();
  private readonly table: Table<Group>;
  private timer = 0;

  constructor(rights: Rights) {
    const manages = rights.may('manage');
    this.table = new Table<Group>('Groups', [
      { title: 'Name', className: 'name', cell: group => make('b', { textContent: group.name }) },
      { title: 'State', cell: group => make('span', { className: `state ${group.ending ? 'deleting' : 'running'}`, textContent: group.ending ? 'ending' : 'live' }) },
      { title: 'Sandboxes', number: true, cell: group => String(group.sandboxes) },
      { title: 'Lease', cell: group => exactTime(group.ttl_seconds) },
      { title: 'Ends in', number: true, cell: group => duration((Date.parse(group.expires_at) - Date.now()) / 1000), tip: group => group.expires_at },
      ...(manages ? [{ title: '', cell: (group: Group) => this.actions(group) }] : []),
    ], 'There are no groups. The sandboxes of a group end when nobody renews its lease.');
    const head = make('div', { className: 'head' }, make('h2', { textContent: 'Groups', tabIndex: -1 }));
    if (manages) head.append(button('Create a group', () => this.create(), { className: 'primary' }));
    this.box.replaceChildren(make('section', {}, head, this.message.box, this.table.box));
  }

  open(): void {
    this.message.say('');
    void this.read();
  }

  close(): void {
    clearTimeout(this.timer);
  }

  private async read(): Promise<void> {
    clearTimeout(this.timer);
    try {
      if (!document.hidden) this.table.show(await entries<Group>('api/v2/groups', 'groups'));
    } catch (error) {
      this.message.fail(error as Error);
    }
    clearTimeout(this.timer);
    if (!this.box.hidden) this.timer = window.setTimeout(() => void this.read(), PERIOD);
  }

  private actions(group: Group): Node {
    if (group.ending) return make('span');
    return make('span', { className: 'buttons-inline' }, workButton('Renew', async () => {
      await call('POST', `${path(group)}/renew`, {});
      this.message.say(`Renewed ${group.name}.`);
      await this.read();
    }, this.message.fail, { label: `Renew ${group.name}` }), button('Delete', () => void this.remove(group), { label: `Delete ${group.name}` }));
  }

  private create(): void {
    const name = new Field('Name', textInput({ name: 'name', autofocus: true }));
    const lease = new Field('Lease', textInput({ name: 'lease', value: '1h' }), 'Such as 10m or 1d; up to 30 days');
    formDialog('Create a group', [name.box, lease.box], 'Create', async () => {
      const parsed = parseTime(lease.value);
      if ('error' in parsed) lease.error = parsed.error;
      if (!name.value.trim()) name.error = 'Give it a name.';
      if ('error' in parsed || !name.value.trim()) throw new FieldsWrong();
      await call('POST', 'api/v2/groups', { name: name.value.trim(), ttl_seconds: parsed.value });
      await this.read();
    });
  }

  private async remove(group: Group): Promise<void> {
    const yes = await ask({ title: `Delete the group ${group.name}?`, text: `This deletes its ${plural(group.sandboxes, 'sandbox', 'sandboxes')} with all files. Their trajectories stay.`, yes: 'Delete', no: 'Keep it' });
    if (!yes) return;
    try {
      await call('DELETE', path(group));
    } catch (error) {
      this.message.fail(error as Error);
    }
    await this.read();
  }
}

function path({ name }: Group): string {
  return `api/v2/groups/${encodeURIComponent(name)}`;
}
