// Fields, dialogs and buttons that the pages share.

import { Refused } from './api';
import { make } from './dom';

type Input = HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement;

let numbered = 0;

/** A label, an input, a note, and the error of what was entered. */
export class Field<I extends Input = HTMLInputElement> {
  readonly box: HTMLElement;
  readonly input: I;
  private readonly problem = make('p', { className: 'bad', hidden: true });

  constructor(label: string, input: I, note = '') {
    this.input = input;
    input.id ||= `field-${++numbered}`;
    this.problem.id = `${input.id}-error`;
    this.box = make('div', { className: 'field' }, make('label', { htmlFor: input.id, textContent: label }), input);
    const described: string[] = [];
    if (note) {
      const noted = make('p', { className: 'note', id: `${input.id}-note`, textContent: note });
      this.box.append(noted);
      described.push(noted.id);
    }
    this.box.append(this.problem);
    input.setAttribute('aria-describedby', [...described, this.problem.id].join(' '));
    input.addEventListener('input', () => { this.error = ''; });
  }

  get value(): string {
    return this.input.value;
  }

  set error(text: string) {
    this.problem.textContent = text;
    this.problem.hidden = text === '';
    if (text) this.input.setAttribute('aria-invalid', 'true');
    else this.input.removeAttribute('aria-invalid');
  }
}

export function textInput(properties: Partial<Pick<HTMLInputElement, 'name' | 'placeholder' | 'value' | 'type' | 'required' | 'maxLength' | 'inputMode' | 'autofocus'>> = {}): HTMLInputElement {
  return make('input', { autocomplete: 'off', spellcheck: false, ...properties });
}

/** `options`: each a value and its text. */
export function select(options: readonly (readonly [string, string])[], name = ''): HTMLSelectElement {
  return make('select', { name }, ...options.map(([value, text]) => make('option', { value, textContent: text })));
}

/** Rows of a key and a value. An empty row is always at the end. */
export class Pairs {
  readonly box: HTMLElement;
  private readonly rows = make('div', { className: 'rows' });
  private readonly problem = make('p', { className: 'bad', hidden: true, role: 'alert' });
  private readonly what: string;
  private readonly changed: () => void;

  constructor(legend: string, what: string, changed: () => void) {
    this.what = what;
    this.changed = changed;
    this.box = make('fieldset', { className: 'pairs' }, make('legend', { textContent: legend }), this.rows, this.problem);
    this.rows.addEventListener('input', () => {
      this.error = '';
      this.keepEmptyRow();
      this.changed();
    });
    this.keepEmptyRow();
  }

  get value(): [string, string][] {
    return [...this.rows.children].map(row => {
      const [key, value] = row.querySelectorAll('input');
      return [key!.value, value!.value];
    });
  }

  clear(): void {
    this.rows.replaceChildren();
    this.error = '';
    this.keepEmptyRow();
  }

  set error(text: string) {
    this.problem.textContent = text;
    this.problem.hidden = text === '';
  }

  private keepEmptyRow(): void {
    const last = this.value.at(-1);
    if (last && !last[0] && !last[1]) return;
    const number = this.rows.childElementCount + 1;
    const key = make('input', { placeholder: 'name', ariaLabel: `Name of ${this.what} ${number}`, autocomplete: 'off', spellcheck: false });
    const value = make('input', { placeholder: 'value', ariaLabel: `Value of ${this.what} ${number}`, autocomplete: 'off', spellcheck: false });
    const remove = make('button', { type: 'button', textContent: '×', ariaLabel: `Remove ${this.what} ${number}`, title: 'Remove' });
    const row = make('div', {}, key, value, remove);
    remove.addEventListener('click', () => {
      const next = row.nextElementSibling ?? row.previousElementSibling;
      row.remove();
      this.keepEmptyRow();
      next?.querySelector('input')?.focus();
      this.changed();
    });
    this.rows.append(row);
  }
}

export function button(text: string, act: () => void, properties: { className?: string; label?: string } = {}): HTMLButtonElement {
  const node = make('button', { type: 'button', textContent: text, className: properties.className ?? '' });
  if (properties.label) node.ariaLabel = properties.label;
  node.addEventListener('click', act);
  return node;
}

/** A button that can't be pressed again while its work is in progress. Failures go to `failed`. */
export function workButton(text: string, work: () => Promise<void>, failed: (error: Error) => void, properties: { className?: string; label?: string } = {}): HTMLButtonElement {
  const node = button(text, () => {
    node.disabled = true;
    work().catch(failed).finally(() => { node.disabled = false; });
  }, properties);
  return node;
}

/** Writes a message, in red if it is bad, and for screen readers. */
export class Message {
  readonly box = make('p', { className: 'message', role: 'status', hidden: true });

