// Calls as methods of our own clients: `arenite` for Arenite's API, and `sandbox` for AgentFlow's.

import { type Call, isBytes, pathOf } from './call';
import { indented, python, typeScript } from './literals';

type Language = 'python' | 'typescript';

/** How a method says a call, in Python and in TypeScript. In a text, `<name>` is a part of the path, `<body.name>` a field of the body,
 * and `<...>` everything else as keywords, or as an object. Without a text, or with a field that is not in `fields`, the call is a
 * `request`. `each`: the method returns a sequence. */
interface Method {
  python: string;
  typescript: string;
  /** Of the body and of the query: all, or these; `WIRE=KEYWORD` where Python's name differs, `WIRE=KEYWORD=NAME` where TypeScript's does. */
  fields?: string;
  each?: boolean;
}

const SANDBOX = 'client.sandboxes.get(<name>)';
const SANDBOX_TS = '(await client.sandboxes.get(<name>))';

function ofSandbox(call: string, fields = '', typescript = call): Method {
  return { python: `${SANDBOX}.${call}`, typescript: typescript && `${SANDBOX_TS}.${typescript}`, fields };
}

function list(of: string): Method {
  return { python: `client.${of}.list(<...>)`, typescript: `client.${of}.list(<...>)`, each: true };
}

const NEW_VOLUME = 'name size_bytes=size_bytes=sizeBytes bucket labels';

const METHODS: Record<string, Method> = {
  get_info: { python: 'client.info()', typescript: 'client.info()' },
  get_me: { python: 'client.me()', typescript: 'client.me()' },
  list_sandboxes: { ...list('sandboxes'), fields: 'state label template image group client_tag parent name_prefix search created_after created_before order limit' },
  create_sandbox: { python: 'client.sandboxes.create(<...>).info', typescript: '(await client.sandboxes.create(<...>)).info', fields: '* -count -min' },
  get_sandbox: { python: `${SANDBOX}.info`, typescript: `${SANDBOX_TS}.info` },
  delete_sandbox: ofSandbox('delete()'),
  pause_sandbox: ofSandbox('pause(<body.kind>)', 'kind'),
  resume_sandbox: ofSandbox('resume()'),
  start_sandbox: ofSandbox('start()'),
  extend_sandbox: ofSandbox('extend(<body.seconds>)', 'seconds'),
  get_sandbox_network: ofSandbox('network()'),
  get_usage: ofSandbox('usage()'),
  get_logs: ofSandbox('logs()'),
  compare_states: ofSandbox('diff(<...>)', 'before after limit', ''),
  create_checkpoint: ofSandbox('checkpoint(<...>)', 'note keep_processes', ''),
  delete_checkpoint: ofSandbox('delete_checkpoint(<checkpoint>)', '', 'deleteCheckpoint(<checkpoint>)'),
  roll_back_sandbox: ofSandbox('rollback(<body.to>)', 'to'),
  fork_sandbox: { python: `${SANDBOX}.fork(<...>).sandboxes`, typescript: '', fields: '* count=number' },
  list_snapshots: list('snapshots'),
  get_snapshot: { python: 'client.snapshots.get(<name>)', typescript: 'client.snapshots.get(<name>)' },
  create_snapshot: { python: 'client.snapshots.create(<...>)', typescript: '', fields: 'name sandbox labels note keep_processes' },
  delete_snapshot: { python: 'client.snapshots.delete(<name>)', typescript: 'client.snapshots.delete(<name>)' },
  list_groups: list('groups'),
  create_group: { python: 'client.groups.create(<...>).info', typescript: '(await client.groups.create(<...>)).info', fields: 'name ttl_seconds=ttl=ttlSeconds' },
  get_group: { python: 'client.groups.get(<name>).info', typescript: '(await client.groups.get(<name>)).info' },
  renew_group: { python: 'client.groups.get(<name>).renew(<body.ttl_seconds>)', typescript: '(await client.groups.get(<name>)).renew(<body.ttl_seconds>)', fields: 'ttl_seconds' },
  delete_group: { python: 'client.groups.get(<name>).delete()', typescript: '(await client.groups.get(<name>)).delete()' },
  list_volumes: list('volumes'),
  create_volume: { python: 'client.volumes.create(<...>).info', typescript: '', fields: NEW_VOLUME },
  get_volume: { python: 'client.volumes.get(<name>).info', typescript: '(await client.volumes.get(<name>)).info' },
  remove_volume: { python: 'client.volumes.get(<name>).delete()', typescript: '(await client.volumes.get(<name>)).delete()' },
  list_secrets: list('secrets'),
  get_secret: { python: 'client.secrets.get(<name>)', typescript: 'client.secrets.get(<name>)' },
  set_secret: { python: 'client.secrets.set(<name>, <...>)', typescript: 'client.secrets.set(<name>, <...>)', fields: 'value hosts places' },
  remove_secret: { python: 'client.secrets.delete(<name>)', typescript: 'client.secrets.delete(<name>)' },
  list_model_routes: list('models'),
  get_model_route: { python: 'client.models.get(<name>)', typescript: 'client.models.get(<name>)' },
  set_model_route: { python: 'client.models.set(<name>, <...>)', typescript: 'client.models.set(<name>, <...>)', fields: '*' },
  remove_model_route: { python: 'client.models.delete(<name>)', typescript: 'client.models.delete(<name>)' },
  list_webhooks: list('webhooks'),
  create_webhook: { python: 'client.webhooks.create(<...>)', typescript: '', fields: 'url types' },
  get_webhook: { python: 'client.webhooks.get(<id>)', typescript: 'client.webhooks.get(<id>)' },
  remove_webhook: { python: 'client.webhooks.delete(<id>)', typescript: 'client.webhooks.delete(<id>)' },
  test_webhook: { python: 'client.webhooks.test(<id>)', typescript: 'client.webhooks.test(<id>)' },
  verify_trajectory: { python: 'client.trajectories.get(<id>).verify()', typescript: 'client.trajectories.get(<id>).verify()' },
};

