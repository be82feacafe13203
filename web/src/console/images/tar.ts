// A tar of files that a person chose, as the context of a build. The files are not read: the browser does that when it sends them.

export interface TarFile {
  path: string;
  content: Blob | string;
}

const BLOCK = 512;
/** As Docker does where files have no modes: all can be run. */
const MODE = 0o755;
const encoder = new TextEncoder();

function header(path: Uint8Array, size: number, kind: '0' | 'x'): Uint8Array<ArrayBuffer> {
  const block = new Uint8Array(BLOCK);
  const put = (at: number, text: string): void => { block.set(encoder.encode(text), at); };
  const octal = (value: number, width: number): string => `${value.toString(8).padStart(width - 1, '0')}\0`;
  block.set(path.subarray(0, 100));
  put(100, octal(MODE, 8));
  put(108, octal(0, 8));
  put(116, octal(0, 8));
  put(124, octal(size, 12));
  // The same files are the same context, whenever they were changed.
  put(136, octal(0, 12));
  put(148, '        ');
  put(156, kind);
  put(257, 'ustar\x0000');
  put(148, `${block.reduce((sum, byte) => sum + byte, 0).toString(8).padStart(6, '0')}\0 `);
  return block;
}

function padding(size: number): Uint8Array<ArrayBuffer> {
  return new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK);
}

/** A record `LENGTH path=PATH\n`, with its own length. */
function paxPath(path: string): Uint8Array<ArrayBuffer> {
  const rest = encoder.encode(` path=${path}\n`).length;
  let length = rest + 1;
  while (length !== rest + String(length).length) length = rest + String(length).length;
  return encoder.encode(`${length} path=${path}\n`);
}

export function tar(files: readonly TarFile[]): Blob {
  const parts: BlobPart[] = [];
  for (const { path, content } of files) {
    const blob = typeof content === 'string' ? new Blob([content]) : content;
    const name = encoder.encode(path);
    if (name.length > 100 || name.length !== path.length) {
      const record = paxPath(path);
      parts.push(header(encoder.encode('pax'), record.length, 'x'), record, padding(record.length));
    }
    parts.push(header(name, blob.size, '0'), blob, padding(blob.size));
  }
  parts.push(new Uint8Array(2 * BLOCK));
  return new Blob(parts, { type: 'application/x-tar' });
}

/** The files of a chosen folder, by their paths in it. */
export function folderFiles(files: Iterable<File>): TarFile[] {
  return [...files].map(file => ({ path: (file.webkitRelativePath || file.name).split('/').slice(file.webkitRelativePath ? 1 : 0).join('/'), content: file }));
}
