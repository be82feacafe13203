// A button that opens a menu, in the top layer; and tooltips.

import type { ComponentChildren } from 'preact';
import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';

import { Button, type ButtonProps } from './button';
import { Icon, type IconName } from './icons';
import { failed } from './toast';

export interface MenuItem {
  text: string;
  /** The name for screen readers; it contains the text. */
  label?: string;
  icon?: IconName;
  href?: string;
  onPress?: () => unknown;
  danger?: boolean;
  /** For items that are on or off. */
  checked?: boolean;
  disabled?: boolean;
}

/** Puts a box below an element, or above it if there is no space; never outside of the window. */
function placeBelow(box: HTMLElement, at: DOMRect): void {
  const { width, height } = box.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.right - width, innerWidth - width - 8));
  const below = at.bottom + 4;
  box.style.left = `${left}px`;
  box.style.top = `${below + height > innerHeight - 8 ? Math.max(8, at.top - height - 4) : below}px`;
}

/** `null` in `items` is a separator. */
export function Menu({ items, children, ...button }: Omit<ButtonProps, 'onPress' | 'aria' | 'buttonRef'> & { items: readonly (MenuItem | null)[]; children?: ComponentChildren }) {
  const [open, setOpen] = useState(false);
  const anchor = useRef<HTMLButtonElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const id = useId();
  const close = (focus: boolean): void => {
    setOpen(false);
    if (focus) anchor.current?.focus();
  };
  // Before the next key, which is for the menu.
  useLayoutEffect(() => {
    const node = box.current;
    if (!open || !node || !anchor.current) return;
    node.showPopover?.();
    placeBelow(node, anchor.current.getBoundingClientRect());
    entries(node)[0]?.focus();
    const outside = (event: Event): void => {
      if (!node.contains(event.target as Node) && !anchor.current?.contains(event.target as Node)) setOpen(false);
    };
    const scrolled = (event: Event): void => { if (!node.contains(event.target as Node)) setOpen(false); };
    document.addEventListener('pointerdown', outside);
    document.addEventListener('scroll', scrolled, { capture: true, passive: true });
    return () => {
      document.removeEventListener('pointerdown', outside);
      document.removeEventListener('scroll', scrolled, { capture: true });
    };
  }, [open]);
  const key = (event: KeyboardEvent): void => {
    const all = box.current ? entries(box.current) : [];
    const at = all.indexOf(document.activeElement as HTMLElement);
    const moves: Record<string, number> = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 };
    if (event.key in moves) all[(moves[event.key]! + all.length) % all.length]?.focus();
    else if (event.key === 'Escape') close(true);
    else if (event.key === 'Tab') {
      close(true);
      return;
    } else if (event.key.length === 1 && event.key !== ' ') {
      const letter = event.key.toLowerCase();
      [...all.slice(at + 1), ...all].find(item => item.textContent?.toLowerCase().startsWith(letter))?.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const press = (item: MenuItem): void => {
    close(true);
    const work = item.onPress?.();
    if (work instanceof Promise) work.catch(failed);
  };
  return (
    <>
      <Button {...button} buttonRef={anchor} aria={{ 'aria-haspopup': 'menu', 'aria-expanded': open, 'aria-controls': open ? id : undefined }} onPress={() => setOpen(!open)}>{children}</Button>
      {open && (
        <div ref={box} id={id} class="popup menu" role="menu" popover="manual" aria-label={button.label} onKeyDown={key}>
          {items.map((item, n) => {
            if (!item) return <div key={n} role="separator" />;
            const shared = { class: item.danger ? 'danger' : '', tabIndex: -1, 'aria-label': item.label, onClick: () => press(item) };
            const inner = <>{item.icon && <Icon name={item.icon} />}{item.text}</>;
            if (item.href) return <a key={n} {...shared} role="menuitem" href={item.href}>{inner}</a>;
            return <button key={n} {...shared} type="button" role={item.checked === undefined ? 'menuitem' : 'menuitemcheckbox'} aria-checked={item.checked} disabled={item.disabled}>{inner}</button>;
          })}
        </div>
      )}
    </>
  );
}

function entries(box: HTMLElement): HTMLElement[] {
  return [...box.querySelectorAll<HTMLElement>('[role^="menuitem"]:not(:disabled)')];
}

/** Describes what it contains, on hover and on focus. Escape hides it. */
export function Tooltip({ text, children }: { text: string; children: ComponentChildren }) {
  const [shown, setShown] = useState(false);
  const anchor = useRef<HTMLSpanElement>(null);
  const box = useRef<HTMLSpanElement>(null);
  const id = useId();
  useEffect(() => {
    const target = anchor.current?.firstElementChild;
    target?.setAttribute('aria-describedby', id);
    return () => target?.removeAttribute('aria-describedby');
  }, [id]);
  useEffect(() => {
    if (!shown || !box.current || !anchor.current) return;
    box.current.showPopover?.();
    placeBelow(box.current, (anchor.current.firstElementChild ?? anchor.current).getBoundingClientRect());
    const key = (event: KeyboardEvent): void => { if (event.key === 'Escape') setShown(false); };
    document.addEventListener('keydown', key);
    return () => document.removeEventListener('keydown', key);
  }, [shown]);
  return (
    <span ref={anchor} onPointerEnter={() => setShown(true)} onPointerLeave={() => setShown(false)} onFocusIn={() => setShown(true)} onFocusOut={() => setShown(false)}>
      {children}
      <span ref={box} id={id} role="tooltip" class={shown ? 'popup tooltip' : 'unseen'} popover={shown ? 'manual' : undefined}>{text}</span>
    </span>
  );
}
