// Webhooks of the tenant, and what was delivered to them.

import { useState } from 'preact/hooks';

import { type Schemas, all, api } from '../client/api';
import { useResource } from '../client/resource';
import { milliseconds } from '../format';
import { Page } from '../shell';
import { Button, type Column, Dialog, EmptyState, FieldReader, FormDialog, IconButton, Loaded, State, Table, TextField, Time, confirm, failed, fieldState, notify, openDialog, showOnce, useFields } from '../ui';

type Webhook = Schemas['WebhookInfo'];
type Delivery = Schemas['DeliveryInfo'];

const PAGE = 50;

export function WebhooksPage() {
  const resource = useResource('webhooks', signal => all('/api/v2/webhooks', 'webhooks', { signal }));
  const { reload } = resource;
  const test = async ({ id, url }: Webhook): Promise<void> => {
    const { delivered, status, error, ms } = await api.post('/api/v2/webhooks/{id}/test', { path: { id }, body: {} });
    const with_ = status ? ` with status ${status}` : '';
    if (delivered) notify(`${url} accepted the test${with_} in ${milliseconds(ms)}.`);
    else failed(new Error(`${url} did not accept the test${with_}: ${error ?? 'no reason is known'}`));
  };
  const remove = async ({ id, url }: Webhook): Promise<void> => {
    if (!await confirm({ title: 'Remove this webhook?', text: `${url} gets no more events, and what waits for it is dropped.`, yes: 'Remove', no: 'Keep it' })) return;
    await api.delete('/api/v2/webhooks/{id}', { path: { id } }).finally(reload);
    notify('Removed the webhook.');
  };
  const columns: Column<Webhook>[] = [
    { id: 'url', title: 'URL', className: 'wrap', sort: hook => hook.url, cell: hook => <><code class="title">{hook.url}</code><small class="mono">{hook.id}</small></> },
    { id: 'types', title: 'Events', className: 'wrap', cell: hook => (hook.types.length > 0 ? hook.types.join(', ') : 'all') },
    { id: 'created', title: 'Created', sort: hook => Date.parse(hook.created_at), cell: hook => <Time at={hook.created_at} form="date" /> },
    { id: 'actions', title: '', cell: hook => (
      <div class="row">
        <Button small kind="plain" label={`Deliveries of ${hook.id}`} onPress={() => { openDialog(close => <Deliveries hook={hook} close={close} />); }}>Deliveries</Button>
        <Button small kind="plain" label={`Test ${hook.id}`} onPress={() => test(hook)}>Test</Button>
        <IconButton small kind="plain" icon="trash" label={`Remove ${hook.id}`} title="Remove" onPress={() => remove(hook)} />
      </div>
    ) },
  ];
  const create = <Button kind="primary" icon="plus" onPress={() => { openDialog(close => <CreateWebhook close={close} reload={reload} />); }}>Create a webhook</Button>;
  return (
    <Page title="Webhooks" actions={resource.data && resource.data.length > 0 && create}>
      <div class="panel"><Loaded resource={resource}>{rows => (
        <Table label="Webhooks" columns={columns} rows={rows} rowKey={hook => hook.id} empty={<EmptyState icon="webhook" title="No webhooks yet" actions={create}>A webhook gets the events of sandboxes as they happen, signed.</EmptyState>} />
      )}</Loaded></div>
    </Page>
  );
}

function CreateWebhook({ close, reload }: { close: () => void; reload: () => Promise<void> }) {
  const fields = useFields(() => ({ url: fieldState(), types: fieldState() }));
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const url = reader.text(fields.url, 'Give the address that gets the events.');
    reader.done();
    const types = fields.types.value.value.split(/[\s,]+/).filter(Boolean) as Webhook['types'];
    const made = await api.post('/api/v2/webhooks', { body: { url, types } });
    void reload();
    showOnce('Secret of the webhook', 'Deliveries are signed with it. Copy it now: it can\'t be read again.', made.secret);
  };
  return (
    <FormDialog title="Create a webhook" submitText="Create" onSubmit={submit} onClose={close}>
      <TextField label="URL" type="url" state={fields.url} note="With http or https, and a public address" autofocus />
      <TextField label="Events" state={fields.types} placeholder="all" note="Their types, such as sandbox.created, with commas between them" />
    </FormDialog>
  );
}

/** The deliveries of one webhook, the newest first. */
function Deliveries({ hook, close }: { hook: Webhook; close: () => void }) {
  const [limit, setLimit] = useState(PAGE);
  const resource = useResource(`deliveries ${limit}`, signal => all('/api/v2/webhooks/{id}/deliveries', 'deliveries', { path: { id: hook.id }, query: { limit: PAGE }, signal, most: limit }));
  const again = async ({ event, number }: Delivery): Promise<void> => {
    await api.post('/api/v2/webhooks/{id}/deliveries/{number}/redeliver', { path: { id: hook.id, number: String(number) }, body: {} });
    notify(`${event} is delivered again.`);
    await resource.reload();
  };
  const columns: Column<Delivery>[] = [
    { id: 'event', title: 'Event', className: 'wrap', cell: one => <details><summary>{one.type}<small class="mono">{one.event}</small></summary><div class="code wrap"><pre tabIndex={0} role="group" aria-label={`Body of ${one.event}`}>{JSON.stringify(one.body, null, 2)}</pre></div></details> },
    { id: 'state', title: 'State', cell: one => <State name={one.state} tone={one.state === 'delivered' ? 'good' : one.state === 'pending' ? 'wait' : 'bad'} /> },
    { id: 'attempts', title: 'Attempts', number: true, cell: one => String(one.attempts) },
    { id: 'answer', title: 'Answer', className: 'wrap', cell: one => [one.status, one.error].filter(part => part !== null && part !== undefined).join(': ') || '–' },
    { id: 'time', title: 'Time', cell: one => <Time at={one.ended_at ?? one.created_at} form="full" /> },
    { id: 'actions', title: '', cell: one => <Button small kind="plain" label={`Deliver ${one.event} again`} onPress={() => again(one)}>Deliver again</Button> },
  ];
  return (
    <Dialog title="Deliveries" className="wide" onClose={close}>
      <p class="quiet mono">{hook.url}</p>
      <Loaded resource={resource}>{rows => (
        <>
          <Table label="Deliveries" columns={columns} rows={rows} rowKey={one => String(one.number)} empty={<EmptyState icon="webhook" title="Nothing was delivered yet" />} />
          {rows.length >= limit && <div><Button onPress={() => setLimit(limit + PAGE)}>Show older ones</Button></div>}
        </>
      )}</Loaded>
    </Dialog>
  );
}
