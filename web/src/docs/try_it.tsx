// The form that sends an operation, and its answer.

import { useEffect, useId, useRef, useState } from 'preact/hooks';

import { isAbort } from '../client/errors';
import { exactSize } from '../quantities';
import { Button, CodeBlock, Icon, LinkButton, confirm } from '../ui';
import { type Call, FormError, type Form, JSON_TYPE, fieldId, isMultipart, isStream, multipartFields, readForm } from './call';
import { type Operation, type Parameter, answerTypes, isDestructive } from './openapi';
import { type Place, exampleText, isOfSandbox } from './operation_view';
import { values } from './schema';
import { MOST_KEPT, type Received, fileName, sendCall } from './send';

interface TryItProps {
  operation: Operation;
  form: Form;
  onForm: (form: Form) => void;
  place: Place;
  sandboxes: readonly string[] | null;
  onSandbox: (name: string) => void;
  onSent: () => void;
}

export function TryIt({ operation, form, onForm, place, sandboxes, onSandbox, onSent }: TryItProps) {
  const [wrong, setWrong] = useState<FormError | null>(null);
  const [received, setReceived] = useState<Received | null>(null);
  const [sent, setSent] = useState<Call | null>(null);
  const [failure, setFailure] = useState('');
  const running = useRef<AbortController | null>(null);
  const [isRunning, setRunning] = useState(false);
  const box = useRef<HTMLElement>(null);
  useEffect(() => () => running.current?.abort(), []);
  useEffect(() => { if (wrong) box.current?.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus(); }, [wrong]);
  const change = (part: Partial<Form>): void => {
    setWrong(null);
    onForm({ ...form, ...part });
  };
  const send = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    if (running.current) return;
    let call: Call;
    try {
      call = readForm(operation, form, place);
    } catch (error) {
      setWrong(error as FormError);
      return;
    }
    const controller = new AbortController();
    running.current = controller;
    try {
      if (isDestructive(operation) && !(await confirm({ title: `Send ${operation.method} ${operation.path}?`, text: 'What it removes or ends can\'t be restored.', yes: 'Send' }))) return;
      setFailure('');
      setReceived(null);
      setSent(call);
      setRunning(true);
      await sendCall(call, controller.signal, setReceived);
    } catch (error) {
      if (!isAbort(error)) setFailure('The server can\'t be reached.');
      else if (box.current) setFailure('Stopped before an answer came.');
    } finally {
      running.current = null;
      setRunning(false);
      if (operation.method !== 'GET') onSent();
    }
  };
  const types = answerTypes(operation);
  return (
    <section ref={box} class="panel stack" aria-labelledby="try">
      <h2 id="try" tabIndex={-1}>Try it</h2>
      <form class="fields" noValidate onSubmit={event => void send(event)}>
        {operation.dialect.inSandbox && sandboxes && <SandboxField label="Sandbox" value={place.sandbox} sandboxes={sandboxes} onInput={onSandbox} note="Without a name, the sandbox default is used, and created if there is none." />}
        {operation.parameters.map(parameter => (
          <ParameterField key={fieldId(parameter)} operation={operation} parameter={parameter} value={form.parameters[fieldId(parameter)] ?? ''} sandboxes={sandboxes ?? []}
            error={wrong?.field === fieldId(parameter) ? wrong.message : ''} onInput={value => change({ parameters: { ...form.parameters, [fieldId(parameter)]: value } })} />
        ))}
        {types.length > 1 && <Select label="Accept" value={form.accept} options={[['', `${types[0]} (default)`], ...types.slice(1).map(type => [type, type] as const)]} onInput={accept => change({ accept })} />}
        {Object.keys(operation.body).length > 1 && <Select label="Content type" value={form.type} options={Object.keys(operation.body).map(type => [type, type] as const)} onInput={type => change({ type })} />}
        <BodyField operation={operation} form={form} error={wrong?.field === 'body' ? wrong.message : ''} onForm={change} />
        <div class="row">
          <Button kind={isDestructive(operation) ? 'danger' : 'primary'} icon="play" type="submit" busy={isRunning}>Send</Button>
          {isRunning && <Button onPress={() => running.current?.abort()}>Stop</Button>}
        </div>
      </form>
      {failure && <p class="problem" role="alert">{failure}</p>}
      {received && sent && <AnswerBox received={received} call={sent} />}
    </section>
  );
}

