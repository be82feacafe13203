// The settings of the build, of the tests, and of the development server: `ARENITE=http://127.0.0.1:8080 npm run dev`.

import { readFile } from 'node:fs/promises';

import { defineConfig } from 'vitest/config';

export const esbuild = { jsx: 'automatic', jsxImportSource: 'preact' };

const server = process.env.ARENITE ?? 'http://127.0.0.1:8080';
const proxied = ['/api', '/v1', '/openapi.json', '/docs', '/login', '/logout', '/sandbox', '/metrics', '/trajectories', '/trajectory', '/static'];

/** Serves the console in development, with the marks that the server fills in. */
const consolePage = {
  name: 'console',
  configureServer({ middlewares, transformIndexHtml }) {
    middlewares.use(async (request, response, next) => {
      if (request.url !== '/') return next();
      const page = await readFile(new URL('console.html', import.meta.url), 'utf8');
      const marks = { '{KEYS}': 'required', '/*SCRIPT*/': '', '<link rel="stylesheet" href="{STYLE}" integrity="{STYLE_HASH}">': '', '{SCRIPT}" integrity="{SCRIPT_HASH}': '/src/console.tsx' };
      const html = Object.entries(marks).reduce((text, [mark, word]) => text.replace(mark, word), page);
      response.setHeader('content-type', 'text/html').end(await transformIndexHtml('/', html));
    });
  },
};

export default defineConfig({
  esbuild,
  appType: 'mpa',
  plugins: [consolePage],
  // Tests read the golden documents.
  server: { fs: { allow: ['.', '../crates/gateway/golden'] }, proxy: Object.fromEntries(proxied.map(path => [path, { target: server, ws: true }])) },
  test: { environment: 'happy-dom', include: ['src/**/*.test.{ts,tsx}'], restoreMocks: true },
});
