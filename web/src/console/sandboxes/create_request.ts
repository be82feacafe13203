// A create: what its form has, the request that this makes, and the same as code.

import type { ApiError, QuotaExceeded } from '../../client/errors';
import { type Parsed, exactSize, exactTime, parseCores, parseCount, parseSize, parseTime } from '../../quantities';
import { type NetworkRule, ruleText, rulesOf } from '../network_rules';

/** The fields of the form, as text. Empty ones are left to the template or the server. */
export interface CreateForm {
  name: string;
  template: string;
  image: string;
  command: string;
  cpu: string;
  memory: string;
  disk: string;
  env: [string, string][];
  /** A mode; `allow` and `deny` are rules, one a line. */
  network: string;
  allow: string;
  deny: string;
  /** Names, with commas between them. */
  secrets: string;
  /** `VOLUME` or `VOLUME/DIRECTORY`, and the path in the sandbox, with `:ro` at its end if it is read-only. */
  volumes: [string, string][];
  timeout: string;
  idleTimeout: string;
  idlePolicy: string;
  labels: [string, string][];
  count: string;
}

export type CreateField = keyof CreateForm;

interface NetworkPolicy {
  mode: string;
  allow?: NetworkRule[];
  deny?: NetworkRule[];
}

interface VolumeMount {
  name: string;
  path: string;
  sub_path?: string;
  read_only?: boolean;
}

/** The body of `POST /api/v2/sandboxes`. */
export interface CreateRequest {
  name?: string;
  template?: string;
  image?: string;
  args?: string[];
  env?: Record<string, string>;
  labels?: Record<string, string>;
  resources?: { cpu_millis?: number; memory_bytes?: number; disk_bytes?: number };
  network?: string | NetworkPolicy;
  secrets?: string[];
  volumes?: VolumeMount[];
  timeout_seconds?: number;
  idle_timeout_seconds?: number;
  idle_policy?: string;
  count?: number;
}

export type FieldErrors = Partial<Record<CreateField, string>>;

export const MOST_AT_ONCE = 100;

/** The request of a form, and what is wrong with it. */
export function createRequest(form: CreateForm): { request: CreateRequest; errors: FieldErrors } {
  const request: CreateRequest = {};
  const errors: FieldErrors = {};
  const text = (field: 'name' | 'template' | 'image' | 'idlePolicy'): string | undefined => form[field].trim() || undefined;
  const read = (field: 'cpu' | 'memory' | 'disk' | 'timeout' | 'idleTimeout' | 'count', parse: (text: string) => Parsed): number | undefined => {
    if (!form[field].trim()) return undefined;
    const parsed = parse(form[field]);
    if ('value' in parsed) return parsed.value;
    errors[field] = parsed.error;
    return undefined;
  };
  const pairs = (field: 'env' | 'labels', what: string): Record<string, string> | undefined => {
    // Without a prototype, `__proto__` is a name like any other.
    const read = Object.create(null) as Record<string, string>;
    for (const [key, value] of form[field]) {
      if (!key.trim() && !value) continue;
      if (!key.trim()) errors[field] = `A ${what} has no name.`;
      else if (key.trim() in read) errors[field] = `${key.trim()} is there twice.`;
      read[key.trim()] = value;
    }
    return Object.keys(read).length > 0 ? read : undefined;
  };
  const rules = (field: 'allow' | 'deny'): NetworkRule[] | undefined => {
    try {
      const found = rulesOf(form[field]);
      return found.length > 0 ? found : undefined;
    } catch {
      errors[field] = 'A rule that starts with { is JSON, and this is not.';
      return undefined;
    }
  };
  const network = (): CreateRequest['network'] | undefined => {
    if (form.network === 'allowlist') return { mode: form.network, ...defined({ allow: rules('allow'), deny: rules('deny') }) };
    return form.network === 'observe' ? { mode: form.network, ...defined({ deny: rules('deny') }) } : form.network || undefined;
  };
  const secrets = form.secrets.split(',').filter(Boolean);
  const volumes = form.volumes.flatMap<VolumeMount>(([volume, place]) => {
    const [name = '', ...inside] = volume.trim().split('/');
    const readOnly = place.trim().endsWith(':ro');
    const path = readOnly ? place.trim().slice(0, -':ro'.length) : place.trim();
    if (!name && !path) return [];
    if (!name || !path) errors.volumes = name ? `${name} has no path.` : `${path} has no volume.`;
    return [{ name, path, ...(inside.length > 0 ? { sub_path: inside.join('/') } : {}), ...(readOnly ? { read_only: true } : {}) }];
  });
  const resources = { cpu_millis: read('cpu', parseCores), memory_bytes: read('memory', parseSize), disk_bytes: read('disk', parseSize) };
  const fields: { [field in keyof CreateRequest]: CreateRequest[field] | undefined } = {
    name: text('name'),
    template: text('template'),
    image: text('image'),
    args: form.command.trim() ? ['sh', '-c', form.command.trim()] : undefined,
    env: pairs('env', 'variable'),
    labels: pairs('labels', 'label'),
    resources: Object.values(resources).some(value => value !== undefined) ? defined(resources) : undefined,
    network: network(),
    secrets: secrets.length > 0 ? secrets : undefined,
    volumes: volumes.length > 0 ? volumes : undefined,
    timeout_seconds: read('timeout', parseTime),
    idle_timeout_seconds: read('idleTimeout', parseTime),
    idle_policy: text('idlePolicy'),
    count: read('count', text => parseCount(text, 1, MOST_AT_ONCE)),
  };
  // One sandbox keeps its name as it is.
  if (fields.count === 1) fields.count = undefined;
  Object.assign(request, defined(fields));
  return { request, errors };
}

