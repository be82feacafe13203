// A list of rows of equal height, of which only those in view are drawn. One of them is chosen, also by keyboard.

import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

/** Rows that are drawn before and after those in view. */
const AROUND = 8;

export interface VirtualListProps<T> {
  label: string;
  rows: readonly T[];
  height: number;
  rowKey: (row: T) => string;
  chosen: string;
  onChoose: (row: T, at: number) => void;
  children: (row: T, at: number) => ComponentChildren;
  attributes?: (row: T) => Record<string, string | undefined>;
}

export function VirtualList<T>({ label, rows, height, rowKey, chosen, onChoose, children, attributes }: VirtualListProps<T>) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  useLayoutEffect(() => {
    const node = box.current;
    if (!node) return;
    let frame = 0;
    const measure = (): void => {
      frame = 0;
      setView(before => (before.top === node.scrollTop && before.height === node.clientHeight ? before : { top: node.scrollTop, height: node.clientHeight || 600 }));
    };
    const later = (): void => { frame ||= requestAnimationFrame(measure); };
    measure();
    node.addEventListener('scroll', later, { passive: true });
    const sizes = typeof ResizeObserver === 'function' ? new ResizeObserver(later) : null;
    sizes?.observe(node);
    return () => {
      cancelAnimationFrame(frame);
      node.removeEventListener('scroll', later);
      sizes?.disconnect();
    };
  }, []);
  const at = rows.findIndex(row => rowKey(row) === chosen);
  // The chosen row stays in view, also when rows before it appear.
  useEffect(() => {
    const node = box.current;
    if (!node || at < 0) return;
    const top = at * height;
    if (top < node.scrollTop) node.scrollTop = top;
    else if (top + height > node.scrollTop + node.clientHeight) node.scrollTop = top + height - node.clientHeight;
  }, [chosen, at, height]);
  const first = Math.max(0, Math.floor(view.top / height) - AROUND);
  const end = Math.min(rows.length, Math.ceil((view.top + view.height) / height) + AROUND);
  const key = (event: KeyboardEvent): void => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(view.height / height) - 1);
    const moves: Record<string, number> = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: rows.length - 1 };
    if (!(event.key in moves) || rows.length === 0) return;
    event.preventDefault();
    event.stopPropagation();
    const to = Math.min(rows.length - 1, Math.max(0, moves[event.key]!));
    onChoose(rows[to]!, to);
  };
  const isDrawn = at >= first && at < end;
  return (
    <div ref={box} class="virtual" role="listbox" aria-label={label} tabIndex={0} aria-activedescendant={isDrawn ? `row-${rowKey(rows[at]!)}` : undefined} onKeyDown={key}>
      <div class="virtual-space" role="presentation" style={{ height: `${rows.length * height}px` }}>
        {rows.slice(first, end).map((row, n) => {
          const id = rowKey(row);
          return (
            <div key={id} id={`row-${id}`} role="option" class="virtual-row" aria-selected={id === chosen} aria-setsize={rows.length} aria-posinset={first + n + 1} {...attributes?.(row)}
              style={{ top: `${(first + n) * height}px`, height: `${height}px` }} onClick={() => onChoose(row, first + n)}>
              {children(row, first + n)}
            </div>
          );
        })}
      </div>
    </div>
  );
}
