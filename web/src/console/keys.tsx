// API keys of a tenant: created, rotated, revoked.

import { useState } from 'preact/hooks';

import { type Schemas, all, api } from '../client/api';
import { useResource } from '../client/resource';
import { duration } from '../format';
import { parseTime } from '../quantities';
import { Page, ROLES, ROLE_TEXTS, type Rights, type Role } from '../shell';
import { AreaField, Badge, Button, Check, type Column, EmptyState, FieldReader, FormDialog, Loaded, SelectField, State, Table, TextField, Time, confirm, failed, fieldState, fullTime, notify, now, openDialog, showOnce, useFields } from '../ui';
import { useTenant } from './tenant_field';

type Key = Schemas['KeyInfo'];

const SHOWN_NOTE = 'Copy the key now. It is stored as a hash, and can\'t be shown again.';

export function KeysPage({ rights }: { rights: Rights }) {
  const { tenant, field } = useTenant(rights, [rights.me.tenant, rights.me.tenant]);
  const [withEnded, setWithEnded] = useState(false);
  const resource = useResource(`keys ${tenant}`, signal => all('/api/v2/keys', 'keys', { signal, query: field ? { tenant } : {} }));
  const { reload } = resource;
  const show = (made: { name: string; key?: string | null }, title: string): void => {
    void reload();
    if (made.key) showOnce(title, SHOWN_NOTE, made.key);
    else failed(new Error('The key was created before, so its text can\'t be shown. Revoke it, and create another.'));
  };
  const revoke = async (key: Key): Promise<void> => {
    const own = key.id === rights.me.key ? ' You are signed in with this key, so this signs you out.' : '';
    if (!await confirm({ title: `Revoke the key ${key.name}?`, text: `Calls, streams and sessions with ${key.id} end within a second. This can't be undone.${own}`, yes: 'Revoke', no: 'Keep it' })) return;
    await api.delete('/api/v2/keys/{id}', { path: { id: key.id } }).finally(reload);
    notify(`Revoked ${key.name}.`);
  };
  const columns: Column<Key>[] = [
    { id: 'name', title: 'Name', className: 'clip-cell', sort: key => key.name, cell: key => <><span class="title">{key.name}</span>{key.id === rights.me.key && <> <Badge tone="accent">yours</Badge></>}<small class="mono">{key.id}</small></> },
    { id: 'role', title: 'Role', sort: key => key.role, cell: key => (key.operator ? 'operator' : key.role), tip: key => (key.operator ? 'Also tenants, and all that belongs to the server' : ROLE_TEXTS[key.role]) },
    { id: 'bound', title: 'Bound to', className: 'clip-cell', cell: key => (key.bound.length > 0 ? key.bound.join(', ') : 'all sandboxes'), tip: key => key.bound.join('\n') },
    { id: 'state', title: 'State', sort: key => key.state, cell: key => <State name={key.state} />, tip: key => key.revoked_at ?? undefined },
    { id: 'created', title: 'Created', sort: key => Date.parse(key.created_at), cell: key => <Time at={key.created_at} form="date" /> },
    { id: 'expires', title: 'Expires', sort: key => (key.expires_at ? Date.parse(key.expires_at) : Infinity), cell: key => expiryText(key), tip: key => (key.expires_at ? fullTime(key.expires_at) : undefined) },
    { id: 'actions', title: '', cell: key => {
      // An admin who is no operator can't change an operator's key.
      if (key.state !== 'valid' || (key.operator && !rights.me.operator)) return null;
      return (
        <div class="row">
          <Button small kind="plain" label={`Rotate ${key.name}, ${key.id}`} onPress={() => { openDialog(close => <RotateKey of={key} show={show} close={close} />); }}>Rotate</Button>
          <Button small kind="plain" label={`Revoke ${key.name}, ${key.id}`} onPress={() => revoke(key)}>Revoke</Button>
        </div>
      );
    } },
  ];
  const create = (): void => { openDialog(close => <CreateKey rights={rights} tenant={tenant} names={field !== null} show={show} close={close} />); };
  return (
    <Page title="Keys" actions={<>{field}<Check label="Show ended keys" checked={withEnded} onChange={setWithEnded} /><Button kind="primary" icon="plus" onPress={create}>Create a key</Button></>}>
      <div class="panel"><Loaded resource={resource}>{rows => (
        <Table label="Keys" columns={columns} rows={withEnded ? rows : rows.filter(key => key.state === 'valid')} rowKey={key => key.id} sort={{ column: 'created', down: true }}
          empty={<EmptyState icon="key" title="No keys" actions={<Button kind="primary" onPress={create}>Create the first one</Button>}>A key is how a program or a person calls this server.</EmptyState>} />
      )}</Loaded></div>
    </Page>
  );
}

function expiryText({ expires_at: at }: Key): string {
  if (!at) return 'never';
  const seconds = (Date.parse(at) - now.value) / 1000;
  return seconds > 0 ? `in ${duration(seconds)}` : at.slice(0, 10);
}

type Show = (made: { name: string; key?: string | null }, title: string) => void;

/** `names`: the tenant is a part of the request. */
function CreateKey({ rights, tenant, names, show, close }: { rights: Rights; tenant: string; names: boolean; show: Show; close: () => void }) {
  const fields = useFields(() => ({ name: fieldState(), role: fieldState('use'), expires: fieldState(), bound: fieldState() }));
  const roles: [string, string][] = ROLES.map(role => [role, `${role}: ${ROLE_TEXTS[role]}`]);
  if (rights.me.operator) roles.push(['operator', 'operator: also tenants, and what belongs to the server']);
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const name = reader.text(fields.name, 'Give it a name.');
    const seconds = reader.parsed(fields.expires, parseTime, null);
    reader.done();
    const operator = fields.role.value.value === 'operator';
    const made = await api.post('/api/v2/keys', { body: {
      ...(names ? { tenant } : {}), name, role: (operator ? 'admin' : fields.role.value.value) as Role, ...(operator ? { operator } : {}),
      ...(seconds === null ? {} : { expires_in_seconds: seconds }), bound: fields.bound.value.value.split('\n').map(line => line.trim()).filter(Boolean),
    } as Schemas['CreateKey'] });
    show(made, `Key ${made.name}`);
  };
  return (
    <FormDialog title={`Create a key of ${tenant}`} submitText="Create" onSubmit={submit} onClose={close}>
      <TextField label="Name" state={fields.name} note="For people, such as the program that uses it" autofocus />
      <SelectField label="Role" state={fields.role} options={roles} />
      <TextField label="Expires after" state={fields.expires} placeholder="never" note="Such as 12h or 90d" />
      <AreaField label="Bound to" state={fields.bound} rows={3} placeholder="all sandboxes" note="Names of sandboxes, and labels as KEY=VALUE, one a line" />
    </FormDialog>
  );
}

function RotateKey({ of, show, close }: { of: Key; show: Show; close: () => void }) {
  const overlap = useFields(() => fieldState('1h'));
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const overlap_seconds = reader.parsed(overlap, parseTime, 0);
    reader.done();
    const made = await api.post('/api/v2/keys/{id}/rotate', { path: { id: of.id }, body: { overlap_seconds } as Schemas['RotateKey'] });
    show(made, `New key ${made.name}`);
  };
  return (
    <FormDialog title={`Rotate ${of.name}`} submitText="Rotate" onSubmit={submit} onClose={close}>
      <p>This creates a key with the same rights, and ends the old one.</p>
      <TextField label="The old key is accepted for" state={overlap} note="Such as 0, 10m, 1h or 7d; up to 30 days" autofocus />
    </FormDialog>
  );
}
