// The nodes of a cluster, for operators: their state and room, and drains before maintenance.

import { type Schemas, all, api } from '../client/api';
import { type Resource, useResource } from '../client/resource';
import { bytes, duration } from '../format';
import { number, parseTime, plural } from '../quantities';
import { Page, pageAddress, route } from '../shell';
import { Badge, Button, CodeBlock, type Column, EmptyState, Facts, FieldReader, FormDialog, Loaded, Meter, State, Table, TextField, Time, confirm, fieldState, fullTime, notify, now, openDialog, useFields } from '../ui';

type Node = Schemas['Node'];

const PERIOD = 3000;

function useNodes(): Resource<Node[]> {
  return useResource('nodes', signal => all('/api/v2/nodes', 'nodes', { signal }), PERIOD);
}

export function NodesPage() {
  const resource = useNodes();
  const { reload } = resource;
  const name = route.value.parts[0];
  if (name !== undefined) return <NodePage name={name} resource={resource} />;
  const columns: Column<Node>[] = [
    { id: 'name', title: 'Name', sort: one => one.name, cell: one => <><a class="title" href={pageAddress(['nodes', one.name])}>{one.name}</a>{one.version && <small>version {one.version}</small>}</>, tip: one => one.address ?? undefined },
    { id: 'state', title: 'State', sort: one => stateOf(one), cell: one => <NodeState node={one} /> },
    { id: 'sandboxes', title: 'Sandboxes', number: true, sort: one => one.sandboxes ?? 0, cell: one => <>{number(one.sandboxes ?? 0)}<small>{one.room === null || one.room === undefined ? 'room unknown' : `room for ${number(one.room)}`}</small></> },
    { id: 'memory', title: 'Memory', sort: one => share(one.memory_available_bytes, one.memory_total_bytes), cell: one => <Used node={one.name} what="Memory" available={one.memory_available_bytes} total={one.memory_total_bytes} /> },
    { id: 'disk', title: 'Disk', low: true, sort: one => share(one.disk_available_bytes, one.disk_total_bytes), cell: one => <Used node={one.name} what="Disk" available={one.disk_available_bytes} total={one.disk_total_bytes} /> },
    { id: 'tiers', title: 'Tiers and labels', low: true, className: 'clip-cell', cell: one => <>{one.tiers?.join(', ') ?? 'unknown'}<small>{labelsText(one)}</small></>, tip: labelsText },
    { id: 'renewed', title: 'Renewed', number: true, sort: one => Date.parse(one.renewed_at), cell: one => <Time at={one.renewed_at} /> },
    { id: 'actions', title: '', cell: one => <div class="row"><DrainButton node={one} reload={reload} small /></div> },
  ];
  return (
    <Page title="Nodes" beside={resource.data && resource.data.length > 0 && <span class="quiet">{number(resource.data.length)}</span>}>
      <div class="panel"><Loaded resource={resource}>{rows => (
        <Table label="Nodes" columns={columns} rows={rows} rowKey={one => one.name} sort={{ column: 'name', down: false }} empty={<NoCluster />} />
      )}</Loaded></div>
    </Page>
  );
}

function NoCluster() {
  return (
    <EmptyState icon="node" title="This server has no cluster" actions={<CodeBlock wrap label="The command" code="arenite serve --store postgres://USER:PASSWORD@HOST/DATABASE --node red --node-listen 10.0.0.1:8902" />}>
      It runs all sandboxes itself. Servers that share a Postgres database are the nodes of a cluster: each runs sandboxes, and any of them answers for all.
    </EmptyState>
  );
}

function NodePage({ name, resource }: { name: string; resource: Resource<Node[]> }) {
  const found = resource.data?.find(one => one.name === name);
  return (
    <Page title={name} crumbs={<a href="#/nodes">All nodes</a>} beside={found && <NodeState node={found} />} actions={found && <DrainButton node={found} reload={resource.reload} />}>
      <Loaded resource={resource}>{() => (found ? <NodeFacts node={found} /> : <div role="alert"><EmptyState icon="node" title="There is no such node">The cluster has no node with this name, or it was removed.</EmptyState></div>)}</Loaded>
    </Page>
  );
}

