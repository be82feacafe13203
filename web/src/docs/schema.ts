// Schemas as text: types, limits, fields, and examples.

import { type OpenApi, type Operation, type Parameter, type Schema, nameOf, resolve } from './openapi';

/** How deep types are written out. */
const DEEPEST_TYPE = 4;
/** How deep examples go. */
const DEEPEST_EXAMPLE = 4;

/** The parts of a union, without null. */
export function branches(schema: Schema): Schema[] | null {
  const all = schema.oneOf ?? schema.anyOf;
  return all ? all.filter(one => one.type !== 'null') : null;
}

function kinds(schema: Schema): string[] {
  return [schema.type ?? []].flat().filter(kind => kind !== 'null');
}

/** Whether null is a value. */
export function isNullable(schema: Schema): boolean {
  return [schema.type ?? []].flat().includes('null') || (schema.oneOf ?? schema.anyOf ?? []).some(one => one.type === 'null');
}

/** The values of an enumeration, also of one that is written as a union of single values. */
export function values(spec: OpenApi, schema: Schema): unknown[] | null {
  const whole = resolve(spec, schema);
  if (whole.enum) return whole.enum;
  if (whole.const !== undefined) return [whole.const];
  const parts = branches(whole);
  if (!parts || parts.length === 0) return null;
  const found = parts.map(part => values(spec, part));
  return found.every(one => one !== null) ? [...new Set(found.flat())] : null;
}

export function typeText(spec: OpenApi, schema: Schema | undefined, depth = 0): string {
  if (!schema || depth > DEEPEST_TYPE) return '…';
  const whole = resolve(spec, schema);
  const some = values(spec, schema);
  if (some) return some.map(value => JSON.stringify(value)).join(' | ');
  if (whole.properties || whole.allOf) return nameOf(schema) || whole.title || 'object';
  const parts = branches(whole);
  if (parts) return nameOf(schema) && parts.length > 1 ? nameOf(schema) : parts.map(part => typeText(spec, part, depth + 1)).join(' | ');
  const all = kinds(whole).map(kind => {
    if (kind === 'array') {
      const inner = typeText(spec, whole.items, depth + 1);
      return inner.includes(' | ') ? `(${inner})[]` : `${inner}[]`;
    }
    if (kind === 'object') return typeof whole.additionalProperties === 'object' ? `map of ${typeText(spec, whole.additionalProperties, depth + 1)}` : 'object';
    if (kind === 'string') return whole.format ?? (whole.contentMediaType ? 'file' : 'string');
    return kind;
  });
  return all.join(' | ') || 'any';
}

/** Limits and the default. */
export function limits(schema: Schema): string[] {
  const texts: string[] = [];
  const { minimum, maximum, minLength, maxLength, minItems, maxItems } = schema;
  if (schema.default !== undefined && schema.default !== null) texts.push(`default ${JSON.stringify(schema.default)}`);
  if (minimum !== undefined && maximum !== undefined) texts.push(`${minimum} to ${maximum}`);
  // Unsigned numbers all have 0.
  else if (minimum) texts.push(`at least ${minimum}`);
  else if (maximum !== undefined) texts.push(`at most ${maximum}`);
  if (schema.exclusiveMinimum !== undefined) texts.push(`more than ${schema.exclusiveMinimum}`);
  if (schema.exclusiveMaximum !== undefined) texts.push(`less than ${schema.exclusiveMaximum}`);
  if (minLength !== undefined) texts.push(`at least ${minLength} characters`);
  if (maxLength !== undefined) texts.push(`at most ${maxLength} characters`);
  if (minItems !== undefined) texts.push(`at least ${minItems} entries`);
  if (maxItems !== undefined) texts.push(`at most ${maxItems} entries`);
  if (schema.pattern !== undefined) texts.push(`matches ${schema.pattern}`);
  if (isNullable(schema)) texts.push('or null');
  if (schema.deprecated) texts.push('deprecated');
  return texts;
}

