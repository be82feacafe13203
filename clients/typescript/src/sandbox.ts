/** Sandboxes. */

import { Browser } from "./browser.js";
import { Client, type Params, type RequestOptions } from "./client.js";
import { Code } from "./code.js";
import { BashSession, type CommandResult, type Process, type RunOptions, type SpawnOptions } from "./commands.js";
import { Files } from "./files.js";
import { randomId } from "./random.js";
import { Trajectory } from "./trajectory.js";
import type {
  BashSessionInfo,
  CheckpointInfo,
  CreatedSandboxes,
  CreateSandbox,
  Differences,
  FailedCreate,
  ForkSandbox,
  HistoryInfo,
  NetworkInfo,
  NetworkRequest,
  PauseKind,
  RolledBack,
  SandboxInfo,
  SandboxUsage,
  SnapshotInfo,
} from "./types.js";

/** A create may wait for an image. */
const CREATE_TIMEOUT_MS = 240_000;
/** How much longer an answer may take than the work itself. */
const MARGIN_MS = 30_000;

/** The sandboxes of a server that the key may see. */
export class Sandboxes {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /**
   * Creates a sandbox. If the answer is lost, the request is repeated with the same key, and the server answers with the sandbox
   * that the first one created.
   */
  async create(spec: CreateSandbox = {}, options: { idempotencyKey?: string } = {}): Promise<Sandbox> {
    const info = await this.#client.call<SandboxInfo>({
      method: "POST",
      path: "/api/v2/sandboxes",
      json: spec,
      timeoutMs: CREATE_TIMEOUT_MS,
      idempotencyKey: options.idempotencyKey ?? randomId(),
    });
    return new Sandbox(this.#client, info);
  }

  /**
   * Creates equal sandboxes, from 1 to 100, named `NAME-0` and so on. If fewer than `atLeast` can be created, none are; by default
   * all must be.
   */
  async createMany(
    count: number,
    spec: CreateSandbox = {},
    options: { atLeast?: number; idempotencyKey?: string } = {},
  ): Promise<SandboxBatch> {
    const created = await this.#client.call<CreatedSandboxes>({
      method: "POST",
      path: "/api/v2/sandboxes",
      json: { ...spec, count, min: options.atLeast },
      timeoutMs: CREATE_TIMEOUT_MS,
      idempotencyKey: options.idempotencyKey ?? randomId(),
    });
    return { sandboxes: created.sandboxes.map((info) => new Sandbox(this.#client, info)), errors: created.errors };
  }

  /** Finds a sandbox by its name. */
  async get(name: string): Promise<Sandbox> {
    return new Sandbox(this.#client, await this.#client.request("GET", `/api/v2/sandboxes/${encodeURIComponent(name)}`));
  }

  /** Lists sandboxes, page by page. Filters are parameters of `GET /api/v2/sandboxes`, such as `label: "team=red"`. */
  async *list(filters: Params = {}): AsyncGenerator<Sandbox, void, undefined> {
    const pages = this.#client.pages<SandboxInfo>("/api/v2/sandboxes", "sandboxes", { limit: 100, ...filters });
    for await (const info of pages) yield new Sandbox(this.#client, info);
  }
}

/** The sandboxes of one create. */
export interface SandboxBatch {
  sandboxes: Sandbox[];
  /** Why the others could not be created. */
  errors: FailedCreate[];
}

/** How a sandbox returns to an earlier state. */
export interface ReturnOptions {
  /** True starts its main command again, and false nothing. By default, processes that the state keeps go on, or it starts again. */
  restart?: boolean;
}

/** A sandbox: a computer with a shell, files, code, and a browser. */
export class Sandbox {
  /** As of the last call that returned it; `refresh` renews it. */
  info: SandboxInfo;
  readonly files: Files;
  readonly code: Code;
  readonly browser: Browser;
  /** What was done in it. */
  readonly trajectory: Trajectory;

  constructor(
    readonly client: Client,
    info: SandboxInfo,
  ) {
    this.info = info;
    this.files = new Files(this);
    this.code = new Code(this);
    this.browser = new Browser(this);
    this.trajectory = new Trajectory(client, info.id);
  }

  /** Creates a sandbox. Without `client`, it uses the default server. */
  static create(spec: CreateSandbox = {}, client = new Client()): Promise<Sandbox> {
    return client.sandboxes.create(spec);
  }

  /** Finds a sandbox by its name. */
  static get(name: string, client = new Client()): Promise<Sandbox> {
    return client.sandboxes.get(name);
  }

  /** Lists sandboxes, page by page. */
  static list(filters: Params = {}, client = new Client()): AsyncGenerator<Sandbox, void, undefined> {
    return client.sandboxes.list(filters);
  }

  get id(): string {
    return this.info.id;
  }

  get name(): string {
    return this.info.name;
  }

  /** As of the last call that returned them. */
  get labels(): Readonly<Record<string, string>> {
    return this.info.spec.labels ?? {};
  }

  /** Its address, to which the paths of its API are appended. */
  get url(): string {
    return this.client.baseUrl + this.path;
  }

  /** Its address for clients of the Model Context Protocol. */
  get mcpUrl(): string {
    return `${this.url}/mcp`;
  }

  /** The address of an HTTP server on a port of the sandbox's loopback. */
  previewUrl(port: number): string {
    return `${this.url}/proxy/${port}/`;
  }

  /** Calls any route of the sandbox's own API, such as `POST /v1/shell/exec`, and returns the data of the answer. */
  request<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
    return this.client.request(method, this.path + path, options);
  }

  /** Runs a command with bash, and returns its output when it has ended. */
  run(command: string, options: RunOptions = {}): Promise<CommandResult> {
    return new BashSession(this, undefined).run(command, options);
  }

  /** Starts a command, to read its output while it runs, and to write to its standard input. */
  spawn(command: string, options: SpawnOptions = {}): Promise<Process> {
    return new BashSession(this, undefined).spawn(command, options);
  }

  /** Creates a session of commands that share a default directory. */
  async bash(options: { cwd?: string } = {}): Promise<BashSession> {
    const json = options.cwd === undefined ? {} : { exec_dir: options.cwd };
    const made = await this.request<BashSessionInfo>("POST", "/v1/bash/sessions/create", { json });
    return new BashSession(this, made.session_id);
  }

  async refresh(): Promise<SandboxInfo> {
    return (this.info = await this.client.request("GET", this.#api));
  }

  /** Pauses it until its next call. `disk` ends its processes and keeps its files; `freeze`, the default, keeps both. */
  pause(kind?: PauseKind): Promise<SandboxInfo> {
    return this.#post("pause", kind === undefined ? {} : { kind });
  }

  resume(): Promise<SandboxInfo> {
    return this.#post("resume");
  }

  /** Runs it again with its files after it failed or was lost. */
  start(): Promise<SandboxInfo> {
    return this.#post("start");
  }

  /** Adds to its lifetime. If no answer comes, look at the `expires_at` of `refresh()` before you repeat it. */
  extend(seconds: number): Promise<SandboxInfo> {
    return this.#post("extend", { seconds });
  }

  /** Sets its lifetime from now on; null: unlimited. */
  setTimeout(seconds: number | null): Promise<SandboxInfo> {
    return this.#change({ expires_in_seconds: seconds });
  }

  /** Changes labels; null removes one. */
  setLabels(labels: Record<string, string | null>): Promise<SandboxInfo> {
    return this.#change({ labels });
  }

  /** What it may reach, and what it reached or was refused. */
  network(): Promise<NetworkInfo> {
    return this.client.request("GET", `${this.#api}/network`);
  }

  /** Replaces what it may reach, while it runs: a mode, or one with rules, such as `{mode: "allowlist", allow: ["pypi.org"]}`. */
  setNetwork(network: NetworkRequest, closeOpen = false): Promise<SandboxInfo> {
    return this.#change({ network, close_open: closeOpen });
  }

  /** Deletes it with its files. Its trajectory stays. */
  async delete(): Promise<void> {
    await this.client.request("DELETE", this.#api);
  }

  /** Seals its disk as a checkpoint of its history, without waking it. The tiers `gvisor` and `machine` can keep its processes, too. */
  checkpoint(note?: string, options: { keep_processes?: boolean } = {}): Promise<CheckpointInfo> {
    const json = { ...(note === undefined ? {} : { note }), ...options };
    return this.client.request("POST", `${this.#api}/checkpoints`, { json });
  }

  /** Its checkpoints, the oldest first. */
  history(): Promise<HistoryInfo> {
    return this.client.request("GET", `${this.#api}/history`, { params: { limit: 1000 } });
  }

  /** Removes a checkpoint, by number or id. */
  async deleteCheckpoint(checkpoint: number | string): Promise<void> {
    await this.client.request("DELETE", `${this.#api}/checkpoints/${encodeURIComponent(String(checkpoint))}`);
  }

  /** Returns its disk to a checkpoint, by number or id, or to its `beginning`. All its processes end. */
  rollback(to: number | string, options: ReturnOptions = {}): Promise<RolledBack> {
    return this.#return("rollback", { to: String(to) }, options);
  }

  /** Returns its disk to what it was created with, or to a snapshot of the same image. All its processes end. */
  reset(options: ReturnOptions & { snapshot?: string } = {}): Promise<RolledBack> {
    return this.#return("reset", { snapshot: options.snapshot }, options);
  }

  /** Compares two states of its disk by path: checkpoints by number or id, `beginning`, or `current`. */
  diff(before: number | string = "beginning", after: number | string = "current", limit = 1000): Promise<Differences> {
    return this.client.request("GET", `${this.#api}/diff`, { params: { before, after, limit } });
  }

  /** Creates sandboxes with its disk and its spec, from 1 to 100. `spec` has what differs. */
  async fork(count = 1, spec: Omit<ForkSandbox, "count"> = {}): Promise<SandboxBatch> {
    const path = `${this.#api}/fork`;
    const json = { ...spec, count };
    const forked = await this.client.call<CreatedSandboxes>({ method: "POST", path, json, timeoutMs: CREATE_TIMEOUT_MS });
    return { sandboxes: forked.sandboxes.map((info) => new Sandbox(this.client, info)), errors: forked.errors };
  }

  /** Seals its disk as a snapshot, from which sandboxes are created with `snapshot` in their spec. */
  snapshot(
    name: string,
    options: { labels?: Record<string, string>; note?: string; keep_processes?: boolean } = {},
  ): Promise<SnapshotInfo> {
    return this.client.snapshots.create(name, this.name, options);
  }

  /** Measures its use of memory, processor, and disk. */
  usage(): Promise<SandboxUsage> {
    return this.client.request("GET", `${this.#api}/usage`);
  }

  /** The output of its main command. */
  async logs(): Promise<string> {
    return new TextDecoder().decode(await this.client.request<Uint8Array>("GET", `${this.#api}/logs`));
  }

  /** @internal */
  get path(): string {
    return `/sandbox/${encodeURIComponent(this.name)}`;
  }

  /** @internal */
  work<T>(path: string, json: unknown, milliseconds: number): Promise<T> {
    return this.client.call({ method: "POST", path: this.path + path, json, timeoutMs: milliseconds + MARGIN_MS });
  }

  get #api(): string {
    return `/api/v2/sandboxes/${encodeURIComponent(this.name)}`;
  }

  async #return(action: string, json: Record<string, unknown>, options: ReturnOptions): Promise<RolledBack> {
    const processes = options.restart === undefined ? undefined : options.restart ? "restart" : "end";
    const path = `${this.#api}/${action}`;
    const returned = await this.client.request<RolledBack>("POST", path, { json: { ...json, processes } });
    this.info = returned.sandbox;
    return returned;
  }

  async #change(json: Record<string, unknown>): Promise<SandboxInfo> {
    return (this.info = await this.client.request("PATCH", this.#api, { json }));
  }

  async #post(action: string, json: Record<string, unknown> = {}): Promise<SandboxInfo> {
    return (this.info = await this.client.request("POST", `${this.#api}/${action}`, { json }));
  }
}
