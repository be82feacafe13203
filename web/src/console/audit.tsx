// The audit log: who changed what, and which requests were refused.

import { useEffect, useMemo, useState } from 'preact/hooks';

import { type Schemas, api } from '../client/api';
import { isAbort } from '../client/errors';
import { number } from '../quantities';
import { Page, type Rights } from '../shell';
import { Button, type Column, EmptyState, ErrorState, Loading, SearchField, SelectField, State, Table, TextField, Time, failed, fieldState, useFields } from '../ui';
import { useTenant } from './tenant_field';

type Row = Schemas['AuditInfo'];

const PAGE = 100;

const ids = new WeakMap<Row, string>();
let numbered = 0;

/** Rows have no ids, and two can be equal. */
function rowId(row: Row): string {
  const id = ids.get(row) ?? String(++numbered);
  ids.set(row, id);
  return id;
}

/** A record without a value has `-`. */
const given = (text: string): string => (text && text !== '-' ? text : '–');

/** The time of a field in the reader's zone, as the API has it. */
function instant(text: string): string | undefined {
  return text ? new Date(text).toISOString() : undefined;
}

export function AuditPage({ rights }: { rights: Rights }) {
  const { tenant, field } = useTenant(rights, ['', 'all tenants']);
  const fields = useFields(() => ({ since: fieldState(), until: fieldState(), outcome: fieldState() }));
  const [find, setFind] = useState('');
  const [rows, setRows] = useState<Row[] | null>(null);
  const [next, setNext] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const since = instant(fields.since.value.value);
  const until = instant(fields.until.value.value);
  const outcome = fields.outcome.value.value;
  const query = { limit: PAGE, ...(tenant ? { tenant } : {}), ...(since ? { since } : {}), ...(until ? { until } : {}) };
  const read = async (signal?: AbortSignal): Promise<void> => {
    try {
      const page = await api.get('/api/v2/audit', { query, ...(signal ? { signal } : {}) });
      setRows(page.rows);
      setNext(page.next_cursor ?? null);
      setError(null);
    } catch (refused) {
      if (!isAbort(refused)) setError(refused as Error);
    }
  };
  useEffect(() => {
    const controller = new AbortController();
    void read(controller.signal);
    return () => controller.abort();
  }, [tenant, since, until]);
  const older = async (): Promise<void> => {
    if (next === null) return;
    try {
      const page = await api.get('/api/v2/audit', { query: { ...query, cursor: next } });
      setRows(before => [...(before ?? []), ...page.rows]);
      setNext(page.next_cursor ?? null);
    } catch (refused) {
      failed(refused);
    }
  };
  const shown = useMemo(() => {
    const words = find.toLowerCase().split(/\s+/).filter(Boolean);
    return (rows ?? []).filter(row => {
      const text = Object.values(row).join('\n').toLowerCase();
      return (outcome === '' || (row.outcome === 'ok') === (outcome === 'ok')) && words.every(word => text.includes(word));
    });
  }, [rows, find, outcome]);
  const columns = useMemo<Column<Row>[]>(() => [
    { id: 'action', title: 'Action', sort: row => row.action, cell: row => <span class="title">{row.action}</span> },
    { id: 'object', title: 'Object', className: 'clip-cell', sort: row => row.object, cell: row => <code>{given(row.object)}</code>, tip: row => row.object },
    ...(rights.managesTenants ? [{ id: 'tenant', title: 'Tenant', sort: (row: Row) => row.tenant ?? '', cell: (row: Row) => row.tenant ?? '–' }] : []),
    { id: 'key', title: 'Key or user', className: 'clip-cell', sort: row => row.key, cell: row => <code>{given(row.key)}</code>, tip: row => row.key },
    { id: 'client', title: 'Client', low: true, className: 'clip-cell', cell: row => <code>{given(row.client)}</code> },
    { id: 'outcome', title: 'Outcome', sort: row => row.outcome, cell: row => <State name={row.outcome} tone={row.outcome === 'ok' ? 'good' : 'bad'} /> },
    { id: 'time', title: 'Time', sort: row => Date.parse(row.time), cell: row => <Time at={row.time} form="full" /> },
  ], [rights]);
  return (
    <Page title="Audit log" beside={rows && shown.length !== rows.length && <span class="quiet" role="status">{number(shown.length)} of {number(rows.length)} rows</span>}>
      <div class="toolbar" role="search" aria-label="Audit log">
        <SearchField label="Find in these rows" placeholder="Key, action, object, client" value={find} onInput={setFind} />
        {field}
        <TextField label="Since" inline type="datetime-local" state={fields.since} />
        <TextField label="Until" inline type="datetime-local" state={fields.until} />
        <SelectField label="Outcome" inline state={fields.outcome} options={[['', 'any'], ['ok', 'succeeded'], ['refused', 'refused or failed']]} />
      </div>
      <div class="panel">
        {rows === null ? (error ? <ErrorState error={error} retry={() => read()} /> : <Loading />) : (
          <>
            {error && <p class="notice bad" role="alert">{error.message}</p>}
            <Table label="Audit log" columns={columns} rows={shown} rowKey={rowId}
              empty={<EmptyState icon="audit" title="There are no such rows.">Choose another time, or other words.</EmptyState>} />
            {next !== null && <p><Button onPress={older}>Show older rows</Button></p>}
          </>
        )}
      </div>
    </Page>
  );
}
