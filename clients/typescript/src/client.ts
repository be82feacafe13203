/** The connection to a server. */

import { APIError, AreniteError, ConnectionFailed, RequestTimedOut, refusalOf } from "./errors.js";
import { type Event, readEvents } from "./events.js";
import { Groups } from "./groups.js";
import { Models } from "./model_routes.js";
import { Sandboxes } from "./sandbox.js";
import { Secrets } from "./secrets.js";
import { Snapshots } from "./snapshots.js";
import { Trajectories } from "./trajectory.js";
import type { EventInfo, EventPage, Me, ServerInfo } from "./types.js";
import { Volumes } from "./volumes.js";
import { Webhooks } from "./webhooks.js";

export interface ClientOptions {
  /** The server's address; default: `ARENITE_SERVER`, in a browser the page's own, otherwise `http://127.0.0.1:8080`. */
  baseUrl?: string;
  /** Default: `ARENITE_API_KEY`. */
  apiKey?: string;
  /** How long to wait for an answer; 60,000 by default. Commands and code have their own limits. */
  timeoutMs?: number;
  /** How often a request that is safe to repeat is repeated; 3 by default. */
  retries?: number;
  /** Instead of the global `fetch`. */
  fetch?: typeof fetch;
}

/** An array is a repeated parameter. */
export type Params = Record<string, string | number | boolean | readonly string[] | undefined>;

/** A request, which may be sent several times. */
export interface Call {
  method: string;
  path: string;
  params?: Params | undefined;
  json?: unknown;
  form?: FormData;
  body?: Blob;
  headers?: Record<string, string>;
  timeoutMs?: number;
  idempotencyKey?: string;
  signal?: AbortSignal | undefined;
}

export interface EventOptions {
  /** Only these, such as `sandbox.died`. */
  types?: readonly string[];
  /** Only these, by name or id. */
  sandboxes?: readonly string[];
  /** Only sandboxes with all of these. */
  labels?: Readonly<Record<string, string>>;
  /** The id of the event before the first one. */
  after?: string;
  /** Wait for more. Without `after`, it starts with the next one. */
  follow?: boolean;
  signal?: AbortSignal;
}

/** Stands for events that the server lost. List the sandboxes to see their states. */
export interface EventGap {
  type: "gap";
}

export interface RequestOptions {
  json?: unknown;
  params?: Params;
  idempotencyKey?: string;
  signal?: AbortSignal;
}

const DEFAULT_SERVER = "http://127.0.0.1:8080";
/** The longest pause before a repetition that the server may ask for. */
const MAX_RETRY_AFTER_MS = 30_000;
const MAX_PAUSE_MS = 5_000;
/** A stream that ends after one of these continues in another connection. */
const RECONNECT_AFTER = ["behind", "server_stopping"];
/** What fetch reports when the request never left. */
const NOT_SENT = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "UND_ERR_CONNECT_TIMEOUT"];

