// Notifications. Successes leave after some seconds, unless a pointer or the focus is on them; failures stay until they are dismissed.

import { signal } from '@preact/signals';
import { useEffect, useRef, useState } from 'preact/hooks';

import { ApiError, isAbort } from '../client/errors';
import { IconButton } from './button';
import { Icon } from './icons';

interface ToastItem {
  id: number;
  tone: 'good' | 'bad';
  text: string;
  hint: string;
}

const LASTS = 7000;
const MOST = 4;

export const toasts = signal<ToastItem[]>([]);
let numbered = 0;

function show(tone: ToastItem['tone'], text: string, hint = ''): void {
  toasts.value = [...toasts.value.filter(one => one.text !== text), { id: ++numbered, tone, text, hint }].slice(-MOST);
}

/** Reports that something was done. */
export function notify(text: string): void {
  show('good', text);
}

/** Reports a failure, with its hint. */
export function failed(error: unknown): void {
  if (isAbort(error)) return;
  if (error instanceof ApiError) show('bad', error.reason, error.hint);
  else show('bad', error instanceof Error ? error.message : String(error));
}

export function dismiss(id: number): void {
  toasts.value = toasts.value.filter(one => one.id !== id);
}

function Toast({ id, tone, text, hint }: ToastItem) {
  const [held, setHeld] = useState(false);
  useEffect(() => {
    if (held || tone === 'bad') return;
    const timer = setTimeout(() => dismiss(id), LASTS);
    return () => clearTimeout(timer);
  }, [held, tone, id]);
  return (
    <div class="toast" data-tone={tone} onPointerEnter={() => setHeld(true)} onPointerLeave={() => setHeld(false)} onFocusIn={() => setHeld(true)} onFocusOut={() => setHeld(false)}>
      <Icon name={tone === 'bad' ? 'alert' : 'check'} />
      <div>{text}{hint && <small>{hint}</small>}</div>
      <IconButton kind="plain" small icon="close" label="Dismiss" onPress={() => dismiss(id)} />
    </div>
  );
}

/** Once in each page. It is in the top layer, so that dialogs don't cover it. */
export function Toasts() {
  const box = useRef<HTMLDivElement>(null);
  const all = toasts.value;
  useEffect(() => {
    const node = box.current;
    if (!node || typeof node.showPopover !== 'function') return;
    // Shown again, it is above dialogs that opened meanwhile.
    if (node.matches(':popover-open')) node.hidePopover();
    if (all.length > 0) node.showPopover();
  }, [all]);
  return (
    <div ref={box} class="toasts" role="status" popover="manual" aria-label="Notifications">
      {all.map(one => <Toast key={one.id} {...one} />)}
    </div>
  );
}
