/** Groups of sandboxes. */

import type { Client } from "./client.js";
import { randomId } from "./random.js";
import type { Sandbox, SandboxBatch } from "./sandbox.js";
import type { CreateSandbox, DeletedGroup, GroupInfo } from "./types.js";

const PATH = "/api/v2/groups";

/** The groups of the key's tenant. */
export class Groups {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /**
   * Creates a group. `ttlSeconds` is the length of its lease: without `renew` in this time, the server deletes the group with its
   * sandboxes.
   */
  async create(options: { name?: string; ttlSeconds?: number; idempotencyKey?: string } = {}): Promise<Group> {
    const { name, ttlSeconds: ttl_seconds, idempotencyKey = randomId() } = options;
    return new Group(this.#client, await this.#client.request("POST", PATH, { json: { name, ttl_seconds }, idempotencyKey }));
  }

  /** Finds a group by its name. */
  async get(name: string): Promise<Group> {
    return new Group(this.#client, await this.#client.request("GET", `${PATH}/${encodeURIComponent(name)}`));
  }

  /** Lists groups. */
  async *list(): AsyncGenerator<Group, void, undefined> {
    for await (const info of this.#client.pages<GroupInfo>(PATH, "groups")) yield new Group(this.#client, info);
  }
}

/** Sandboxes with one lease, which end together. */
export class Group {
  /** As of the last call that returned it. */
  info: GroupInfo;
  readonly #client: Client;

  constructor(client: Client, info: GroupInfo) {
    this.#client = client;
    this.info = info;
  }

  get name(): string {
    return this.info.name;
  }

  /** Creates a sandbox in the group. */
  create(spec: CreateSandbox = {}): Promise<Sandbox> {
    return this.#client.sandboxes.create({ ...spec, group: this.name });
  }

  /** Creates equal sandboxes in the group; see `Sandboxes.createMany`. */
  createMany(count: number, spec: CreateSandbox = {}, options: { atLeast?: number } = {}): Promise<SandboxBatch> {
    return this.#client.sandboxes.createMany(count, { ...spec, group: this.name }, options);
  }

  /** Lists its sandboxes. */
  sandboxes(): AsyncGenerator<Sandbox, void, undefined> {
    return this.#client.sandboxes.list({ group: this.name });
  }

  /** Starts its lease again, with another length if `ttlSeconds` is set. */
  async renew(ttlSeconds?: number): Promise<GroupInfo> {
    return (this.info = await this.#client.request("POST", `${this.#path}/renew`, { json: { ttl_seconds: ttlSeconds } }));
  }

  /** Deletes it with its sandboxes. */
  delete(): Promise<DeletedGroup> {
    return this.#client.request("DELETE", this.#path);
  }

  get #path(): string {
    return `${PATH}/${encodeURIComponent(this.name)}`;
  }
}
