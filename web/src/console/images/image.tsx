// The page of one image: what it starts, its layers, and what uses it.

import type { ComponentChildren } from 'preact';

import { type Schemas, api } from '../../client/api';
import { ApiError } from '../../client/errors';
import { useResource } from '../../client/resource';
import { bytes } from '../../format';
import { plural } from '../../quantities';
import { Page, type Rights, go, pageAddress, sandboxPage } from '../../shell';
import { Button, Bytes, type Column, EmptyState, ErrorState, Facts, Loading, Table, Time } from '../../ui';
import { openCreate } from '../sandboxes/create';
import { type ImageUse, imagePage } from './addresses';
import { mayRemove, ownerText, removeImage, useImageUses } from './page';

type Layer = Schemas['ImageLayer'];
/** Sandboxes that are named. */
const MOST_NAMED = 12;

const COLUMNS: readonly Column<Layer & { at: number }>[] = [
  { id: 'at', title: 'Layer', cell: one => one.at },
  { id: 'by', title: 'Instruction', className: 'wrap', main: true, cell: one => <code>{one.created_by || '–'}</code>, tip: one => one.digest },
  { id: 'size', title: 'Size', number: true, sort: one => one.size_bytes, cell: one => <Bytes value={one.size_bytes} /> },
  { id: 'age', title: 'Age', number: true, low: true, cell: one => <Time at={one.created_at} form="age" /> },
];

export function ImagePage({ name, rights }: { name: string; rights: Rights }) {
  const { data, error, reload } = useResource(`image ${name}`, signal => api.get('/api/v2/images/{name}', { path: { name }, signal }));
  const use = useImageUses().get(name);
  const crumbs = <a href="#/images">All images</a>;
  if (!data) return <Page title={name} crumbs={crumbs}>{error ? <Missing error={error} retry={reload} /> : <Loading />}</Page>;
  const remove = async (): Promise<void> => { if (await removeImage(data, use)) go('#/images'); };
  const command = [...data.entrypoint, ...data.cmd];
  return (
    <Page title={data.name} crumbs={crumbs} actions={rights.may('manage') && <>
      <Button kind="primary" icon="plus" onPress={() => openCreate({ image: data.name })}>Create a sandbox from it</Button>
      {mayRemove(rights, data) && <Button icon="trash" onPress={remove}>Delete</Button>}
    </>}>
      {error && <p class="notice bad" role="alert">{error.message}</p>}
      <section class="panel" aria-label="Properties"><Facts facts={[
        ['Size', `${bytes(data.size_bytes)} in ${plural(data.layers, 'layer')}`],
        ['Base', data.base && <a href={imagePage(data.base)}>{data.base}</a>],
        ['Owner', ownerText(data)],
        ['Created', <Time at={data.created_at} />],
        ['Source', data.source ? <code>{data.source}</code> : 'built or loaded here'],
        ['Digest', <code>{data.digest}</code>],
        ['Command', command.length > 0 && <code>{command.join(' ')}</code>],
        ['User', data.user && <code>{data.user}</code>],
        ['Directory', data.workdir && <code>{data.workdir}</code>],
        ['Ports', data.exposed_ports.join(', ')],
        ['Labels', Object.keys(data.labels).length > 0 && <ul>{Object.entries(data.labels).map(([key, value]) => <li key={key}><code>{`${key}=${value}`}</code></li>)}</ul>],
        ['Used by', <Uses use={use} />],
      ]} /></section>
      <section class="panel" aria-label="Layers of the image">
        <div class="panel-head"><h2>Layers</h2><span class="quiet">the lowest first</span></div>
        <Table label="Layers" columns={COLUMNS} rows={data.history.map((one, n) => ({ ...one, at: n + 1 }))} rowKey={one => String(one.at)} />
      </section>
    </Page>
  );
}

function Missing({ error, retry }: { error: Error; retry: () => unknown }) {
  if (!(error instanceof ApiError) || error.status !== 404) return <ErrorState error={error} retry={retry} />;
  return <div role="alert"><EmptyState icon="image" title="There is no such image" actions={<a href="#/images">All images</a>}>{error.message}</EmptyState></div>;
}

function Uses({ use }: { use: ImageUse | undefined }) {
  const { sandboxes = [], templates = [] } = use ?? {};
  const links: ComponentChildren[] = [
    ...templates.map(name => <span key={`t ${name}`}>the template <a href={pageAddress(['templates', name])}>{name}</a></span>),
    ...sandboxes.slice(0, MOST_NAMED).map((name, n) => <span key={name}>{n === 0 && (sandboxes.length === 1 ? 'the sandbox ' : 'the sandboxes ')}<a href={sandboxPage(name)}>{name}</a></span>),
  ];
  const more = sandboxes.length - MOST_NAMED;
  if (links.length === 0) return <>nothing</>;
  return <>{links.map((link, n) => <>{n > 0 && ', '}{link}</>)}{more > 0 && ` and ${plural(more, 'more sandbox', 'more sandboxes')}`}</>;
}
