// Tables with sortable columns, rows that can be selected, and virtual rows beyond some hundreds. Narrow ones are lists of cards.

import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';

import { Icon } from './icons';

export interface Column<T> {
  id: string;
  /** Empty for the column of actions. */
  title: string;
  cell: (row: T) => ComponentChildren;
  /** What rows are sorted by; without it, the column can't be sorted. */
  sort?: (row: T) => string | number;
  /** Numbers are at the right. */
  number?: boolean;
  /** Leaves first when the window gets narrower. */
  low?: boolean;
  /** The title of a card. By default, the first column. */
  main?: boolean;
  className?: string;
  /** Text of a tooltip, such as an exact time. */
  tip?: (row: T) => string | undefined;
}

export interface Sort {
  column: string;
  down: boolean;
}

export interface TableProps<T> {
  /** The name of the table. */
  label: string;
  columns: readonly Column<T>[];
  rows: readonly T[];
  rowKey: (row: T) => string;
  /** Shown in place of a table without rows. */
  empty?: ComponentChildren;
  sort?: Sort;
  onSort?: (sort: Sort) => void;
  /** Keys of the selected rows; rows can be selected if it is given. */
  picked?: ReadonlySet<string> | undefined;
  onPick?: (picked: ReadonlySet<string>) => void;
  /** The name of a row, for its checkbox. */
  rowName?: (row: T) => string;
  /** Keys that are pressed while the focus is in a row. */
  onRowKey?: (event: KeyboardEvent, row: T) => void;
  rowAttributes?: (row: T) => Record<string, string>;
}

/** Fewer rows than this are all drawn. */
export const VIRTUAL_FROM = 150;
/** Rows that are drawn before and after those in view. */
const AROUND = 12;
const ROW_HEIGHT = 38.5;

/** One for all: `localeCompare` with options makes a collator for each comparison. */
const collator = new Intl.Collator('en', { numeric: true });

function compare(a: string | number, b: string | number): number {
  if (typeof a === 'number' && typeof b === 'number') return a - b;
  return collator.compare(String(a), String(b));
}

/** Sorts by a column; equal rows keep their order. */
export function sorted<T>(rows: readonly T[], columns: readonly Column<T>[], sort: Sort | undefined): readonly T[] {
  const by = columns.find(column => column.id === sort?.column)?.sort;
  if (!by || !sort) return rows;
  const keyed = rows.map(row => ({ row, key: by(row) }));
  keyed.sort((a, b) => (sort.down ? compare(b.key, a.key) : compare(a.key, b.key)));
  return keyed.map(({ row }) => row);
}

/** The rows to draw: from `first` up to, not including, `end`. */
export function visibleRange(count: number, height: number, above: number, viewport: number): { first: number; end: number } {
  if (count <= VIRTUAL_FROM) return { first: 0, end: count };
  const first = Math.min(Math.max(0, Math.floor(above / height) - AROUND), Math.max(0, count - 1));
  const end = Math.min(count, Math.ceil((above + viewport) / height) + AROUND);
  return { first, end: Math.max(end, Math.min(count, first + 2 * AROUND)) };
}

