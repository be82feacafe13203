// Templates: named settings of sandboxes, which the operator declares.

import { type Schemas, all, api } from '../client/api';
import { ApiError } from '../client/errors';
import { useResource } from '../client/resource';
import { bytes } from '../format';
import { cores, exactTime, number, plural } from '../quantities';
import { Page, type Rights, pageAddress, replaceQuery, route } from '../shell';
import { Badge, Button, Bytes, type Column, EmptyState, ErrorState, Facts, Loaded, Loading, SearchField, Table } from '../ui';
import { imagePage } from './images/addresses';
import { openCreate } from './sandboxes/create';
import { known } from './sandboxes/store';

type Template = Schemas['Template'];
type Spec = Schemas['SandboxSpec'];

export function TemplatesPage({ rights }: { rights: Rights }) {
  const name = route.value.parts[0];
  return name === undefined ? <TemplateList rights={rights} /> : <TemplatePage key={name} name={name} rights={rights} />;
}

function TemplateList({ rights }: { rights: Rights }) {
  const resource = useResource('templates', signal => all('/api/v2/templates', 'templates', { signal }));
  const find = route.value.query.get('find') ?? '';
  const typed = find.trim().toLowerCase();
  const columns: Column<Template>[] = [
    { id: 'name', title: 'Name', sort: one => one.name, cell: one => <><a class="title" href={pageAddress(['templates', one.name])}>{one.name}</a>{one.description && <small>{one.description}</small>}</> },
    { id: 'image', title: 'Image', className: 'clip-cell', sort: one => one.spec.image, cell: one => <a href={imagePage(one.spec.image)}>{one.spec.image}</a> },
    { id: 'cpu', title: 'CPU', number: true, low: true, sort: one => one.spec.resources?.cpu_millis ?? 0, cell: one => (one.spec.resources?.cpu_millis ? cores(one.spec.resources.cpu_millis) : '–') },
    { id: 'memory', title: 'Memory', number: true, sort: one => one.spec.resources?.memory_bytes ?? 0, cell: one => <Bytes value={one.spec.resources?.memory_bytes} /> },
    { id: 'disk', title: 'Disk', number: true, low: true, sort: one => one.spec.resources?.disk_bytes ?? 0, cell: one => <Bytes value={one.spec.resources?.disk_bytes} /> },
    { id: 'pool', title: 'Kept ready', number: true, sort: one => one.pool, cell: one => (one.pool > 0 ? number(one.pool) : '–') },
    { id: 'sandboxes', title: 'Sandboxes', number: true, cell: one => <SandboxesOf template={one.name} /> },
    ...(rights.may('manage') ? [{ id: 'actions', title: '', cell: (one: Template) => (
      <div class="row"><Button small kind="plain" label={`Create a sandbox from ${one.name}`} onPress={() => openCreate({ template: one.name })}>Create a sandbox</Button></div>
    ) }] : []),
  ];
  const matches = ({ name, description, spec }: Template): boolean => `${name}\n${description}\n${spec.image}`.toLowerCase().includes(typed);
  return (
    <Page title="Templates" beside={resource.data && resource.data.length > 0 && <span class="quiet">{number(resource.data.length)}</span>}>
      {resource.data && resource.data.length > 0 && <div class="toolbar"><SearchField label="Search templates" placeholder="Name, description or image" value={find} onInput={text => replaceQuery({ find: text })} /></div>}
      <div class="panel"><Loaded resource={resource}>{rows => (
        <Table label="Templates" columns={columns} rows={typed ? rows.filter(matches) : rows} rowKey={one => one.name} sort={{ column: 'name', down: false }} empty={
          typed ? <EmptyState icon="search" title="No template matches">Search for another name, description or image.</EmptyState>
            : <EmptyState icon="template" title="No templates">A template has settings of sandboxes under a name. The operator declares them in the server's configuration.</EmptyState>} />
      )}</Loaded></div>
    </Page>
  );
}

function SandboxesOf({ template }: { template: string }) {
  const count = known.value.filter(one => one.template === template).length;
  return count === 0 ? <>0</> : <a href={pageAddress([], { template })} aria-label={`${plural(count, 'sandbox', 'sandboxes')} of ${template}`}>{number(count)}</a>;
}

function TemplatePage({ name, rights }: { name: string; rights: Rights }) {
  const { data, error, reload } = useResource(`template ${name}`, signal => api.get('/api/v2/templates/{name}', { path: { name }, signal }));
  const crumbs = <a href="#/templates">All templates</a>;
  if (!data) {
    const isMissing = error instanceof ApiError && error.status === 404;
    return <Page title={name} crumbs={crumbs}>{!error ? <Loading /> : isMissing ? <div role="alert"><EmptyState icon="template" title="There is no such template">{error.message}</EmptyState></div> : <ErrorState error={error} retry={reload} />}</Page>;
  }
  return (
    <Page title={data.name} crumbs={crumbs} actions={rights.may('manage') && <Button kind="primary" icon="plus" onPress={() => openCreate({ template: data.name })}>Create a sandbox from it</Button>}>
      {error && <p class="notice bad" role="alert">{error.message}</p>}
      {data.description && <p>{data.description}</p>}
      <section class="panel" aria-label="Start">
        <div class="panel-head"><h2>Start</h2></div>
        <Facts facts={[
          ['Image', <a href={imagePage(data.spec.image)}>{data.spec.image}</a>],
          ['Kept ready', data.pool > 0 ? `${plural(data.pool, 'sandbox', 'sandboxes')}, created in advance` : 'none'],
          ['Sandboxes', <SandboxesOf template={data.name} />],
          ['Required services', data.services.length > 0 && <span class="row">{data.services.map(one => <Badge key={one}>{one}</Badge>)}</span>],
          ['Main command', commandOf(data.spec)],
          ['Directory', data.spec.workdir && <code>{data.spec.workdir}</code>],
          ['Host name', data.spec.hostname && <code>{data.spec.hostname}</code>],
          ['Ports', data.spec.ports?.join(', ')],
          ['Isolation', data.spec.tier ?? 'the default of the server'],
        ]} />
      </section>
      <section class="panel" aria-label="Limits">
        <div class="panel-head"><h2>Limits</h2></div>
        <Facts facts={limits(data.spec)} />
      </section>
      <section class="panel" aria-label="Settings">
        <div class="panel-head"><h2>Settings</h2></div>
        <Facts facts={[
          ['Network', networkText(data.spec)],
          ['Checkpoints', data.spec.checkpoint === 'auto' ? 'around each step that can change the disk' : 'by hand'],
          ['Environment', pairs(data.spec.env)],
          ['Labels', pairs(data.spec.labels)],
          ['Secrets', data.spec.secrets?.map(one => one.name).join(', ')],
          ['Volumes', data.spec.volumes && data.spec.volumes.length > 0 && <ul>{data.spec.volumes.map(one => <li key={one.path}>{one.name} at <code>{one.path}</code>{one.read_only && ', read-only'}</li>)}</ul>],
        ]} />
      </section>
    </Page>
  );
}

function commandOf({ args, image_command }: Spec): preact.ComponentChild {
  if (args && args.length > 0) return <code>{args.join(' ')}</code>;
  return image_command ? 'that of the image' : 'none';
}

function limits({ resources, ...spec }: Spec): (readonly [string, string | undefined | false])[] {
  return [
    ['CPU', resources?.cpu_millis && cores(resources.cpu_millis)],
    ['Memory', resources?.memory_bytes && bytes(resources.memory_bytes)],
    ['Disk', resources?.disk_bytes && bytes(resources.disk_bytes)],
    ['Processes', resources?.pids && number(resources.pids)],
    ['/dev/shm', resources?.shm_bytes && bytes(resources.shm_bytes)],
    ['Lifetime', spec.timeout_seconds ? exactTime(spec.timeout_seconds) : 'unlimited'],
    ['When idle', spec.idle_timeout_seconds ? `${IDLE[spec.idle_policy ?? 'delete'] ?? spec.idle_policy} after ${exactTime(spec.idle_timeout_seconds)}` : 'nothing'],
    ['Frozen ones', spec.disk_after_seconds ? `to disk after ${exactTime(spec.disk_after_seconds)}` : undefined],
  ].map(([label, text]) => [label as string, (text || undefined) as string | undefined]);
}

const IDLE: Record<string, string> = { delete: 'deleted', pause: 'paused', freeze: 'frozen', disk: 'paused to disk' };

function networkText({ network, network_policy: policy }: Spec): string {
  if (network === 'none') return 'none';
  if (!policy) return 'internet';
  const rules = [...(policy.allow ?? []), ...(policy.deny ?? [])].length;
  return `${policy.mode === 'allowlist' ? 'only what is allowed' : 'observed'}, ${plural(rules, 'rule')}`;
}

function pairs(of: Record<string, string> | undefined): preact.ComponentChild {
  const entries = Object.entries(of ?? {});
  return entries.length === 0 ? null : <ul>{entries.map(([key, value]) => <li key={key}><code>{`${key}=${value}`}</code></li>)}</ul>;
}
