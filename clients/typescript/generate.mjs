// Generates the types in src/schema from the OpenAPI documents. They are not in the repository, so they can't be outdated.

import { mkdir, readFile, writeFile } from "node:fs/promises";

import openapiTS, { astToString } from "openapi-typescript";

const golden = new URL("../../crates/gateway/golden/", import.meta.url);
const target = new URL("src/schema/", import.meta.url);

// Requests and answers of a sandbox's own API that the client has types for.
const OF_SANDBOX = ["BashExecRequest", "BashExecResult", "BashOutputResult", "BashSessionInfo", "BrowserInfoResult", "CodeExecuteResponse", "FileInfo"];

/** Generates the types of the schemas with these names, and of those that they refer to. */
async function generate(api, names, file) {
  const schemas = new Map();
  const collect = (name) => {
    if (schemas.has(name)) return;
    schemas.set(name, api.components.schemas[name]);
    for (const [, found] of JSON.stringify(schemas.get(name)).matchAll(/#\/components\/schemas\/(\w+)/g)) collect(found);
  };
  names.forEach(collect);
  const part = { openapi: api.openapi, info: api.info, paths: {}, components: { schemas: Object.fromEntries([...schemas].sort()) } };
  await writeFile(new URL(file, target), astToString(await openapiTS(part, { silent: true })));
}

const [server, sandbox] = await Promise.all(
  ["server-openapi.json", "openapi.json"].map(async (name) => JSON.parse(await readFile(new URL(name, golden), "utf8"))),
);
await mkdir(target, { recursive: true });
await generate(server, Object.keys(server.components.schemas), "server.ts");
await generate(sandbox, OF_SANDBOX, "sandbox.ts");