export interface Fields {
  /** The name of the object. */
  name: string;
  about: string;
  entries: { name: string; schema: Schema; required: boolean }[];
}

/** The objects of a schema: itself, its entries, or the alternatives of a union. */
export function objects(spec: OpenApi, schema: Schema | undefined): Fields[] {
  if (!schema) return [];
  const whole = resolve(spec, schema);
  if (whole.properties || whole.allOf) {
    const parts = [whole, ...(whole.allOf ?? [])].map(part => resolve(spec, part));
    const required = new Set(parts.flatMap(part => [...(part.required ?? []), ...(part.allOf ?? []).flatMap(inner => resolve(spec, inner).required ?? [])]));
    const own = new Map<string, Schema>();
    for (const part of parts) {
      for (const inner of [...(part === whole ? [] : part.allOf ?? []).map(one => resolve(spec, one)), part]) {
        for (const [name, property] of Object.entries(inner.properties ?? {})) own.set(name, property);
      }
    }
    return [{ name: nameOf(schema) || whole.title || 'object', about: whole.description ?? '', entries: [...own].map(([name, property]) => ({ name, schema: property, required: required.has(name) })) }];
  }
  if (whole.items) return objects(spec, whole.items);
  if (typeof whole.additionalProperties === 'object') return objects(spec, whole.additionalProperties);
  return (branches(whole) ?? []).flatMap(part => objects(spec, part));
}

/** Values that make a call with these fields do something. */
const SAMPLES: Record<string, unknown> = {
  command: 'echo hello', cmd: 'echo hello', code: 'print(6 * 7)', language: 'python', file: '/tmp/file.txt', path: '/tmp', content: 'hello',
  text: 'hello', url: 'https://example.com/', worker_id: 'worker-1', action: 'bash:run', resource_type: 'bash', name: 'demo', pattern: '*', glob: '*',
};

/** An example of a value. `whole`: also with its optional fields. */
export function example(spec: OpenApi, schema: Schema | undefined, whole = false, name = '', depth = 0): unknown {
  const found = resolve(spec, schema);
  for (const one of [schema ?? {}, found]) {
    if (one.example !== undefined) return one.example;
    if (one.examples?.length) return one.examples[0];
  }
  if (found.default !== undefined && found.default !== null) return found.default;
  const some = values(spec, schema ?? {});
  if (some) return some[0];
  const [object] = found.properties || found.allOf ? objects(spec, schema) : [];
  if (object) {
    const value: Record<string, unknown> = {};
    for (const entry of object.entries) {
      const own = resolve(spec, entry.schema);
      const isShown = entry.required || (depth === 0 && (own.example !== undefined || entry.schema.example !== undefined));
      if ((isShown || (whole && depth === 0)) && depth < DEEPEST_EXAMPLE) value[entry.name] = example(spec, entry.schema, whole, entry.name, depth + 1);
    }
    return value;
  }
  const parts = branches(found);
  if (parts?.length) return depth < DEEPEST_EXAMPLE ? example(spec, parts[0], whole, name, depth + 1) : null;
  switch (kinds(found)[0]) {
    case 'integer': case 'number': return found.minimum || (found.exclusiveMinimum ?? 0) + 1;
    case 'boolean': return false;
    case 'array': return depth < DEEPEST_EXAMPLE ? [example(spec, found.items, whole, name, depth + 1)] : [];
    case 'string': return found.format === 'date-time' ? '2026-01-01T00:00:00Z' : typeof SAMPLES[name] === 'string' ? SAMPLES[name] : 'text';
    case 'object': return {};
    default: return SAMPLES[name] ?? null;
  }
}

/** The text that a parameter's field has at first: nothing, if it may be left out. */
export function firstText(operation: Operation, parameter: Parameter): string {
  if (!parameter.required) return '';
  const value = parameter.example ?? example(operation.spec, parameter.schema, false, parameter.name);
  return typeof value === 'string' ? value : JSON.stringify(value);
}
