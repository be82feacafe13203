import { cleanup, fireEvent, render, screen, within } from '@testing-library/preact';
import { useState } from 'preact/hooks';
import { afterEach, describe, expect, it, vi } from 'vitest';

import { type Column, Table, VIRTUAL_FROM, sorted, visibleRange } from './table';

interface Row { id: string; name: string; size: number }
const COLUMNS: Column<Row>[] = [
  { id: 'name', title: 'Name', sort: row => row.name, cell: row => <a href={`#/${row.id}`}>{row.name}</a> },
  { id: 'size', title: 'Size', number: true, sort: row => row.size, cell: row => String(row.size) },
  { id: 'actions', title: '', cell: row => <button>Delete {row.name}</button> },
];
const rows = (count: number): Row[] => Array.from({ length: count }, (_, n) => ({ id: `r${n}`, name: `row-${n}`, size: (n * 7) % count }));

function Picking({ all }: { all: Row[] }) {
  const [picked, setPicked] = useState<ReadonlySet<string>>(new Set());
  return <><output>{[...picked].join(' ')}</output><Table label="Rows" columns={COLUMNS} rows={all} rowKey={row => row.id} rowName={row => row.name} picked={picked} onPick={setPicked} /></>;
}

afterEach(cleanup);

describe('a table', () => {
  it('sorts by a column and says so', () => {
    render(<Table label="Rows" columns={COLUMNS} rows={rows(12)} rowKey={row => row.id} />);
    const names = () => screen.getAllByRole('link').map(link => link.textContent);
    expect(names().slice(0, 3)).toEqual(['row-0', 'row-1', 'row-2']);
    fireEvent.click(screen.getByRole('button', { name: 'Size' }));
    expect(screen.getByRole('columnheader', { name: 'Size' }).getAttribute('aria-sort')).toBe('descending');
    expect(screen.getAllByRole('cell')[1]!.textContent).toBe('11');
    fireEvent.click(screen.getByRole('button', { name: 'Name' }));
    // As numbers: row-2 is before row-11.
    expect(names().at(-1)).toBe('row-11');
  });

  it('keeps the order of equal rows', () => {
    const equal = [{ id: 'b', name: 'x', size: 1 }, { id: 'a', name: 'x', size: 2 }];
    expect(sorted(equal, COLUMNS, { column: 'name', down: true }).map(row => row.id)).toEqual(['b', 'a']);
  });

  it('draws only what is in view of ten thousand rows, and tells how many there are', () => {
    const began = performance.now();
    render(<Table label="Rows" columns={COLUMNS} rows={rows(10_000)} rowKey={row => row.id} />);
    const table = screen.getByRole('table', { name: 'Rows' });
    expect(table.getAttribute('aria-rowcount')).toBe('10001');
    expect(within(table).getAllByRole('link').length).toBeLessThan(100);
    expect(performance.now() - began).toBeLessThan(2000);
  });

  it('computes which rows are in view', () => {
    expect(visibleRange(VIRTUAL_FROM, 40, 0, 800)).toEqual({ first: 0, end: VIRTUAL_FROM });
    const { first, end } = visibleRange(10_000, 40, 40_000, 800);
    expect(first).toBeGreaterThan(980);
    expect(first).toBeLessThan(1000);
    expect(end).toBeGreaterThan(1020);
    expect(visibleRange(10_000, 40, 10_000_000, 800).end).toBe(10_000);
  });

  it('is walked by the arrow keys', () => {
    render(<Table label="Rows" columns={COLUMNS} rows={rows(3)} rowKey={row => row.id} />);
    const links = screen.getAllByRole('link');
    links[0]!.focus();
    fireEvent.keyDown(links[0]!, { key: 'ArrowDown' });
    expect(document.activeElement).toBe(links[1]);
    fireEvent.keyDown(links[1]!, { key: 'End' });
    expect(document.activeElement).toBe(links[2]);
    fireEvent.keyDown(links[2]!, { key: 'ArrowUp' });
    expect(document.activeElement).toBe(links[1]);
  });

  it('goes by keyboard to a row that is not drawn', async () => {
    window.scrollTo = vi.fn();
    render(<Table label="Rows" columns={COLUMNS} rows={rows(1000)} rowKey={row => row.id} />);
    const first = screen.getAllByRole('link')[0]!;
    first.focus();
    fireEvent.keyDown(first, { key: 'End' });
    expect((await screen.findByRole('link', { name: 'row-999' }))).toBe(document.activeElement);
  });

  it('selects rows, ranges, and all', () => {
    render(<Picking all={rows(6)} />);
    const picked = () => screen.getByRole('status').textContent;
    fireEvent.click(screen.getByRole('checkbox', { name: 'Select row-1' }));
    fireEvent.click(screen.getByRole('checkbox', { name: 'Select row-3' }), { shiftKey: true });
    expect(picked()).toBe('r1 r2 r3');
    expect((screen.getByRole('checkbox', { name: 'Select all rows' }) as HTMLInputElement).indeterminate).toBe(true);
    fireEvent.click(screen.getByRole('checkbox', { name: 'Select all rows' }));
    expect(picked()).toBe('r0 r1 r2 r3 r4 r5');
    const link = screen.getByRole('link', { name: 'row-0' });
    fireEvent.keyDown(link, { key: 'x' });
    expect(picked()).toBe('r1 r2 r3 r4 r5');
  });

  it('shows what is given for no rows', () => {
    render(<Table label="Rows" columns={COLUMNS} rows={[]} rowKey={row => row.id} empty={<p>Nothing here.</p>} />);
    expect(screen.getByText('Nothing here.')).toBeTruthy();
    expect(screen.queryByRole('table')).toBeNull();
  });

  it('shows names as text, never as markup', () => {
    render(<Table label="Rows" columns={COLUMNS} rows={[{ id: 'x', name: '<img src=x onerror=alert(1)>', size: 0 }]} rowKey={row => row.id} />);
    expect(screen.getByRole('link').textContent).toBe('<img src=x onerror=alert(1)>');
    expect(document.querySelector('img')).toBeNull();
  });
});
