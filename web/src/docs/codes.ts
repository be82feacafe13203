// The code of a call: for curl, for Python, and for TypeScript. It runs as it is shown, with the key in ARENITE_API_KEY.

import { AGENT_SANDBOX_METHODS } from './agent_sandbox';
import { type Call, isBytes, isStream, pathOf, prefixOf } from './call';
import { agentFlowCall, areniteCall } from './clients';
import { indented, python, shellWord, typeScript } from './literals';

export interface Codes extends Record<string, string> {
  curl: string;
  Python: string;
  TypeScript: string;
}

export function codes(call: Call): Codes {
  return { curl: asCurl(call), Python: asPython(call), TypeScript: asTypeScript(call) };
}

function urlOf(call: Call): string {
  return call.server + prefixOf(call) + pathOf(call);
}

/** The name of the file that the code sends. */
function fileOf(name: string): string {
  return name === '' || name === 'file' ? 'file.bin' : `${name}.bin`;
}

const OUTPUT = 'answer.bin';

export function asCurl(call: Call): string {
  const { operation, headers, accept, type, json, fields, files, withKey } = call;
  const parts: string[] = [];
  if (withKey) parts.push('-H "x-api-key: $ARENITE_API_KEY"');
  for (const [name, value] of headers) parts.push(`-H ${shellWord(`${name}: ${value}`)}`);
  if (accept) parts.push(`-H ${shellWord(`accept: ${accept}`)}`);
  if (json !== undefined) parts.push('-H \'content-type: application/json\'', `-d ${shellWord(JSON.stringify(json))}`);
  else if (files.length > 0 && files[0]![0] === '') parts.push(`-H ${shellWord(`content-type: ${type}`)}`, `--data-binary @${fileOf('')}`);
  else {
    for (const [name, value] of fields) parts.push(`--form-string ${shellWord(`${name}=${value}`)}`);
    for (const [name] of files) parts.push(`-F ${shellWord(`${name}=@${fileOf(name)}`)}`);
  }
  if (isBytes(call)) parts.push(`-o ${OUTPUT}`);
  const hasBody = json !== undefined || files.length > 0 || fields.length > 0;
  const method = operation.method === 'GET' || (operation.method === 'POST' && hasBody) ? '' : ` -X ${operation.method}`;
  return [`curl${isStream(call) ? ' -N' : ''}${method} ${shellWord(urlOf(call))}`, ...parts].join(' \\\n  ');
}

export function asPython(call: Call): string {
  const { dialect } = call.operation;
  if (!isStream(call)) {
    if (dialect.id === 'aio') return agentSandboxPython(call) ?? httpxPython(call);
    if (dialect.id === 'agentflow') return agentFlowCall(call) ?? httpxPython(call);
    if (dialect.id === 'arenite') return areniteCall(call, 'python') ?? httpxPython(call);
  }
  return httpxPython(call);
}

function keyImport(call: Call): string {
  return call.withKey ? 'import os\n\n' : '';
}

const PYTHON_KEY = '{"x-api-key": os.environ["ARENITE_API_KEY"]}';

/** A method of the package `agent-sandbox`, if it has one with these fields. */
function agentSandboxPython(call: Call): string | null {
  const { operation, json, query, headers, files, fields } = call;
  const method = AGENT_SANDBOX_METHODS[`${operation.method} ${operation.path}`];
  if (!method || headers.length > 0 || call.accept) return null;
  const [name, ...all] = method.split(' ');
  const keywords = all.map(keyword => keyword.replace('!', ''));
  const required = all.filter(keyword => keyword.endsWith('!')).map(keyword => keyword.slice(0, -1).split('=')[0]);
  const given: [string, string][] = Object.entries(call.path).map(([field, value]) => [field, typedText(call, 'path', field, value)]);
  for (const [field, value] of query) given.push([field, typedText(call, 'query', field, value)]);
  if (json !== undefined) {
    if (json === null || typeof json !== 'object' || Array.isArray(json)) return null;
    for (const [field, value] of Object.entries(json)) given.push([field, python(value, 4)]);
  }
  for (const [field, value] of fields) given.push([field, python(value)]);
  for (const [field] of files) given.push([field, `open(${python(fileOf(field))}, "rb")`]);
  if (keywords.includes('request') && json !== undefined) given.splice(0, given.length, ...given.filter(([field]) => field in call.path), ['request', python(json, 4)]);
  const known = new Map(keywords.map(keyword => keyword.split('=') as [string, string | undefined]).map(([wire, own]) => [wire, own ?? wire]));
  if (required.some(field => !given.some(([one]) => one === field))) return null;
  if (given.some(([field]) => !known.has(field)) || new Set(given.map(([field]) => field)).size < given.length) return null;
  const args = given.map(([field, value]) => `    ${known.get(field)}=${value},\n`).join('');
  const made = `client.${name}(${args ? `\n${args}` : ''})`;
  const address = call.server + prefixOf(call);
  const client = call.withKey ? `Sandbox(base_url=${python(address)}, headers=${PYTHON_KEY})` : `Sandbox(base_url=${python(address)})`;
  const result = isBytes(call) ? `with open("${OUTPUT}", "wb") as file:\n    for part in ${made.replaceAll('\n', '\n    ')}:\n        file.write(part)` : `print(${made})`;
  return `${keyImport(call)}from agent_sandbox import Sandbox\n\nclient = ${client}\n${result}`;
}

