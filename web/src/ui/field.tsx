// Form fields: a label, an input, a note, and the error of what was entered.

import { type Signal, signal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useId, useState } from 'preact/hooks';

import type { Parsed } from '../quantities';
import { IconButton } from './button';
import { FieldsWrong } from './dialog';
import { Icon } from './icons';

/** The state of a field: its text, and what is wrong with it. */
export interface FieldState {
  value: Signal<string>;
  error: Signal<string>;
}

export function fieldState(initial = ''): FieldState {
  return { value: signal(initial), error: signal('') };
}

/** The states of a form, kept as long as its component. */
export function useFields<F>(make: () => F): F {
  return useState(make)[0];
}

/** Reads fields and reports errors at them. `done` throws if one was wrong. */
export class FieldReader {
  private wrong = false;

  /** Text without spaces around it; `missing` is the error if there is none. */
  text(field: FieldState, missing?: string): string {
    const text = field.value.value.trim();
    if (!text && missing !== undefined) this.fail(field, missing);
    return text;
  }

  /** The value, or `empty` without a text. */
  parsed<E>(field: FieldState, parse: (text: string) => Parsed, empty: E): number | E {
    const text = field.value.value.trim();
    if (!text) return empty;
    const parsed = parse(text);
    if ('value' in parsed) return parsed.value;
    this.fail(field, parsed.error);
    return empty;
  }

  fail(field: FieldState, error: string): void {
    field.error.value = error;
    this.wrong = true;
  }

  done(): void {
    if (this.wrong) throw new FieldsWrong();
  }
}

interface FieldProps {
  label: string;
  state: FieldState;
  note?: string | undefined;
  /** The label is beside the input, as in filters. */
  inline?: boolean;
  wide?: boolean;
  name?: string;
  autofocus?: boolean;
  onChange?: (value: string) => void;
}

interface Described {
  id: string;
  'aria-describedby': string | undefined;
  'aria-invalid': 'true' | undefined;
}

function FieldBox({ label, state, note, inline = false, wide = false, children }: FieldProps & { children: (described: Described) => ComponentChildren }) {
  const id = useId();
  const error = state.error.value;
  const described = [note ? `${id}-note` : '', error ? `${id}-error` : ''].filter(Boolean).join(' ');
  return (
    <div class={['field', inline ? 'inline' : '', wide ? 'wide' : ''].filter(Boolean).join(' ')}>
      <label for={id}>{label}</label>
      {children({ id, 'aria-describedby': described || undefined, 'aria-invalid': error ? 'true' : undefined })}
      {note && <p class="note" id={`${id}-note`}>{note}</p>}
      {error && <p class="problem" id={`${id}-error`}>{error}</p>}
    </div>
  );
}

function change({ state, onChange }: FieldProps, value: string): void {
  state.value.value = value;
  state.error.value = '';
  onChange?.(value);
}

export interface TextFieldProps extends FieldProps {
  placeholder?: string | undefined;
  type?: 'text' | 'password' | 'url' | 'search' | 'datetime-local' | 'number';
  inputMode?: 'text' | 'numeric' | 'decimal';
  maxLength?: number;
  mono?: boolean;
}

export function TextField(props: TextFieldProps) {
  const { state, placeholder, type = 'text', inputMode, maxLength, name, autofocus } = props;
  return (
    <FieldBox {...props}>{described => (
      <input {...described} class="input" type={type as 'text'} name={name} placeholder={placeholder} inputMode={inputMode} maxLength={maxLength} autofocus={autofocus}
        autocomplete={type === 'password' ? 'new-password' : 'off'} spellcheck={false} value={state.value.value} onInput={event => change(props, event.currentTarget.value)} />
    )}</FieldBox>
  );
}

export type Option = readonly [value: string, text: string];

