/** Snapshots: named states of sandboxes' disks. */

import type { Client } from "./client.js";
import type { FileEntry, SnapshotInfo } from "./types.js";

const PATH = "/api/v2/snapshots";

/** The snapshots of a tenant. */
export class Snapshots {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /** Seals the disk of a sandbox under a name, without waking it. */
  create(
    name: string,
    sandbox: string,
    options: { labels?: Record<string, string>; note?: string; keep_processes?: boolean } = {},
  ): Promise<SnapshotInfo> {
    return this.#client.request("POST", PATH, { json: { name, sandbox, ...options } });
  }

  get(name: string): Promise<SnapshotInfo> {
    return this.#client.request("GET", `${PATH}/${encodeURIComponent(name)}`);
  }

  /** Lists snapshots, page by page. */
  list(): AsyncGenerator<SnapshotInfo, void, undefined> {
    return this.#client.pages<SnapshotInfo>(PATH, "snapshots", { limit: 100 });
  }

  /** Removes a snapshot. Sandboxes that were created from it stay. */
  async delete(name: string): Promise<void> {
    await this.#client.request("DELETE", `${PATH}/${encodeURIComponent(name)}`);
  }

  /** Lists a directory of a snapshot. No sandbox is needed. */
  files(name: string, path = ""): AsyncGenerator<FileEntry, void, undefined> {
    return this.#client.pages<FileEntry>(`${PATH}/${encodeURIComponent(name)}/files`, "files", { path });
  }

  /** The text of a file of a snapshot, in UTF-8. */
  async read(name: string, path: string): Promise<string> {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await this.readBytes(name, path));
  }

  async readBytes(name: string, path: string): Promise<Uint8Array> {
    const read = async (response: Response) => new Uint8Array(await response.arrayBuffer());
    return this.#client.send(content(name, path), read);
  }

  /** The content of a file of a snapshot, as it arrives. */
  stream(name: string, path: string): Promise<ReadableStream<Uint8Array>> {
    return this.#client.stream(content(name, path));
  }

  /** A snapshot with its image, an OCI image layout in a tar, as it arrives. Processes that it keeps are left out. */
  export(name: string): Promise<ReadableStream<Uint8Array>> {
    return this.#client.stream({ method: "GET", path: `${PATH}/${encodeURIComponent(name)}/archive` });
  }

  /** Adds the snapshot of a file that was exported. `name` is that of the new snapshot, by default that of the exported one. */
  import(archive: Blob, options: { name?: string } = {}): Promise<SnapshotInfo> {
    return this.#client.call({ method: "POST", path: `${PATH}/import`, params: { name: options.name }, body: archive });
  }
}

function content(name: string, path: string) {
  return { method: "GET", path: `${PATH}/${encodeURIComponent(name)}/content`, params: { path } };
}
