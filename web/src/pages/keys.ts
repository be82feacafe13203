// API keys of a tenant: created, rotated, revoked.

import { call, entries } from '../api';
import { byId, duration, make } from '../dom';
import { Field, FieldsWrong, Message, ask, button, formDialog, select, shownOnce, textInput } from '../forms';
import { parseTime } from '../quantities';
import { ROLES, ROLE_TEXTS, type Rights, type Role } from '../rights';
import { Table } from '../table';
import { TenantChoice } from '../tenant_choice';
import type { View } from '../view';

interface Key {
  id: string;
  tenant: string;
  name: string;
  role: Role;
  operator: boolean;
  bound: string[];
  state: 'valid' | 'expired' | 'revoked';
  created_at: string;
  expires_at: string | null;
  revoked_at: string | null;
}

/** The text is absent if the key was created before. */
type NewKey = Key & { key: string | null };

const SHOWN_NOTE = 'Copy the key now. It is stored as a hash, and can\'t be shown again.';

export class KeysPage implements View {
  readonly box = byId('page-keys');
  readonly title = 'Keys';
  private readonly rights: Rights;
  private readonly message = new Message();
  private readonly tenant: TenantChoice | null;
  private readonly ended = make('input', { type: 'checkbox' });
  private readonly table: Table<Key>;
  private keys: Key[] = [];

  constructor(rights: Rights) {
    this.rights = rights;
    this.tenant = TenantChoice.of(rights, [rights.me.tenant, rights.me.tenant], () => void this.read());
    this.ended.addEventListener('change', () => this.draw());
    this.table = new Table<Key>('Keys', [
      { title: 'Name', className: 'name', cell: key => make('span', {}, make('b', { textContent: key.name }), ...(key.id === rights.me.key ? [make('span', { className: 'chip', textContent: 'yours' })] : []), make('small', { className: 'id', textContent: key.id })) },
      { title: 'Role', cell: key => (key.operator ? 'operator' : key.role), tip: key => (key.operator ? 'Also tenants, and all that belongs to the server' : ROLE_TEXTS[key.role]) },
      { title: 'Bound to', className: 'bound', cell: key => (key.bound.length > 0 ? key.bound.join(', ') : 'all sandboxes'), tip: key => key.bound.join('\n') },
      { title: 'State', cell: key => make('span', { className: `state ${key.state === 'valid' ? 'running' : 'failed'}`, textContent: key.state }), tip: key => key.revoked_at ?? '' },
      { title: 'Created', cell: key => key.created_at.slice(0, 10), tip: key => key.created_at },
      { title: 'Expires', cell: key => expiryText(key), tip: key => key.expires_at ?? '' },
      { title: '', cell: key => this.actions(key) },
    ], 'There are no keys.');
    const filters = make('div', { className: 'filters' }, ...(this.tenant ? [this.tenant.field.box] : []),
      make('label', { className: 'check' }, this.ended, 'Also ended ones'), button('Create a key', () => this.create(), { className: 'primary' }));
    this.box.replaceChildren(make('section', {}, make('div', { className: 'head' }, make('h2', { textContent: 'Keys', tabIndex: -1 }), filters), this.message.box, this.table.box));
  }

  open(_: string[], query: URLSearchParams): void {
    this.message.say('');
    void (async () => {
      await this.tenant?.read(query.get('tenant') ?? this.rights.me.tenant).catch(this.message.fail);
      await this.read();
    })();
  }

  close(): void { /* Nothing runs. */ }

  private async read(): Promise<void> {
    const query = this.tenant ? `?${new URLSearchParams({ tenant: this.tenant.value })}` : '';
    try {
      this.keys = await entries<Key>(`api/v2/keys${query}`, 'keys');
      this.draw();
    } catch (error) {
      this.message.fail(error as Error);
    }
  }

  private draw(): void {
    const shown = this.ended.checked ? this.keys : this.keys.filter(key => key.state === 'valid');
    this.table.show([...shown].sort((a, b) => b.created_at.localeCompare(a.created_at)));
  }