export function SelectField(props: FieldProps & { options: readonly Option[] }) {
  const { state, options, name, autofocus } = props;
  return (
    <FieldBox {...props}>{described => (
      <select {...described} class="input" name={name} autofocus={autofocus} value={state.value.value} onChange={event => change(props, event.currentTarget.value)}>
        {options.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
      </select>
    )}</FieldBox>
  );
}

export function AreaField(props: FieldProps & { rows?: number; placeholder?: string }) {
  const { state, rows = 4, placeholder, name, autofocus } = props;
  return (
    <FieldBox {...props}>{described => (
      <textarea {...described} class="input" name={name} rows={rows} placeholder={placeholder} spellcheck={false} autofocus={autofocus} value={state.value.value} onInput={event => change(props, event.currentTarget.value)} />
    )}</FieldBox>
  );
}

export function Check({ label, checked, onChange, note }: { label: string; checked: boolean; onChange: (checked: boolean) => void; note?: string }) {
  return <label class="check" title={note}><input type="checkbox" checked={checked} onChange={event => onChange(event.currentTarget.checked)} />{label}</label>;
}

/** `hotkey`: the key that focuses it, shown at its end. */
export function SearchField({ label, value, onInput, placeholder, hotkey, inputRef }: { label: string; value: string; onInput: (value: string) => void; placeholder?: string; hotkey?: string; inputRef?: { current: HTMLInputElement | null } }) {
  return (
    <div class="search">
      <Icon name="search" />
      <input ref={inputRef} type="search" class="input" aria-label={label} placeholder={placeholder} autocomplete="off" spellcheck={false} value={value} onInput={event => onInput(event.currentTarget.value)} />
      {hotkey && !value && <kbd aria-hidden="true">{hotkey}</kbd>}
    </div>
  );
}

/** The state of rows of a key and a value. An empty row is always at the end. */
export interface PairsState {
  rows: Signal<{ id: number; key: string; value: string }[]>;
  error: Signal<string>;
}

let numbered = 0;
const newPair = () => ({ id: ++numbered, key: '', value: '' });

export function pairsState(pairs: readonly (readonly [string, string])[] = []): PairsState {
  return { rows: signal([...pairs.map(([key, value]) => ({ ...newPair(), key, value })), newPair()]), error: signal('') };
}

/** `what`: the name of one row, for its inputs' names. `hints`: what the empty inputs show. */
export function PairsField({ legend, what, state, hints = ['name', 'value'], note }: { legend: string; what: string; state: PairsState; hints?: readonly [string, string]; note?: string }) {
  const rows = state.rows.value;
  const set = (id: number, part: { key?: string; value?: string }): void => {
    state.error.value = '';
    const next = rows.map(row => (row.id === id ? { ...row, ...part } : row));
    const last = next.at(-1);
    state.rows.value = last && (last.key || last.value) ? [...next, newPair()] : next;
  };
  const remove = (event: MouseEvent, id: number): void => {
    const line = (event.currentTarget as HTMLElement).parentElement;
    (line?.nextElementSibling ?? line?.previousElementSibling)?.querySelector('input')?.focus();
    state.rows.value = rows.filter(row => row.id !== id);
  };
  const error = state.error.value;
  return (
    <fieldset class="pairs">
      <legend>{legend}</legend>
      <div class="rows">{rows.map(({ id, key, value }, n) => (
        <div key={id}>
          <input class="input" placeholder={hints[0]} aria-label={`Name of ${what} ${n + 1}`} aria-invalid={error ? 'true' : undefined} autocomplete="off" spellcheck={false} value={key} onInput={event => set(id, { key: event.currentTarget.value })} />
          <input class="input" placeholder={hints[1]} aria-label={`Value of ${what} ${n + 1}`} autocomplete="off" spellcheck={false} value={value} onInput={event => set(id, { value: event.currentTarget.value })} />
          <IconButton kind="plain" icon="close" label={`Remove ${what} ${n + 1}`} onPress={event => remove(event, id)} />
        </div>
      ))}</div>
      {note && <p class="note">{note}</p>}
      {error && <p class="problem" role="alert">{error}</p>}
    </fieldset>
  );
}