function NodeFacts({ node }: { node: Node }) {
  void now.value;
  const { drain, sandboxes = 0 } = node;
  return (
    <>
      {drain && (
        <section class="panel stack" aria-label="Drain" role="status">
          <h2>Drain</h2>
          <p>{sandboxes === 0 ? 'No sandboxes are left: the node can be stopped.' : `${plural(sandboxes, 'sandbox is', 'sandboxes are')} left. ${drain.deadline ? `They are deleted in ${duration((Date.parse(drain.deadline) - Date.now()) / 1000)}.` : 'They stay until they end.'}`} The node gets no new ones (since <Time at={drain.since} form="full" />).</p>
        </section>
      )}
      <section class="panel" aria-label="Properties"><Facts facts={[
        ['Sandboxes', number(sandboxes)],
        ['Room for', roomText(node)],
        ['Memory', <Used node={node.name} what="Memory" available={node.memory_available_bytes} total={node.memory_total_bytes} />],
        ['Disk', <Used node={node.name} what="Disk" available={node.disk_available_bytes} total={node.disk_total_bytes} />],
        ['Tiers', node.tiers?.join(', ')],
        ['Labels', Object.entries(node.labels ?? {}).length > 0 && <span class="row">{Object.entries(node.labels ?? {}).map(([key, value]) => <Badge key={key}>{`${key}=${value}`}</Badge>)}</span>],
        ['Address', node.address && <code>{node.address}</code>],
        ['Version', node.version],
        ['Started', <Time at={node.started_at} />],
        ['Last renewal', <Time at={node.renewed_at} />],
        ['Starts', number(node.epoch)],
      ]} /></section>
    </>
  );
}

function stateOf({ state, drain, sandboxes = 0 }: Node): string {
  return drain && state === 'up' ? (sandboxes > 0 ? 'draining' : 'drained') : state;
}

function NodeState({ node }: { node: Node }) {
  const state = stateOf(node);
  const { drain, sandboxes = 0 } = node;
  const left = state === 'draining' ? `draining: ${number(sandboxes)} left` : state;
  const tip = drain?.deadline ? `Sandboxes that are left are deleted at ${fullTime(drain.deadline)}` : undefined;
  return <span title={tip}><State name={state} text={left} {...(state === 'draining' ? { tone: 'busy' as const } : state === 'drained' ? { tone: 'wait' as const } : {})} /></span>;
}

function roomText({ room }: Node): string {
  return room === null || room === undefined ? 'unknown' : number(room);
}

function labelsText({ labels }: Node): string {
  return Object.entries(labels ?? {}).map(([key, value]) => `${key}=${value}`).join(', ');
}

function share(available = 0, total = 0): number {
  return total > 0 ? (total - available) / total : 0;
}

function Used({ node, what, available = 0, total = 0 }: { node: string; what: string; available: number | undefined; total: number | undefined }) {
  if (total === 0) return <>unknown</>;
  return <Meter share={share(available, total)} label={`${what} in use on ${node}`}>{bytes(total - available)}<small class="quiet"> of {bytes(total)}</small></Meter>;
}

function DrainButton({ node, reload, small = false }: { node: Node; reload: () => Promise<void>; small?: boolean }) {
  const { name, drain } = node;
  const uncordon = async (): Promise<void> => {
    if (!await confirm({ title: `End the drain of ${name}?`, text: 'It gets new sandboxes again. Those that it still has stay.', yes: 'End the drain', no: 'Keep draining' })) return;
    await api.post('/api/v2/nodes/{name}/uncordon', { path: { name }, body: {} }).finally(reload);
    notify(`${name} gets new sandboxes again.`);
  };
  const kind = small ? 'plain' as const : 'default' as const;
  if (drain) return <Button small={small} kind={kind} label={`End the drain of ${name}`} onPress={uncordon}>End the drain</Button>;
  return <Button small={small} kind={kind} label={`Drain ${name}`} onPress={() => { openDialog(close => <DrainDialog name={name} first={node} close={close} reload={reload} />); }}>Drain</Button>;
}

/** `first`: the node as it was when the dialog was opened. */
function DrainDialog({ name, first, close, reload }: { name: string; first: Node; close: () => void; reload: () => Promise<void> }) {
  const { sandboxes = 0 } = useNodes().data?.find(one => one.name === name) ?? first;
  const deadline = useFields(() => fieldState());
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const deadline_seconds = reader.parsed(deadline, parseTime, null);
    reader.done();
    await api.post('/api/v2/nodes/{name}/drain', { path: { name }, body: { deadline_seconds } });
    notify(`${name} gets no new sandboxes.`);
    await reload();
  };
  return (
    <FormDialog title={`Drain the node ${name}?`} submitText="Drain" danger onSubmit={submit} onClose={close}>
      <p>It gets no new sandboxes. It has {plural(sandboxes, 'sandbox', 'sandboxes')} now, of all tenants.</p>
      <TextField label="Delete those that are left after" state={deadline} placeholder="never" note="Such as 30m or 2h. Empty: they stay until they end." autofocus />
    </FormDialog>
  );
}
