// Groups of sandboxes that end together, with a lease.

import { type Schemas, all, api } from '../client/api';
import { useResource } from '../client/resource';
import { duration } from '../format';
import { exactTime, parseTime, plural } from '../quantities';
import { Page, type Rights, pageAddress } from '../shell';
import { Button, type Column, EmptyState, FieldReader, FormDialog, IconButton, Loaded, State, Table, TextField, confirm, fieldState, fullTime, notify, now, openDialog, useFields } from '../ui';

type Group = Schemas['GroupInfo'];

/** Interval of reading the leases' ends. */
const PERIOD = 5000;

export function GroupsPage({ rights }: { rights: Rights }) {
  const resource = useResource('groups', signal => all('/api/v2/groups', 'groups', { signal }), PERIOD);
  const { reload } = resource;
  const manages = rights.may('manage');
  const renew = async (name: string): Promise<void> => {
    await api.post('/api/v2/groups/{name}/renew', { path: { name }, body: {} });
    notify(`Renewed ${name}.`);
    await reload();
  };
  const remove = async ({ name, sandboxes }: Group): Promise<void> => {
    const yes = await confirm({ title: `Delete the group ${name}?`, text: `This deletes its ${plural(sandboxes, 'sandbox', 'sandboxes')} with all files. Their trajectories stay.`, yes: 'Delete', no: 'Keep it' });
    if (yes) await api.delete('/api/v2/groups/{name}', { path: { name } }).finally(reload);
  };
  const columns: Column<Group>[] = [
    { id: 'name', title: 'Name', sort: one => one.name, cell: one => <span class="title">{one.name}</span> },
    { id: 'state', title: 'State', cell: one => <State name={one.ending ? 'ending' : 'live'} /> },
    { id: 'sandboxes', title: 'Sandboxes', number: true, sort: one => one.sandboxes, cell: one => <a href={pageAddress([], { group: one.name })} aria-label={`${plural(one.sandboxes, 'sandbox', 'sandboxes')} of ${one.name}`}>{one.sandboxes}</a> },
    { id: 'lease', title: 'Lease', number: true, sort: one => one.ttl_seconds, cell: one => exactTime(one.ttl_seconds) },
    { id: 'ends', title: 'Ends in', number: true, sort: one => Date.parse(one.expires_at), cell: one => duration((Date.parse(one.expires_at) - now.value) / 1000), tip: one => fullTime(one.expires_at) },
    ...(manages ? [{ id: 'actions', title: '', cell: (group: Group) => !group.ending && (
      <div class="row">
        <Button small kind="plain" label={`Renew ${group.name}`} onPress={() => renew(group.name)}>Renew</Button>
        <IconButton small kind="plain" icon="trash" label={`Delete ${group.name}`} title="Delete" onPress={() => remove(group)} />
      </div>
    ) }] : []),
  ];
  const create = manages && <Button kind="primary" icon="plus" onPress={() => { openDialog(close => <CreateGroup close={close} reload={reload} />); }}>Create a group</Button>;
  return (
    <Page title="Groups" actions={resource.data && resource.data.length > 0 && create}>
      <div class="panel"><Loaded resource={resource}>{rows => (
        <Table label="Groups" columns={columns} rows={rows} rowKey={one => one.name} sort={{ column: 'name', down: false }} empty={
          <EmptyState icon="group" title="No groups yet" actions={create}>The sandboxes of a group end together, when nobody renews its lease. So a program that stops leaves nothing behind.</EmptyState>} />
      )}</Loaded></div>
    </Page>
  );
}

function CreateGroup({ close, reload }: { close: () => void; reload: () => Promise<void> }) {
  const fields = useFields(() => ({ name: fieldState(), lease: fieldState('1h') }));
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const name = reader.text(fields.name, 'Give it a name.');
    reader.text(fields.lease, 'Enter a time.');
    const ttl_seconds = reader.parsed(fields.lease, parseTime, 0);
    reader.done();
    await api.post('/api/v2/groups', { body: { name, ttl_seconds } as Schemas['CreateGroup'] });
    await reload();
  };
  return (
    <FormDialog title="Create a group" submitText="Create" onSubmit={submit} onClose={close}>
      <TextField label="Name" state={fields.name} autofocus />
      <TextField label="Lease" state={fields.lease} note="Such as 10m or 1d; up to 30 days" />
    </FormDialog>
  );
}
