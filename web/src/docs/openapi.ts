// What the server's OpenAPI documents describe, as a list of operations.

export interface Schema {
  $ref?: string;
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: boolean | Schema;
  items?: Schema;
  oneOf?: Schema[];
  anyOf?: Schema[];
  allOf?: Schema[];
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  example?: unknown;
  examples?: unknown[];
  format?: string;
  pattern?: string;
  contentMediaType?: string;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  minLength?: number;
  maxLength?: number;
  minItems?: number;
  maxItems?: number;
  deprecated?: boolean;
}

export interface Parameter {
  name: string;
  in: string;
  required?: boolean;
  description?: string;
  schema?: Schema;
  example?: unknown;
}

interface Media {
  schema?: Schema;
  example?: unknown;
}

interface Content {
  description?: string;
  required?: boolean;
  content?: Record<string, Media>;
}

interface RawOperation {
  operationId?: string;
  summary?: string;
  description?: string;
  tags?: string[];
  parameters?: Parameter[];
  requestBody?: Content;
  responses?: Record<string, Content>;
  deprecated?: boolean;
}

export interface OpenApi {
  info: { title: string; version: string; description?: string };
  tags?: { name: string; description?: string }[];
  paths: Record<string, Record<string, RawOperation>>;
  components?: { schemas?: Record<string, Schema> };
}

export type DialectId = 'arenite' | 'aio' | 'agent-sandbox' | 'agentflow';

export interface Dialect {
  id: DialectId;
  title: string;
  about: string;
  /** Where its document is, from the server's root. */
  document: string;
  /** Its paths are below those of a sandbox. */
  inSandbox: boolean;
  has: (tag: string) => boolean;
}

const AGENT_SANDBOX = 'agent-sandbox';

export const DIALECTS: readonly Dialect[] = [
  { id: 'arenite', title: 'Arenite', about: 'Sandboxes, their states, volumes, keys, usage, and recorded steps: /api/v2.', document: '/api/v2/openapi.json', inSandbox: false, has: tag => tag !== AGENT_SANDBOX },
  { id: 'aio', title: 'AIO', about: 'What runs in a sandbox, in the format of AIO Sandbox: commands, files, code, browser. Below /v1 of a sandbox.', document: '/v1/openapi.json', inSandbox: true, has: () => true },
  { id: 'agent-sandbox', title: 'Agent-Sandbox', about: 'Sandboxes in the format of Agent-Sandbox: /api/v1/sandbox.', document: '/api/v2/openapi.json', inSandbox: false, has: tag => tag === AGENT_SANDBOX },
  { id: 'agentflow', title: 'AgentFlow', about: 'Workers, their sessions, and tools, in the format of AgentFlow: /api/v1.', document: '/openapi.json', inSandbox: false, has: () => true },
];

export function dialectOf(id: string): Dialect | undefined {
  return DIALECTS.find(dialect => dialect.id === id);
}

export interface Answer {
  status: string;
  description: string;
  contents: Record<string, Schema>;
}

export interface Operation {
  dialect: Dialect;
  id: string;
  /** In capitals. */
  method: string;
  path: string;
  tag: string;
  summary: string;
  description: string;
  parameters: Parameter[];
  /** Schemas by content type; empty without a body. */
  body: Record<string, Schema>;
  bodyRequired: boolean;
  answers: Answer[];
  deprecated: boolean;
  spec: OpenApi;
}

/** The summary as a title: without what follows a semicolon. */
export function titleOf({ summary }: Operation): string {
  return summary.replace(/;.*$/s, '').replace(/\.$/, '').replaceAll('`', '');
}

const METHODS = ['get', 'post', 'put', 'patch', 'delete', 'head', 'options'];

function schemas(content: Content | undefined): Record<string, Schema> {
  return Object.fromEntries(Object.entries(content?.content ?? {}).map(([type, media]) => [type, media.example === undefined ? media.schema ?? {} : { ...media.schema, example: media.example }]));
}

export interface Tag {
  name: string;
  about: string;
  operations: Operation[];
}

/** The operations of a dialect by their tags, in the document's order. */
export function tagsOf(spec: OpenApi, dialect: Dialect): Tag[] {
  const tags = new Map<string, Tag>();
  for (const { name, description } of spec.tags ?? []) if (dialect.has(name)) tags.set(name, { name, about: description ?? '', operations: [] });
  for (const [path, item] of Object.entries(spec.paths)) {
    for (const method of METHODS) {
      const raw = item[method];
      const name = raw?.tags?.[0] ?? 'other';
      if (!raw || !dialect.has(name)) continue;
      const tag = tags.get(name) ?? { name, about: '', operations: [] };
      tags.set(name, tag);
      const { summary = path, description = '' } = raw;
      tag.operations.push({
        dialect, method: method.toUpperCase(), path, tag: name, summary, spec,
        id: raw.operationId ?? `${method}${path}`,
        description: description === summary ? '' : description,
        parameters: raw.parameters ?? [],
        body: schemas(raw.requestBody),
        bodyRequired: raw.requestBody?.required ?? false,
        answers: Object.entries(raw.responses ?? {}).map(([status, answer]) => ({ status, description: answer.description ?? '', contents: schemas(answer) })),
        deprecated: raw.deprecated ?? false,
      });
    }
  }
  return [...tags.values()].filter(tag => tag.operations.length > 0);
}

/** Follows references, of which a document may have circles. */
export function resolve(spec: OpenApi, schema: Schema | undefined): Schema {
  let found: unknown = schema;
  for (let n = 0; n < 20 && found && (found as Schema).$ref; n++) {
    const parts = (found as { $ref: string }).$ref.slice(2).split('/');
    found = parts.reduce<unknown>((at, key) => (at as Record<string, unknown> | undefined)?.[key.replaceAll('~1', '/').replaceAll('~0', '~')], spec);
  }
  return (found ?? {}) as Schema;
}

/** The name of a schema that is referred to. */
export function nameOf(schema: Schema | undefined): string {
  return schema?.$ref?.split('/').pop() ?? '';
}

/** The content types of a successful answer. */
export function answerTypes(operation: Operation): string[] {
  return [...new Set(operation.answers.filter(answer => answer.status.startsWith('2')).flatMap(answer => Object.keys(answer.contents)))];
}

const DESTRUCTIVE = new Set(['roll_back_sandbox', 'reset_sandbox', 'drain_node', 'post_server_shutdown', 'reset_vm_v1_vm_reset_post', 'post_session_destroy', 'post_worker_disconnect']);

/** Whether it removes something that can't be recovered. */
export function isDestructive({ method, id }: Operation): boolean {
  return method === 'DELETE' || DESTRUCTIVE.has(id);
}