/** The fields of the body, then of the query. Null for a body that is not an object. */
function fieldsOf(call: Call): [name: string, value: unknown][] | null {
  const { json, query, operation } = call;
  if (json !== undefined && (json === null || typeof json !== 'object' || Array.isArray(json))) return null;
  const found = new Map<string, unknown>(Object.entries((json as object | undefined) ?? {}));
  for (const [name, text] of query) {
    const schema = operation.parameters.find(one => one.in === 'query' && one.name === name)?.schema;
    const value = schema?.type === 'integer' || schema?.type === 'number' ? Number(text) : schema?.type === 'boolean' ? text === 'true' : text;
    const before = found.get(name);
    found.set(name, schema?.type === 'array' ? [...((before as unknown[] | undefined) ?? []), value] : value);
  }
  return [...found];
}

/** The names of fields in a language, for those that the method has. */
function nameIn(fields: string, language: Language): (name: string) => string | null {
  const words = fields.split(' ').filter(Boolean);
  const names = new Map(words.map(word => word.split('=')).map(([wire, keyword, own]) => [wire!, (language === 'python' ? keyword : own) ?? wire!]));
  return name => (names.has(`-${name}`) ? null : names.get(name) ?? (names.has('*') ? name : null));
}

/** The expression of a method, or null if it can't say this call. */
function methodCall(call: Call, language: Language): string | null {
  const method = METHODS[call.operation.id];
  const given = fieldsOf(call);
  if (!method || !method[language] || !given || call.headers.length > 0) return null;
  const literal = language === 'python' ? python : typeScript;
  const name = nameIn(method.fields ?? '', language);
  if (given.some(([field]) => name(field) === null)) return null;
  // Python's keywords can't be any text.
  if (given.some(([field]) => !/^[A-Za-z_]\w*$/.test(field) || field === 'from')) return null;
  let text = method[language].replace(/<(\w+)>/g, (_, part: string) => literal(call.path[part] ?? ''));
  const rest = new Map(given);
  text = text.replace(/<body\.(\w+)>/g, (_, part: string) => {
    const value = rest.get(part);
    rest.delete(part);
    return value === undefined ? '' : literal(value);
  });
  if (!text.includes('<...>')) return rest.size === 0 ? text : null;
  const renamed = [...rest].map(([field, value]) => [name(field)!, value] as const);
  const keywords = language === 'python' ? renamed.map(([field, value]) => `${field}=${python(value, 4)}`) : [];
  if (language === 'typescript') return text.replace(/(, )?<\.\.\.>/, (_, comma = '') => (renamed.length > 0 ? comma + typeScript(Object.fromEntries(renamed)) : ''));
  const line = keywords.join(', ');
  if (text.length + line.length < 100 && !line.includes('\n')) return text.replace(/(, )?<\.\.\.>/, (_, comma = '') => (line ? comma + line : ''));
  return text.replace(/(, )?<\.\.\.>/, (_, comma = '') => `${comma.trim()}\n${keywords.map(keyword => indented(`${keyword},\n`, 4)).join('')}`);
}

/** The client's method for any route. */
function requestCall(call: Call, language: Language): string | null {
  const { operation, json, headers } = call;
  if (call.accept || call.files.length > 0 || headers.some(([name]) => name !== 'Idempotency-Key')) return null;
  const path = pathOf({ ...call, query: [] });
  const params = new Map<string, string | string[]>();
  for (const [name, value] of call.query) {
    const before = params.get(name);
    params.set(name, before === undefined ? value : [before, value].flat());
  }
  const options: [python: string, typescript: string, value: unknown][] = [];
  if (json !== undefined) options.push(['json', 'json', json]);
  if (params.size > 0) options.push(['params', 'params', Object.fromEntries(params)]);
  for (const [, value] of headers) options.push(['idempotency_key', 'idempotencyKey', value]);
  if (language === 'python') return `client.request(${[python(operation.method), python(path), ...options.map(([name, , value]) => `${name}=${python(value)}`)].join(', ')})`;
  const object = options.length > 0 ? `, ${typeScript(Object.fromEntries(options.map(([, name, value]) => [name, value])))}` : '';
  return `client.request(${typeScript(operation.method)}, ${typeScript(path)}${object})`;
}