/** A client of one server. */
export class Client {
  readonly baseUrl: string;
  readonly timeoutMs: number;
  readonly groups: Groups;
  readonly models: Models;
  readonly sandboxes: Sandboxes;
  readonly secrets: Secrets;
  readonly snapshots: Snapshots;
  readonly trajectories: Trajectories;
  readonly volumes: Volumes;
  readonly webhooks: Webhooks;
  readonly #retries: number;
  readonly #headers: Record<string, string>;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions = {}) {
    const environment = (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env ?? {};
    const origin = (globalThis as { location?: { origin?: string } }).location?.origin;
    const baseUrl = options.baseUrl || environment.ARENITE_SERVER || origin || DEFAULT_SERVER;
    if (!/^https?:\/\/[^/?#@\s]+(\/[^?#\s]*)?$/.test(baseUrl)) {
      throw new TypeError(`invalid address ${JSON.stringify(baseUrl)}: it starts with http:// or https://, and has no query`);
    }
    this.baseUrl = baseUrl.replace(/\/+$/, "");
    this.timeoutMs = options.timeoutMs ?? 60_000;
    this.#retries = options.retries ?? 3;
    const key = options.apiKey ?? environment.ARENITE_API_KEY;
    this.#headers = key ? { "x-api-key": key } : {};
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
    this.groups = new Groups(this);
    this.models = new Models(this);
    this.sandboxes = new Sandboxes(this);
    this.secrets = new Secrets(this);
    this.snapshots = new Snapshots(this);
    this.trajectories = new Trajectories(this);
    this.volumes = new Volumes(this);
    this.webhooks = new Webhooks(this);
  }

  /** Describes the server. */
  info(): Promise<ServerInfo> {
    return this.request("GET", "/api/v2/info");
  }

  /** Describes the caller: its tenant and its rights. */
  me(): Promise<Me> {
    return this.request("GET", "/api/v2/me");
  }

  /** What happened to sandboxes, the oldest event first. */
  async *listEvents(options: EventOptions = {}): AsyncGenerator<EventInfo | EventGap, void, undefined> {
    const path = "/api/v2/events";
    const { types = [], sandboxes = [], labels = {}, after, follow, signal } = options;
    const label = Object.entries(labels).map(([key, value]) => `${key}=${value}`);
    const params: Params = { type: types.length > 0 ? types.join(",") : undefined, sandbox: sandboxes, label, after };
    if (follow) {
      for await (const event of this.events({ method: "GET", path, params: { ...params, follow }, signal })) {
        if (event.name === "gap") yield { type: "gap" };
        else if (event.name.startsWith("sandbox.")) yield event.data as EventInfo;
      }
      return;
    }
    for (;;) {
      const page: EventPage = await this.request("GET", path, { params, ...(signal ? { signal } : {}) });
      if (page.gap) yield { type: "gap" };
      yield* page.events;
      if (page.events.length === 0) return;
      params.after = page.next_after;
    }
  }

  /**
   * Calls any route. Returns the data of the answer: JSON, or bytes. Only reads, and requests with an idempotency key, are
   * repeated after a failure.
   */
  request<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
    return this.call<T>({ method, path, ...options });
  }

  /**
   * The entries of any list of the server, page by page. `entries` is the field of the answer that has them, such as
   * `sandboxes`. Parameters are filters, and `limit` for the size of a page.
   */
  async *pages<T>(path: string, entries: string, params: Params = {}): AsyncGenerator<T, void, undefined> {
    let cursor: string | undefined;
    do {
      const query = cursor === undefined ? params : { ...params, cursor };
      const page = await this.request<Record<string, unknown>>("GET", path, { params: query });
      yield* page[entries] as T[];
      cursor = typeof page.next_cursor === "string" ? page.next_cursor : undefined;
    } while (cursor !== undefined);
  }

  /** @internal */
  async call<T>(call: Call): Promise<T> {
    return (await this.send(call, contentOf)) as T;
  }

  /**
   * Reads an answer with a status of success. `read` is a part of what is repeated.
   *
   * @internal
   */
  async send<T>(call: Call, read: (response: Response) => Promise<T>): Promise<T> {
    for (let count = 0; ; count++) {
      try {
        return await this.#once(call, read);
      } catch (error) {
        const pause = error instanceof AreniteError && count < this.#retries ? pauseBefore(call, error, count) : undefined;
        if (pause === undefined) throw error;
        await sleep(pause);
      }
    }
  }

