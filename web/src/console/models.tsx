// Routes to models: where sandboxes reach them, what they used, and what they may use.

import { type Schemas, all, api } from '../client/api';
import { useResource } from '../client/resource';
import { type Parsed, number, parseCount, parseTime, plural } from '../quantities';
import { Page } from '../shell';
import { AreaField, Badge, Button, type Column, EmptyState, FieldReader, FormDialog, IconButton, Loaded, Meter, SelectField, Table, TextField, Time, confirm, fieldState, notify, openDialog, useFields } from '../ui';

type Spec = Schemas['ModelRouteSpec'];
type Route = Schemas['ModelRouteInfo'];
type Details = Schemas['ModelRouteDetails'];
type Budget = Schemas['ModelBudget'];
type Price = Schemas['ModelPrice'];

/** Reads what routes used; more of them are shown without. */
const MOST_DETAILS = 50;

const DOLLARS = new Intl.NumberFormat('en', { style: 'currency', currency: 'USD', maximumFractionDigits: 4, minimumFractionDigits: 2 });

async function read(signal: AbortSignal): Promise<(Route & Partial<Details>)[]> {
  const routes = await all('/api/v2/models', 'models', { signal });
  return Promise.all(routes.map((one, n) => (n < MOST_DETAILS ? api.get('/api/v2/models/{name}', { path: { name: one.name }, signal }) : one)));
}