interface OwnField {
  label: string;
  value: string;
  onInput: (value: string) => void;
  note?: string;
  error?: string;
  required?: boolean;
}

function Label({ id, label, required }: { id: string; label: string; required?: boolean | undefined }) {
  return <label for={id}>{label}{required && <span class="quiet"> (required)</span>}</label>;
}

/** The name of a sandbox, with those that there are as suggestions. */
function SandboxField({ label, value, sandboxes, onInput, note, error, required }: OwnField & { sandboxes: readonly string[] }) {
  const id = useId();
  return (
    <div class="field">
      <Label id={id} label={label} required={required} />
      <input id={id} class="input" list={`${id}-list`} placeholder={required ? undefined : 'default'} autocomplete="off" spellcheck={false} value={value} aria-invalid={error ? 'true' : undefined}
        aria-describedby={note || error ? `${id}-note` : undefined} onInput={event => onInput(event.currentTarget.value.trim())} />
      <datalist id={`${id}-list`}>{sandboxes.map(name => <option key={name} value={name} />)}</datalist>
      <Note id={id} note={note} error={error} />
    </div>
  );
}

function Note({ id, note, error }: { id: string; note?: string | undefined; error?: string | undefined }) {
  if (error) return <p class="problem" id={`${id}-note`}>{error}</p>;
  return note ? <p class="note" id={`${id}-note`}>{note}</p> : null;
}

function Select({ label, value, options, onInput, required }: OwnField & { options: readonly (readonly [value: string, text: string])[] }) {
  const id = useId();
  return (
    <div class="field">
      <Label id={id} label={label} required={required} />
      <select id={id} class="input" value={value} onChange={event => onInput(event.currentTarget.value)}>
        {options.map(([one, text]) => <option key={one} value={one}>{text}</option>)}
      </select>
    </div>
  );
}

function ParameterField({ operation, parameter, sandboxes, value, error, onInput }: Omit<OwnField, 'label'> & { operation: Operation; parameter: Parameter; sandboxes: readonly string[] }) {
  const id = useId();
  const { name, required = false, schema = {} } = parameter;
  const shared = { label: name, value, onInput, required, ...(error && { error }) };
  if (parameter.in === 'path' && isOfSandbox(operation, name)) return <SandboxField {...shared} sandboxes={sandboxes} />;
  const some = schema.type === 'boolean' ? ['true', 'false'] : values(operation.spec, schema.type === 'array' ? schema.items ?? {} : schema);
  if (some) return <Select {...shared} options={[...(required ? [] : [['', 'not set'] as const]), ...some.map(one => [String(one), String(one)] as const)]} />;
  return (
    <div class="field">
      <Label id={id} label={name} required={required} />
      <input id={id} class="input" value={value} autocomplete="off" spellcheck={false} inputMode={schema.type === 'integer' ? 'numeric' : undefined} placeholder={schema.default === undefined || schema.default === null ? undefined : String(schema.default)}
        aria-invalid={error ? 'true' : undefined} aria-describedby={error ? `${id}-note` : schema.type === 'array' ? `${id}-note` : undefined} onInput={event => onInput(event.currentTarget.value)} />
      <Note id={id} error={error} note={schema.type === 'array' ? 'Several with commas between them.' : undefined} />
    </div>
  );
}