  private actions(key: Key): Node {
    // An admin who is no operator can't change an operator's key.
    if (key.state !== 'valid' || (key.operator && !this.rights.me.operator)) return make('span');
    return make('span', { className: 'buttons-inline' },
      button('Rotate', () => this.rotate(key), { label: `Rotate ${key.name}, ${key.id}` }), button('Revoke', () => void this.revoke(key), { label: `Revoke ${key.name}, ${key.id}` }));
  }

  private create(): void {
    const name = new Field('Name', textInput({ name: 'name', required: true, autofocus: true }), 'For people, such as the program that uses it');
    const roles: [string, string][] = ROLES.map(role => [role, `${role}: ${ROLE_TEXTS[role]}`]);
    if (this.rights.me.operator) roles.push(['operator', 'operator: also tenants, and what belongs to the server']);
    const role = new Field('Role', select(roles, 'role'));
    role.input.value = 'use';
    const expires = new Field('Expires after', textInput({ name: 'expires', placeholder: 'never' }), 'Such as 12h or 90d');
    const bound = new Field('Bound to', make('textarea', { name: 'bound', rows: 3, placeholder: 'all sandboxes', spellcheck: false }), 'Names of sandboxes, and labels as KEY=VALUE, one a line');
    const tenant = this.tenant?.value ?? this.rights.me.tenant;
    formDialog(`Create a key of ${tenant}`, [name.box, role.box, expires.box, bound.box], 'Create', async () => {
      if (!name.value.trim()) {
        name.error = 'Give it a name.';
        name.input.focus();
        throw new FieldsWrong();
      }
      const seconds = optionalTime(expires);
      const operator = role.value === 'operator';
      const made = await call<NewKey>('POST', 'api/v2/keys', {
        ...(this.tenant ? { tenant } : {}), name: name.value.trim(), role: operator ? 'admin' : role.value, ...(operator ? { operator } : {}),
        ...(seconds === null ? {} : { expires_in_seconds: seconds }), bound: bound.value.split('\n').map(line => line.trim()).filter(Boolean),
      });
      void this.show(made, `Key ${made.name}`);
    });
  }

  private rotate(key: Key): void {
    const overlap = new Field('The old key is accepted for', textInput({ name: 'overlap', value: '1h', autofocus: true }), 'Such as 0, 10m, 1h or 7d; up to 30 days');
    formDialog(`Rotate ${key.name}`, [make('p', { textContent: 'This creates a key with the same rights, and ends the old one.' }), overlap.box], 'Rotate', async () => {
      const made = await call<NewKey>('POST', `api/v2/keys/${encodeURIComponent(key.id)}/rotate`, { overlap_seconds: optionalTime(overlap) ?? 0 });
      void this.show(made, `New key ${made.name}`);
    });
  }

  private async show(made: NewKey, title: string): Promise<void> {
    void this.read();
    if (made.key === null) this.message.say('The key was created before, so its text can\'t be shown. Revoke it, and create another.', true);
    else await shownOnce(title, SHOWN_NOTE, made.key);
  }

  private async revoke(key: Key): Promise<void> {
    const own = key.id === this.rights.me.key ? ' You are signed in with this key, so this signs you out.' : '';
    const yes = await ask({ title: `Revoke the key ${key.name}?`, text: `Calls, streams and sessions with ${key.id} end within a second. This can't be undone.${own}`, yes: 'Revoke', no: 'Keep it' });
    if (!yes) return;
    try {
      await call('DELETE', `api/v2/keys/${encodeURIComponent(key.id)}`);
      this.message.say(`Revoked ${key.name}.`);
    } catch (error) {
      this.message.fail(error as Error);
    }
    await this.read();
  }
}

function expiryText({ expires_at: at }: Key): string {
  if (at === null) return 'never';
  const seconds = (Date.parse(at) - Date.now()) / 1000;
  return seconds > 0 ? `in ${duration(seconds)}` : at.slice(0, 10);
}

/** Seconds, or null if the field is empty. Shows what is wrong at the field. */
function optionalTime(field: Field): number | null {
  if (!field.value.trim()) return null;
  const parsed = parseTime(field.value);
  if ('value' in parsed) return parsed.value;
  field.error = parsed.error;
  field.input.focus();
  throw new FieldsWrong();
}
