// Snapshots: named states of disks, from which sandboxes are created.

import { useState } from 'preact/hooks';

import { type Schemas, address, all, api, fill } from '../client/api';
import { useResource } from '../client/resource';
import { Page, type Rights, go, sandboxPage } from '../shell';
import { Button, Bytes, CodeBlock, type Column, Dialog, EmptyState, IconButton, Loaded, Table, Time, confirm, notify, openDialog } from '../ui';

type Snapshot = Schemas['SnapshotInfo'];
type FileEntry = Schemas['FileEntry'];

export function SnapshotsPage({ rights }: { rights: Rights }) {
  const resource = useResource('snapshots', signal => all('/api/v2/snapshots', 'snapshots', { signal }));
  const manages = rights.may('manage');
  const create = async (snapshot: string): Promise<void> => {
    const made = await api.post('/api/v2/sandboxes', { body: { snapshot } as Schemas['CreateSandbox'] });
    if ('name' in made) go(sandboxPage(made.name));
  };
  const remove = async (name: string): Promise<void> => {
    if (!await confirm({ title: `Delete the snapshot ${name}?`, text: 'Sandboxes that were created from it keep their disks.', yes: 'Delete', no: 'Keep it' })) return;
    await api.delete('/api/v2/snapshots/{name}', { path: { name } });
    notify(`Deleted the snapshot ${name}.`);
    await resource.reload();
  };
  const columns: Column<Snapshot>[] = [
    { id: 'name', title: 'Name', sort: one => one.name, cell: one => <span class="title">{one.name}</span> },
    { id: 'sandbox', title: 'Of', sort: one => one.sandbox, cell: one => one.sandbox },
    { id: 'image', title: 'Image', low: true, className: 'clip-cell', sort: one => one.image, cell: one => <code>{one.image}</code> },
    { id: 'disk', title: 'Disk', number: true, sort: one => one.disk_bytes ?? 0, cell: one => <Bytes value={one.disk_bytes} /> },
    { id: 'age', title: 'Age', number: true, sort: one => Date.parse(one.created_at), cell: one => <Time at={one.created_at} form="age" /> },
    { id: 'note', title: 'Note', className: 'wrap', cell: one => [one.note ?? '', ...Object.entries(one.labels).map(([key, value]) => `${key}=${value}`)].filter(Boolean).join(', ') },
    ...(rights.may('use') ? [{ id: 'actions', title: '', cell: ({ name }: Snapshot) => (
      <div class="row">
        <Button small kind="plain" label={`Files of ${name}`} onPress={() => openDialog(close => <SnapshotFiles snapshot={name} close={close} />)}>Files</Button>
        {manages && <Button small kind="plain" label={`Create a sandbox from ${name}`} onPress={() => create(name)}>Create a sandbox</Button>}
        {manages && <IconButton small kind="plain" icon="trash" label={`Delete ${name}`} title="Delete" onPress={() => remove(name)} />}
      </div>
    ) }] : []),
  ];
  return (
    <Page title="Snapshots">
      <div class="panel"><Loaded resource={resource}>{rows => (
        <Table label="Snapshots" columns={columns} rows={rows} rowKey={one => one.name} sort={{ column: 'age', down: true }} empty={
          <EmptyState icon="snapshot" title="No snapshots yet" actions={<CodeBlock label="The command" code="arenite snapshot create SANDBOX NAME" />}>A snapshot is the state of a disk under a name. Any number of sandboxes can be created from it.</EmptyState>} />
      )}</Loaded></div>
    </Page>
  );
}

/** Files of one page. */
const PAGE = 200;

/** Bytes that are not UTF-8 stay encoded. */
function readable(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function SnapshotFiles({ snapshot, close }: { snapshot: string; close: () => void }) {
  /** Names of directories, encoded for a URL. */
  const [path, setPath] = useState<string[]>([]);
  const [limit, setLimit] = useState(PAGE);
  const base = fill('/api/v2/snapshots/{name}', { path: { name: snapshot } });
  const resource = useResource(`${path.join('/')} ${limit}`, async signal => {
    // The path is encoded already, so it is a part of the address as it is.
    const files = await all(`${base}/files?limit=${PAGE}&path=${path.join('/')}` as '/api/v2/snapshots/{name}/files', 'files', { signal, most: limit });
    return { files, isMore: files.length >= limit };
  });
  const below = (file: FileEntry): string[] => [...path, file.encoded_name ?? encodeURIComponent(file.name)];
  const columns: Column<FileEntry>[] = [
    { id: 'name', title: 'Name', cell: file => {
      if (file.kind === 'directory') return <Button small kind="plain" label={`Open ${file.name}`} onPress={() => { setLimit(PAGE); setPath(below(file)); }}>{file.name}/</Button>;
      if (file.kind !== 'file') return file.name;
      return <a href={`${address(base)}/content?path=${below(file).join('/')}`} download={file.name}>{file.name}</a>;
    } },
    { id: 'kind', title: 'Kind', low: true, cell: file => file.kind },
    { id: 'size', title: 'Size', number: true, cell: file => (file.kind === 'file' ? <Bytes value={file.size_bytes} /> : '–') },
    { id: 'mode', title: 'Mode', low: true, cell: file => <code>{file.mode}</code> },
    { id: 'age', title: 'Age', number: true, cell: file => <Time at={file.modified_at} form="age" /> },
  ];
  return (
    <Dialog title={`Files of ${snapshot}`} className="wide" onClose={close} foot={path.length > 0 && <Button onPress={() => setPath(path.slice(0, -1))}>Up</Button>}>
      <p class="quiet mono" role="status">/{path.map(readable).join('/')}</p>
      <Loaded resource={resource}>{({ files, isMore }) => (
        <>
          <Table label="Files" columns={columns} rows={files} rowKey={file => file.encoded_name ?? file.name} empty={<p class="quiet">The directory is empty.</p>} />
          {isMore && <div><Button onPress={() => setLimit(limit + 5 * PAGE)}>Show more</Button></div>}
        </>
      )}</Loaded>
    </Dialog>
  );
}