/** A call with the package `arenite`; null if it can't send this. */
export function areniteCall(call: Call, language: Language): string | null {
  if (call.accept) return null;
  const own = methodCall(call, language);
  const made = own ?? requestCall(call, language);
  if (made === null) return null;
  const isEach = own !== null && METHODS[call.operation.id]!.each === true;
  if (language === 'python') {
    const head = `import arenite\n\nclient = arenite.Client(${python(call.server)})${call.withKey ? '  # the key is ARENITE_API_KEY' : ''}\n`;
    if (isEach) return `${head}for one in ${made}:\n    print(one${hasInfo(call) ? '.info' : ''})`;
    return head + (own === null && isBytes(call) ? `with open("answer.bin", "wb") as file:\n    file.write(${made})` : `print(${made})`);
  }
  const head = `import { Client } from "arenite";\n\nconst client = new Client({ baseUrl: ${typeScript(call.server)} });${call.withKey ? ' // the key is ARENITE_API_KEY' : ''}\n`;
  if (isEach) return `${head}for await (const one of ${made}) console.log(one${hasInfo(call) ? '.info' : ''});`;
  return `${head}console.log(${made.startsWith('(await') && made.endsWith('.info') ? made : `await ${made}`});`;
}

/** Objects that have their data in `info`. */
function hasInfo({ operation: { id } }: Call): boolean {
  return ['list_sandboxes', 'list_groups', 'list_volumes'].includes(id);
}

type Body = Record<string, unknown>;

/** What takes a field off a body. */
function taken(body: Body, name: string): unknown {
  const value = body[name];
  delete body[name];
  return value;
}

/** AgentFlow's calls with the package `sandbox`. Each takes the fields that it says; what is left is not said by the method. */
const OF_AGENTFLOW: Record<string, (body: Body, query: Body) => string> = {
  post_execute: body => `execute_sync(${[python(taken(body, 'action')), python(taken(body, 'params') ?? {}), ...keyword(body, 'timeout')].join(', ')})`,
  post_execute_batch: body => `batch_sync(${[python(taken(body, 'actions')), ...keyword(body, 'parallel'), ...keyword(body, 'stop_on_error')].join(', ')})`,
  post_session_create: body => {
    const [type, config] = [python(taken(body, 'resource_type')), taken(body, 'session_config')];
    return `create_session_sync(${config === undefined || config === null ? type : `{${type}: ${python(config)}}`})`;
  },
  post_session_destroy: body => `destroy_session_sync(${python(taken(body, 'resource_type'))})`,
  post_session_list: () => 'list_sessions_sync()',
  post_session_refresh: body => `refresh_sessions_sync(${'resource_type' in body ? python(taken(body, 'resource_type')) : ''})`,
  post_lifecycle_status: () => 'get_status_sync()',
  get_tools: (_, query) => `get_tools_sync(${'include_hidden' in query ? `include_hidden=${python(taken(query, 'include_hidden') === 'true')}` : ''})`,
  post_warmup: body => `warmup_sync(${'backends' in body ? python(taken(body, 'backends')) : ''})`,
  get_warmup_status: () => 'get_warmup_status_sync()',
  post_server_shutdown: body => `shutdown_server_sync(${[...keyword(body, 'force'), ...keyword(body, 'cleanup_sessions')].join(', ')})`,
};

function keyword(body: Body, name: string): string[] {
  return name in body ? [`${name}=${python(taken(body, name))}`] : [];
}

/** A call with the package `sandbox`; null if it has no method that says this. */
export function agentFlowCall(call: Call): string | null {
  const make = OF_AGENTFLOW[call.operation.id];
  const { json } = call;
  if (!make || call.accept || call.headers.length > 0 || (json !== undefined && (json === null || typeof json !== 'object' || Array.isArray(json)))) return null;
  const body = { ...(json as Body | undefined) };
  const query: Body = Object.fromEntries(call.query);
  const worker = taken(body, 'worker_id');
  const made = make(body, query);
  if (Object.keys(body).length > 0 || Object.keys(query).length > 0 || made.includes('undefined')) return null;
  const settings = [python(call.server), ...(worker === undefined ? [] : [`worker_id=${python(worker)}`])].join(', ');
  return `from sandbox import Sandbox\n\nwith Sandbox(${settings}) as sandbox:${call.withKey ? '  # the key is ARENITE_API_KEY' : ''}\n    print(sandbox.${made})`;
}
