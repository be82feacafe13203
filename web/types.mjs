// Generates generated/schema.d.ts from the golden OpenAPI document of the server, and generated/sandbox.d.ts from that of a
// sandbox. They are not in the repository, so they can't be outdated.

import { mkdir, readFile, writeFile } from 'node:fs/promises';

import openapiTS, { astToString } from 'openapi-typescript';

for (const [name, golden] of [['schema', 'server-openapi'], ['sandbox', 'openapi']]) {
  const document = JSON.parse(await readFile(new URL(`../crates/gateway/golden/${golden}.json`, import.meta.url), 'utf8'));
  const target = new URL(`generated/${name}.d.ts`, import.meta.url);
  await mkdir(new URL('.', target), { recursive: true });
  const text = astToString(await openapiTS(document, { silent: true, defaultNonNullable: false }));
  if ((await readFile(target, 'utf8').catch(() => '')) !== text) await writeFile(target, text);
}
