import { describe, expect, it } from 'vitest';

import { type Form, FormError, isStream, pathOf, readForm } from './call';
import { asCurl, asPython, asTypeScript, codes } from './codes';
import { python, shellWord, typeScript } from './literals';
import { type DialectId, type Schema, isDestructive } from './openapi';
import { firstForm } from './operation_view';
import { example, limits, objects, typeText } from './schema';
import { findOperations, indexOf } from './search';
import { OPERATIONS, golden, operation } from './testing';

const PLACE = { server: 'http://box.example:8080', sandbox: 'demo', withKey: false };

function call(dialect: DialectId, id: string, form: Partial<Form> = {}, place: Partial<typeof PLACE> = {}) {
  const of = operation(dialect, id);
  return readForm(of, { ...firstForm(of, 'demo'), ...form }, { ...PLACE, sandbox: of.dialect.inSandbox ? 'demo' : '', ...place });
}

describe('the documents', () => {
  it('have operations with unique names in each dialect', () => {
    for (const [dialect, least] of [['arenite', 100], ['aio', 150], ['agent-sandbox', 15], ['agentflow', 19]] as const) {
      const ids = OPERATIONS.filter(one => one.dialect.id === dialect).map(one => one.id);
      expect(ids.length, dialect).toBeGreaterThanOrEqual(least);
      expect(new Set(ids).size, dialect).toBe(ids.length);
    }
  });

  it('are searched by path, words, and fields', () => {
    const index = indexOf(OPERATIONS);
    const first = (text: string) => findOperations(index, text).map(one => `${one.method} ${one.path}`)[0];
    expect(first('bash exec')).toBe('POST /v1/bash/exec');
    expect(first('/api/v2/sandboxes/{name}/fork')).toBe('POST /api/v2/sandboxes/{name}/fork');
    expect(first('roll back')).toBe('POST /api/v2/sandboxes/{name}/rollback');
    expect(findOperations(index, 'hard_timeout').some(one => one.path === '/v1/bash/exec')).toBe(true);
    expect(findOperations(index, 'bash nothing-like-this')).toEqual([]);
    expect(findOperations(index, '   ')).toEqual([]);
  });

  it('say which calls remove something', () => {
    expect(isDestructive(operation('arenite', 'delete_sandbox'))).toBe(true);
    expect(isDestructive(operation('arenite', 'reset_sandbox'))).toBe(true);
    expect(isDestructive(operation('aio', 'exec'))).toBe(false);
  });
});

describe('schemas', () => {
  const spec = { ...golden('/openapi.json'), components: { schemas: {
    Kind: { description: 'A kind.', oneOf: [{ type: 'string', enum: ['one'] }, { type: 'string', enum: ['two'] }] } as Schema,
    Tree: { type: 'object', description: 'A tree.', required: ['name'], properties: { name: { type: 'string' }, children: { type: 'array', items: { $ref: '#/components/schemas/Tree' } } } } as Schema,
  } } };

  it('are text', () => {
    expect(typeText(spec, { $ref: '#/components/schemas/Kind' })).toBe('"one" | "two"');
    expect(typeText(spec, { type: ['array', 'null'], items: { $ref: '#/components/schemas/Tree' } })).toBe('Tree[]');
    expect(typeText(spec, { type: 'object', additionalProperties: { type: 'integer' } })).toBe('map of integer');
    expect(typeText(spec, { oneOf: [{ $ref: '#/components/schemas/Kind' }, { type: 'null' }] })).toBe('"one" | "two"');
    expect(typeText(spec, { type: 'string', format: 'date-time' })).toBe('date-time');
    expect(limits({ type: ['integer', 'null'], minimum: 1, maximum: 9, default: 3 })).toEqual(['default 3', '1 to 9', 'or null']);
    expect(limits({ type: 'string', maxLength: 5, pattern: '^a' })).toEqual(['at most 5 characters', 'matches ^a']);
  });

  it('have the fields of their parts, and examples that end', () => {
    const both: Schema = { allOf: [{ $ref: '#/components/schemas/Tree' }, { type: 'object', required: ['kind'], properties: { kind: { $ref: '#/components/schemas/Kind' } } }] };
    expect(objects(spec, both)[0]!.entries.map(({ name, required }) => [name, required])).toEqual([['name', true], ['children', false], ['kind', true]]);
    expect(example(spec, both)).toEqual({ name: 'demo', kind: 'one' });
    expect(JSON.stringify(example(spec, { $ref: '#/components/schemas/Tree' }, true)).length).toBeLessThan(200);
  });
});

describe('a form', () => {
  it('says what is missing or malformed', () => {
    const field = (work: () => unknown) => {
      try {
        work();
      } catch (error) {
        return (error as FormError).field;
      }
      return null;
    };
    expect(field(() => call('arenite', 'get_sandbox', { parameters: {} }))).toBe('path name');
    expect(field(() => call('aio', 'exec', { json: '{"command"' }))).toBe('body');
    expect(field(() => call('aio', 'exec', { json: ' ' }))).toBe('body');
    expect(field(() => call('arenite', 'pause_sandbox', { json: '' }))).toBe(null);
  });

  it('becomes a path with a query', () => {
    const made = call('arenite', 'list_sandboxes', { parameters: { 'query label': 'a=b, c', 'query state': 'running' } });
    expect(pathOf(made)).toBe('/api/v2/sandboxes?state=running&label=a%3Db&label=c');
    expect(isStream(made)).toBe(false);
    expect(isStream(call('arenite', 'list_events', { parameters: { 'query follow': 'true' } }))).toBe(true);
    expect(pathOf(call('arenite', 'get_sandbox', { parameters: { 'path name': 'a/b ?' } }))).toBe('/api/v2/sandboxes/a%2Fb%20%3F');
  });
});