/** A text of a form as the value that the parameter's schema has. */
function typedText({ operation }: Call, place: string, name: string, text: string): string {
  const type = [operation.parameters.find(one => one.in === place && one.name === name)?.schema?.type ?? []].flat();
  if (type.includes('boolean')) return text === 'true' ? 'True' : 'False';
  return (type.includes('integer') || type.includes('number')) && /^-?\d+(\.\d+)?$/.test(text) ? text : python(text);
}

function httpxPython(call: Call): string {
  const { operation, accept, json, fields, files, withKey, query } = call;
  const headers: [string, string][] = call.headers.map(([name, value]) => [python(name), python(value)]);
  if (accept) headers.push(['"accept"', python(accept)]);
  if (files[0]?.[0] === '') headers.push(['"content-type"', python(call.type)]);
  if (withKey) headers.unshift(['"x-api-key"', 'os.environ["ARENITE_API_KEY"]']);
  const bare = call.server + prefixOf(call) + pathOf({ ...call, query: [] });
  const args = [python(operation.method), python(bare)];
  // Repeated names are pairs; otherwise a dictionary reads better.
  const isRepeated = new Set(query.map(([name]) => name)).size < query.length;
  if (query.length > 0) args.push(`params=${isRepeated ? `[${query.map(([name, value]) => `(${python(name)}, ${python(value)})`).join(', ')}]` : python(Object.fromEntries(query), 4)}`);
  if (headers.length > 0) args.push(`headers={${headers.map(([name, value]) => `${name}: ${value}`).join(', ')}}`);
  if (json !== undefined) args.push(`json=${python(json, 4)}`);
  if (files[0]?.[0] === '') args.push(`content=open(${python(fileOf(''))}, "rb")`);
  else {
    if (fields.length > 0) args.push(`data=${python(Object.fromEntries(fields), 4)}`);
    if (files.length > 0) args.push(`files={${files.map(([name]) => `${python(name)}: open(${python(fileOf(name))}, "rb")`).join(', ')}}`);
  }
  args.push(`timeout=${isStream(call) ? 'None' : '60'}`);
  const list = `\n${args.map(arg => `    ${arg},\n`).join('')}`;
  const head = `${withKey ? 'import os\n\n' : ''}import httpx\n\n`;
  if (isStream(call)) return `${head}with httpx.stream(${list}) as answer:\n    answer.raise_for_status()\n    for line in answer.iter_lines():\n        print(line)`;
  const shown = isBytes(call) ? `with open("${OUTPUT}", "wb") as file:\n    file.write(answer.content)` : 'print(answer.text)';
  return `${head}answer = httpx.request(${list})\nanswer.raise_for_status()\n${shown}`;
}

export function asTypeScript(call: Call): string {
  const own = call.operation.dialect.id === 'arenite' && !isStream(call) && !isBytes(call) ? areniteCall(call, 'typescript') : null;
  return own ?? fetchTypeScript(call);
}

function fetchTypeScript(call: Call): string {
  const { operation, accept, json, fields, files, withKey } = call;
  const headers: [string, string][] = call.headers.map(([name, value]) => [typeScript(name), typeScript(value)]);
  if (withKey) headers.unshift(['"x-api-key"', 'process.env.ARENITE_API_KEY']);
  if (accept) headers.push(['accept', typeScript(accept)]);
  const options: string[] = [];
  const head: string[] = [];
  if (operation.method !== 'GET') options.push(`method: ${typeScript(operation.method)}`);
  if (json !== undefined) {
    headers.push(['"content-type"', '"application/json"']);
    options.push(`body: JSON.stringify(${typeScript(json, 2)})`);
  } else if (files[0]?.[0] === '') {
    headers.push(['"content-type"', typeScript(call.type)]);
    options.push(`body: await readFile(${typeScript(fileOf(''))})`);
  } else if (fields.length > 0 || files.length > 0) {
    head.push('const form = new FormData();');
    for (const [name, value] of fields) head.push(`form.append(${typeScript(name)}, ${typeScript(value)});`);
    for (const [name] of files) head.push(`form.append(${typeScript(name)}, new Blob([await readFile(${typeScript(fileOf(name))})]), ${typeScript(fileOf(name))});`);
    options.push('body: form');
  }
  if (headers.length > 0) options.push(`headers: { ${headers.map(([name, value]) => `${name}: ${value}`).join(', ')} }`);
  const imports = [files.length > 0 ? 'readFile' : '', isBytes(call) ? 'writeFile' : ''].filter(Boolean);
  const text = [
    ...(imports.length > 0 ? [`import { ${imports.join(', ')} } from "node:fs/promises";`, ''] : []),
    ...head,
    `const answer = await fetch(${typeScript(urlOf(call))}${options.length > 0 ? `, {\n${options.map(option => indented(`${option},\n`, 2)).join('')}}` : ''});`,
    'if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);',
  ];
  if (isStream(call)) text.push('for await (const part of answer.body.pipeThrough(new TextDecoderStream())) process.stdout.write(part);');
  else if (isBytes(call)) text.push(`await writeFile("${OUTPUT}", new Uint8Array(await answer.arrayBuffer()));`);
  else text.push('console.log(await answer.text());');
  return text.join('\n');
}
