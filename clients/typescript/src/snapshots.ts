/** Snapshots: named states of sandboxes' disks. */

import type { Client } from "./client.js";
import type { SnapshotInfo } from "./types.js";

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
    return this.#client.request("POST", "/api/v2/snapshots", { json: { name, sandbox, ...options } });
  }

  get(name: string): Promise<SnapshotInfo> {
    return this.#client.request("GET", `/api/v2/snapshots/${encodeURIComponent(name)}`);
  }

  /** Lists snapshots, page by page. */
  list(): AsyncGenerator<SnapshotInfo, void, undefined> {
    return this.#client.pages<SnapshotInfo>("/api/v2/snapshots", "snapshots", { limit: 100 });
  }

  /** Removes a snapshot. Sandboxes that were created from it stay. */
  async delete(name: string): Promise<void> {
    await this.#client.request("DELETE", `/api/v2/snapshots/${encodeURIComponent(name)}`);
  }
}