export function Table<T>({ label, columns, rows, rowKey, empty, sort, onSort, picked, onPick, rowName = rowKey, onRowKey, rowAttributes }: TableProps<T>) {
  const [own, setOwn] = useState<Sort | undefined>(sort);
  const order = onSort ? sort : own;
  const all = useMemo(() => sorted(rows, columns, order), [rows, columns, order?.column, order?.down]);
  const box = useRef<HTMLDivElement>(null);
  const body = useRef<HTMLTableSectionElement>(null);
  const [range, setRange] = useState(() => visibleRange(all.length, ROW_HEIGHT, 0, innerHeight));
  const [height, setHeight] = useState(ROW_HEIGHT);
  const focusAt = useRef<number | null>(null);
  const anchor = useRef<number | null>(null);
  const isVirtual = all.length > VIRTUAL_FROM;

  useEffect(() => {
    if (!isVirtual) return;
    let frame = 0;
    const measure = (): void => {
      frame = 0;
      const node = body.current;
      if (!node) return;
      const tall = node.querySelector('tr.item')?.getBoundingClientRect().height || ROW_HEIGHT;
      // The fillers and the range are computed with the same height, or they would differ by hundreds of rows at the end.
      if (Math.abs(tall - height) > 0.25) setHeight(tall);
      const next = visibleRange(all.length, height, -node.getBoundingClientRect().top, innerHeight);
      setRange(before => (before.first === next.first && before.end === next.end ? before : next));
    };
    const later = (): void => { frame ||= requestAnimationFrame(measure); };
    measure();
    // Scrolling of any box that contains the table.
    document.addEventListener('scroll', later, { capture: true, passive: true });
    addEventListener('resize', later);
    return () => {
      cancelAnimationFrame(frame);
      document.removeEventListener('scroll', later, { capture: true });
      removeEventListener('resize', later);
    };
  }, [isVirtual, all.length, height]);

  // A row that the keyboard went to is drawn after the scrolling; then it gets the focus.
  useEffect(() => {
    if (focusAt.current === null) return;
    const row = body.current?.querySelector(`[data-at="${focusAt.current}"]`);
    if (!row) return;
    focusAt.current = null;
    focusTarget(row)?.focus();
  });

  const isEmpty = all.length === 0;
  useEffect(() => {
    const node = box.current;
    if (!node || typeof ResizeObserver !== 'function') return;
    const sizes = new ResizeObserver(() => node.toggleAttribute('data-wide', node.scrollWidth > node.clientWidth));
    sizes.observe(node);
    sizes.observe(node.firstElementChild!);
    return () => sizes.disconnect();
  }, [isEmpty]);

  if (isEmpty) return <>{empty}</>;
  const { first, end } = isVirtual ? { first: Math.min(range.first, all.length - 1), end: Math.min(range.end, all.length) } : { first: 0, end: all.length };

  const goTo = (index: number): void => {
    const at = Math.max(0, Math.min(all.length - 1, index));
    const row = body.current?.querySelector(`[data-at="${at}"]`);
    if (row) {
      focusTarget(row)?.focus();
      row.scrollIntoView({ block: 'nearest' });
      return;
    }
    focusAt.current = at;
    const top = (body.current?.getBoundingClientRect().top ?? 0) + scrollY;
    scrollTo({ top: top + at * height - innerHeight / 2 });
    setRange(visibleRange(all.length, height, at * height - innerHeight / 2, innerHeight));
  };
  const toggle = (at: number, on: boolean, range: boolean): void => {
    if (!picked || !onPick) return;
    const next = new Set(picked);
    const from = range && anchor.current !== null ? anchor.current : at;
    for (let n = Math.min(from, at); n <= Math.max(from, at); n++) {
      const row = all[n];
      if (row === undefined) continue;
      if (on) next.add(rowKey(row));
      else next.delete(rowKey(row));
    }
    anchor.current = at;
    onPick(next);
  };
  const key = (event: KeyboardEvent): void => {
    const target = event.target as HTMLElement;
    const line = target.closest<HTMLElement>('tr[data-at]');
    if (!line || event.altKey || event.ctrlKey || event.metaKey || target.closest('select, textarea, input:not([type="checkbox"]), [role="menu"], pre')) return;
    const at = Number(line.dataset.at);
    const row = all[at];
    const page = Math.max(1, Math.floor(innerHeight / height) - 4);
    const moves: Record<string, number> = { ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1, Home: 0, End: all.length - 1, PageDown: at + page, PageUp: at - page };
    if (event.key in moves) goTo(moves[event.key]!);
    else if (event.key === 'x' && picked && row !== undefined) toggle(at, !picked.has(rowKey(row)), event.shiftKey);
    else if (row !== undefined && onRowKey) {
      onRowKey(event, row);
      return;
    } else return;
    event.preventDefault();
  };
  const sortBy = (column: Column<T>): void => {
    const next = { column: column.id, down: order?.column === column.id ? !order.down : Boolean(column.number) };
    setOwn(next);
    onSort?.(next);
  };
  const allPicked = picked !== undefined && all.every(row => picked.has(rowKey(row)));
  const main = columns.find(column => column.main)?.id ?? columns[0]?.id;
  const filler = (count: number) => (count > 0 ? <tr class="filler" aria-hidden="true"><td colSpan={columns.length + (picked ? 1 : 0)} style={{ height: `${count * height}px` }} /></tr> : null);
  return (
    <div ref={box} class="table-box sticky" role="region" aria-label={label} tabIndex={0}>
      <table class="cards" role="table" aria-label={label} aria-rowcount={isVirtual ? all.length + 1 : undefined}>
        <thead><tr role="row" aria-rowindex={isVirtual ? 1 : undefined}>
          {picked && <th scope="col" role="columnheader" class="pick"><label><span class="unseen">Select all rows</span>
            <input type="checkbox" checked={allPicked} ref={node => { if (node) node.indeterminate = picked.size > 0 && !allPicked; }}
              onChange={event => onPick?.(event.currentTarget.checked ? new Set(all.map(rowKey)) : new Set())} /></label></th>}
          {columns.map(column => (
            <th key={column.id} scope="col" role="columnheader" class={classes(column, false)} aria-sort={order?.column === column.id ? (order.down ? 'descending' : 'ascending') : undefined}>
              {column.sort ? <button type="button" class="sort" onClick={() => sortBy(column)}>{column.title}<Icon name="down" /></button>
                : column.title || <span class="unseen">Actions</span>}
            </th>
          ))}
        </tr></thead>
        <tbody ref={body} onKeyDown={key}>
          {filler(first)}
          {all.slice(first, end).map((row, n) => {
            const id = rowKey(row);
            const at = first + n;
            return (
              <tr key={id} role="row" class="item" data-at={at} data-picked={picked?.has(id) || undefined} aria-rowindex={isVirtual ? at + 2 : undefined} {...rowAttributes?.(row)}>
                {picked && <td role="cell" class="pick"><label><span class="unseen">Select {rowName(row)}</span>
                  <input type="checkbox" checked={picked.has(id)} onClick={event => toggle(at, event.currentTarget.checked, event.shiftKey)} /></label></td>}
                {columns.map(column => <td key={column.id} role="cell" class={classes(column, column.id === main)} data-label={column.title || undefined} title={column.tip?.(row)}><div class="value">{column.cell(row)}</div></td>)}
              </tr>
            );
          })}
          {filler(all.length - end)}
        </tbody>
      </table>
    </div>
  );
}

function focusTarget(row: Element): HTMLElement | null {
  return row.querySelector<HTMLElement>('a, button') ?? row.querySelector<HTMLElement>('input');
}

function classes<T>({ number, low, className, title }: Column<T>, isMain: boolean): string {
  return [number ? 'number' : '', low ? 'low' : '', className ?? '', title ? '' : 'actions', isMain ? 'main' : ''].filter(Boolean).join(' ');
}
