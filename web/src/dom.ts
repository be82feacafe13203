// What sandboxes, their users and their files say reaches the pages as text nodes and properties, never as markup.

export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found as T;
}

type Made<K extends keyof HTMLElementTagNameMap> = Partial<Omit<HTMLElementTagNameMap[K], 'dataset' | 'style'>>;

export function make<K extends keyof HTMLElementTagNameMap>(tag: K, properties: Made<K> = {}, ...children: (Node | string)[]): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}

/** What becomes of a sandbox if nothing happens before. */
export interface Deadline {
  at: string;
  reason: 'timeout' | 'idle' | 'kept';
  action: 'delete' | 'pause';
}

export function timeLeft({ at, reason, action }: Deadline): { short: string; long: string } {
  const left = duration((Date.parse(at) - Date.now()) / 1000);
  const done = action === 'pause' ? 'paused' : 'deleted';
  const why = reason === 'idle' ? 'unless it is used' : reason === 'timeout' ? 'when its lifetime is over' : 'it is no longer running';
  return { short: reason === 'idle' ? `${left} if idle` : left, long: `${done} in ${left}: ${why} (${at})` };
}

export function age(from: string): string {
  return duration((Date.now() - Date.parse(from)) / 1000);
}

export function duration(length: number): string {
  const seconds = Math.max(0, length);
  const units: [string, number][] = [['d', 86400], ['h', 3600], ['min', 60]];
  for (const [unit, size] of units) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.floor(seconds)} s`;
}

export function bytes(n: number): string {
  const units: [string, number][] = [['TiB', 2 ** 40], ['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]];
  for (const [unit, size] of units) if (n >= size) return `${(n / size).toFixed(n < 10 * size ? 1 : 0)} ${unit}`;
  return `${n} B`;
}

export function milliseconds(ms: number): string {
  if (ms >= 3_600_000) return `${(ms / 3_600_000).toFixed(1)} h`;
  if (ms >= 60_000) return `${(ms / 60_000).toFixed(1)} min`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(1)} s`;
  return ms >= 10 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`;
}

/** The dialog that names the keys, opened by `?` and by its button. */
export function keysDialog(): void {
  const dialog = byId<HTMLDialogElement>('keys');
  byId('show-keys').addEventListener('click', () => dialog.showModal());
  document.addEventListener('keydown', event => {
    if (event.key === '?' && !isTyping(event)) {
      event.preventDefault();
      if (!document.querySelector('dialog[open]')) dialog.showModal();
    }
  });
}

/** Whether a key is meant for what it is typed into. */
export function isTyping(event: KeyboardEvent): boolean {
  return event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement || event.target instanceof HTMLTextAreaElement;
}
