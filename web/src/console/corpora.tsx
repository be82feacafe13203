// Corpora: documents that agents search. The operator indexes them, and all tenants search them.

import { useState } from 'preact/hooks';

import { type Schemas, all, api } from '../client/api';
import { ApiError, isAbort } from '../client/errors';
import { useResource } from '../client/resource';
import { bytes } from '../format';
import { number, parseCount, plural } from '../quantities';
import { Page, pageAddress, replaceQuery, route } from '../shell';
import { Button, Bytes, CodeBlock, type Column, EmptyState, ErrorState, Facts, FieldReader, FieldsWrong, Loaded, Loading, Problem, SelectField, Table, TextField, Time, fieldState, useFields } from '../ui';

type Info = Schemas['CorpusInfo'];
/** A corpus, with what could be read of it. */
type Row = { name: string; info?: Info; error?: Error };

/** Reads the properties of this number of corpora; each is opened for that. */
const MOST_DETAILS = 50;
const MOST_RESULTS = 100;

interface Stats {
  bytes?: number;
  segments?: number;
  dead?: number;
  made_at?: string;
}

async function read(signal: AbortSignal): Promise<Row[]> {
  const names = await all('/api/v2/corpora', 'corpora', { signal });
  return Promise.all(names.map(async (name, n): Promise<Row> => {
    if (n >= MOST_DETAILS) return { name };
    try {
      return { name, info: await api.get('/api/v2/corpora/{name}', { path: { name }, signal }) };
    } catch (error) {
      if (isAbort(error)) throw error;
      return { name, error: error as Error };
    }
  }));
}

function stats(info: Info | undefined): Stats {
  return (info?.stats ?? {}) as Stats;
}

const COLUMNS: readonly Column<Row>[] = [
  { id: 'name', title: 'Name', sort: one => one.name, cell: one => <><a class="title" href={pageAddress(['corpora', one.name])}>{one.name}</a>{one.error && <small>{one.error.message}</small>}</> },
  { id: 'passages', title: 'Passages', number: true, sort: one => one.info?.passages ?? -1, cell: one => (one.info ? number(one.info.passages) : '–') },
  { id: 'size', title: 'Size', number: true, sort: one => stats(one.info).bytes ?? -1, cell: one => <Bytes value={stats(one.info).bytes} /> },
  { id: 'mode', title: 'Search', sort: one => one.info?.best_mode ?? '', cell: one => one.info?.best_mode ?? '–' },
  { id: 'queries', title: 'Queries', number: true, low: true, cell: one => number(queries(one.info)), tip: () => 'Since the server opened it' },
  { id: 'made', title: 'Indexed', number: true, sort: one => stats(one.info).made_at ?? '', cell: one => <IndexedAt info={one.info} /> },
];

function IndexedAt({ info }: { info: Info | undefined }) {
  const at = stats(info).made_at;
  return at && !Number.isNaN(Date.parse(at)) ? <Time at={at} /> : <>–</>;
}

function queries(info: Info | undefined): number {
  const count = (info?.batches as { total_queries?: unknown } | undefined)?.total_queries;
  return typeof count === 'number' ? count : 0;
}

export function CorporaPage() {
  const name = route.value.parts[0];
  return name === undefined ? <CorpusList /> : <CorpusPage key={name} name={name} />;
}

function CorpusList() {
  const resource = useResource('corpora', read);
  return (
    <Page title="Corpora" beside={resource.data && resource.data.length > 0 && <span class="quiet">{number(resource.data.length)}</span>}>
      <div class="panel"><Loaded resource={resource}>{rows => (
        <Table label="Corpora" columns={COLUMNS} rows={rows} rowKey={one => one.name} sort={{ column: 'name', down: false }} empty={
          <EmptyState icon="corpus" title="No corpora yet" actions={<CodeBlock label="The command" code="arenite rag index handbook ./docs" />}>A corpus is a set of documents that agents and tools search. The operator indexes it on the host.</EmptyState>} />
      )}</Loaded></div>
    </Page>
  );
}

