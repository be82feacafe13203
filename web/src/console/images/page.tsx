// Images: what sandboxes start as. They are pulled from registries, or built.

import { useEffect, useMemo } from 'preact/hooks';

import { type Schemas, all, api } from '../../client/api';
import { useResource } from '../../client/resource';
import { bytes } from '../../format';
import { number, plural } from '../../quantities';
import { Page, type Rights, replaceQuery, route } from '../../shell';
import { Button, Bytes, type Column, EmptyState, IconButton, Loaded, SearchField, Table, Time, confirm, notify } from '../../ui';
import { openCreate } from '../sandboxes/create';
import { known } from '../sandboxes/store';
import { type ImageUse, imagePage, imageUses } from './addresses';
import { openBuild, openPull } from './dialogs';
import { ImagePage } from './image';
import { ended } from './jobs';
import { JobsPanel } from './jobs_panel';

export type ImageEntry = Schemas['ImageEntry'];

export function ImagesPage({ rights }: { rights: Rights }) {
  const name = route.value.parts[0];
  return name === undefined ? <ImageList rights={rights} /> : <ImagePage key={name} name={name} rights={rights} />;
}

/** Those of all tenants are the operator's, and the tenant `default` is. */
export function mayRemove(rights: Rights, { shared }: { shared: boolean }): boolean {
  return rights.may('manage') && rights.wholeTenant && (!shared || rights.me.tenant === 'default');
}

/** False: the answer was no. */
export async function removeImage({ name, size_bytes }: ImageEntry, use: ImageUse | undefined): Promise<boolean> {
  const templates = use?.templates.length ? ` Templates name it (${use.templates.slice(0, 3).join(', ')}): creates from them then fail.` : '';
  const sandboxes = use?.sandboxes.length ? ` ${plural(use.sandboxes.length, 'sandbox keeps', 'sandboxes keep')} what they have.` : '';
  const yes = await confirm({ title: `Delete the image ${name}?`, text: `It has ${bytes(size_bytes)}. Layers that other images and sandboxes use stay.${sandboxes}${templates}`, yes: 'Delete', no: 'Keep it' });
  if (!yes) return false;
  const { freed_bytes } = await api.delete('/api/v2/images/{name}', { path: { name } });
  notify(`Deleted the image ${name}: ${bytes(freed_bytes)} are free.`);
  return true;
}

export function useImageUses(): ReadonlyMap<string, ImageUse> {
  const templates = useResource('templates of images', signal => all('/api/v2/templates', 'templates', { signal }));
  return useMemo(() => imageUses(known.value, templates.data ?? []), [known.value, templates.data]);
}

function ImageList({ rights }: { rights: Rights }) {
  const resource = useResource('images', signal => all('/api/v2/images', 'images', { signal }));
  const { reload } = resource;
  useEffect(() => { if (ended.value > 0) void reload(); }, [ended.value]);
  const uses = useImageUses();
  const manages = rights.may('manage');
  const find = route.value.query.get('find') ?? '';
  const typed = find.trim().toLowerCase();
  const matches = ({ name, base, labels }: ImageEntry): boolean => [name, base ?? '', ...Object.entries(labels).map(pair => pair.join('='))].join('\n').toLowerCase().includes(typed);
  const remove = async (image: ImageEntry): Promise<void> => { await removeImage(image, uses.get(image.name)).finally(reload); };
  const columns: Column<ImageEntry>[] = [
    { id: 'name', title: 'Name', sort: one => one.name, cell: one => <><a class="title" href={imagePage(one.name)}>{one.name}</a>{one.base && <small>on {one.base}</small>}</>, tip: one => one.digest },
    { id: 'owner', title: 'Owner', low: true, sort: one => ownerText(one), cell: one => ownerText(one) },
    { id: 'size', title: 'Size', number: true, sort: one => one.size_bytes, cell: one => <Bytes value={one.size_bytes} /> },
    { id: 'layers', title: 'Layers', number: true, low: true, sort: one => one.layers, cell: one => number(one.layers) },
    { id: 'uses', title: 'Used by', sort: one => useCount(uses.get(one.name)), cell: one => useText(uses.get(one.name)) },
    { id: 'age', title: 'Age', number: true, sort: one => Date.parse(one.created_at), cell: one => <Time at={one.created_at} form="age" /> },
    ...(manages ? [{ id: 'actions', title: '', cell: (one: ImageEntry) => (
      <div class="row">
        <Button small kind="plain" label={`Create a sandbox from ${one.name}`} onPress={() => openCreate({ image: one.name })}>Create a sandbox</Button>
        {mayRemove(rights, one) && <IconButton small kind="plain" icon="trash" label={`Delete ${one.name}`} title="Delete" onPress={() => remove(one)} />}
      </div>
    ) }] : []),
  ];
  const buttons = manages && <><Button icon="download" onPress={openPull}>Pull</Button><Button kind="primary" icon="plus" onPress={openBuild}>Build an image</Button></>;
  const count = resource.data && resource.data.length > 0 && <span class="quiet">{number(resource.data.length)}</span>;
  return (
    <Page title="Images" beside={count} actions={buttons}>
      {resource.data && resource.data.length > 0 && <div class="toolbar"><SearchField label="Search images" placeholder="Name, base or label" value={find} onInput={text => replaceQuery({ find: text })} /></div>}
      <JobsPanel />
      <div class="panel"><Loaded resource={resource}>{rows => (
        <Table label="Images" columns={columns} rows={typed ? rows.filter(matches) : rows} rowKey={one => one.name} sort={{ column: 'name', down: false }} empty={
          typed ? <EmptyState icon="search" title="No image matches">Search for another name, base or label.</EmptyState>
            : <EmptyState icon="image" title="No images yet">Pull one from a registry, or build one from a Dockerfile. Sandboxes start as it.</EmptyState>} />
      )}</Loaded></div>
    </Page>
  );
}

export function ownerText({ shared }: { shared: boolean }): string {
  return shared ? 'all tenants' : 'this tenant';
}

function useCount(use: ImageUse | undefined): number {
  return (use?.sandboxes.length ?? 0) + (use?.templates.length ?? 0);
}

function useText(use: ImageUse | undefined): string {
  const { sandboxes = [], templates = [] } = use ?? {};
  const parts = [sandboxes.length > 0 && plural(sandboxes.length, 'sandbox', 'sandboxes'), templates.length > 0 && plural(templates.length, 'template')].filter(Boolean);
  return parts.join(', ') || '–';
}