describe('code', () => {
  it('has any value as a literal', () => {
    const value = { 'a b': [true, null, 'it\'s "here"\n'], n: -1.5 };
    expect(python(value)).toBe('{"a b": [True, None, "it\'s \\"here\\"\\n"], "n": -1.5}');
    expect(typeScript(value)).toBe('{ "a b": [true, null, "it\'s \\"here\\"\\n"], n: -1.5 }');
    expect(shellWord('it\'s')).toBe('\'it\'\\\'\'s\'');
    const long = python({ list: Array.from({ length: 30 }, (_, n) => `entry ${n}`) }, 4);
    expect(long.split('\n')[1]).toBe('        "list": [');
  });

  it('uses AIO\'s client where it has the fields, and httpx where it has not', () => {
    const made = call('aio', 'exec', { json: '{"command": "echo hello"}' }, { withKey: true });
    expect(asPython(made)).toBe('import os\n\nfrom agent_sandbox import Sandbox\n\nclient = Sandbox(base_url="http://box.example:8080/sandbox/demo", headers={"x-api-key": os.environ["ARENITE_API_KEY"]})\n'
      + 'print(client.bash.exec(\n    command="echo hello",\n))');
    expect(asCurl(made)).toBe('curl http://box.example:8080/sandbox/demo/v1/bash/exec \\\n  -H "x-api-key: $ARENITE_API_KEY" \\\n  -H \'content-type: application/json\' \\\n  -d \'{"command":"echo hello"}\'');
    expect(asTypeScript(made)).toContain('"x-api-key": process.env.ARENITE_API_KEY');
    expect(asPython(call('aio', 'exec', { json: '{"command": "echo hello", "of_a_newer_server": 1}' }))).toContain('import httpx');
    expect(asPython(call('aio', 'display_screenshot_v1_display_screenshot_get'))).toContain('file.write(answer.content)');
    expect(asPython(call('aio', 'download_file'))).toContain('for part in client.file.download_file(');
  });

  it('uses our clients', () => {
    expect(asPython(call('arenite', 'get_sandbox'))).toBe('import arenite\n\nclient = arenite.Client("http://box.example:8080")\nprint(client.sandboxes.get("demo").info)');
    expect(asTypeScript(call('arenite', 'get_sandbox'))).toBe('import { Client } from "arenite";\n\nconst client = new Client({ baseUrl: "http://box.example:8080" });\nconsole.log((await client.sandboxes.get("demo")).info);');
    expect(asPython(call('arenite', 'create_sandbox', { json: '{"name": "a", "labels": {"team": "red"}}' }))).toContain('print(client.sandboxes.create(name="a", labels={"team": "red"}).info)');
    // The method has no count: it makes one.
    expect(asPython(call('arenite', 'create_sandbox', { json: '{"count": 2}' }))).toContain('print(client.request("POST", "/api/v2/sandboxes", json={"count": 2}))');
    expect(asTypeScript(call('arenite', 'create_group', { json: '{"name": "g", "ttl_seconds": 60}' }))).toContain('client.groups.create({ name: "g", ttlSeconds: 60 })');
    expect(asPython(call('arenite', 'list_sandboxes', { parameters: { 'query state': 'running', 'query limit': '5' } }))).toContain('for one in client.sandboxes.list(state=["running"], limit=5):');
    expect(asPython(call('agentflow', 'post_execute', { json: '{"worker_id": "w", "action": "bash:run", "params": {"command": "ls"}}' })))
      .toBe('from sandbox import Sandbox\n\nwith Sandbox("http://box.example:8080", worker_id="w") as sandbox:\n    print(sandbox.execute_sync("bash:run", {"command": "ls"}))');
    expect(asPython(call('agent-sandbox', 'agent_sandbox_list'))).toContain('httpx.request(\n    "GET",\n    "http://box.example:8080/api/v1/sandbox",');
  });

  it('reads streams as they come, and sends files', () => {
    const stream = codes(call('arenite', 'list_events', { parameters: { 'query follow': 'true' } }));
    expect(stream.curl).toContain('curl -N ');
    expect(stream.Python).toContain('with httpx.stream(');
    expect(stream.TypeScript).toContain('for await (const part of');
    const upload = codes(call('aio', 'upload_file', { fields: { path: '/tmp/a b' } }));
    expect(upload.curl).toContain('--form-string \'path=/tmp/a b\' \\\n  -F file=@file.bin');
    expect(upload.Python).toContain('    path="/tmp/a b",\n    file=open("file.bin", "rb"),\n');
    expect(upload.TypeScript).toContain('form.append("path", "/tmp/a b");');
    expect(codes(call('arenite', 'put_volume_file', { parameters: { 'path name': 'v', 'query path': 'a' } })).curl).toContain('-X PUT');
  });

  it('is there for each operation', () => {
    for (const one of OPERATIONS) {
      const form = firstForm(one, 'demo');
      const shown = codes(readForm(one, form, PLACE));
      for (const [language, text] of Object.entries(shown)) expect(text.includes('undefined') || text.includes('<...>') || text.includes('<body'), `${one.id} in ${language}: ${text}`).toBe(false);
    }
  });
});