function defined<T extends object>(fields: T): { [field in keyof T]: NonNullable<T[field]> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as { [field in keyof T]: NonNullable<T[field]> };
}

const OF_QUOTA: Record<string, CreateField> = { cpu_millis: 'cpu', memory_bytes: 'memory', disk_bytes: 'disk', max_timeout_seconds: 'timeout', timeout_seconds: 'timeout' };
/** How messages name a field, at their start. */
const NAMED: [RegExp, CreateField][] = [
  [/^(resources\.)?memory_bytes\b/i, 'memory'], [/^(resources\.)?cpu_millis\b/i, 'cpu'], [/^(resources\.)?disk_bytes\b/i, 'disk'],
  [/^env\b/i, 'env'], [/^labels?\b/i, 'labels'], [/^(args|main command)\b/i, 'command'], [/^idle_timeout_seconds\b/i, 'idleTimeout'],
  [/^idle_policy\b/i, 'idlePolicy'], [/^timeout_seconds\b/i, 'timeout'], [/^(count|min)\b/i, 'count'], [/^network\b/i, 'network'],
  [/^(the |invalid )?network rule\b/i, 'allow'], [/^(there is no )?secrets?\b/i, 'secrets'], [/^(there is no )?volumes?\b/i, 'volumes'],
  [/^(there is no )?template\b/i, 'template'], [/^(there is no )?image\b/i, 'image'], [/^(sandbox )?name\b/i, 'name'],
];

/** The field that a refusal is about; null for the request as a whole. */
export function refusedField(refused: ApiError): CreateField | null {
  const quota: QuotaExceeded | null = refused.quota;
  if (quota) return OF_QUOTA[quota.quota] ?? null;
  if (refused.code === 'already_exists') return 'name';
  return NAMED.find(([pattern]) => pattern.test(refused.reason))?.[1] ?? null;
}

/** A word of a shell command. */
function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll('\'', '\'\\\'\'')}'`;
}

/** `withKey`: the server asks for one. */
export function asCurl(request: CreateRequest, server: string, withKey: boolean): string {
  const key = withKey ? ' \\\n  -H "x-api-key: $ARENITE_API_KEY"' : '';
  return `curl ${shellWord(`${server}/api/v2/sandboxes`)}${key} \\\n  -H 'content-type: application/json' \\\n  -d ${shellWord(JSON.stringify(request))}`;
}

