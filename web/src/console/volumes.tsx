// Volumes: storage that outlives sandboxes.

import { type Schemas, all, api } from '../client/api';
import { useResource } from '../client/resource';
import { bytes } from '../format';
import { parseSize } from '../quantities';
import { Page, type Rights, sandboxPage } from '../shell';
import { Button, Bytes, type Column, EmptyState, FieldReader, FormDialog, IconButton, Loaded, State, Table, TextField, Time, confirm, fieldState, notify, openDialog, useFields } from '../ui';

type Volume = Schemas['VolumeInfo'];

/** Sandboxes that a row names. */
const MOST_NAMED = 3;

export function VolumesPage({ rights }: { rights: Rights }) {
  const resource = useResource('volumes', signal => all('/api/v2/volumes', 'volumes', { signal }));
  const manages = rights.may('manage');
  const { reload } = resource;
  const create = (): void => { openDialog(close => <CreateVolume close={close} reload={reload} />); };
  const remove = async ({ name, sandboxes }: Volume): Promise<void> => {
    const used = sandboxes.length > 0 ? ` Sandboxes have it (${sandboxes.slice(0, MOST_NAMED).join(', ')}), so this is refused.` : '';
    if (!await confirm({ title: `Delete the volume ${name}?`, text: `This deletes all of its files.${used}`, yes: 'Delete', no: 'Keep it' })) return;
    await api.delete('/api/v2/volumes/{name}', { path: { name } }).finally(reload);
    notify(`Deleted the volume ${name}.`);
  };
  const columns: Column<Volume>[] = [
    { id: 'name', title: 'Name', sort: one => one.name, cell: one => <span class="title">{one.name}</span>, tip: one => one.id },
    { id: 'state', title: 'State', sort: one => one.state, cell: one => <State name={one.state} tone={one.state === 'ready' ? 'good' : 'bad'} /> },
    { id: 'used', title: 'Used', number: true, sort: one => one.used_bytes ?? 0, cell: one => <Bytes value={one.used_bytes} /> },
    { id: 'size', title: 'Size', number: true, sort: one => one.size_bytes, cell: one => <Bytes value={one.size_bytes} /> },
    { id: 'sandboxes', title: 'Sandboxes', sort: one => one.sandboxes.length, cell: one => <Users sandboxes={one.sandboxes} /> },
    { id: 'age', title: 'Age', number: true, sort: one => Date.parse(one.created_at), cell: one => <Time at={one.created_at} form="age" /> },
    ...(manages ? [{ id: 'actions', title: '', cell: (volume: Volume) => (
      <div class="row">
        <Button small kind="plain" label={`Copy ${volume.name}`} onPress={() => openDialog(close => <CopyVolume name={volume.name} close={close} reload={reload} />)}>Copy</Button>
        <Button small kind="plain" label={`Resize ${volume.name}`} onPress={() => openDialog(close => <ResizeVolume volume={volume} close={close} reload={reload} />)}>Resize</Button>
        <IconButton small kind="plain" icon="trash" label={`Delete ${volume.name}`} title="Delete" onPress={() => remove(volume)} />
      </div>
    ) }] : []),
  ];
  const createButton = manages && <Button kind="primary" icon="plus" onPress={create}>Create a volume</Button>;
  return (
    <Page title="Volumes" actions={resource.data && resource.data.length > 0 && createButton}>
      <div class="panel"><Loaded resource={resource}>{rows => (
        <Table label="Volumes" columns={columns} rows={rows} rowKey={one => one.id} sort={{ column: 'name', down: false }} empty={
          <EmptyState icon="volume" title="No volumes yet" actions={createButton}>A volume keeps files beyond the life of sandboxes, and several can mount it at once.</EmptyState>} />
      )}</Loaded></div>
    </Page>
  );
}

function Users({ sandboxes }: { sandboxes: readonly string[] }) {
  if (sandboxes.length === 0) return <>–</>;
  const named = sandboxes.slice(0, MOST_NAMED);
  const more = sandboxes.length - named.length;
  return <span>{named.map((name, n) => <span key={name}>{n > 0 && ', '}<a href={sandboxPage(name)}>{name}</a></span>)}{more > 0 && ` and ${more} more`}</span>;
}

interface FormProps {
  close: () => void;
  reload: () => Promise<void>;
}

function CreateVolume({ close, reload }: FormProps) {
  const fields = useFields(() => ({ name: fieldState(), size: fieldState('10GiB') }));
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const name = reader.text(fields.name, 'Give it a name.');
    reader.text(fields.size, 'Enter a size.');
    const size_bytes = reader.parsed(fields.size, parseSize, 0);
    reader.done();
    await api.post('/api/v2/volumes', { body: { name, size_bytes } as Schemas['CreateVolume'] });
    await reload();
  };
  return (
    <FormDialog title="Create a volume" submitText="Create" onSubmit={submit} onClose={close}>
      <TextField label="Name" state={fields.name} autofocus />
      <TextField label="Size" state={fields.size} note="What it may hold, such as 512MiB or 1TiB" />
    </FormDialog>
  );
}

function ResizeVolume({ volume: { name, size_bytes: now }, close, reload }: FormProps & { volume: Volume }) {
  const size = useFields(() => fieldState());
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    reader.text(size, 'Enter a size.');
    const size_bytes = reader.parsed(size, parseSize, 0);
    reader.done();
    await api.patch('/api/v2/volumes/{name}', { path: { name }, body: { size_bytes } as Schemas['ChangeVolume'] });
    await reload();
  };
  return <FormDialog title={`Resize ${name}`} submitText="Resize" onSubmit={submit} onClose={close}><TextField label="Size" state={size} note={`It is ${bytes(now)}. Below what the volume holds, all further writes fail.`} autofocus /></FormDialog>;
}

function CopyVolume({ name, close, reload }: FormProps & { name: string }) {
  const to = useFields(() => fieldState());
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const copy = reader.text(to, 'Give the copy a name.');
    reader.done();
    await api.post('/api/v2/volumes/{name}/copy', { path: { name }, body: { name: copy } as Schemas['CopyVolume'] });
    await reload();
  };
  return <FormDialog title={`Copy ${name}`} submitText="Copy" onSubmit={submit} onClose={close}><TextField label="Name of the copy" state={to} note="A copy takes no space until files change." autofocus /></FormDialog>;
}
