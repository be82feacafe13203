// Shortcuts: single keys, sequences such as `g s`, and `Ctrl K`. Single keys can be switched off, and are ignored while typing.

import { signal } from '@preact/signals';
import { useLayoutEffect, useRef } from 'preact/hooks';

import { stored } from './storage';

export interface Shortcut {
  /** Keys as `KeyboardEvent.key` has them, with spaces between them. */
  keys: string;
  text: string;
  group: string;
  run: () => void;
}

export const shortcuts = signal<readonly Shortcut[]>([]);
export const singleKeys = stored<boolean>('single-keys', true, (value): value is boolean => typeof value === 'boolean');

/** Milliseconds between two keys of a sequence, by their events: a busy page handles them late. */
const SEQUENCE = 2000;
let pending = { keys: '', at: 0 };

/** Whether a key is meant for what it is typed into. */
export function isTyping(event: Event): boolean {
  if (!(event.target instanceof HTMLElement)) return false;
  const field = event.target.closest('input:not([type="checkbox"], [type="radio"]), select, textarea, [contenteditable="true"], [role="menu"], .xterm');
  // The field of a dialog that was just closed has the focus until the next frame.
  return field !== null && !field.closest('dialog:not([open])');
}

/** Registers a shortcut while a component is shown. Without `run`, it is only described. */
export function useShortcut(keys: string, text: string, group: string, run: () => void, enabled = true): void {
  const latest = useRef(run);
  latest.current = run;
  // With the component, and not after its first paint: a key that comes right after is not lost.
  useLayoutEffect(() => {
    if (!enabled) return;
    const shortcut: Shortcut = { keys, text, group, run: () => latest.current() };
    shortcuts.value = [...shortcuts.value, shortcut];
    return () => { shortcuts.value = shortcuts.value.filter(one => one !== shortcut); };
  }, [keys, text, group, enabled]);
}

export function handleKey(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || isTyping(event)) return;
  if (!singleKeys.value || document.querySelector('dialog[open]')) return;
  const typed = pending.keys && event.timeStamp - pending.at < SEQUENCE ? `${pending.keys} ${event.key}` : event.key;
  pending = { keys: '', at: 0 };
  const found = shortcuts.value.findLast(one => one.keys === typed) ?? shortcuts.value.findLast(one => one.keys === event.key);
  if (found) {
    event.preventDefault();
    found.run();
  } else if (shortcuts.value.some(one => one.keys.startsWith(`${typed} `))) {
    pending = { keys: typed, at: event.timeStamp };
  }
}

/** Listens for shortcuts until the returned function is called. */
export function listenForShortcuts(): () => void {
  document.addEventListener('keydown', handleKey);
  return () => document.removeEventListener('keydown', handleKey);
}
