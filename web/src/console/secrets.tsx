// Secrets: credentials that are put into requests of sandboxes. Their values are written, and never read.

import { type Schemas, all, api } from '../client/api';
import { useResource } from '../client/resource';
import { Page, type Rights } from '../shell';
import { AreaField, Badge, Button, Check, CodeBlock, type Column, EmptyState, FieldReader, type FieldState, FormDialog, IconButton, Loaded, Table, TextField, Time, confirm, fieldState, notify, openDialog, useFields } from '../ui';
import { useState } from 'preact/hooks';

type Secret = Schemas['SecretInfo'];
type PutSecret = Schemas['PutSecret'];
type Place = Schemas['SecretPlace'];

const PLACES: readonly [Place, string][] = [['header', 'Headers'], ['query', 'Query'], ['body', 'Body'], ['postgres', 'Postgres logins'], ['ssh', 'SSH logins']];

export function SecretsPage({ rights }: { rights: Rights }) {
  const resource = useResource('secrets', signal => all('/api/v2/secrets', 'secrets', { signal }));
  const { reload } = resource;
  const changes = rights.administers;
  const remove = async ({ name }: Secret): Promise<void> => {
    if (!await confirm({ title: `Revoke the secret ${name}?`, text: 'Requests with its placeholders are refused at once, also those of running sandboxes.', yes: 'Revoke', no: 'Keep it' })) return;
    await api.delete('/api/v2/secrets/{name}', { path: { name } }).finally(reload);
    notify(`Revoked ${name}.`);
  };
  const columns: Column<Secret>[] = [
    { id: 'name', title: 'Name', sort: one => one.name, cell: one => <><span class="title">{one.name}</span>{!isSsh(one.places) && <small class="mono">{`{{secret:${one.name}}}`}</small>}</> },
    { id: 'hosts', title: 'Hosts', className: 'wrap', cell: one => <code>{one.hosts.join(', ')}</code> },
    { id: 'places', title: 'Put into', cell: one => <span class="row">{one.places.map(place => <Badge key={place}>{place}</Badge>)}</span> },
    { id: 'created', title: 'Created', low: true, sort: one => Date.parse(one.created_at), cell: one => <Time at={one.created_at} form="date" /> },
    { id: 'rotated', title: 'Rotated', sort: one => Date.parse(one.rotated_at), cell: one => <Time at={one.rotated_at} /> },
    ...(changes ? [{ id: 'actions', title: '', cell: (secret: Secret) => (
      <div class="row">
        <Button small kind="plain" label={`Rotate ${secret.name}`} onPress={() => { openDialog(close => <RotateSecret secret={secret} close={close} reload={reload} />); }}>Rotate</Button>
        <Button small kind="plain" label={`Change ${secret.name}`} onPress={() => { openDialog(close => <SecretForm secret={secret} close={close} reload={reload} />); }}>Change</Button>
        <IconButton small kind="plain" icon="trash" label={`Revoke ${secret.name}`} title="Revoke" onPress={() => remove(secret)} />
      </div>
    ) }] : []),
  ];
  const create = changes && <Button kind="primary" icon="plus" onPress={() => { openDialog(close => <SecretForm close={close} reload={reload} />); }}>Create a secret</Button>;
  return (
    <Page title="Secrets" actions={resource.data && resource.data.length > 0 && create}>
      <div class="panel"><Loaded resource={resource}>{rows => (
        <Table label="Secrets" columns={columns} rows={rows} rowKey={one => one.name} sort={{ column: 'name', down: false }} empty={
          <EmptyState icon="secret" title="No secrets yet" actions={create}>A sandbox has a placeholder, and the server puts the value into requests to the hosts that you name. So no program inside ever has it.</EmptyState>} />
      )}</Loaded></div>
      {resource.data && resource.data.length > 0 && (
        <section class="panel" aria-label="Using a secret">
          <div class="panel-head"><h2>Using a secret</h2></div>
          <CodeBlock label="The command" code={useOf(resource.data[0]!)} />
        </section>
      )}
    </Page>
  );
}

function isSsh(places: readonly Place[]): boolean {
  return places.includes('ssh');
}

function useOf({ name, places }: Secret): string {
  return isSsh(places) ? `arenite create --secret ${name}` : `arenite create --env API_KEY='{{secret:${name}}}'`;
}

function linesOf(text: string): string[] {
  return text.split('\n').map(line => line.trim()).filter(Boolean);
}

