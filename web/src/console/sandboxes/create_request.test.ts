import { expect, it } from 'vitest';

import { ApiError } from '../../client/errors';
import { type CreateForm, asCommand, asCurl, asPython, asTypeScript, createRequest, refusedField } from './create_request';

const EMPTY: CreateForm = { name: '', template: '', image: '', command: '', cpu: '', memory: '', disk: '', env: [], network: '', allow: '', deny: '', secrets: '', volumes: [], timeout: '', idleTimeout: '', idlePolicy: '', labels: [], count: '' };

it('leaves empty fields to the template, and reads the others', () => {
  expect(createRequest(EMPTY)).toEqual({ request: {}, errors: {} });
  const { request, errors } = createRequest({ ...EMPTY, name: ' web ', cpu: '0.5', memory: '256MiB', timeout: '2h', command: 'echo hi', env: [['A', 'it\'s'], ['', '']], count: '1' });
  expect(errors).toEqual({});
  expect(request).toEqual({ name: 'web', resources: { cpu_millis: 500, memory_bytes: 256 << 20 }, timeout_seconds: 7200, args: ['sh', '-c', 'echo hi'], env: { A: 'it\'s' } });
});

it('names the field of an error', () => {
  expect(createRequest({ ...EMPTY, memory: 'much', labels: [['', 'x']] }).errors).toMatchObject({ memory: expect.stringContaining('512MiB'), labels: 'A label has no name.' });
  const refused = (body: object): ApiError => new ApiError(409, body);
  expect(refusedField(refused({ quota: { quota: 'memory_bytes', limit: 1, used: 0, requested: 2 } }))).toBe('memory');
  expect(refusedField(refused({ code: 'already_exists', detail: 'x' }))).toBe('name');
  expect(refusedField(refused({ detail: 'the server is full' }))).toBeNull();
});

it('shows the same as code', () => {
  const { request } = createRequest({ ...EMPTY, name: 'a', labels: [['team', 'it\'s']], count: '2' });
  expect(asCurl(request, 'http://h', true)).toContain('x-api-key: $ARENITE_API_KEY');
  expect(asCommand(request)).toBe('arenite create a \\\n  --label \'team=it\'\\\'\'s\' \\\n  --count 2');
  expect(asPython(request, 'http://h', false)).toContain('for n in range(2)');
  expect(asTypeScript(request, 'http://h', false)).toContain('name: `a-${n}`');
});

it('has the network, secrets, and volumes, also as code', () => {
  const form: CreateForm = { ...EMPTY, network: 'allowlist', allow: 'pypi.org\n{"host":"a.example","methods":["GET"]}\n', deny: '10.0.0.0/8', secrets: 'a,b', volumes: [['data/sets', '/data:ro'], ['', ''], ['out', '/out']] };
  const { request, errors } = createRequest(form);
  expect(errors).toEqual({});
  expect(request).toEqual({
    network: { mode: 'allowlist', allow: ['pypi.org', { host: 'a.example', methods: ['GET'] }], deny: ['10.0.0.0/8'] }, secrets: ['a', 'b'],
    volumes: [{ name: 'data', path: '/data', sub_path: 'sets', read_only: true }, { name: 'out', path: '/out' }],
  });
  expect(asCommand(request)).toContain('--network allowlist \\\n  --allow pypi.org \\\n  --allow \'{"host":"a.example","methods":["GET"]}\' \\\n  --deny 10.0.0.0/8 \\\n  --secret a \\\n  --secret b \\\n  --volume data/sets:/data:ro');
  expect(asPython(request, 'http://h', false)).toContain('volumes=[{"name": "data", "path": "/data", "sub_path": "sets", "read_only": True}, {"name": "out", "path": "/out"}]');
  // Rules of another mode are not sent.
  expect(createRequest({ ...form, network: 'observe' }).request.network).toEqual({ mode: 'observe', deny: ['10.0.0.0/8'] });
  expect(createRequest({ ...form, network: 'none' }).request.network).toBe('none');
  const wrong = createRequest({ ...form, allow: '{"host":', volumes: [['data', ''], ['', '/out']] }).errors;
  expect(wrong).toEqual({ allow: expect.stringContaining('JSON'), volumes: '/out has no volume.' });
});