export function asCommand(request: CreateRequest): string {
  const words: string[] = [];
  const flag = (name: string, value: string | undefined): void => {
    if (value !== undefined) words.push(`--${name} ${shellWord(value)}`);
  };
  const { resources = {} } = request;
  const size = (bytes: number | undefined): string | undefined => (bytes === undefined ? undefined : exactSize(bytes));
  const time = (seconds: number | undefined): string | undefined => (seconds === undefined ? undefined : exactTime(seconds));
  flag('template', request.template);
  flag('image', request.image);
  flag('cpu', resources.cpu_millis === undefined ? undefined : String(resources.cpu_millis / 1000));
  flag('memory', size(resources.memory_bytes));
  flag('disk', size(resources.disk_bytes));
  for (const [key, value] of Object.entries(request.env ?? {})) flag('env', `${key}=${value}`);
  const { network } = request;
  flag('network', typeof network === 'object' ? network.mode : network);
  if (typeof network === 'object') {
    for (const rule of network.allow ?? []) flag('allow', ruleText(rule));
    for (const rule of network.deny ?? []) flag('deny', ruleText(rule));
  }
  for (const secret of request.secrets ?? []) flag('secret', secret);
  for (const { name, path, sub_path: inside, read_only: readOnly } of request.volumes ?? []) flag('volume', `${name}${inside ? `/${inside}` : ''}:${path}${readOnly ? ':ro' : ''}`);
  flag('timeout', time(request.timeout_seconds));
  flag('idle-timeout', time(request.idle_timeout_seconds));
  flag('idle-policy', request.idle_policy);
  for (const [key, value] of Object.entries(request.labels ?? {})) flag('label', `${key}=${value}`);
  flag('count', request.count?.toString());
  const name = request.name === undefined ? '' : ` ${shellWord(request.name)}`;
  const command = request.args ? ` \\\n  -- ${request.args.map(shellWord).join(' ')}` : '';
  return `arenite create${name}${words.map(word => ` \\\n  ${word}`).join('')}${command}`;
}

/** JSON's lists, texts and numbers are Python's, too; `true` is not. */
function pythonValue(value: unknown): string {
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(', ')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  return `{${Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${pythonValue(one)}`).join(', ')}}`;
}

/** The client's `create` makes one sandbox, so several are a loop. */
export function asPython(request: CreateRequest, server: string, withKey: boolean): string {
  const { count, ...one } = request;
  const fields = Object.entries(one).filter(([field]) => count === undefined || field !== 'name');
  const indent = count === undefined ? '    ' : '        ';
  const lines = fields.map(([field, value]) => `${indent}${field}=${pythonValue(value)},\n`);
  if (count !== undefined && request.name !== undefined) lines.unshift(`${indent}name=${JSON.stringify(`${request.name}-`)} + str(n),\n`);
  const close = indent.slice(4);
  const call = lines.length > 0 ? `client.sandboxes.create(\n${lines.join('')}${close})` : 'client.sandboxes.create()';
  const made = count === undefined ? `sandbox = ${call}` : `sandboxes = [\n    ${call}\n    for n in range(${count})\n]`;
  const comment = withKey ? '  # the key is ARENITE_API_KEY' : '';
  return `import arenite\n\nclient = arenite.Client(${JSON.stringify(server)})${comment}\n${made}`;
}

/** The TypeScript client's `create` makes one sandbox, too. */
export function asTypeScript(request: CreateRequest, server: string, withKey: boolean): string {
  const { count, ...one } = request;
  const fields = Object.entries(one).filter(([field]) => count === undefined || field !== 'name');
  const indent = count === undefined ? '  ' : '    ';
  const lines = fields.map(([field, value]) => `${indent}${field}: ${JSON.stringify(value)},\n`);
  if (count !== undefined && request.name !== undefined) lines.unshift(`${indent}name: \`${request.name.replace(/[\\`$]/g, '\\$&')}-\${n}\`,\n`);
  const call = lines.length > 0 ? `client.sandboxes.create({\n${lines.join('')}${indent.slice(2)}})` : 'client.sandboxes.create()';
  const made = count === undefined ? `const sandbox = await ${call};` : `const sandboxes = [];\nfor (let n = 0; n < ${count}; n++) {\n  sandboxes.push(await ${call});\n}`;
  const comment = withKey ? ' // the key is ARENITE_API_KEY' : '';
  return `import { Client } from "arenite";\n\nconst client = new Client({ baseUrl: ${JSON.stringify(server)} });${comment}\n${made}`;
}