interface FormProps {
  close: () => void;
  reload: () => Promise<void>;
}

/** Creates a secret, or changes where one is put. A value that is left empty stays. */
function SecretForm({ secret, close, reload }: FormProps & { secret?: Secret }) {
  const fields = useFields(() => ({ name: fieldState(secret?.name), value: fieldState(), hosts: fieldState(secret?.hosts.join('\n')), hostKeys: fieldState(secret?.host_keys.join('\n')) }));
  const [places, setPlaces] = useState<readonly Place[]>(secret?.places ?? ['header']);
  const ssh = isSsh(places);
  // An SSH key stays one, and nothing else becomes one.
  const offered = PLACES.filter(([place]) => !secret || (place === 'ssh') === isSsh(secret.places));
  // It is the only place of its secret.
  const choose = (place: Place, on: boolean): void => {
    const others = places.filter(one => one !== place && (one === 'ssh') === (place === 'ssh'));
    setPlaces(on ? [...others, place] : others);
  };
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const name = reader.text(fields.name, 'Give it a name.');
    const value = fields.value.value.value;
    if (!secret && !value) reader.fail(fields.value, 'Enter the value.');
    const hosts = fields.hosts.value.value.split(/[\s,]+/).filter(Boolean);
    if (hosts.length === 0) reader.fail(fields.hosts, 'Name the hosts that get it.');
    reader.done();
    await api.put('/api/v2/secrets/{name}', { path: { name }, body: { hosts, places: [...places], ...(ssh ? { host_keys: linesOf(fields.hostKeys.value.value) } : {}), ...(value ? { value } : {}) } as PutSecret });
    fields.value.value.value = '';
    notify(secret ? `Changed ${name}.` : `Created ${name}.`);
    await reload();
  };
  return (
    <FormDialog title={secret ? `Change ${secret.name}` : 'Create a secret'} submitText={secret ? 'Change' : 'Create'} onSubmit={submit} onClose={close}>
      {!secret && <TextField label="Name" state={fields.name} note={ssh ? 'Sandboxes name it in their list of secrets' : 'Sandboxes name it in the placeholder {{secret:NAME}}'} autofocus />}
      <ValueField label={ssh ? 'Private key' : 'Value'} ssh={ssh} state={fields.value} placeholder={secret ? 'unchanged' : ''} />
      <AreaField label="Hosts" state={fields.hosts} rows={3} placeholder="api.example.com" note="The hosts that get it, one a line" />
      {ssh && <AreaField label="Host keys" state={fields.hostKeys} rows={3} placeholder="ssh-ed25519 AAAA…" note="Keys of these servers, one a line, as ssh-keyscan prints them. With one or more, only logins to servers with these keys are signed." />}
      <fieldset><legend>Put into</legend><div class="row">{offered.map(([place, text]) => (
        <Check key={place} label={text} checked={places.includes(place)} onChange={on => choose(place, on)} />
      ))}</div></fieldset>
    </FormDialog>
  );
}

/** A private key has several lines, which a field for passwords would join. */
function ValueField({ label, ssh, state, placeholder, autofocus = false }: { label: string; ssh: boolean; state: FieldState; placeholder?: string; autofocus?: boolean }) {
  const note = 'It is stored encrypted, and can\'t be read again.';
  if (ssh) return <AreaField label={label} state={state} rows={6} placeholder={placeholder || '-----BEGIN OPENSSH PRIVATE KEY-----'} note={`Without a passphrase. ${note}`} autofocus={autofocus} />;
  return <TextField label={label} type="password" state={state} placeholder={placeholder ?? ''} note={note} autofocus={autofocus} />;
}

function RotateSecret({ secret: { name, places }, close, reload }: FormProps & { secret: Secret }) {
  const value = useFields(() => fieldState());
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    if (!value.value.value) reader.fail(value, 'Enter the new value.');
    reader.done();
    await api.put('/api/v2/secrets/{name}', { path: { name }, body: { value: value.value.value } as PutSecret });
    value.value.value = '';
    notify(`Rotated ${name}.`);
    await reload();
  };
  return (
    <FormDialog title={`Rotate ${name}`} submitText="Rotate" onSubmit={submit} onClose={close}>
      <p>The new value is in effect at once, also in running sandboxes.</p>
      <ValueField label={isSsh(places) ? 'New private key' : 'New value'} ssh={isSsh(places)} state={value} autofocus />
    </FormDialog>
  );
}
