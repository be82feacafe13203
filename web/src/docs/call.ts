// A call as its form has it: what is sent, and what the code shows.

import { type Operation, type Parameter, answerTypes } from './openapi';
import { values } from './schema';

export const STREAMS: readonly string[] = ['text/event-stream', 'application/x-ndjson'];
export const JSON_TYPE = 'application/json';
const MULTIPART = 'multipart/form-data';

/** Texts of a form, by the names of its fields. */
export type Texts = Readonly<Record<string, string>>;

export interface Form {
  /** By `in` and name: `path name`. */
  parameters: Texts;
  /** The chosen content type of the body; empty without one. */
  type: string;
  json: string;
  /** Fields of a multipart body, and files by the names of theirs; a body of bytes is the file `''`. */
  fields: Texts;
  files: Readonly<Record<string, File>>;
  accept: string;
}

export interface Call {
  operation: Operation;
  /** The server's address, without a slash at its end. */
  server: string;
  /** The sandbox below which the path is; empty for the server itself. */
  sandbox: string;
  path: Record<string, string>;
  query: [name: string, value: string][];
  headers: [name: string, value: string][];
  type: string;
  /** The parsed JSON of the body; undefined without one. */
  json: unknown;
  fields: [name: string, value: string][];
  files: [name: string, file: File | null][];
  accept: string;
  /** The server asks for one. */
  withKey: boolean;
}

/** Why a form can't be sent yet, by the field. */
export class FormError extends Error {
  readonly field: string;

  constructor(field: string, message: string) {
    super(message);
    this.field = field;
  }
}

export function fieldId({ in: place, name }: Parameter): string {
  return `${place} ${name}`;
}

function isList(operation: Operation, parameter: Parameter): boolean {
  return parameter.schema?.type === 'array' && values(operation.spec, parameter.schema) === null;
}

export function isMultipart(type: string): boolean {
  return type === MULTIPART;
}

/** Reads a form. Throws a `FormError` for what is missing or malformed. */
export function readForm(operation: Operation, form: Form, place: { server: string; sandbox: string; withKey: boolean }): Call {
  const call: Call = { operation, ...place, path: {}, query: [], headers: [], type: form.type, json: undefined, fields: [], files: [], accept: form.accept };
  for (const parameter of operation.parameters) {
    const text = form.parameters[fieldId(parameter)] ?? '';
    if (text === '') {
      if (parameter.required) throw new FormError(fieldId(parameter), `Enter ${parameter.name}.`);
    } else if (parameter.in === 'path') call.path[parameter.name] = text;
    else if (parameter.in === 'header') call.headers.push([parameter.name, text]);
    else if (parameter.in === 'query') {
      for (const value of isList(operation, parameter) ? text.split(',').map(part => part.trim()).filter(Boolean) : [text]) call.query.push([parameter.name, value]);
    }
  }
  if (form.type === JSON_TYPE) {
    if (form.json.trim() !== '') {
      try {
        call.json = JSON.parse(form.json);
      } catch (error) {
        throw new FormError('body', `This is not JSON: ${(error as Error).message}`);
      }
    } else if (operation.bodyRequired) throw new FormError('body', 'Enter a body.');
  } else if (form.type) {
    call.fields = Object.entries(form.fields).filter(([, value]) => value !== '');
    const names = isMultipart(form.type) ? fileFields(operation) : [''];
    call.files = names.map(name => [name, form.files[name] ?? null]);
  }
  return call;
}

/** The names of the files in a multipart body. */
export function fileFields(operation: Operation): string[] {
  const schema = multipartFields(operation);
  return schema.filter(field => field.isFile).map(field => field.name);
}

export interface MultipartField {
  name: string;
  isFile: boolean;
  required: boolean;
  about: string;
}

export function multipartFields(operation: Operation): MultipartField[] {
  const schema = operation.body[MULTIPART];
  if (!schema) return [];
  const name = schema.$ref?.split('/').pop() ?? '';
  const whole = operation.spec.components?.schemas?.[name] ?? schema;
  return Object.entries(whole.properties ?? {}).map(([field, property]) => ({
    name: field, required: whole.required?.includes(field) ?? false, about: property.description ?? '',
    isFile: property.format === 'binary' || property.contentMediaType !== undefined || (property.type === 'array' && property.items?.format === 'int32'),
  }));
}

/** The path with its parameters, and the query. */
export function pathOf({ operation, path, query }: Call): string {
  const filled = operation.path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(path[name] ?? ''));
  const search = new URLSearchParams(query);
  return search.size > 0 ? `${filled}?${search}` : filled;
}

/** `/sandbox/NAME`, or nothing. */
export function prefixOf({ sandbox }: Call): string {
  return sandbox ? `/sandbox/${encodeURIComponent(sandbox)}` : '';
}

/** Whether the answer comes bit by bit, as long as something happens. */
export function isStream({ accept, query, operation }: Call): boolean {
  return STREAMS.includes(accept) || query.some(([name, value]) => name === 'follow' && value === 'true') || answerTypes(operation).every(type => STREAMS.includes(type)) && answerTypes(operation).length > 0;
}

/** Whether the answer is a file, rather than text to show. */
export function isBytes({ operation, accept }: Call): boolean {
  const type = accept || answerTypes(operation)[0] || '';
  return /^(image|audio|video)\/|octet-stream|zip|tar/.test(type);
}
