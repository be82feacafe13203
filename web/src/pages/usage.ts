// Quotas and usage of the tenant, or of all tenants for operators.

import { call } from '../api';
import { barChart } from '../chart';
import { byId, make } from '../dom';
import { Field, Message, select } from '../forms';
import { quotaBars } from '../quota_bars';
import type { Me, QuotaState, Rights } from '../rights';
import { Table } from '../table';
import { TenantChoice } from '../tenant_choice';
import { AMOUNTS, AMOUNT_NAMES, type Amounts, PERIODS, type Period, type UsageReport, type UsageRow, amountText, barLabel, bars, byBar, reportAddress, total } from '../usage_report';
import type { View } from '../view';

const GROUPS = { sandbox: 'Sandboxes', template: 'Templates', tenant: 'Tenants' } as const;
type Group = keyof typeof GROUPS;

export class UsagePage implements View {
  readonly box = byId('page-usage');
  readonly title = 'Usage';
  private readonly rights: Rights;
  private readonly message = new Message();
  private readonly quotas = make('div');
  private readonly quotaSection: HTMLElement;
  private readonly quotasOf = make('span', { className: 'quiet' });
  private readonly charts = make('div', { className: 'charts' });
  private readonly rows = make('div');
  private readonly hours: Table<{ label: string } & Amounts>;
  private readonly period: Field<HTMLSelectElement>;
  private readonly group: Field<HTMLSelectElement>;
  private readonly tenant: TenantChoice | null;
  private readonly csv = make('a', { textContent: 'CSV', className: 'button', download: 'usage.csv' });
  private turn = 0;

  constructor(rights: Rights) {
    this.rights = rights;
    const read = (): void => void this.read();
    this.period = new Field('Period', select(Object.keys(PERIODS).map(period => [period, `last ${period}`] as const)));
    this.period.input.value = '7 days';
    this.tenant = TenantChoice.of(rights, ['', 'all tenants'], read);
    const groups = Object.entries(GROUPS).filter(([group]) => group !== 'tenant' || rights.seesTenants);
    this.group = new Field('Rows', select(groups));
    for (const field of [this.period, this.group]) field.input.addEventListener('change', read);
    this.hours = new Table('Usage over time', [{ title: 'Time (UTC)', cell: row => row.label }, ...amountColumns<{ label: string } & Amounts>()], 'Nothing was used.');
    const filters = make('div', { className: 'filters' }, ...(this.tenant ? [this.tenant.field.box] : []), this.period.box);
    this.quotaSection = make('section', { ariaLabel: 'Quotas' }, make('div', { className: 'head' }, make('h2', { textContent: 'Quotas' }), this.quotasOf), this.quotas);
    this.box.replaceChildren(this.quotaSection,
      make('section', {},
        make('div', { className: 'head' }, make('h2', { textContent: 'Usage', tabIndex: -1 }), filters), this.message.box, this.charts,
        make('details', {}, make('summary', { textContent: 'The charts as a table' }), this.hours.box)),
      make('section', {},
        make('div', { className: 'head' }, make('h2', { textContent: 'By sandbox, template or tenant' }), make('div', { className: 'filters' }, this.group.box, this.csv)), this.rows));
  }

  open(_: string[], query: URLSearchParams): void {
    void (async () => {
      await this.tenant?.read(query.get('tenant') ?? '').catch(this.message.fail);
      await this.read();
    })();
  }

  close(): void {
    this.turn++;
  }

  private async read(): Promise<void> {
    const turn = ++this.turn;
    const now = Date.now();
    const period = this.period.value as Period;
    const { starts, length } = bars(period, now);
    const since = new Date(starts[0]!).toISOString();
    const tenant = this.tenant?.value ?? '';
    const group = this.group.value as Group;
    this.csv.href = reportAddress({ group, since, tenant, format: 'csv' });
    try {
      const [quotas, hours, grouped] = await Promise.all([
        this.readQuotas(tenant),
        call<UsageReport>('GET', reportAddress({ group: 'hour', since, tenant })),
        call<UsageReport>('GET', reportAddress({ group, since, tenant })),
      ]);
      // Another choice was made meanwhile.
      if (turn !== this.turn) return;
      this.quotaSection.hidden = quotas.length === 0;
      this.quotas.replaceChildren(quotaBars(quotas));
      this.quotasOf.textContent = tenant || this.rights.me.tenant;
      this.message.say(hours.truncated || grouped.truncated ? 'There are more rows than an answer has. Choose a shorter period or a tenant.' : '', true);
      this.drawCharts(byBar(hours.rows, starts, length), starts, length, total(hours.rows));
      this.drawRows(group, grouped.rows);
    } catch (error) {
      if (turn === this.turn) this.message.fail(error as Error);
    }
  }

  private async readQuotas(tenant: string): Promise<QuotaState[]> {
    const read = tenant
      ? await call<{ quotas: QuotaState[] }>('GET', `api/v2/tenants/${encodeURIComponent(tenant)}`)
      : await call<Me>('GET', 'api/v2/me');
    return read.quotas.filter(state => state.used !== null || state.limit !== null);
  }

  private drawCharts(sums: Amounts[], starts: number[], length: number, sum: Amounts): void {
    this.charts.replaceChildren(...AMOUNT_NAMES.map(amount => {
      const all = sums.map((one, n) => ({ label: barLabel(starts[n]!, length), value: one[amount] }));
      const chart = barChart(AMOUNTS[amount].label, all, value => amountText(amount, value));
      const shown = make('p', { className: 'value', textContent: amountText(amount, sum[amount]) });
      shown.dataset.amount = amount;
      chart.firstElementChild!.after(shown);
      return chart;
    }));
    this.hours.show(sums.map((one, n) => ({ label: barLabel(starts[n]!, length), ...one })).filter(one => AMOUNT_NAMES.some(amount => one[amount] > 0)));
  }

  private drawRows(group: Group, rows: UsageRow[]): void {
    const sorted = [...rows].sort((a, b) => b.core_seconds - a.core_seconds);
    const name: Record<Group, (row: UsageRow) => Node | string> = {
      sandbox: row => {
        const id = row.sandbox ?? row.volume;
        return id ? make('span', {}, row.name ?? id, make('small', { className: 'id', textContent: id })) : 'older ones, as a sum';
      },
      template: row => row.template ?? '–',
      tenant: row => row.tenant,
    };
    const table = new Table<UsageRow>(GROUPS[group], [
      { title: { sandbox: 'Sandbox', template: 'Template', tenant: 'Tenant' }[group], className: 'name', cell: name[group] },
      ...(this.rights.seesTenants && group !== 'tenant' ? [{ title: 'Tenant', cell: (row: UsageRow) => row.tenant }] : []),
      ...amountColumns<UsageRow>(),
    ], 'Nothing was used in this period.');
    table.show(sorted);
    this.rows.replaceChildren(table.box);
  }
}

function amountColumns<T extends Amounts>(): { title: string; number: boolean; cell: (row: T) => string }[] {
  return AMOUNT_NAMES.map(amount => {
    const { label, unit, text } = AMOUNTS[amount];
    return { title: unit && unit !== 'calls' ? `${label} (${unit})` : label, number: true, cell: (row: T) => text(row[amount]) };
  });
}
