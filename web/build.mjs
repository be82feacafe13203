// Builds each page's script and style into dist/, each also compressed. The server names them by their hashes in the page's
// policy, so each page has one of each and nothing is loaded besides.

import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { brotliCompressSync, constants, gzipSync } from 'node:zlib';

import { build } from 'vite';

import { esbuild } from './vite.config.mjs';

const here = fileURLToPath(new URL('.', import.meta.url));
await mkdir(`${here}dist`, { recursive: true });
for (const page of ['console', 'dashboard', 'viewer', 'docs']) {
  const built = await build({
    root: here,
    configFile: false,
    logLevel: 'warn',
    esbuild,
    build: {
      write: false,
      target: 'es2022',
      cssTarget: 'chrome123',
      modulePreload: false,
      rollupOptions: { input: `${here}src/${page}.tsx`, output: { format: 'es', entryFileNames: `${page}.js`, assetFileNames: `${page}[extname]` } },
    },
  });
  for (const file of built.output) {
    const text = file.type === 'chunk' ? file.code : file.source;
    const path = `${here}dist/${file.fileName}`;
    // What stays the same is left alone: cargo looks at its time.
    if ((await readFile(path, 'utf8').catch(() => '')) === text && (await readFile(`${path}.br`).catch(() => null))) continue;
    await writeFile(path, text);
    await writeFile(`${path}.gz`, gzipSync(text, { level: 9 }));
    await writeFile(`${path}.br`, brotliCompressSync(text, { params: { [constants.BROTLI_PARAM_MODE]: constants.BROTLI_MODE_TEXT } }));
  }
}
