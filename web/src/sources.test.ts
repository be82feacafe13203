import { expect, it } from 'vitest';

const sources = import.meta.glob('./**/*.{ts,tsx,css}', { query: '?raw', import: 'default', eager: true }) as Record<string, string>;
const migrated = Object.entries(sources).filter(([path]) => !path.endsWith('.test.ts') && !path.endsWith('.test.tsx'));

it('nothing becomes markup, and nothing is loaded from elsewhere', () => {
  expect(migrated.length).toBeGreaterThan(40);
  for (const [path, text] of migrated) {
    for (const bad of ['innerHTML', 'outerHTML', 'insertAdjacentHTML', 'document.write', 'dangerouslySet', 'eval(', 'new Function']) {
      expect(text.includes(bad), `${path} has ${bad}`).toBe(false);
    }
    expect(/@import\s+["']?https?:|url\(["']?https?:/.test(text), `${path} loads from elsewhere`).toBe(false);
  }
});

it('colours are only in the tokens', () => {
  const styles = migrated.filter(([path]) => /\/(design|ui|shell|console)\//.test(path) && !path.endsWith('tokens.css'));
  for (const [path, text] of styles) {
    const found = text.match(/(?<![&\w])#[0-9a-f]{6}\b/gi) ?? [];
    expect(found, path).toEqual([]);
  }
});

const documents = import.meta.glob('../../crates/gateway/golden/*openapi.json', { query: '?raw', import: 'default', eager: true }) as Record<string, string>;
const described = new Set(Object.values(documents).flatMap(text => Object.keys((JSON.parse(text) as { paths: object }).paths)));
const patterns = [...described].map(path => new RegExp(`^${path.replace(/[.]/g, '\\.').replace(/\{\w+\}/g, '[^/]+')}$`));
/** Addresses that are in no document: pages, the documents themselves, and pages of programs in a sandbox. */
const PAGES = /^\/($|trajector(ies|y\/\{\})$|(v1|api\/v2)\/(docs|openapi\.json)|api\/v2\/docs\/errors$|openapi\.json$|proxy\/)/;
/** Texts about calls, which are not made. */
const TEXTS = ['./viewer/step.ts', './viewer/names.ts', './docs/openapi.ts', './docs/agent_sandbox.ts', './console/sandboxes/create_request.ts'];

it('pages call only what the OpenAPI documents have', () => {
  expect(described.size).toBeGreaterThan(200);
  let found = 0;
  const unknown: string[] = [];
  for (const [path, text] of migrated.filter(([path]) => !TEXTS.includes(path) && !path.endsWith('.css'))) {
    const literals = [
      ...text.matchAll(/(['`])(\/?(?:api\/v\d|v1)\/[^'`\n]*)\1/g),
      ...text.matchAll(/\b(?:request|address|requestAddress|Stream|EventSource|fetch)\((['`])([^'`\n]*)\1/g),
    ];
    for (const [, , literal] of literals) {
      const called = `/${literal!.replace(/^\//, '').replace(/\$?\{[^}]*\}/g, '{}').replace(/\?.*$/, '')}`;
      found++;
      if (!patterns.some(pattern => pattern.test(called)) && !PAGES.test(called)) unknown.push(`${path} calls ${called}`);
    }
  }
  expect(unknown).toEqual([]);
  expect(found).toBeGreaterThan(60);
});
