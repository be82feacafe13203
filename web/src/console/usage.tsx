// Quotas and usage of the tenant, or of all tenants for operators.

import { type Schemas, address, api, fill } from '../client/api';
import { useResource } from '../client/resource';
import { Page, type Rights, replaceQuery, route } from '../shell';
import { BarChart, type Column, EmptyState, LinkButton, Loaded, SelectField, Table, fieldState, useFields } from '../ui';
import { AMOUNTS, AMOUNT_NAMES, type Amounts, PERIODS, type Period, type UsageRow, amountText, barLabel, bars, byBar, total } from '../usage_report';
import { QuotaBars, type QuotaState } from './quota_bars';
import { useTenant } from './tenant_field';

const GROUPS = { sandbox: 'Sandboxes', template: 'Templates', tenant: 'Tenants' } as const;
type Group = keyof typeof GROUPS;
type Line = { label: string } & Amounts;

interface Report {
  quotas: QuotaState[];
  lines: Line[];
  sum: Amounts;
  rows: UsageRow[];
  truncated: boolean;
}

async function read(tenant: string, period: Period, group: Group, signal: AbortSignal): Promise<Report> {
  const { starts, length } = bars(period, Date.now());
  const query = { since: new Date(starts[0]!).toISOString(), ...(tenant ? { tenant } : {}) };
  const [quotas, hours, grouped] = await Promise.all([
    tenant ? api.get('/api/v2/tenants/{name}', { path: { name: tenant }, signal }).then(found => found.quotas) : api.get('/api/v2/me', { signal }).then(me => me.quotas),
    api.get('/api/v2/usage', { query: { ...query, group: 'hour' }, signal }),
    api.get('/api/v2/usage', { query: { ...query, group }, signal }),
  ]);
  const rowsOf = (report: Schemas['UsageReport']): UsageRow[] => report.rows as UsageRow[];
  const sums = byBar(rowsOf(hours), starts, length);
  return {
    quotas: quotas.filter(({ used, limit }) => (used ?? null) !== null || (limit ?? null) !== null),
    lines: sums.map((one, n) => ({ label: barLabel(starts[n]!, length), ...one })), sum: total(rowsOf(hours)),
    rows: rowsOf(grouped), truncated: hours.truncated || grouped.truncated,
  };
}

export function UsagePage({ rights }: { rights: Rights }) {
  const { tenant, field } = useTenant(rights, ['', 'all tenants']);
  const { query } = route.value;
  const period = (query.get('period') ?? '') in PERIODS ? query.get('period') as Period : '7 days';
  const group = (query.get('group') ?? '') in GROUPS ? query.get('group') as Group : 'sandbox';
  const fields = useFields(() => ({ period: fieldState(period), group: fieldState(group) }));
  const set = (name: string) => (value: string): void => replaceQuery({ ...Object.fromEntries(route.value.query), [name]: value });
  const resource = useResource(`usage ${tenant} ${period} ${group}`, signal => read(tenant, period, group, signal));
  const groups = (Object.entries(GROUPS) as [Group, string][]).filter(([name]) => name !== 'tenant' || rights.managesTenants);
  const since = new Date(bars(period, Date.now()).starts[0]!).toISOString();
  const csv = address(fill('/api/v2/usage', { query: { group, since, tenant, format: 'csv' } }));
  return (
    <Page title="Usage" actions={<>{field}<SelectField label="Period" inline state={fields.period} options={Object.keys(PERIODS).map(name => [name, `last ${name}`] as const)} onChange={set('period')} /></>}>
      <Loaded resource={resource}>{({ quotas, lines, sum, rows, truncated }) => (
        <>
          {truncated && <p class="notice" role="status">There are more rows than an answer has. Choose a shorter period or a tenant.</p>}
          {quotas.length > 0 && <section class="panel" aria-label="Quotas"><div class="panel-head"><h2>Quotas</h2><span class="quiet">{tenant || rights.me.tenant}</span></div><QuotaBars quotas={quotas} /></section>}
          <section class="panel" aria-label="Usage over time">
            <div class="charts">{AMOUNT_NAMES.map(amount => (
              <BarChart key={amount} title={AMOUNTS[amount].label} amount={amount} value={amountText(amount, sum[amount])} points={lines.map(line => ({ label: line.label, value: line[amount] }))} format={value => amountText(amount, value)} />
            ))}</div>
            <details><summary>The charts as a table</summary>
              <Table label="Usage over time" columns={[{ id: 'label', title: 'Time (UTC)', cell: line => line.label }, ...amountColumns<Line>()]} rows={lines.filter(line => AMOUNT_NAMES.some(amount => line[amount] > 0))} rowKey={line => line.label} empty={<p class="quiet">Nothing was used.</p>} />
            </details>
          </section>
          <section class="panel" aria-label="By sandbox, template or tenant">
            <div class="panel-head"><h2>By {group}</h2><SelectField label="Rows" inline state={fields.group} options={groups} onChange={set('group')} /><LinkButton href={csv} download="usage.csv">CSV</LinkButton></div>
            <Table label={GROUPS[group]} columns={groupColumns(group, rights.managesTenants)} rows={rows} rowKey={row => [row.tenant, row.sandbox, row.volume, row.template].join(' ')} sort={{ column: 'core_seconds', down: true }}
              empty={<EmptyState icon="usage" title="Nothing was used in this period" />} />
          </section>
        </>
      )}</Loaded>
    </Page>
  );
}

function groupColumns(group: Group, seesTenants: boolean): Column<UsageRow>[] {
  const name = {
    sandbox: (row: UsageRow) => {
      const id = row.sandbox ?? row.volume;
      return id ? <><span class="title">{row.name ?? id}</span><small class="mono">{id}</small></> : 'older ones, as a sum';
    },
    template: (row: UsageRow) => row.template ?? '–',
    tenant: (row: UsageRow) => row.tenant,
  }[group];
  return [
    { id: 'name', title: { sandbox: 'Sandbox', template: 'Template', tenant: 'Tenant' }[group], className: 'clip-cell', sort: row => row.name ?? row.template ?? row.tenant, cell: name },
    ...(seesTenants && group !== 'tenant' ? [{ id: 'tenant', title: 'Tenant', sort: (row: UsageRow) => row.tenant, cell: (row: UsageRow) => row.tenant }] : []),
    ...amountColumns<UsageRow>(),
  ];
}

function amountColumns<T extends Amounts>(): Column<T>[] {
  return AMOUNT_NAMES.map(amount => {
    const { label, unit, text } = AMOUNTS[amount];
    return { id: amount, title: unit && unit !== 'calls' ? `${label} (${unit})` : label, number: true, sort: row => row[amount], cell: row => text(row[amount]) };
  });
}