  say(text: string, bad = false): void {
    this.box.textContent = text;
    this.box.hidden = text === '';
    this.box.classList.toggle('bad', bad);
  }

  readonly fail = (error: Error): void => this.say(error.message, true);
}

/** A dialog that removes itself when it is closed. */
export function dialog(title: string, ...content: (Node | string)[]): HTMLDialogElement {
  const heading = make('h2', { id: `dialog-${++numbered}`, textContent: title });
  const node = make('dialog', {}, heading, ...content);
  node.setAttribute('aria-labelledby', heading.id);
  node.addEventListener('close', () => node.remove());
  document.body.append(node);
  return node;
}

interface Question {
  title: string;
  text: string;
  /** The text of the button that does it. */
  yes: string;
  no?: string;
  /** What has to be ticked first. */
  also?: string;
  id?: string;
}

/** Asks before something that can't be undone. The focus is on the harmless answer. */
export function ask({ title, text, yes, no = 'Cancel', also, id = 'question' }: Question): Promise<boolean> {
  const agree = make('button', { value: 'yes', className: 'danger', textContent: yes, disabled: also !== undefined });
  const form = make('form', { method: 'dialog' }, make('p', { textContent: text }));
  if (also !== undefined) {
    const tick = make('input', { type: 'checkbox' });
    tick.addEventListener('change', () => { agree.disabled = !tick.checked; });
    form.append(make('label', { className: 'check' }, tick, also));
  }
  form.append(make('div', { className: 'buttons' }, make('button', { value: 'no', textContent: no, autofocus: true }), agree));
  const node = dialog(title, form);
  node.id = id;
  node.firstElementChild!.id = `${id}-title`;
  node.setAttribute('aria-labelledby', `${id}-title`);
  node.showModal();
  return new Promise(done => node.addEventListener('close', () => done(node.returnValue === 'yes'), { once: true }));
}

/** A dialog with a form. `submit` throws to keep it open, with the error shown. */
export function formDialog(title: string, fields: Node[], submitText: string, submit: () => Promise<void>, className = 'primary'): HTMLDialogElement {
  const problem = make('p', { className: 'bad', role: 'alert', hidden: true });
  const send = make('button', { className, textContent: submitText });
  const form = make('form', { noValidate: true, className: 'fields' }, ...fields, problem,
    make('div', { className: 'buttons' }, button('Cancel', () => node.close()), send));
  const node = dialog(title, form);
  form.addEventListener('submit', event => {
    event.preventDefault();
    send.disabled = true;
    problem.hidden = true;
    submit().then(() => node.close(), (error: Error) => {
      if (error instanceof FieldsWrong) return;
      problem.textContent = error.message;
      problem.hidden = false;
    }).finally(() => { send.disabled = false; });
  });
  node.showModal();
  return node;
}

/** Thrown by a form that shows its errors at its fields. */
export class FieldsWrong extends Error {
  constructor() {
    super('the form is not valid');
  }
}

/** Shows a text once, such as a key, with a button that copies it. */
export function shownOnce(title: string, note: string, secret: string): Promise<void> {
  const shown = make('input', { value: secret, readOnly: true, className: 'secret', ariaLabel: title, autocomplete: 'off', spellcheck: false });
  shown.addEventListener('focus', () => shown.select());
  const node = dialog(title, make('p', { textContent: note }), make('div', { className: 'secret-row' }, shown, copyButton(() => secret)),
    make('form', { method: 'dialog', className: 'buttons' }, make('button', { className: 'primary', textContent: 'Done' })));
  // Escape would close it before it is copied.
  node.addEventListener('cancel', event => event.preventDefault());
  node.showModal();
  shown.select();
  return new Promise(done => node.addEventListener('close', () => done(), { once: true }));
}

/** Copies a text, or selects it where the browser does not allow that. */
export function copyButton(text: () => string, shown?: Node): HTMLButtonElement {
  const node = button('Copy', () => {
    const restore = (said: string): void => {
      node.textContent = said;
      setTimeout(() => { node.textContent = 'Copy'; }, 1500);
    };
    // There is no clipboard on a page without TLS.
    const copied = navigator.clipboard?.writeText(text()) ?? Promise.reject(new Error('no clipboard'));
    copied.then(() => restore('Copied'), () => {
      const input = node.parentElement?.querySelector('input');
      if (shown) getSelection()?.selectAllChildren(shown);
      else input?.select();
      restore('Selected');
    });
  });
  return node;
}

/** The text of an error: its reason and its hint apart. */
export function refusalNodes(error: Error): Node[] {
  if (!(error instanceof Refused) || !error.hint) return [document.createTextNode(error.message)];
  return [document.createTextNode(error.reason), make('small', { className: 'hint', textContent: error.hint })];
}
