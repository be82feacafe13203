/** Volumes: storage that outlives sandboxes, and that several of them mount. */

import type { Client } from "./client.js";
import { randomId } from "./random.js";
import type { FileEntry, RemovedFile, RemovedVolume, VolumeInfo } from "./types.js";

const PATH = "/api/v2/volumes";

export interface VolumeOptions {
  /** What it may hold; 10 GiB by default. Of a copy: as much as the other volume. */
  sizeBytes?: number;
  labels?: Record<string, string>;
  idempotencyKey?: string;
}

export interface NewVolumeOptions extends VolumeOptions {
  /** Keeps its files in this bucket, which the operator declared. */
  bucket?: string;
}

/** The volumes of the key's tenant. */
export class Volumes {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /** Creates an empty volume. Sandboxes mount it by `volumes: [{ name, path }]`. */
  async create(name: string, options: NewVolumeOptions = {}): Promise<Volume> {
    return add(this.#client, PATH, name, options);
  }

  /** Finds a volume by its name. */
  async get(name: string): Promise<Volume> {
    return new Volume(this.#client, await this.#client.request("GET", `${PATH}/${encodeURIComponent(name)}`));
  }

  /** Lists volumes. */
  async *list(): AsyncGenerator<Volume, void, undefined> {
    for await (const info of this.#client.pages<VolumeInfo>(PATH, "volumes")) yield new Volume(this.#client, info);
  }
}

/** A volume, with its files. Their paths are relative to its top. */
export class Volume {
  /** As of the last call that returned it. */
  info: VolumeInfo;
  readonly #client: Client;

  constructor(client: Client, info: VolumeInfo) {
    this.#client = client;
    this.info = info;
  }

  get name(): string {
    return this.info.name;
  }

  /** Describes it as it is now. */
  async refresh(): Promise<VolumeInfo> {
    return (this.info = await this.#client.request("GET", this.#path));
  }

  /** Changes its size and its labels. A label with the value null is removed. */
  async set(change: { sizeBytes?: number; labels?: Record<string, string | null> }): Promise<VolumeInfo> {
    const json = { size_bytes: change.sizeBytes, labels: change.labels };
    return (this.info = await this.#client.request("PATCH", this.#path, { json }));
  }

  /** Creates a copy of it at once: they share their files until one of them changes. */
  async copy(name: string, options: VolumeOptions = {}): Promise<Volume> {
    return add(this.#client, `${this.#path}/copy`, name, options);
  }

  /** Removes it with its files. `force` also takes it from sandboxes that have ended. */
  delete({ force = false } = {}): Promise<RemovedVolume> {
    return this.#client.request("DELETE", this.#path, force ? { params: { force } } : {});
  }

  /** Lists a directory. */
  files(path = ""): AsyncGenerator<FileEntry, void, undefined> {
    return this.#client.pages<FileEntry>(`${this.#path}/files`, "files", { path });
  }

  /** The text of a file, in UTF-8. */
  async read(path: string): Promise<string> {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await this.readBytes(path));
  }

  async readBytes(path: string): Promise<Uint8Array> {
    const read = async (response: Response) => new Uint8Array(await response.arrayBuffer());
    return this.#client.send(this.#download(path), read);
  }

  /** The content of a file, as it arrives. */
  stream(path: string): Promise<ReadableStream<Uint8Array>> {
    return this.#client.stream(this.#download(path));
  }

  /** Writes a file, and creates the directories above it. The file appears when it is complete. */
  write(path: string, content: Blob | BufferSource | string): Promise<FileEntry> {
    const body = content instanceof Blob ? content : new Blob([content]);
    return this.#client.call({ method: "PUT", path: `${this.#path}/content`, params: { path, create_parents: true }, body });
  }

  /** Removes a file or an empty directory; with `recursive`, a directory with its content. */
  remove(path: string, { recursive = false } = {}): Promise<RemovedFile> {
    return this.#client.request("DELETE", `${this.#path}/content`, { params: { path, recursive } });
  }

  #download(path: string) {
    return { method: "GET", path: `${this.#path}/content`, params: { path } };
  }

  get #path(): string {
    return `${PATH}/${encodeURIComponent(this.name)}`;
  }
}

async function add(client: Client, path: string, name: string, options: NewVolumeOptions): Promise<Volume> {
  const { sizeBytes: size_bytes, bucket, labels, idempotencyKey = randomId() } = options;
  const json = { name, size_bytes, bucket, labels };
  return new Volume(client, await client.request("POST", path, { json, idempotencyKey }));
}
