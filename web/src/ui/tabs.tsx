// Tabs: the arrow keys move among them, and the chosen one shows its panel.

import type { ComponentChildren } from 'preact';
import { useId, useRef } from 'preact/hooks';

export interface Tab {
  id: string;
  title: ComponentChildren;
  content: () => ComponentChildren;
}

export function Tabs({ label, tabs, chosen, onChoose }: { label: string; tabs: readonly Tab[]; chosen: string; onChoose: (id: string) => void }) {
  const prefix = useId();
  const list = useRef<HTMLDivElement>(null);
  const current = tabs.find(tab => tab.id === chosen) ?? tabs[0];
  const key = (event: KeyboardEvent): void => {
    const at = tabs.findIndex(tab => tab.id === current?.id);
    const moves: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const to = (moves[event.key]! + tabs.length) % tabs.length;
    onChoose(tabs[to]!.id);
    (list.current?.children[to] as HTMLElement | undefined)?.focus();
  };
  if (!current) return null;
  return (
    <>
      <div ref={list} class="tabs" role="tablist" aria-label={label} onKeyDown={key}>
        {tabs.map(tab => (
          <button key={tab.id} type="button" role="tab" id={`${prefix}-${tab.id}`} aria-selected={tab === current} aria-controls={tab === current ? `${prefix}-panel` : undefined} tabIndex={tab === current ? 0 : -1} onClick={() => onChoose(tab.id)}>{tab.title}</button>
        ))}
      </div>
      <div class="stack" role="tabpanel" id={`${prefix}-panel`} aria-labelledby={`${prefix}-${current.id}`} tabIndex={-1}>{current.content()}</div>
    </>
  );
}
