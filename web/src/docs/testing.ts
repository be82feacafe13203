// For tests: the golden documents, and operations of them.

import { DIALECTS, type DialectId, type OpenApi, type Operation, tagsOf } from './openapi';

const texts = import.meta.glob('../../../crates/gateway/golden/*openapi.json', { query: '?raw', import: 'default', eager: true }) as Record<string, string>;
const NAMES: Record<string, string> = { '/api/v2/openapi.json': 'server-openapi', '/v1/openapi.json': 'openapi', '/openapi.json': 'agentflow-openapi' };

/** The golden document that is served at a path. */
export function golden(path: string): OpenApi {
  return JSON.parse(texts[`../../../crates/gateway/golden/${NAMES[path]!}.json`]!) as OpenApi;
}

export const OPERATIONS: readonly Operation[] = DIALECTS.flatMap(dialect => tagsOf(golden(dialect.document), dialect).flatMap(tag => tag.operations));

export function operation(dialect: DialectId, id: string): Operation {
  return OPERATIONS.find(one => one.dialect.id === dialect && one.id === id)!;
}
