// The operations of a dialect by tags, and a search over all dialects: the arrow keys choose a result, Enter opens it.

import { useEffect, useId, useMemo, useRef, useState } from 'preact/hooks';

import { go, pageAddress } from '../shell';
import { Icon, Loading } from '../ui';
import { type Dialect, type Operation, type Tag, titleOf } from './openapi';
import { Method } from './operation_view';
import { type Index, MOST_RESULTS, findOperations } from './search';

export interface OperationListProps {
  dialects: readonly Dialect[];
  current: Dialect;
  tags: Tag[] | undefined;
  /** Whether the document could not be read. */
  failed: boolean;
  operation: Operation | undefined;
  index: Index;
  searchRef: { current: HTMLInputElement | null };
}

export function OperationList({ dialects, current, tags, failed, operation, index, searchRef }: OperationListProps) {
  const [typed, setTyped] = useState('');
  const [at, setAt] = useState(0);
  const id = useId();
  const results = useRef<HTMLDivElement>(null);
  const found = useMemo(() => findOperations(index, typed), [index, typed]);
  const shown = found.slice(0, MOST_RESULTS);
  const chosen = Math.min(at, shown.length - 1);
  const isSearching = typed.trim() !== '';
  const open = (one: Operation | undefined): void => {
    if (!one) return;
    setTyped('');
    go(pageAddress([one.dialect.id, one.id]));
  };
  const key = (event: KeyboardEvent): void => {
    const moves: Record<string, number> = { ArrowDown: chosen + 1, ArrowUp: chosen - 1, PageDown: chosen + 8, PageUp: chosen - 8 };
    if (event.key === 'Escape' && isSearching) setTyped('');
    else if (event.key === 'Escape') searchRef.current?.blur();
    else if (isSearching && event.key in moves) {
      const to = moves[event.key]!;
      setAt(to < 0 ? shown.length - 1 : to >= shown.length ? 0 : to);
    } else if (event.key === 'Enter' && isSearching) open(shown[chosen]);
    else return;
    event.preventDefault();
  };
  useEffect(() => { results.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: 'nearest' }); }, [chosen]);
  return (
    <aside class="docs-list" aria-label="Operations">
      <div class="search">
        <Icon name="search" />
        <input ref={searchRef} class="input" role="combobox" aria-label="Search operations" placeholder="Path, words, fields" aria-expanded={isSearching} aria-controls={`${id}-results`} aria-autocomplete="list"
          aria-activedescendant={isSearching && shown.length > 0 ? `${id}-${chosen}` : undefined} autocomplete="off" spellcheck={false} value={typed} onInput={event => { setTyped(event.currentTarget.value); setAt(0); }} onKeyDown={key} />
        {!typed && <kbd aria-hidden="true">/</kbd>}
      </div>
      <div ref={results} id={`${id}-results`} class="results" role="listbox" aria-label="Found operations" hidden={!isSearching || shown.length === 0}>
        {isSearching && shown.map((one, n) => (
          <div key={`${one.dialect.id}/${one.id}`} id={`${id}-${n}`} role="option" aria-selected={n === chosen} onClick={() => open(one)}>
            <span class="row"><Method method={one.method} /><code>{one.path}</code></span>
            <span class="quiet">{titleOf(one)} · {one.dialect.title}</span>
          </div>
        ))}
      </div>
      <p class={isSearching ? 'quiet' : 'unseen'} role="status">{!isSearching ? '' : found.length === 0 ? 'Nothing matches.' : found.length > shown.length ? `The best ${shown.length} of ${found.length}.` : `${found.length} found.`}</p>
      {!isSearching && (
        <>
          {dialects.length > 1 && (
            <nav class="dialects" aria-label="Interfaces">
              {dialects.map(dialect => <a key={dialect.id} href={pageAddress([dialect.id])} aria-current={dialect === current ? 'true' : undefined}>{dialect.title}</a>)}
            </nav>
          )}
          <nav class="tags" aria-label={`Operations of ${current.title}`}>
            {tags ? tags.map(tag => <TagGroup key={`${current.id}/${tag.name}`} tag={tag} operation={operation} isOnly={tags.length === 1} />) : failed ? null : <Loading />}
          </nav>
        </>
      )}
    </aside>
  );
}

function TagGroup({ tag, operation, isOnly }: { tag: Tag; operation: Operation | undefined; isOnly: boolean }) {
  const isCurrent = tag.operations.some(one => one === operation);
  const [open, setOpen] = useState(isCurrent || isOnly);
  const node = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    if (!isCurrent) return;
    setOpen(true);
    node.current?.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest' });
  }, [isCurrent]);
  return (
    <details ref={node} open={open} onToggle={event => setOpen(event.currentTarget.open)}>
      <summary><Icon name="right" />{tag.name}<span class="quiet count">{tag.operations.length}</span></summary>
      <ul>{open && tag.operations.map(one => (
        <li key={one.id}><a href={pageAddress([one.dialect.id, one.id])} aria-current={one === operation ? 'page' : undefined} title={`${one.method} ${one.path}`}>
          <Method method={one.method} /><span>{titleOf(one)}</span>
        </a></li>
      ))}</ul>
    </details>
  );
}
