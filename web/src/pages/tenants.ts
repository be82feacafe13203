// Tenants, for operators: created, limited, disabled, removed.

import { call, entries } from '../api';
import { byId, make } from '../dom';
import { Field, FieldsWrong, Message, ask, button, formDialog, textInput } from '../forms';
import { plural } from '../quantities';
import { limitedQuotas, quotaBars } from '../quota_bars';
import { quotaKind } from '../quotas';
import type { QuotaState } from '../rights';
import { Table } from '../table';
import type { View } from '../view';

interface Tenant {
  name: string;
  created_at: string;
  disabled: boolean;
  sandboxes: number;
  keys: number;
  /** Its own limits, without the server's defaults. */
  limits: Record<string, number | null>;
  quotas: QuotaState[];
}

/** The quotas of a row; its dialog has all. */
const MOST_BARS = 3;

export class TenantsPage implements View {
  readonly box = byId('page-tenants');
  readonly title = 'Tenants';
  private readonly message = new Message();
  private readonly find = textInput({ type: 'search', placeholder: 'find by name' });
  private readonly table: Table<Tenant>;
  private tenants: Tenant[] = [];

  constructor() {
    this.find.ariaLabel = 'Find tenants by name';
    this.find.addEventListener('input', () => this.draw());
    this.table = new Table<Tenant>('Tenants', [
      { title: 'Name', className: 'name', cell: tenant => make('b', { textContent: tenant.name }), tip: tenant => `created ${tenant.created_at}` },
      { title: 'State', cell: tenant => make('span', { className: `state ${tenant.disabled ? 'failed' : 'running'}`, textContent: tenant.disabled ? 'disabled' : 'enabled' }) },
      { title: 'Sandboxes', number: true, cell: tenant => String(tenant.sandboxes) },
      { title: 'Keys', number: true, cell: tenant => make('a', { href: `#/keys?${new URLSearchParams({ tenant: tenant.name })}`, textContent: String(tenant.keys), ariaLabel: `${plural(tenant.keys, 'key')} of ${tenant.name}` }) },
      { title: 'Quotas', className: 'quota-cell', cell: tenant => quotaCell(tenant) },
      { title: '', cell: tenant => this.actions(tenant) },
    ], 'No tenant has this name.');
    this.box.replaceChildren(make('section', {},
      make('div', { className: 'head' }, make('h2', { textContent: 'Tenants', tabIndex: -1 }),
        make('div', { className: 'filters' }, this.find, button('Create a tenant', () => this.create(), { className: 'primary' }))),
      this.message.box, this.table.box));
  }

  open(): void {
    this.message.say('');
    void this.read();
  }

  close(): void { /* Nothing runs. */ }

  private async read(): Promise<void> {
    try {
      this.tenants = await entries<Tenant>('api/v2/tenants', 'tenants');
      this.draw();
    } catch (error) {
      this.message.fail(error as Error);
    }
  }

  private draw(): void {
    const typed = this.find.value.trim().toLowerCase();
    this.table.show(this.tenants.filter(tenant => tenant.name.includes(typed)));
  }

  private actions(tenant: Tenant): Node {
    const { name, disabled } = tenant;
    const actions = make('span', { className: 'buttons-inline' },
      make('a', { href: `#/usage?${new URLSearchParams({ tenant: name })}`, textContent: 'Usage', ariaLabel: `Usage of ${name}` }),
      button('Limits', () => this.limit(tenant), { label: `Limits of ${name}` }));
    // The server needs it.
    if (name === 'default') return actions;
    actions.append(button(disabled ? 'Enable' : 'Disable', () => void this.setDisabled(tenant, !disabled), { label: `${disabled ? 'Enable' : 'Disable'} ${name}` }),
      button('Remove', () => void this.remove(tenant), { label: `Remove ${name}` }));
    return actions;
  }

  private create(): void {
    const name = new Field('Name', textInput({ name: 'name', autofocus: true, maxLength: 63 }), 'Lower-case letters, digits and inner hyphens. Names of removed tenants can\'t be used again.');
    formDialog('Create a tenant', [name.box], 'Create', async () => {
      if (!name.value.trim()) {
        name.error = 'Give it a name.';
        throw new FieldsWrong();
      }
      const made = await call<Tenant>('POST', 'api/v2/tenants', { name: name.value.trim() });
      this.message.say(`Created ${made.name}. It has no keys yet.`);
      await this.read();
    });
  }

  private limit(tenant: Tenant): void {
    const fields = tenant.quotas.map(({ quota, limit }) => {
      const kind = quotaKind(quota);
      const own = tenant.limits[quota] ?? null;
      const inherited = own === null && limit !== null ? `${kind.exact(limit)} (default)` : 'unlimited';
      return { quota, kind, own, field: new Field(kind.label, textInput({ name: quota, value: own === null ? '' : kind.exact(own), placeholder: own === null ? inherited : 'the server\'s default' }), kind.note) };
    });
    formDialog(`Limits of ${tenant.name}`, [make('p', { className: 'quiet', textContent: 'Empty fields are the server\'s default. Lower limits change no existing sandbox.' }), make('div', { className: 'grid' }, ...fields.map(({ field }) => field.box))], 'Save', async () => {
      const limits: Record<string, number | null> = {};
      let wrong = false;
      for (const { quota, kind, own, field } of fields) {
        const parsed = field.value.trim() ? kind.parse(field.value) : { value: null };
        if ('error' in parsed) {
          field.error = parsed.error;
          if (!wrong) field.input.focus();
          wrong = true;
        } else if (parsed.value !== own) {
          limits[quota] = parsed.value;
        }
      }
      if (wrong) throw new FieldsWrong();
      if (Object.keys(limits).length > 0) await call('PATCH', path(tenant), { limits });
      this.message.say(`Saved the limits of ${tenant.name}.`);
      await this.read();
    });
  }

  private async setDisabled(tenant: Tenant, disabled: boolean): Promise<void> {
    if (disabled && !await ask({ title: `Disable the tenant ${tenant.name}?`, text: 'Its keys are refused, and everything that was opened with them ends. Its sandboxes stay as they are.', yes: 'Disable' })) return;
    await this.change(() => call('PATCH', path(tenant), { disabled }), `${disabled ? 'Disabled' : 'Enabled'} ${tenant.name}.`);
  }

  private async remove(tenant: Tenant): Promise<void> {
    const { name, sandboxes } = tenant;
    const yes = await ask({
      title: `Remove the tenant ${name}?`, text: 'Its keys end. Its trajectories and audit rows stay, so its name can\'t be used again.', yes: 'Remove', no: 'Keep it',
      ...(sandboxes > 0 ? { also: `Also delete its ${plural(sandboxes, 'sandbox', 'sandboxes')}, with all files` } : {}),
    });
    if (yes) await this.change(() => call('DELETE', `${path(tenant)}${sandboxes > 0 ? '?force=true' : ''}`), `Removed ${name}.`);
  }

  private async change(work: () => Promise<unknown>, said: string): Promise<void> {
    try {
      await work();
      this.message.say(said);
    } catch (error) {
      this.message.fail(error as Error);
    }
    await this.read();
  }
}

function path({ name }: Tenant): string {
  return `api/v2/tenants/${encodeURIComponent(name)}`;
}

function quotaCell({ quotas }: Tenant): Node {
  const limited = limitedQuotas(quotas).slice(0, MOST_BARS);
  return limited.length > 0 ? quotaBars(limited) : make('span', { className: 'quiet', textContent: 'unlimited' });
}
