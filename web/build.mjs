// Builds each page's script and style into dist/. The server puts them into the page, and names them by their hashes in
// its policy, so each page has one of each and nothing is loaded besides.

import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { build } from 'vite';

const here = fileURLToPath(new URL('.', import.meta.url));
await mkdir(`${here}dist`, { recursive: true });
for (const page of ['console', 'dashboard', 'viewer']) {
  const built = await build({
    root: here,
    configFile: false,
    logLevel: 'warn',
    build: {
      write: false,
      target: 'es2022',
      cssTarget: 'chrome123',
      modulePreload: false,
      rollupOptions: { input: `${here}src/${page}.ts`, output: { format: 'es', entryFileNames: `${page}.js`, assetFileNames: `${page}[extname]` } },
    },
  });
  for (const file of built.output) {
    const text = file.type === 'chunk' ? file.code : file.source;
    const path = `${here}dist/${file.fileName}`;
    // What stays the same is left alone: cargo looks at its time.
    if ((await readFile(path, 'utf8').catch(() => '')) !== text) await writeFile(path, text);
  }
}