  async #once<T>(call: Call, read: (response: Response) => Promise<T>): Promise<T> {
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(TIMED_OUT), call.timeoutMs ?? this.timeoutMs);
    const forward = () => abort.abort(call.signal?.reason);
    call.signal?.addEventListener("abort", forward);
    if (call.signal?.aborted) forward();
    try {
      const response = await this.#fetch(this.baseUrl + call.path + query(call.params), {
        method: call.method,
        headers: {
          ...this.#headers,
          ...(call.json === undefined ? {} : { "content-type": "application/json" }),
          ...(call.idempotencyKey ? { "idempotency-key": call.idempotencyKey } : {}),
          ...call.headers,
        },
        body: call.json === undefined ? (call.form ?? call.body ?? null) : JSON.stringify(call.json),
        redirect: "manual",
        signal: abort.signal,
      });
      if (!response.ok) {
        const text = await response.text();
        throw refusalOf(parsed(text), response.status, response.headers, text);
      }
      return await read(response);
    } catch (error) {
      if (error instanceof AreniteError || call.signal?.aborted) throw error;
      throw broken(error, abort.signal.reason === TIMED_OUT, this.baseUrl);
    } finally {
      clearTimeout(timer);
      call.signal?.removeEventListener("abort", forward);
    }
  }

  /**
   * The body of an answer, as it arrives.
   *
   * @internal
   */
  stream(call: Call): Promise<ReadableStream<Uint8Array>> {
    return this.send(call, async (response) => response.body ?? new Blob([]).stream());
  }

  /**
   * The events of a stream. After a broken connection, it continues where it stopped.
   *
   * @internal
   */
  async *events(call: Call): AsyncGenerator<Event, void, undefined> {
    let last: string | undefined;
    for (let failures = 0; ; ) {
      const headers = { accept: "text/event-stream", ...(last === undefined ? {} : { "last-event-id": last }) };
      const body = await this.stream({ ...call, headers });
      let isOver = true;
      try {
        for await (const event of readEvents(body)) {
          failures = 0;
          last = event.id ?? last;
          isOver = !RECONNECT_AFTER.includes(event.name);
          yield event;
        }
      } catch (error) {
        if (error instanceof AreniteError || call.signal?.aborted) throw error;
        isOver = false;
        if (++failures > this.#retries) throw broken(error, false, this.baseUrl);
      }
      if (isOver) return;
      await sleep(backoff(failures));
    }
  }
}

const TIMED_OUT = new Error("timed out");

/** The value of an answer: of an envelope its data, of other JSON all of it, otherwise the bytes. */
async function contentOf(response: Response): Promise<unknown> {
  const kind = (response.headers.get("content-type") ?? "").split(";")[0]?.trim() ?? "";
  if (kind !== "application/json" && !kind.endsWith("+json")) return new Uint8Array(await response.arrayBuffer());
  const text = await response.text();
  if (text === "") return undefined;
  const body = parsed(text);
  if (body === undefined) throw new ConnectionFailed(`the answer of ${response.url} is not JSON`);
  if (typeof body === "object" && body !== null && "success" in body && "message" in body && typeof body.success === "boolean") {
    // Calls on files report failures with status 200.
    if (!body.success) throw refusalOf(body, response.status >= 400 ? response.status : 400, response.headers);
    return "data" in body ? body.data : undefined;
  }
  return body;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

function query(params: Params = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of [value ?? []].flat()) search.append(name, String(one));
  }
  const text = search.toString();
  return text && `?${text}`;
}

/** How long to wait before a repetition; undefined: do not repeat. */
function pauseBefore(call: Call, error: AreniteError, count: number): number | undefined {
  const isRead = call.method === "GET" || call.method === "HEAD";
  const statuses = isRead ? [429, 502, 503, 504] : call.idempotencyKey ? [429, 503] : [];
  if (error instanceof APIError) {
    if (!statuses.includes(error.status)) return undefined;
    if (error.retryAfterMs !== undefined) return error.retryAfterMs <= MAX_RETRY_AFTER_MS ? error.retryAfterMs : undefined;
  } else if (!(error instanceof ConnectionFailed) || (statuses.length === 0 && !wasNotSent(error.cause))) {
    return undefined;
  }
  return backoff(count);
}

function wasNotSent(error: unknown): boolean {
  const cause = (error as { cause?: { code?: string } } | undefined)?.cause;
  return NOT_SENT.includes(cause?.code ?? "");
}

function backoff(count: number): number {
  return Math.min(250 * 2 ** count, MAX_PAUSE_MS) * (0.75 + Math.random() / 2);
}

function sleep(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/** The failure of a request without a complete answer. */
function broken(cause: unknown, isTimeout: boolean, server: string): ConnectionFailed {
  if (isTimeout) return new RequestTimedOut(`${server} did not answer in time`, { cause });
  if (wasNotSent(cause)) {
    const hint = "start one with: sudo arenite serve; or name another with baseUrl or ARENITE_SERVER";
    return new ConnectionFailed(`no server answers at ${server} (hint: ${hint})`, { cause });
  }
  const inner = (cause as { cause?: unknown } | undefined)?.cause ?? cause;
  return new ConnectionFailed(`the connection to ${server} failed: ${inner instanceof Error ? inner.message : String(inner)}`, { cause });
}
