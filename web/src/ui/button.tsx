// Buttons and links that look like them.

import type { ComponentChildren, HTMLAttributes, Ref } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';

import { Icon, type IconName } from './icons';
import { failed } from './toast';

type Kind = 'default' | 'primary' | 'danger' | 'plain';

interface Look {
  kind?: Kind;
  small?: boolean;
  icon?: IconName;
}

function look({ kind = 'default', small }: Look, more = ''): string {
  return ['button', kind === 'default' ? '' : kind, small ? 'small' : '', more].filter(Boolean).join(' ');
}

export interface ButtonProps extends Look {
  children?: ComponentChildren;
  /** The name for screen readers, if the text alone is not clear: it contains the text. */
  label?: string | undefined;
  /** While a returned promise is pending, the button is busy. Its failure becomes a toast. */
  onPress?: (event: MouseEvent) => unknown;
  disabled?: boolean | undefined;
  busy?: boolean;
  type?: 'button' | 'submit';
  form?: string;
  autofocus?: boolean;
  id?: string;
  title?: string;
  className?: string;
  buttonRef?: Ref<HTMLButtonElement>;
  aria?: Pick<HTMLAttributes<HTMLButtonElement>, 'aria-haspopup' | 'aria-expanded' | 'aria-controls' | 'aria-pressed' | 'aria-describedby'>;
}

export function Button({ children, label, onPress, disabled, busy = false, type = 'button', form, autofocus, id, title, className, buttonRef, aria, ...style }: ButtonProps) {
  const [works, setWorks] = useState(false);
  const mounted = useRef(true);
  useEffect(() => () => { mounted.current = false; }, []);
  const isBusy = busy || works;
  const press = (event: MouseEvent): void => {
    // Busy buttons stay focusable.
    if (isBusy) return event.preventDefault();
    const work = onPress?.(event);
    if (!(work instanceof Promise)) return;
    setWorks(true);
    void work.catch(failed).finally(() => { if (mounted.current) setWorks(false); });
  };
  return (
    <button {...aria} ref={buttonRef} type={type} form={form} id={id} title={title} autofocus={autofocus} disabled={disabled} class={look(style, className)}
      aria-label={label} aria-busy={isBusy || undefined} aria-disabled={isBusy || undefined} onClick={press}>
      {style.icon && !isBusy && <Icon name={style.icon} />}{children}
    </button>
  );
}

/** A button with only an icon; `label` is its name and its tooltip. */
export function IconButton({ label, icon, title, ...props }: Omit<ButtonProps, 'children' | 'label'> & { label: string; icon: IconName }) {
  return <Button {...props} icon={icon} label={label} title={title ?? label} className={`icon-only ${props.className ?? ''}`} />;
}

export function LinkButton({ href, children, label, download, ...style }: Look & { href: string; children?: ComponentChildren; label?: string | undefined; download?: string | boolean }) {
  return <a href={href} download={download} aria-label={label} class={look(style)}>{style.icon && <Icon name={style.icon} />}{children}</a>;
}

/** A link with only an icon. */
export function IconLink({ href, label, title, icon, ...style }: Look & { href: string; label: string; icon: IconName; title?: string }) {
  return <a href={href} aria-label={label} title={title ?? label} class={look(style, 'icon-only')}><Icon name={icon} /></a>;
}