function CorpusPage({ name }: { name: string }) {
  const { data, error, reload } = useResource(`corpus ${name}`, signal => api.get('/api/v2/corpora/{name}', { path: { name }, signal }));
  const crumbs = <a href="#/corpora">All corpora</a>;
  if (!data) {
    const isMissing = error instanceof ApiError && error.status === 404;
    return <Page title={name} crumbs={crumbs}>{!error ? <Loading /> : isMissing ? <div role="alert"><EmptyState icon="corpus" title="There is no such corpus">{error.message}</EmptyState></div> : <ErrorState error={error} retry={reload} />}</Page>;
  }
  const { segments, dead, bytes: size } = stats(data);
  return (
    <Page title={data.name} crumbs={crumbs} beside={<span class="quiet">{plural(data.passages, 'passage')}</span>}>
      <section class="panel" aria-label="Properties"><Facts facts={[
        ['Passages', number(data.passages)],
        ['Size', size !== undefined && bytes(size)],
        ['Default search', data.best_mode],
        ['Queries', `${number(queries(data))} since the server opened it`],
        ['Indexed', stats(data).made_at && <IndexedAt info={data} />],
        ['Segments', segments !== undefined && `${number(segments)}${dead ? `, with ${plural(dead, 'deleted passage')}` : ''}`],
      ]} /></section>
      <Search corpus={data} />
    </Page>
  );
}

export interface Passage {
  id: string;
  title: string;
  text: string;
  score: number | null;
  metadata: [string, string][];
}

/** A result as the server has it; what is not as expected is left out. */
export function readPassage(found: unknown): Passage {
  const one = (typeof found === 'object' && found !== null ? found : {}) as Record<string, unknown>;
  const text = (value: unknown): string => (typeof value === 'string' ? value : value === null || value === undefined ? '' : JSON.stringify(value));
  const metadata = typeof one.metadata === 'object' && one.metadata !== null ? Object.entries(one.metadata).map(([key, value]): [string, string] => [key, text(value)]) : [];
  return { id: text(one.id), title: text(one.title), text: text(one.text), score: typeof one.score === 'number' ? one.score : null, metadata };
}

interface Answer {
  query: string;
  passages: Passage[];
  ms: number;
}

function Search({ corpus }: { corpus: Info }) {
  const asked = route.value.query;
  const fields = useFields(() => ({ query: fieldState(asked.get('find') ?? ''), mode: fieldState(''), count: fieldState('10') }));
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const search = async (): Promise<void> => {
    const reader = new FieldReader();
    const query = reader.text(fields.query, 'Enter what to search for.');
    const top_k = reader.parsed(fields.count, text => parseCount(text, 1, MOST_RESULTS), 10);
    setError(null);
    try {
      reader.done();
      replaceQuery({ find: query });
      const started = performance.now();
      const { results = [] } = await api.post('/api/v2/corpora/{name}/search', { path: { name: corpus.name }, body: { query, top_k, mode: fields.mode.value.value || null } as Schemas['SearchCorpus'] });
      setAnswer({ query, passages: results.map(readPassage), ms: performance.now() - started });
    } catch (refused) {
      if (refused instanceof FieldsWrong) return;
      setAnswer(null);
      setError(refused as Error);
    }
  };
  return (
    <section class="panel stack" aria-label="Search">
      <form class="corpus-search" onSubmit={event => event.preventDefault()}>
        <TextField label="Search for" type="search" state={fields.query} />
        <SelectField label="Mode" state={fields.mode} options={[['', `${corpus.best_mode} (default)`], ...['bm25', 'dense', 'hybrid'].filter(mode => mode !== corpus.best_mode).map(mode => [mode, mode] as const)]} />
        <TextField label="Results" state={fields.count} inputMode="numeric" />
        <Button kind="primary" type="submit" icon="search" onPress={search}>Search</Button>
      </form>
      <Problem error={error} />
      {answer && <p class="quiet" role="status">{answer.passages.length === 0 ? `No passage matches ${answer.query}.` : `${plural(answer.passages.length, 'passage')} in ${number(Math.round(answer.ms))} ms`}</p>}
      {answer && answer.passages.length > 0 && <ol class="passages" aria-label="Results">{answer.passages.map((one, n) => <Found key={`${n} ${one.id}`} passage={one} />)}</ol>}
    </section>
  );
}

/** Characters of a passage that are shown at first. */
const MOST_TEXT = 600;

function Found({ passage: { id, title, text, score, metadata } }: { passage: Passage }) {
  const [whole, setWhole] = useState(text.length <= MOST_TEXT);
  return (
    <li>
      <div class="row"><h3 class="grow">{title || id}</h3>{score !== null && <span class="quiet" title="Score">{score.toFixed(3)}</span>}</div>
      <p class="passage">{whole ? text : `${text.slice(0, MOST_TEXT)}…`}</p>
      {!whole && <div><Button small label={`Show all of ${title || id}`} onPress={() => setWhole(true)}>Show all</Button></div>}
      <p class="quiet"><code>{id}</code>{metadata.map(([key, value]) => <span key={key}>, {key}: {value}</span>)}</p>
    </li>
  );
}
