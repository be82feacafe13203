// The fields of a schema, with those of its objects below them when they are opened.

import { useState } from 'preact/hooks';

import { Badge } from '../ui';
import { type OpenApi, type Schema, resolve } from './openapi';
import { Prose } from './prose';
import { branches, limits, objects, typeText } from './schema';

/** How deep objects can be opened. */
const DEEPEST = 8;

export interface FieldProps {
  spec: OpenApi;
  name: string;
  schema: Schema;
  required: boolean;
  about?: string;
  /** Where it is, such as the path or the query. */
  place?: string;
  depth?: number;
}

export function Field({ spec, name, schema, required, about, place, depth = 0 }: FieldProps) {
  const whole = resolve(spec, schema);
  const text = about || schema.description || branches(schema)?.[0]?.description || (objects(spec, schema).length > 0 ? '' : whole.description) || '';
  const inner = objects(spec, schema).filter(object => object.entries.length > 0);
  const given = schema.example ?? whole.example;
  return (
    <li>
      <div class="row">
        <code class="field-name">{name}</code>
        <code class="field-type">{typeText(spec, schema)}</code>
        {place && <span class="quiet">{place}</span>}
        {required && <Badge tone="accent">required</Badge>}
        {limits({ ...whole, ...schema }).map(limit => <span key={limit} class="quiet">{limit}</span>)}
        {given !== undefined && <span class="quiet">such as <code>{JSON.stringify(given)}</code></span>}
      </div>
      {text && <Prose text={text} />}
      {inner.length > 0 && depth < DEEPEST && <Inner spec={spec} schema={schema} names={inner.map(object => object.name).join(' | ')} of={name} depth={depth + 1} />}
    </li>
  );
}

/** Drawn when it is opened: documents nest deeply. */
function Inner({ spec, schema, names, of, depth }: { spec: OpenApi; schema: Schema; names: string; of: string; depth: number }) {
  const [open, setOpen] = useState(false);
  return (
    <details onToggle={event => setOpen(event.currentTarget.open)}>
      <summary><span class="unseen">{`Fields of ${of}: `}</span>{names}</summary>
      {open && <SchemaFields spec={spec} schema={schema} depth={depth} />}
    </details>
  );
}

/** The fields of each object in a schema; without objects, its type. */
export function SchemaFields({ spec, schema, depth = 0 }: { spec: OpenApi; schema: Schema; depth?: number }) {
  const all = objects(spec, schema);
  const whole = resolve(spec, schema);
  if (all.length === 0) return <p><code class="field-type">{typeText(spec, schema)}</code> <span class="quiet">{limits(whole).join(', ')}</span></p>;
  return (
    <>
      {all.map(object => (
        <div key={object.name} class="stack schema">
          {(all.length > 1 || depth === 0) && <p class="quiet">{typeText(spec, schema) !== object.name || all.length > 1 ? <><code>{object.name}</code> in <code>{typeText(spec, schema)}</code></> : <code>{object.name}</code>}</p>}
          {object.about && depth === 0 && <Prose text={object.about} />}
          {object.entries.length === 0 ? <p class="quiet">No fields.</p> : (
            <ul class="schema-fields">{object.entries.map(entry => <Field key={entry.name} spec={spec} depth={depth} {...entry} />)}</ul>
          )}
        </div>
      ))}
    </>
  );
}
