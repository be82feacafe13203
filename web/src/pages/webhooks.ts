// Webhooks of the tenant, and what was delivered to them.

import { type Page, call, entries, page } from '../api';
import { byId, make, milliseconds } from '../dom';
import { Field, FieldsWrong, Message, ask, button, dialog, formDialog, shownOnce, textInput, workButton } from '../forms';
import { Table } from '../table';
import type { View } from '../view';
import { localTime } from './audit';

interface Webhook {
  id: string;
  url: string;
  /** Empty: all. */
  types: string[];
  created_at: string;
}

interface Delivery {
  number: number;
  event: string;
  type: string;
  state: string;
  attempts: number;
  created_at: string;
  next_attempt_at: string | null;
  ended_at: string | null;
  status: number | null;
  error: string | null;
  body: unknown;
}

interface Test {
  delivered: boolean;
  status: number | null;
  error: string | null;
  ms: number;
}

const PAGE = 50;

export class WebhooksPage implements View {
  readonly box = byId('page-webhooks');
  readonly title = 'Webhooks';
  private readonly message = new Message();
  private readonly table: Table<Webhook>;

  constructor() {
    this.table = new Table<Webhook>('Webhooks', [
      { title: 'URL', className: 'code url', cell: hook => make('span', {}, hook.url, make('small', { className: 'id', textContent: hook.id })) },
      { title: 'Events', className: 'bound', cell: hook => (hook.types.length > 0 ? hook.types.join(', ') : 'all') },
      { title: 'Created', cell: hook => hook.created_at.slice(0, 10), tip: hook => hook.created_at },
      { title: '', cell: hook => make('span', { className: 'buttons-inline' },
        button('Deliveries', () => void new Deliveries(hook).read(false), { label: `Deliveries of ${hook.id}` }),
        workButton('Test', () => this.test(hook), this.message.fail, { label: `Test ${hook.id}` }),
        button('Remove', () => void this.remove(hook), { label: `Remove ${hook.id}` })) },
    ], 'There are no webhooks. One gets the events of sandboxes as they happen, signed.');
    this.box.replaceChildren(make('section', {},
      make('div', { className: 'head' }, make('h2', { textContent: 'Webhooks', tabIndex: -1 }), button('Create a webhook', () => this.create(), { className: 'primary' })),
      this.message.box, this.table.box));
  }

  open(): void {
    this.message.say('');
    void this.read();
  }

  close(): void { /* Nothing runs. */ }

  private async read(): Promise<void> {
    try {
      this.table.show(await entries<Webhook>('api/v2/webhooks', 'webhooks'));
    } catch (error) {
      this.message.fail(error as Error);
    }
  }

  private create(): void {
    const url = new Field('URL', textInput({ name: 'url', type: 'url', autofocus: true }), 'With http or https, and a public address');
    const types = new Field('Events', textInput({ name: 'types', placeholder: 'all' }), 'Their types, such as sandbox.created, with commas between them');
    formDialog('Create a webhook', [url.box, types.box], 'Create', async () => {
      if (!url.value.trim()) {
        url.error = 'Give the address that gets the events.';
        throw new FieldsWrong();
      }
      const made = await call<Webhook & { secret: string }>('POST', 'api/v2/webhooks', { url: url.value.trim(), types: types.value.split(/[\s,]+/).filter(Boolean) });
      void this.read();
      void shownOnce('Secret of the webhook', 'Deliveries are signed with it. Copy it now: it can\'t be read again.', made.secret);
    });
  }

  private async test(hook: Webhook): Promise<void> {
    const test = await call<Test>('POST', `${path(hook)}/test`, {});
    const status = test.status === null ? '' : ` with status ${test.status}`;
    this.message.say(test.delivered ? `${hook.url} accepted the test${status} in ${milliseconds(test.ms)}.` : `${hook.url} did not accept the test${status}: ${test.error ?? 'no reason is known'}`, !test.delivered);
  }

  private async remove(hook: Webhook): Promise<void> {
    if (!await ask({ title: 'Remove this webhook?', text: `${hook.url} gets no more events, and what waits for it is dropped.`, yes: 'Remove', no: 'Keep it' })) return;
    try {
      await call('DELETE', path(hook));
      this.message.say('Removed the webhook.');
    } catch (error) {
      this.message.fail(error as Error);
    }
    await this.read();
  }
}

function path({ id }: Webhook): string {
  return `api/v2/webhooks/${encodeURIComponent(id)}`;
}

/** The dialog with the deliveries of one webhook, the newest first. */
class Deliveries {
  private readonly hook: Webhook;
  private readonly message = new Message();
  private readonly table: Table<Delivery>;
  private readonly older = button('Show older ones', () => void this.read(true));
  private all: Delivery[] = [];
  private next: string | null = null;

  constructor(hook: Webhook) {
    this.hook = hook;
    this.table = new Table<Delivery>('Deliveries', [
      { title: 'Event', className: 'name', cell: one => make('details', { className: 'event' }, make('summary', {}, one.type, make('small', { className: 'id', textContent: one.event })), make('pre', { textContent: JSON.stringify(one.body, null, 2), tabIndex: 0 })) },
      { title: 'State', cell: one => make('span', { className: `state ${one.state === 'delivered' ? 'running' : one.state === 'pending' ? 'paused' : 'failed'}`, textContent: one.state }) },
      { title: 'Attempts', number: true, cell: one => String(one.attempts) },
      { title: 'Answer', className: 'wrap', cell: one => [one.status, one.error].filter(part => part !== null).join(': ') || '–' },
      { title: 'Time', cell: one => localTime(one.ended_at ?? one.created_at), tip: one => one.ended_at ?? one.created_at },
      { title: '', cell: one => workButton('Deliver again', async () => {
        await call('POST', `${path(hook)}/deliveries/${one.number}/redeliver`, {});
        this.message.say(`${one.event} is delivered again.`);
        await this.read(false);
      }, this.message.fail, { label: `Deliver ${one.event} again` }) },
    ], 'Nothing was delivered yet.');
    this.older.hidden = true;
    const node = dialog('Deliveries', make('p', { className: 'quiet url', textContent: hook.url }), this.message.box, this.table.box, this.older,
      make('form', { method: 'dialog', className: 'buttons' }, make('button', { textContent: 'Close', autofocus: true })));
    node.classList.add('wide', 'fitted');
    node.showModal();
  }

  async read(older: boolean): Promise<void> {
    try {
      const read: Page<Delivery> = await page<Delivery>(`${path(this.hook)}/deliveries?limit=${PAGE}`, 'deliveries', older ? this.next : null);
      this.all = older ? [...this.all, ...read.items] : read.items;
      this.next = read.next;
      this.older.hidden = this.next === null;
      this.table.show(this.all, this.all.length);
    } catch (error) {
      this.message.fail(error as Error);
    }
  }
}
