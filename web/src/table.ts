// Tables that become lists of cards on narrow screens.

import { make } from './dom';

export interface Column<T> {
  title: string;
  /** Numbers are at the right. */
  number?: boolean;
  className?: string;
  cell: (item: T) => Node | string;
  /** Text of a tooltip, such as an exact time. */
  tip?: (item: T) => string;
}

const SHOWN_AT_ONCE = 100;

/** A table of items. It draws the first hundred, and more on request. */
export class Table<T> {
  readonly box: HTMLElement;
  private readonly body = make('tbody');
  private readonly more = make('button', { type: 'button', className: 'more', hidden: true });
  private readonly empty: HTMLElement;
  private readonly table: HTMLTableElement;
  private readonly columns: Column<T>[];
  private items: readonly T[] = [];
  private shown = SHOWN_AT_ONCE;

  constructor(label: string, columns: Column<T>[], empty: string) {
    this.columns = columns;
    this.empty = make('p', { className: 'quiet empty', textContent: empty });
    const head = make('tr', {}, ...columns.map(column =>
      make('th', { scope: 'col', className: classes(column) }, column.title ? column.title : make('span', { className: 'unseen', textContent: 'Actions' }))));
    this.table = make('table', { className: 'cards', ariaLabel: label, hidden: true }, make('thead', {}, head), this.body);
    // Without roles, browsers drop a table's meaning when it is laid out as cards.
    this.table.role = 'table';
    head.role = 'row';
    for (const cell of head.cells) cell.role = 'columnheader';
    this.box = make('div', { className: 'scroll', role: 'region', ariaLabel: label, tabIndex: 0 }, this.table, this.empty, this.more);
    this.more.addEventListener('click', () => {
      const first = this.shown;
      this.shown += SHOWN_AT_ONCE;
      this.draw();
      (this.body.rows[first]?.querySelector('button, a') as HTMLElement | null)?.focus();
    });
  }

  /** `atLeast`: rows to draw at once, for lists that grow by pages. */
  show(items: readonly T[], atLeast = 0): void {
    this.items = items;
    this.shown = Math.max(this.shown, atLeast);
    this.draw();
  }

  private draw(): void {
    const focused = document.activeElement instanceof HTMLElement && this.body.contains(document.activeElement) ? document.activeElement.ariaLabel : null;
    this.body.replaceChildren(...this.items.slice(0, this.shown).map(item => this.row(item)));
    if (focused) [...this.body.querySelectorAll<HTMLElement>('button, a')].find(node => node.ariaLabel === focused)?.focus();
    this.table.hidden = this.items.length === 0;
    this.empty.hidden = this.items.length > 0;
    const left = this.items.length - this.shown;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show ${Math.min(left, SHOWN_AT_ONCE)} more of ${left}`;
  }

  private row(item: T): HTMLTableRowElement {
    const row = make('tr', { role: 'row' });
    for (const column of this.columns) {
      const cell = make('td', { className: classes(column), role: 'cell' }, column.cell(item));
      if (column.title) cell.dataset.label = column.title;
      if (column.tip) cell.title = column.tip(item);
      row.append(cell);
    }
    return row;
  }
}

function classes<T>({ number, className, title }: Column<T>): string {
  return [number ? 'number' : '', className ?? '', title ? '' : 'actions'].filter(Boolean).join(' ');
}
