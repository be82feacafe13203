/** Files of a sandbox. */

import { ConnectionFailed, NotFound } from "./errors.js";
import type { Sandbox } from "./sandbox.js";
import type { FileChange, FileInfo } from "./types.js";

export interface WatchOptions {
  /** Also what lies in directories, at any depth; true by default. */
  recursive?: boolean;
  /** Globs of what is reported; empty: everything. */
  include?: string[];
  /** Names and globs of what is not watched, instead of the default. */
  exclude?: string[];
}

/** Files of a sandbox. Paths are absolute. */
export class Files {
  readonly #sandbox: Sandbox;

  constructor(sandbox: Sandbox) {
    this.#sandbox = sandbox;
  }

  /** The text of a file, in UTF-8. */
  async read(path: string): Promise<string> {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await this.readBytes(path));
  }

  async readBytes(path: string): Promise<Uint8Array> {
    const read = async (response: Response) => new Uint8Array(await response.arrayBuffer());
    return this.#sandbox.client.send(this.#download(path), read);
  }

  /** The content of a file, as it arrives. */
  stream(path: string): Promise<ReadableStream<Uint8Array>> {
    return this.#sandbox.client.stream(this.#download(path));
  }

  /** Writes a file, and creates the directories above it. `upload` is for bytes and for large files. */
  async write(path: string, content: string, { append = false } = {}): Promise<void> {
    await this.#sandbox.request("POST", "/v1/file/write", { json: { file: path, content, append } });
  }

  /** The content of a directory. */
  async list(path: string, { recursive = false } = {}): Promise<FileInfo[]> {
    const found = await this.#sandbox.request<{ files: FileInfo[] }>("POST", "/v1/file/list", { json: { path, recursive } });
    return found.files;
  }

  /** Copies bytes to a file in the sandbox. In Node.js, `openAsBlob` of `node:fs` opens a local file. */
  async upload(content: Blob | BufferSource | string, path: string): Promise<void> {
    const form = new FormData();
    form.append("path", path);
    form.append("file", content instanceof Blob ? content : new Blob([content]), "file");
    await this.#sandbox.client.call({ method: "POST", path: `${this.#sandbox.path}/v1/file/upload`, form });
  }

  /** Watches a file or directory. Iterate over the result, and close it. */
  async watch(path: string, options: WatchOptions = {}): Promise<FileWatch> {
    const json = {
      path,
      recursive: options.recursive ?? true,
      include_patterns: options.include ?? [],
      ...(options.exclude === undefined ? {} : { exclude: options.exclude }),
    };
    const made = await this.#sandbox.request<{ watcher_id: string }>("POST", "/v1/file/watch", { json });
    return new FileWatch(this.#sandbox, made.watcher_id);
  }

  #download(path: string) {
    return { method: "GET", path: `${this.#sandbox.path}/v1/file/download`, params: { path } };
  }
}

/** Changes of files. Iterating over it waits for them. The end of the loop closes it. */
export class FileWatch implements AsyncIterable<FileChange> {
  readonly #sandbox: Sandbox;
  readonly #path: string;

  constructor(sandbox: Sandbox, id: string) {
    this.#sandbox = sandbox;
    this.#path = `/v1/file/watch/${encodeURIComponent(id)}`;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<FileChange, void, undefined> {
    try {
      const path = `${this.#sandbox.path}${this.#path}/events`;
      for await (const event of this.#sandbox.client.events({ method: "GET", path })) {
        if (event.name === "file_change") yield event.data as FileChange;
        else if (event.name === "overflow") {
          throw new ConnectionFailed("changes were lost, because they were read too slowly; read the files again");
        }
      }
    } finally {
      await this.close();
    }
  }

  async close(): Promise<void> {
    try {
      await this.#sandbox.request("DELETE", this.#path);
    } catch (error) {
      if (!(error instanceof NotFound)) throw error;
    }
  }
}