function BodyField({ operation, form, error, onForm }: { operation: Operation; form: Form; error: string; onForm: (part: Partial<Form>) => void }) {
  const id = useId();
  if (form.type === '') return null;
  if (form.type === JSON_TYPE) {
    return (
      <div class="field">
        <div class="row"><label for={id}>Body</label><span class="grow" />
          <Button small kind="plain" onPress={() => onForm({ json: exampleText(operation) })}>Example</Button>
          <Button small kind="plain" onPress={() => onForm({ json: exampleText(operation, true) })}>All fields</Button>
        </div>
        <textarea id={id} class="input" rows={Math.min(20, form.json.split('\n').length + 1)} spellcheck={false} value={form.json} aria-invalid={error ? 'true' : undefined} aria-describedby={error ? `${id}-note` : undefined}
          onInput={event => onForm({ json: event.currentTarget.value })} />
        <Note id={id} error={error} />
      </div>
    );
  }
  const pick = (name: string) => (event: Event): void => {
    const file = (event.currentTarget as HTMLInputElement).files?.[0];
    const { [name]: _, ...others } = form.files;
    onForm({ files: file ? { ...others, [name]: file } : others });
  };
  if (!isMultipart(form.type)) return <div class="field"><label for={id}>Body, a file</label><input id={id} class="input" type="file" onChange={pick('')} /></div>;
  return (
    <>
      {multipartFields(operation).map(field => (
        <div class="field" key={field.name}>
          <Label id={`${id}-${field.name}`} label={field.name} required={field.required} />
          {field.isFile ? <input id={`${id}-${field.name}`} class="input" type="file" onChange={pick(field.name)} />
            : <input id={`${id}-${field.name}`} class="input" autocomplete="off" spellcheck={false} value={form.fields[field.name] ?? ''} onInput={event => onForm({ fields: { ...form.fields, [field.name]: event.currentTarget.value } })} />}
          <Note id={`${id}-${field.name}`} note={field.about || undefined} />
        </div>
      ))}
    </>
  );
}

const STATES: Record<Received['state'], string> = {
  coming: 'coming', complete: '', stopped: 'stopped', broken: 'the connection broke off', too_large: `stopped, because it is larger than ${exactSize(MOST_KEPT)}`,
};

function AnswerBox({ received, call }: { received: Received; call: Call }) {
  const { status, statusText, headers, milliseconds, bytes, text, hidden, blob, isPicture, state } = received;
  const saved = useBlobAddress(blob);
  const body = useRef<HTMLDivElement>(null);
  const isCurrent = state === 'coming' && isStream(call);
  // A stream is followed to its end.
  useEffect(() => { if (isCurrent) body.current?.querySelector('pre')?.scrollTo({ top: 1e9 }); }, [text, isCurrent]);
  const shown = text === null ? '' : text;
  return (
    <section class="stack answer-box" aria-label="Answer">
      <p class="row" role="status">
        <b class="status" data-tone={status < 400 ? 'good' : 'bad'}><Icon name={status < 400 ? 'check' : 'alert'} />{status} {statusText}</b>
        <span class="quiet">{Math.round(milliseconds)} ms</span><span class="quiet">{bytes === 1 ? '1 byte' : `${bytes.toLocaleString()} bytes`}</span>
        {STATES[state] && <span class="quiet">{STATES[state]}</span>}
      </p>
      <details><summary>{headers.length} headers</summary><pre class="headers" tabIndex={0} role="group" aria-label="Headers">{headers.map(([name, value]) => `${name}: ${value}`).join('\n')}</pre></details>
      {isPicture && saved && <img class="answer-picture" src={saved} alt="The answer" />}
      {text === null ? !isPicture && <p class="quiet">Not text, so it is only saved.</p> : shown !== '' && <div ref={body} class="answer-body"><CodeBlock code={shown} label="Answer's body" wrap /></div>}
      {hidden > 0 && <p class="quiet">{hidden.toLocaleString()} more characters are not shown.</p>}
      {saved && <p><LinkButton small icon="download" href={saved} download={fileName(call, headers)}>Save</LinkButton></p>}
    </section>
  );
}

/** An address of bytes, as long as they are shown. */
function useBlobAddress(blob: Blob | null): string | null {
  const [address, setAddress] = useState<string | null>(null);
  useEffect(() => {
    if (!blob) return setAddress(null);
    const made = URL.createObjectURL(blob);
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [blob]);
  return address;
}
