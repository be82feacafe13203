// Choices that a browser remembers. Without storage, they last as long as the page.

import { type Signal, effect, signal } from '@preact/signals';

const PREFIX = 'arenite.';

/** A signal that is stored. `valid` decides whether a stored value can be used. */
export function stored<T>(name: string, initial: T, valid: (value: unknown) => value is T): Signal<T> {
  let value = initial;
  try {
    const text = localStorage.getItem(PREFIX + name);
    const parsed: unknown = text === null ? undefined : JSON.parse(text);
    if (valid(parsed)) value = parsed;
  } catch {
    // There is no storage, or it has something else.
  }
  const choice = signal(value);
  let first = true;
  effect(() => {
    const text = JSON.stringify(choice.value);
    if (first) {
      first = false;
      return;
    }
    try {
      localStorage.setItem(PREFIX + name, text);
    } catch {
      // As above.
    }
  });
  return choice;
}
