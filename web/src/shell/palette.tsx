// The command palette: a list of pages, sandboxes and actions that is searched by typing.

import { signal } from '@preact/signals';
import { useEffect, useId, useMemo, useRef, useState } from 'preact/hooks';

import { useModal } from '../ui/dialog';
import { Icon, type IconName } from '../ui/icons';
import { failed } from '../ui/toast';

export interface Command {
  id: string;
  text: string;
  group: string;
  icon: IconName;
  /** Further words that find it. */
  words?: string;
  /** A shortcut or a state, at the end of the row. */
  hint?: string;
  run: () => unknown;
}

export const paletteOpen = signal(false);
const MOST = 60;

/** How well a text matches: 0 is not at all. All typed words have to be found; beginnings of words count more. */
export function matchScore(text: string, typed: string): number {
  const lower = text.toLowerCase();
  let score = 1;
  for (const word of typed.toLowerCase().split(/\s+/).filter(Boolean)) {
    const at = lower.indexOf(word);
    if (at >= 0) {
      score += at === 0 ? 12 : /[\s\-_./]/.test(lower[at - 1] ?? '') ? 8 : 4;
      continue;
    }
    // The letters in order, such as `trj` for trajectories.
    let from = 0;
    for (const letter of word) {
      from = lower.indexOf(letter, from) + 1;
      if (from === 0) return 0;
    }
    score += 1;
  }
  return score;
}

export function findCommands(commands: readonly Command[], typed: string): Command[] {
  if (!typed.trim()) return commands.slice(0, MOST);
  const scored = commands.map((command, at) => ({ command, at, score: Math.max(matchScore(command.text, typed), matchScore(`${command.text} ${command.words ?? ''}`, typed) - 2) }));
  return scored.filter(({ score }) => score > 0).sort((a, b) => b.score - a.score || a.at - b.at).slice(0, MOST).map(({ command }) => command);
}

export function Palette({ commands, onOpen }: { commands: readonly Command[]; onOpen?: (() => void) | undefined }) {
  if (!paletteOpen.value) return null;
  return <OpenPalette commands={commands} onOpen={onOpen} />;
}

function OpenPalette({ commands, onOpen }: { commands: readonly Command[]; onOpen?: (() => void) | undefined }) {
  const [typed, setTyped] = useState('');
  const [at, setAt] = useState(0);
  const node = useRef<HTMLDialogElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const id = useId();
  useModal(node);
  useEffect(() => onOpen?.(), []);
  const found = useMemo(() => findCommands(commands, typed), [commands, typed]);
  const groups = useMemo(() => {
    const by = new Map<string, { command: Command; at: number }[]>();
    // In the order of their best entries; the arrow keys go through them as they are shown.
    for (const command of found) by.set(command.group, [...(by.get(command.group) ?? []), { command, at: 0 }]);
    let n = 0;
    for (const entries of by.values()) for (const entry of entries) entry.at = n++;
    return [...by];
  }, [found]);
  const flat = groups.flatMap(([, entries]) => entries);
  const chosen = Math.min(at, flat.length - 1);
  const run = (command: Command | undefined): void => {
    if (!command) return;
    paletteOpen.value = false;
    const work = command.run();
    if (work instanceof Promise) work.catch(failed);
  };
  const key = (event: KeyboardEvent): void => {
    const moves: Record<string, number> = { ArrowDown: chosen + 1, ArrowUp: chosen - 1, PageDown: chosen + 8, PageUp: chosen - 8 };
    if (event.key in moves) {
      const to = moves[event.key]!;
      setAt(to < 0 ? flat.length - 1 : to >= flat.length ? 0 : to);
    } else if (event.key === 'Enter') run(flat[chosen]?.command);
    else return;
    event.preventDefault();
  };
  useEffect(() => { list.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: 'nearest' }); }, [chosen]);
  return (
    <dialog ref={node} class="palette" aria-label="Command palette" onClose={() => { if (node.current) paletteOpen.value = false; }} onClick={event => { if (event.target === node.current) node.current?.close(); }}>
      <input class="input" autofocus role="combobox" aria-label="Search pages, sandboxes and actions" placeholder="Search pages, sandboxes and actions" aria-expanded="true" aria-controls={`${id}-list`}
        aria-activedescendant={flat.length > 0 ? `${id}-${chosen}` : undefined} aria-autocomplete="list" autocomplete="off" spellcheck={false} value={typed}
        onInput={event => { setTyped(event.currentTarget.value); setAt(0); }} onKeyDown={key} />
      <div ref={list} id={`${id}-list`} role="listbox" aria-label="Commands">
        {groups.map(([group, entries]) => (
          <div key={group} role="group" aria-label={group}>
            <span aria-hidden="true">{group}</span>
            {entries.map(({ command, at: n }) => (
              <div key={command.id} id={`${id}-${n}`} role="option" aria-selected={n === chosen} onPointerMove={() => setAt(n)} onClick={() => run(command)}>
                <Icon name={command.icon} /><span class="clip">{command.text}</span>{command.hint && <span class="hint">{command.hint}</span>}
              </div>
            ))}
          </div>
        ))}
      </div>
      {flat.length === 0 && <p class="none" role="status">Nothing matches.</p>}
    </dialog>
  );
}

/** Opens or closes the palette with `Ctrl K`, or `⌘ K`, also while typing. */
export function listenForPalette(): () => void {
  const key = (event: KeyboardEvent): void => {
    if (event.key.toLowerCase() !== 'k' || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    event.preventDefault();
    if (paletteOpen.value) paletteOpen.value = false;
    else if (!document.querySelector('dialog[open]')) paletteOpen.value = true;
  };
  document.addEventListener('keydown', key);
  return () => document.removeEventListener('keydown', key);
}
