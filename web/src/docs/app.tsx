// The documentation of the server's interfaces: a list of operations that is searched, and the one that the address names.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';

import { address, api, request } from '../client/api';
import { useResource } from '../client/resource';
import { type Command, Page, Shell, go, keysRequired, pageAddress, readRights, rights, route, useShortcut } from '../shell';
import { Boundary, ErrorState, LinkButton, Loading } from '../ui';
import { DIALECTS, type Dialect, type DialectId, type OpenApi, type Operation, type Tag, tagsOf, titleOf } from './openapi';
import { OperationList } from './operation_list';
import { Method, OperationView } from './operation_view';
import { Prose } from './prose';
import { indexOf } from './search';

/** The most sandboxes that are suggested: the newest ones. */
const MOST_SANDBOXES = 100;

export interface DocsProps {
  /** The dialect that the page's own address means. */
  dialect: DialectId;
  /** The sandbox that it means; empty for none. */
  sandbox: string;
  /** The page is on a sandbox's own host, which has only the sandbox's interface. */
  ownHost: boolean;
  /** The console's address, as seen from the page. */
  base: string;
}

interface Documents {
  tags: Partial<Record<DialectId, Tag[]>>;
  errors: Partial<Record<DialectId, Error>>;
}

/** Reads the documents at once, and shows each dialect when it has come. */
function useDocuments(dialects: readonly Dialect[]): [Documents, () => void] {
  const [documents, setDocuments] = useState<Documents>({ tags: {}, errors: {} });
  const [tries, setTries] = useState(0);
  useEffect(() => {
    const controller = new AbortController();
    const missing = dialects.filter(dialect => !documents.tags[dialect.id]);
    for (const path of new Set(missing.map(dialect => dialect.document))) {
      const of = missing.filter(dialect => dialect.document === path);
      const read = async (): Promise<OpenApi> => (await request(path, { headers: { accept: 'application/json' }, signal: controller.signal })).json() as Promise<OpenApi>;
      read().then(
        spec => setDocuments(before => ({ tags: { ...before.tags, ...Object.fromEntries(of.map(dialect => [dialect.id, tagsOf(spec, dialect)])) }, errors: before.errors })),
        (error: Error) => { if (!controller.signal.aborted) setDocuments(before => ({ tags: before.tags, errors: { ...before.errors, ...Object.fromEntries(of.map(dialect => [dialect.id, error])) } })); },
      );
    }
    return () => controller.abort();
  }, [dialects, tries]);
  return [documents, () => { setDocuments(before => ({ tags: before.tags, errors: {} })); setTries(tries + 1); }];
}

export function operationAddress({ dialect, id }: Operation): string {
  return pageAddress([dialect.id, id]);
}

export function Docs({ dialect, sandbox: firstSandbox, ownHost, base }: DocsProps) {
  const dialects = useMemo(() => (ownHost ? DIALECTS.filter(one => one.id === 'aio') : DIALECTS), [ownHost]);
  const [documents, reload] = useDocuments(dialects);
  const [sandbox, setSandbox] = useState(firstSandbox);
  const search = useRef<HTMLInputElement>(null);
  // Without rights, the page works without navigation.
  useEffect(() => { if (!ownHost) readRights().catch(() => null); }, []);
  const sandboxes = useResource('sandboxes', async signal => (ownHost ? [] : (await api.get('/api/v2/sandboxes', { query: { order: 'newest', limit: MOST_SANDBOXES }, signal })).sandboxes));
  const names = useMemo(() => (sandboxes.data ?? []).filter(one => ['running', 'paused'].includes(one.state)).map(one => one.name), [sandboxes.data]);
  useEffect(() => { if (!ownHost && sandbox === '' && names[0]) setSandbox(names[0]); }, [names]);
  const operations = useMemo(() => dialects.flatMap(one => documents.tags[one.id] ?? []).flatMap(tag => tag.operations), [documents]);
  const index = useMemo(() => indexOf(operations), [operations]);
  const { page, parts } = route.value;
  const named = dialects.find(one => one.id === page);
  const current = named ?? dialects.find(one => one.id === dialect) ?? dialects[0]!;
  // Addresses of the page before this one were `#OPERATION`.
  const wanted = named ? parts[0] ?? '' : page;
  const operation = operations.find(one => one.dialect === current && one.id === wanted);
  useShortcut('/', 'Search operations', 'Page', () => { search.current?.focus(); search.current?.select(); });
  const commands = useMemo<Command[]>(() => operations.map(one => ({
    id: `operation-${one.dialect.id}-${one.id}`, text: `${one.method} ${one.path}`, group: one.dialect.title, icon: 'docs', words: titleOf(one), run: () => go(operationAddress(one)),
  })), [operations]);
  const error = documents.errors[current.id];
  const tags = documents.tags[current.id];
  const server = new URL(address('/'), location.href).href.replace(/\/$/, '');
  return (
    <Shell rights={ownHost ? null : rights.value} base={base} current="docs" commands={commands}>
      <div class="docs" data-open={operation ? '' : undefined}>
        <OperationList dialects={dialects} current={current} tags={tags} failed={error !== undefined} operation={operation} index={index} searchRef={search} />
        <div class="stack docs-page">
          <Boundary key={`${current.id}/${wanted}`}>
            {operation ? (
              <Page title={titleOf(operation)} crumbs={<><a href={pageAddress([current.id])}>{current.title}</a><span aria-hidden="true">/</span><span>{operation.tag}</span></>}>
                <OperationView operation={operation} place={{ server, sandbox: ownHost ? '' : sandbox, withKey: keysRequired() }} sandboxes={ownHost ? null : names} onSandbox={setSandbox} onSent={() => void sandboxes.reload()} />
              </Page>
            ) : (
              <Page title={`${current.title} API`}>
                <Overview dialect={current} tags={tags} error={error} reload={reload} missing={tags && wanted !== '' ? wanted : ''} />
              </Page>
            )}
          </Boundary>
        </div>
      </div>
    </Shell>
  );
}

function Overview({ dialect, tags, error, reload, missing }: { dialect: Dialect; tags: Tag[] | undefined; error: Error | undefined; reload: () => void; missing: string }) {
  if (!tags) return error ? <ErrorState error={error} retry={reload} /> : <Loading label="Reading the document" />;
  return (
    <>
      {missing && <p class="notice bad" role="alert">{dialect.title} has no operation {missing}.</p>}
      <p class="quiet">{dialect.about}</p>
      <div class="row">
        <LinkButton small icon="external" href={address(dialect.document)}>OpenAPI document</LinkButton>
        {dialect.id === 'arenite' && <LinkButton small icon="external" href={address('/api/v2/docs/errors')}>Error codes</LinkButton>}
      </div>
      {tags.map(tag => (
        <section key={tag.name} class="panel stack" aria-label={tag.name}>
          <h2>{tag.name}</h2>
          {tag.about && <Prose text={tag.about} />}
          <ul class="operations">{tag.operations.map(one => (
            <li key={one.id}><a href={operationAddress(one)}><Method method={one.method} /><code>{one.path}</code></a><span class="quiet">{titleOf(one)}</span></li>
          ))}</ul>
        </section>
      ))}
    </>
  );
}