export function ModelsPage() {
  const resource = useResource('models', read, 15_000);
  const { reload } = resource;
  const remove = async ({ name }: Route): Promise<void> => {
    if (!await confirm({ title: `Remove the route ${name}?`, text: 'Calls of it are refused, and what it used is forgotten.', yes: 'Remove', no: 'Keep it' })) return;
    await api.delete('/api/v2/models/{name}', { path: { name } }).finally(reload);
    notify(`Removed ${name}.`);
  };
  const columns: Column<Route & Partial<Details>>[] = [
    { id: 'name', title: 'Name', sort: one => one.name, cell: one => <><span class="title">{one.name}</span><small class="mono">/models/{one.name}</small></> },
    { id: 'upstream', title: 'Upstream', className: 'wrap', cell: one => <><code>{one.upstream}</code> <Badge>{one.dialect ?? 'openai'}</Badge>{one.secret && <small>secret {one.secret}</small>}</> },
    { id: 'models', title: 'Models', low: true, className: 'wrap', cell: one => one.models?.join(', ') || 'all' },
    { id: 'calls', title: 'Calls', number: true, sort: one => one.usage?.calls ?? 0, cell: one => (one.usage ? number(one.usage.calls ?? 0) : '–') },
    { id: 'tokens', title: 'Tokens', number: true, sort: one => tokens(one.usage), cell: one => <Used used={tokens(one.usage)} limit={one.budget?.tokens} text={number} label={`Tokens of ${one.name}`} /> },
    { id: 'cost', title: 'Cost', number: true, sort: one => one.usage?.cost_usd ?? 0, cell: one => <Used used={one.usage?.cost_usd ?? 0} limit={one.budget?.cost_usd} text={value => DOLLARS.format(value)} label={`Cost of ${one.name}`} /> },
    { id: 'changed', title: 'Changed', low: true, sort: one => Date.parse(one.changed_at), cell: one => <Time at={one.changed_at} /> },
    { id: 'actions', title: '', cell: one => (
      <div class="row">
        <Button small kind="plain" label={`Change ${one.name}`} onPress={() => { openDialog(close => <RouteForm of={one} close={close} reload={reload} />); }}>Change</Button>
        <IconButton small kind="plain" icon="trash" label={`Remove ${one.name}`} title="Remove" onPress={() => remove(one)} />
      </div>
    ) },
  ];
  const create = <Button kind="primary" icon="plus" onPress={() => { openDialog(close => <RouteForm close={close} reload={reload} />); }}>Create a route</Button>;
  return (
    <Page title="Models" beside={resource.data && resource.data.length > 0 && <span class="quiet">{plural(resource.data.length, 'route')}</span>} actions={resource.data && resource.data.length > 0 && create}>
      <div class="panel"><Loaded resource={resource}>{rows => (
        <Table label="Model routes" columns={columns} rows={rows} rowKey={one => one.name} sort={{ column: 'name', down: false }} empty={
          <EmptyState icon="model" title="No routes to models yet" actions={create}>A route is an address for calls of models, with the upstream's key, allowed models, a rate, and budgets. Calls become steps of trajectories.</EmptyState>} />
      )}</Loaded></div>
    </Page>
  );
}

function tokens(usage: Details['usage'] | undefined): number {
  return (usage?.prompt_tokens ?? 0) + (usage?.completion_tokens ?? 0);
}

function Used({ used, limit, text, label }: { used: number; limit: number | null | undefined; text: (value: number) => string; label: string }) {
  if (limit === null || limit === undefined) return <>{text(used)}</>;
  return <Meter share={limit === 0 ? 1 : used / limit} label={label}>{text(used)}<small class="quiet"> of {text(limit)}</small></Meter>;
}

function parseMoney(text: string): Parsed {
  const value = /^\$?[0-9]+(\.[0-9]+)?$/.test(text.trim()) ? Number(text.trim().replace('$', '')) : NaN;
  return Number.isFinite(value) ? { value } : { error: 'Write an amount in dollars, such as 20 or 0.5.' };
}

/** Prices in the form of the command line, one a line: `MODELS=INPUT,OUTPUT[,CACHED]`. */
export function parsePrices(text: string): { prices: Price[] } | { error: string } {
  const prices: Price[] = [];
  for (const line of text.split('\n').map(one => one.trim()).filter(Boolean)) {
    const amount = '([0-9]+(?:\\.[0-9]+)?)';
    const [, models, input, output, cached] = new RegExp(`^(\\S+)=${amount},${amount}(?:,${amount})?$`).exec(line) ?? [];
    if (models === undefined) return { error: `Write models and dollars for a million tokens, such as gpt-*=2.5,10; not ${line}.` };
    prices.push({ models, input: Number(input), output: Number(output), ...(cached === undefined ? {} : { cached: Number(cached) }) });
  }
  return { prices };
}

export function priceText({ models, input, output, cached }: Price): string {
  return `${models}=${[input, output, ...(cached === null || cached === undefined ? [] : [cached])].join(',')}`;
}

const parseTokens = (text: string): Parsed => parseCount(text.replaceAll(/[,_]/g, ''), 0, Infinity);

function RouteForm({ of, close, reload }: { of?: Route; close: () => void; reload: () => Promise<void> }) {
  const fields = useFields(() => {
    const budget = (which: Budget | undefined, part: keyof Budget): string => String(which?.[part] ?? '');
    return {
      name: fieldState(of?.name), upstream: fieldState(of?.upstream), dialect: fieldState(of?.dialect ?? 'openai'), secret: fieldState(of?.secret ?? ''), models: fieldState(of?.models?.join('\n')),
      rate: fieldState(String(of?.requests_per_minute ?? '')), timeout: fieldState(of?.timeout_seconds ? `${of.timeout_seconds}s` : ''),
      tokens: fieldState(budget(of?.budget, 'tokens')), cost: fieldState(budget(of?.budget, 'cost_usd')), tokensEach: fieldState(budget(of?.budget_each, 'tokens')), costEach: fieldState(budget(of?.budget_each, 'cost_usd')),
      prices: fieldState(of?.prices?.map(priceText).join('\n')),
    };
  });
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const name = reader.text(fields.name, 'Give it a name.');
    const upstream = reader.text(fields.upstream, 'Enter the address of the upstream.');
    const timeout_seconds = reader.parsed(fields.timeout, parseTime, undefined);
    const budget = { tokens: reader.parsed(fields.tokens, parseTokens, null), cost_usd: reader.parsed(fields.cost, parseMoney, null) };
    const budget_each = { tokens: reader.parsed(fields.tokensEach, parseTokens, null), cost_usd: reader.parsed(fields.costEach, parseMoney, null) };
    const requests_per_minute = reader.parsed(fields.rate, parseTokens, null);
    const priced = parsePrices(fields.prices.value.value);
    if ('error' in priced) reader.fail(fields.prices, priced.error);
    else if (priced.prices.length === 0 && (budget.cost_usd !== null || budget_each.cost_usd !== null)) reader.fail(fields.prices, 'A budget in dollars needs prices.');
    reader.done();
    const body: Spec = {
      upstream, dialect: fields.dialect.value.value as 'openai' | 'anthropic', secret: fields.secret.value.value.trim() || null, models: fields.models.value.value.split(/[\s,]+/).filter(Boolean),
      budget, budget_each, requests_per_minute, prices: 'prices' in priced ? priced.prices : [], ...(timeout_seconds === undefined ? {} : { timeout_seconds }),
    };
    await api.put('/api/v2/models/{name}', { path: { name }, body });
    notify(of ? `Changed ${name}.` : `Created ${name}.`);
    await reload();
  };
  return (
    <FormDialog title={of ? `Change ${of.name}` : 'Create a route'} submitText={of ? 'Change' : 'Create'} onSubmit={submit} onClose={close}>
      {!of && <TextField label="Name" state={fields.name} autofocus />}
      <TextField label="Upstream" type="url" state={fields.upstream} placeholder="https://api.example.com/v1" note="The address before /chat/completions or /messages" />
      <div class="grid">
        <SelectField label="API" state={fields.dialect} options={[['openai', 'OpenAI'], ['anthropic', 'Anthropic']]} />
        <TextField label="Secret" state={fields.secret} placeholder="none" note="Has the upstream's key" />
      </div>
      <AreaField label="Models" state={fields.models} rows={2} placeholder="all" note="Allowed names, one a line; * matches any text" />
      <div class="grid">
        <TextField label="Budget in tokens" state={fields.tokens} placeholder="unlimited" inputMode="numeric" />
        <TextField label="Budget in dollars" state={fields.cost} placeholder="unlimited" inputMode="decimal" />
        <TextField label="Tokens of each sandbox" state={fields.tokensEach} placeholder="unlimited" inputMode="numeric" />
        <TextField label="Dollars of each sandbox" state={fields.costEach} placeholder="unlimited" inputMode="decimal" />
        <div class="wide"><AreaField label="Prices" state={fields.prices} rows={2} placeholder="gpt-*=2.5,10,1.25" note="MODELS=INPUT,OUTPUT[,CACHED], one a line: dollars for a million tokens" /></div>
        <TextField label="Requests a minute" state={fields.rate} placeholder="unlimited" inputMode="numeric" />
        <TextField label="Timeout" state={fields.timeout} placeholder="default" note="Such as 90s or 10m" />
      </div>
    </FormDialog>
  );
}
