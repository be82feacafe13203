// Tenants, for operators: created, limited, disabled, removed.

import { useState } from 'preact/hooks';

import { type Schemas, all, api } from '../client/api';
import { useResource } from '../client/resource';
import { plural } from '../quantities';
import { quotaKind } from '../quotas';
import { Page, pageAddress } from '../shell';
import { Button, type Column, EmptyState, FieldReader, FormDialog, Loaded, Menu, SearchField, State, Table, TextField, confirm, failed, fieldState, fullTime, notify, openDialog, useFields } from '../ui';
import { QuotaBars, limitedQuotas } from './quota_bars';

type Tenant = Schemas['TenantInfo'];
type Limits = Schemas['TenantLimits'];

/** The quotas of a row; its dialog has all. */
const MOST_BARS = 3;

export function TenantsPage() {
  const resource = useResource('tenants', signal => all('/api/v2/tenants', 'tenants', { signal }));
  const { reload } = resource;
  const [find, setFind] = useState('');
  const change = async (work: () => Promise<unknown>, said: string): Promise<void> => {
    try {
      await work();
      notify(said);
    } catch (error) {
      failed(error);
    }
    await reload();
  };
  const setDisabled = async ({ name }: Tenant, disabled: boolean): Promise<void> => {
    if (disabled && !await confirm({ title: `Disable the tenant ${name}?`, text: 'Its keys are refused, and everything that was opened with them ends. Its sandboxes stay as they are.', yes: 'Disable' })) return;
    await change(() => api.patch('/api/v2/tenants/{name}', { path: { name }, body: { disabled } as Schemas['ChangeTenant'] }), `${disabled ? 'Disabled' : 'Enabled'} ${name}.`);
  };
  const remove = async ({ name, sandboxes }: Tenant): Promise<void> => {
    const yes = await confirm({
      title: `Remove the tenant ${name}?`, text: 'Its keys end. Its trajectories and audit rows stay, so its name can\'t be used again.', yes: 'Remove', no: 'Keep it',
      ...(sandboxes > 0 ? { also: `Also delete its ${plural(sandboxes, 'sandbox', 'sandboxes')}, with all files` } : {}),
    });
    if (yes) await change(() => api.delete('/api/v2/tenants/{name}', { path: { name }, query: sandboxes > 0 ? { force: true } : {} }), `Removed ${name}.`);
  };
  const columns: Column<Tenant>[] = [
    { id: 'name', title: 'Name', sort: one => one.name, cell: one => <span class="title">{one.name}</span>, tip: one => `created ${fullTime(one.created_at)}` },
    { id: 'state', title: 'State', sort: one => String(one.disabled), cell: one => <State name={one.disabled ? 'disabled' : 'enabled'} /> },
    { id: 'sandboxes', title: 'Sandboxes', number: true, sort: one => one.sandboxes, cell: one => String(one.sandboxes) },
    { id: 'keys', title: 'Keys', number: true, sort: one => one.keys, cell: one => <a href={pageAddress(['keys'], { tenant: one.name })} aria-label={`${plural(one.keys, 'key')} of ${one.name}`}>{one.keys}</a> },
    { id: 'quotas', title: 'Quotas', className: 'quota-cell', cell: one => {
      const limited = limitedQuotas(one.quotas).slice(0, MOST_BARS);
      return limited.length > 0 ? <QuotaBars quotas={limited} /> : <span class="quiet">unlimited</span>;
    } },
    { id: 'actions', title: '', cell: one => {
      const { name, disabled } = one;
      return (
        <div class="row">
          <Button small kind="plain" label={`Limits of ${name}`} onPress={() => { openDialog(close => <LimitsForm tenant={one} close={close} reload={reload} />); }}>Limits</Button>
          <Menu small kind="plain" icon="more" className="icon-only" label={`More of ${name}`} items={[
            { text: 'Usage', label: `Usage of ${name}`, href: pageAddress(['usage'], { tenant: name }) },
            // The server needs the default tenant.
            ...(name === 'default' ? [] : [
              { text: disabled ? 'Enable' : 'Disable', label: `${disabled ? 'Enable' : 'Disable'} ${name}`, onPress: () => setDisabled(one, !disabled) },
              { text: 'Remove', label: `Remove ${name}`, danger: true, onPress: () => remove(one) },
            ]),
          ]} />
        </div>
      );
    } },
  ];
  return (
    <Page title="Tenants" actions={<Button kind="primary" icon="plus" onPress={() => { openDialog(close => <CreateTenant close={close} reload={reload} />); }}>Create a tenant</Button>}>
      <div class="toolbar" role="search" aria-label="Tenants"><SearchField label="Find tenants by name" placeholder="Find by name" value={find} onInput={setFind} /></div>
      <div class="panel"><Loaded resource={resource}>{rows => (
        <Table label="Tenants" columns={columns} rows={rows.filter(one => one.name.includes(find.trim().toLowerCase()))} rowKey={one => one.name} sort={{ column: 'name', down: false }} empty={<EmptyState icon="tenant" title="No tenant has this name" />} />
      )}</Loaded></div>
    </Page>
  );
}

function CreateTenant({ close, reload }: { close: () => void; reload: () => Promise<void> }) {
  const field = useFields(() => fieldState());
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const name = reader.text(field, 'Give it a name.');
    reader.done();
    const made = await api.post('/api/v2/tenants', { body: { name } as Schemas['CreateTenant'] });
    notify(`Created ${made.name}. It has no keys yet.`);
    await reload();
  };
  return <FormDialog title="Create a tenant" submitText="Create" onSubmit={submit} onClose={close}><TextField label="Name" state={field} maxLength={63} note="Lower-case letters, digits and inner hyphens. Names of removed tenants can't be used again." autofocus /></FormDialog>;
}

function LimitsForm({ tenant, close, reload }: { tenant: Tenant; close: () => void; reload: () => Promise<void> }) {
  const fields = useFields(() => tenant.quotas.map(({ quota, limit }) => {
    const kind = quotaKind(quota);
    const own = tenant.limits[quota as keyof Limits] ?? null;
    const inherited = limit === null || limit === undefined ? 'unlimited' : `${kind.exact(limit)} (default)`;
    return { quota, kind, own, placeholder: own === null ? inherited : 'the server\'s default', state: fieldState(own === null ? '' : kind.exact(own)) };
  }));
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const limits: Record<string, number | null> = {};
    for (const { quota, kind, own, state } of fields) {
      const value = reader.parsed(state, kind.parse, null);
      if (value !== own) limits[quota] = value;
    }
    reader.done();
    const { name } = tenant;
    if (Object.keys(limits).length > 0) await api.patch('/api/v2/tenants/{name}', { path: { name }, body: { limits } as Schemas['ChangeTenant'] });
    notify(`Saved the limits of ${name}.`);
    await reload();
  };
  return (
    <FormDialog title={`Limits of ${tenant.name}`} submitText="Save" onSubmit={submit} onClose={close}>
      <p class="quiet">Empty fields are the server's default. Lower limits change no existing sandbox.</p>
      <div class="grid">{fields.map(({ quota, kind, placeholder, state }) => <TextField key={quota} label={kind.label} state={state} placeholder={placeholder} note={kind.note} />)}</div>
    </FormDialog>
  );
}
