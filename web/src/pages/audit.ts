// The audit log: who changed what, and which requests were refused.

import { type Page, page } from '../api';
import { byId, make } from '../dom';
import { Field, Message, select, textInput } from '../forms';
import type { Rights } from '../rights';
import { type Column, Table } from '../table';
import { TenantChoice } from '../tenant_choice';
import type { View } from '../view';

interface AuditRow {
  time: string;
  tenant: string | null;
  key: string;
  action: string;
  object: string;
  client: string;
  outcome: string;
}

const PAGE = 100;

export class AuditPage implements View {
  readonly box = byId('page-audit');
  readonly title = 'Audit log';
  private readonly message = new Message();
  private readonly tenant: TenantChoice | null;
  private readonly since: Field;
  private readonly until: Field;
  private readonly outcome: Field<HTMLSelectElement>;
  private readonly find: Field;
  private readonly table: Table<AuditRow>;
  private readonly older = make('button', { type: 'button', textContent: 'Show older rows', hidden: true });
  private readonly count = make('span', { className: 'quiet' });
  private rows: AuditRow[] = [];
  private next: string | null = null;
  private turn = 0;

  constructor(rights: Rights) {
    const read = (): void => void this.read(false);
    this.tenant = TenantChoice.of(rights, ['', 'all tenants'], read);
    this.since = new Field('Since', textInput({ type: 'datetime-local' }));
    this.until = new Field('Until', textInput({ type: 'datetime-local' }));
    this.outcome = new Field('Outcome', select([['', 'any'], ['ok', 'succeeded'], ['refused', 'refused or failed']]));
    this.find = new Field('Find in these rows', textInput({ type: 'search', placeholder: 'key, action, object, client' }));
    for (const field of [this.since, this.until]) field.input.addEventListener('change', read);
    this.outcome.input.addEventListener('change', () => this.draw());
    this.find.input.addEventListener('input', () => this.draw());
    this.older.addEventListener('click', () => void this.read(true));
    const columns: Column<AuditRow>[] = [
      { title: 'Time', cell: row => localTime(row.time), tip: row => row.time },
      ...(rights.seesTenants ? [{ title: 'Tenant', cell: (row: AuditRow) => row.tenant ?? '–' }] : []),
      { title: 'Key or user', className: 'code', cell: row => row.key },
      { title: 'Action', cell: row => row.action },
      { title: 'Object', className: 'code object', cell: row => row.object || '–', tip: row => row.object },
      { title: 'Client', className: 'code', cell: row => row.client },
      { title: 'Outcome', cell: row => make('span', { className: `state ${row.outcome === 'ok' ? 'running' : 'failed'}`, textContent: row.outcome }) },
    ];
    this.table = new Table('Audit log', columns, 'There are no such rows.');
    this.box.replaceChildren(make('section', {},
      make('div', { className: 'head' }, make('h2', { textContent: 'Audit log', tabIndex: -1 }), this.count),
      make('div', { className: 'filters' }, ...(this.tenant ? [this.tenant.field.box] : []), this.since.box, this.until.box, this.outcome.box, this.find.box),
      this.message.box, this.table.box, this.older));
  }

  open(_: string[], query: URLSearchParams): void {
    void (async () => {
      await this.tenant?.read(query.get('tenant') ?? '').catch(this.message.fail);
      await this.read(false);
    })();
  }

  close(): void {
    this.turn++;
  }

  private async read(older: boolean): Promise<void> {
    const turn = ++this.turn;
    const query = new URLSearchParams({ limit: String(PAGE) });
    if (this.tenant?.value) query.set('tenant', this.tenant.value);
    for (const [name, { value }] of [['since', this.since], ['until', this.until]] as const) if (value) query.set(name, new Date(value).toISOString());
    this.older.disabled = true;
    try {
      const read: Page<AuditRow> = await page<AuditRow>(`api/v2/audit?${query}`, 'rows', older ? this.next : null);
      if (turn !== this.turn) return;
      this.rows = older ? [...this.rows, ...read.items] : read.items;
      this.next = read.next;
      this.message.say('');
      this.draw();
    } catch (error) {
      if (turn === this.turn) this.message.fail(error as Error);
    } finally {
      this.older.disabled = false;
    }
  }

  private draw(): void {
    const words = this.find.value.trim().toLowerCase().split(/\s+/);
    const matches = ({ key, action, object, client, outcome }: AuditRow): boolean => words.every(word => [key, action, object, client, outcome].some(text => text.toLowerCase().includes(word)));
    const wanted = this.outcome.value;
    const shown = this.rows.filter(row => (wanted === '' || (row.outcome === 'ok') === (wanted === 'ok')) && matches(row));
    this.table.show(shown, this.rows.length);
    this.older.hidden = this.next === null;
    this.count.textContent = shown.length === this.rows.length ? '' : `${shown.length} of ${this.rows.length} rows`;
  }
}

/** In the time zone of the page's user, without fractions of seconds. */
export function localTime(time: string): string {
  const at = new Date(time);
  const two = (n: number): string => String(n).padStart(2, '0');
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
