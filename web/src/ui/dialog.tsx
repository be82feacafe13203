// Dialogs: modal, with the focus managed by the browser. One host in each page shows those that code opens.

import { signal } from '@preact/signals';
import type { ComponentChildren, VNode } from 'preact';
import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';

import { ApiError } from '../client/errors';
import { Button, IconButton } from './button';
import { CopyButton, selectWhole } from './code';

export interface DialogProps {
  title: string;
  onClose: (value: string) => void;
  children?: ComponentChildren;
  /** Buttons at the end. */
  foot?: ComponentChildren;
  className?: string;
  id?: string;
  /** Escape does not close it, and there is no button for that. */
  firm?: boolean;
}

/** Opens a dialog as long as it is rendered. Then the focus goes back to where it was. */
export function useModal(node: { current: HTMLDialogElement | null }): void {
  useLayoutEffect(() => {
    const before = document.activeElement;
    const dialog = node.current;
    dialog?.showModal();
    // An element that asks for the focus has it before the button that closes.
    dialog?.querySelector<HTMLElement>('[autofocus]')?.focus();
    return () => {
      // Everything else is inert until it is closed.
      dialog?.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
}

/** A modal dialog, open as long as it is rendered. */
export function Dialog({ title, onClose, children, foot, className = '', id, firm = false }: DialogProps) {
  const node = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useModal(node);
  return (
    <dialog ref={node} id={id} class={className} aria-labelledby={heading} onCancel={event => { if (firm) event.preventDefault(); }}
      onClose={() => { if (node.current) onClose(node.current.returnValue); }}>
      <div class="dialog-head">
        <h2 id={heading}>{title}</h2>
        {!firm && <IconButton kind="plain" small icon="close" label="Close" onPress={() => node.current?.close()} />}
      </div>
      <div class="dialog-body">{children}</div>
      {foot && <div class="dialog-foot">{foot}</div>}
    </dialog>
  );
}

type Render = (close: () => void) => VNode;
const opened = signal<{ id: number; render: Render }[]>([]);
let numbered = 0;

/** Opens a dialog from code. `render` returns a `Dialog` that calls `close` in its `onClose`. */
export function openDialog(render: Render): () => void {
  const id = ++numbered;
  const close = (): void => { opened.value = opened.value.filter(one => one.id !== id); };
  opened.value = [...opened.value, { id, render }];
  return close;
}

/** Going to another page leaves this one with its dialogs. */
export function closeDialogs(): void {
  opened.value = [];
}

/** Once in each page. */
export function Dialogs() {
  return <>{opened.value.map(({ id, render }) => <Opened key={id} id={id} render={render} />)}</>;
}

function Opened({ id, render }: { id: number; render: Render }) {
  return render(() => { opened.value = opened.value.filter(one => one.id !== id); });
}

export interface Question {
  title: string;
  text: ComponentChildren;
  /** The text of the button that does it. */
  yes: string;
  no?: string;
  /** What has to be ticked first. */
  also?: string;
}

/** Asks before something that can't be undone. The focus is on the harmless answer. */
export function confirm(question: Question): Promise<boolean> {
  return new Promise(done => {
    openDialog(close => <Confirm {...question} answer={yes => { close(); done(yes); }} />);
  });
}

function Confirm({ title, text, yes, no = 'Cancel', also, answer }: Question & { answer: (yes: boolean) => void }) {
  const [agreed, setAgreed] = useState(also === undefined);
  return (
    <Dialog title={title} onClose={() => answer(false)}
      foot={<><Button autofocus onPress={() => answer(false)}>{no}</Button><Button kind="danger" disabled={!agreed} onPress={() => answer(true)}>{yes}</Button></>}>
      <p>{text}</p>
      {also !== undefined && <label class="check"><input type="checkbox" checked={agreed} onChange={event => setAgreed(event.currentTarget.checked)} />{also}</label>}
    </Dialog>
  );
}

/** Thrown by a form that shows its errors at its fields. */
export class FieldsWrong extends Error {
  constructor() {
    super('the form is not valid');
  }
}

export interface FormDialogProps {
  title: string;
  submitText: string;
  /** Throws to keep the dialog open: `FieldsWrong`, or an error that is shown. */
  onSubmit: () => Promise<unknown>;
  onClose: () => void;
  children: ComponentChildren;
  className?: string;
  danger?: boolean;
}

/** A dialog with a form. It stays open until `onSubmit` succeeds. */
export function FormDialog({ title, submitText, onSubmit, onClose, children, className = '', danger = false }: FormDialogProps) {
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  const id = useId();
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setError(null);
    onSubmit().then(onClose, (refused: Error) => {
      if (refused instanceof FieldsWrong) form.current?.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus();
      else setError(refused);
      setBusy(false);
    });
  };
  return (
    <Dialog title={title} onClose={onClose} className={className}
      foot={<><Button onPress={onClose}>Cancel</Button><Button kind={danger ? 'danger' : 'primary'} type="submit" form={id} busy={busy}>{submitText}</Button></>}>
      <form ref={form} id={id} noValidate class="fields" onSubmit={submit}>
        {children}
        <Problem error={error} />
      </form>
    </Dialog>
  );
}

/** Why something was refused: the reason, and the hint below it. */
export function Problem({ error }: { error: Error | null }) {
  if (!error) return null;
  const hint = error instanceof ApiError ? error.hint : '';
  return <p class="problem" role="alert">{error instanceof ApiError ? error.reason : error.message}{hint && <small class="quiet"><br />{hint}</small>}</p>;
}

/** Shows a text once, such as a key, with a button that copies it. Escape does not lose it. */
export function showOnce(title: string, note: string, secret: string): void {
  openDialog(close => <ShownOnce title={title} note={note} secret={secret} close={close} />);
}

function ShownOnce({ title, note, secret, close }: { title: string; note: string; secret: string; close: () => void }) {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => selectWhole(input.current), []);
  return (
    <Dialog title={title} firm onClose={close} foot={<Button kind="primary" onPress={close}>Done</Button>}>
      <p>{note}</p>
      <div class="secret-row">
        <input ref={input} class="input secret" readOnly value={secret} aria-label={title} autoFocus autocomplete="off" spellcheck={false} onFocus={event => selectWhole(event.currentTarget)} />
        <CopyButton text={() => secret} shown={() => input.current} />
      </div>
    </Dialog>
  );
}
