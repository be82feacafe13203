// An operation: its parameters, body and answers, a form that sends it, and the code of the same call.

import { Fragment } from 'preact';
import { useMemo, useRef, useState } from 'preact/hooks';

import { Badge, Button, CodeTabs, Icon } from '../ui';
import { JSON_TYPE, type Form, type Call, fieldId, readForm } from './call';
import { codes } from './codes';
import { type Answer, type Operation, isDestructive } from './openapi';
import { Prose } from './prose';
import { example, firstText } from './schema';
import { Field, SchemaFields } from './schema_view';
import { TryIt } from './try_it';

/** Where calls go. */
export interface Place {
  server: string;
  sandbox: string;
  withKey: boolean;
}

export function firstForm(operation: Operation, sandbox: string): Form {
  const type = Object.keys(operation.body)[0] ?? '';
  const parameters = operation.parameters.map(parameter => {
    const isSandbox = parameter.in === 'path' && isOfSandbox(operation, parameter.name) && sandbox !== '';
    return [fieldId(parameter), isSandbox ? sandbox : firstText(operation, parameter)];
  });
  return { parameters: Object.fromEntries(parameters), type, json: type === JSON_TYPE ? exampleText(operation) : '', fields: {}, files: {}, accept: '' };
}

export function exampleText(operation: Operation, whole = false): string {
  return JSON.stringify(example(operation.spec, operation.body[JSON_TYPE], whole), null, 2);
}

/** Whether a part of the path is the name of a sandbox. */
export function isOfSandbox({ path }: Operation, name: string): boolean {
  return name === 'name' && /^\/api\/v2\/sandboxes\/|^\/api\/v1\/(sandbox|logs\/sandbox|terminal\/sandbox)\//.test(path);
}

export interface OperationProps {
  operation: Operation;
  place: Place;
  /** The names of sandboxes to choose from; null where there is only one. */
  sandboxes: readonly string[] | null;
  onSandbox: (name: string) => void;
  /** After a call that may have changed something. */
  onSent: () => void;
}

export function OperationView({ operation, place, sandboxes, onSandbox, onSent }: OperationProps) {
  const [form, setForm] = useState(() => firstForm(operation, place.sandbox));
  const { spec } = operation;
  const lasting = useRef<Call | null>(null);
  const ofDialect = { ...place, sandbox: operation.dialect.inSandbox ? place.sandbox : '' };
  // While a field is wrong, the code of the last correct form stays.
  const shown = useMemo(() => {
    try {
      lasting.current = readForm(operation, form, ofDialect);
    } catch { /* The form says what is wrong when it is sent. */ }
    return lasting.current && codes(lasting.current);
  }, [operation, form, place.server, place.sandbox, place.withKey]);
  return (
    <>
      <p class="operation-path"><Method method={operation.method} /> <code>{operation.dialect.inSandbox && <span class="quiet">{'/sandbox/{sandbox}'}</span>}{operation.path}</code>
        {operation.deprecated && <Badge tone="wait">deprecated</Badge>}{isDestructive(operation) && <Badge tone="bad">can't be undone</Badge>}
        <Button small className="to-try" onPress={toTry}>Try it</Button>
      </p>
      {operation.summary.includes(';') && <Prose text={`${operation.summary}.`} />}
      {operation.description && <Prose text={operation.description} />}
      <div class="operation-parts">
        <div class="stack">
          {operation.parameters.length > 0 && (
            <section class="panel stack" aria-labelledby="parameters">
              <h2 id="parameters">Parameters</h2>
              <ul class="schema-fields">{operation.parameters.map(parameter => (
                <Field key={fieldId(parameter)} spec={spec} name={parameter.name} schema={parameter.schema ?? {}} required={parameter.required ?? false} about={parameter.description ?? ''} place={`in the ${parameter.in}`} />
              ))}</ul>
            </section>
          )}
          {Object.keys(operation.body).length > 0 && (
            <section class="panel stack" aria-labelledby="body">
              <h2 id="body">Body</h2>
              {Object.entries(operation.body).map(([type, schema]) => (
                <Fragment key={type}>
                  <p class="row"><code>{type}</code>{operation.bodyRequired ? <Badge tone="accent">required</Badge> : <span class="quiet">may be left out</span>}</p>
                  <SchemaFields spec={spec} schema={schema} />
                </Fragment>
              ))}
            </section>
          )}
          <Answers operation={operation} />
        </div>
        <div class="stack">
          <TryIt operation={operation} form={form} onForm={setForm} place={ofDialect} sandboxes={sandboxes} onSandbox={onSandbox} onSent={onSent} />
          <section class="panel stack" aria-labelledby="code">
            <h2 id="code">Code</h2>
            {shown ? <CodeTabs codes={shown} label="The same as code" /> : <p class="quiet">The code appears when the required fields are filled in.</p>}
            {place.withKey && <p class="quiet">It reads the key from the variable <code>ARENITE_API_KEY</code>.</p>}
          </section>
        </div>
      </div>
    </>
  );
}

/** Where the form is below the fields. */
function toTry(): void {
  const box = document.getElementById('try');
  box?.scrollIntoView();
  box?.focus({ preventScroll: true });
}

export function Method({ method }: { method: string }) {
  return <span class="method" data-method={method}>{method}</span>;
}

const RANGES: Record<string, string> = { '4XX': '400 to 499', '5XX': '500 to 599' };

function Answers({ operation }: { operation: Operation }) {
  const refusals = operation.answers.filter(answer => !answer.status.startsWith('2'));
  const successes = operation.answers.filter(answer => answer.status.startsWith('2'));
  return (
    <>
      <section class="panel stack" aria-labelledby="answers">
        <h2 id="answers">Answers</h2>
        {successes.map(answer => <AnswerView key={answer.status} operation={operation} answer={answer} open />)}
      </section>
      {refusals.length > 0 && (
        <section class="panel stack" aria-labelledby="errors">
          <h2 id="errors">Errors</h2>
          {refusals.map(answer => <AnswerView key={answer.status} operation={operation} answer={answer} />)}
        </section>
      )}
    </>
  );
}

function AnswerView({ operation, answer, open = false }: { operation: Operation; answer: Answer; open?: boolean }) {
  const [isOpen, setOpen] = useState(open);
  const contents = Object.entries(answer.contents);
  const head = <><b>{RANGES[answer.status] ?? answer.status}</b> {answer.description} <span class="quiet">{contents.map(([type]) => type).join(', ')}</span></>;
  if (contents.every(([, schema]) => Object.keys(schema).length === 0)) return <p class="row answer">{head}</p>;
  return (
    <details class="answer" open={open} onToggle={event => setOpen(event.currentTarget.open)}>
      <summary><Icon name="right" />{head}</summary>
      {isOpen && contents.map(([type, schema]) => (Object.keys(schema).length > 0 ? <SchemaFields key={type} spec={operation.spec} schema={schema} /> : null))}
    </details>
  );
}
