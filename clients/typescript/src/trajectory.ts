/** Recorded steps. */

import type { Client } from "./client.js";
import type { Step, StepPage, TrajectorySummary, Verification } from "./types.js";

export type Format = "jsonl" | "agentflow-rollout" | "agentflow-synthesis" | "atif" | "openai-messages" | "sharegpt" | "asciicast";

export interface StepFilter {
  /** Only steps of these causes: `agent`, `person`, `system`, separated by commas. */
  origin?: string;
  result?: "failed" | "succeeded";
}

export interface StepOptions extends StepFilter {
  /** The number of the step before the first one. */
  after?: number;
  /**
   * Then wait for more until the sandbox is deleted. A step comes when it starts, without an outcome, and again when it has
   * ended.
   */
  follow?: boolean;
}

/** The trajectories that the key may see. */
export class Trajectories {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /** Lists trajectories, or those of a worker, of a task, and of a sandbox. Those that started last are first. */
  async list(params: { worker?: string; task?: string; sandbox?: string } = {}): Promise<TrajectorySummary[]> {
    const found: TrajectorySummary[] = [];
    for await (const one of this.#client.pages<TrajectorySummary>("/api/v1/trajectories", "trajectories", params)) found.push(one);
    return found;
  }

  /** A trajectory by the id or name of its sandbox, or by its own. */
  get(id: string): Trajectory {
    return new Trajectory(this.#client, id);
  }
}

/** What was done in a sandbox, or by a worker. It outlives the sandbox. */
export class Trajectory {
  readonly #client: Client;
  readonly #path: string;

  constructor(
    client: Client,
    readonly id: string,
  ) {
    this.#client = client;
    this.#path = `/api/v1/trajectories/${encodeURIComponent(id)}`;
  }

  /** Reads the steps in their order. */
  async *steps({ follow = false, after = 0, ...filter }: StepOptions = {}): AsyncGenerator<Step, void, undefined> {
    if (follow) {
      for await (const event of this.#client.events({ method: "GET", path: this.#path, params: { ...filter, after, follow } })) {
        if (event.name === "step") yield event.data as Step;
        else if (event.name === "end") return;
      }
      return;
    }
    for (let next: number | null | undefined = after; next != null; ) {
      const page: StepPage = await this.#client.request("GET", this.#path, { params: { ...filter, after: next } });
      yield* page.steps;
      next = page.next_after;
    }
  }

  /** The steps as a file of a format. `origin` is `agent` unless it is set. */
  async export(format: Format = "jsonl", filter: StepFilter = {}): Promise<string> {
    const call = { method: "GET", path: `${this.#path}/export`, params: { format, ...filter } };
    return this.#client.send(call, (response) => response.text());
  }

  /** Checks the record, and lists what was altered. */
  verify(): Promise<Verification> {
    return this.#client.request("GET", `${this.#path}/verify`);
  }

  /** The arguments or the observation of a step, in full. */
  body(step: number, part: "arguments" | "observation" = "observation"): Promise<Uint8Array> {
    const read = async (response: Response) => new Uint8Array(await response.arrayBuffer());
    return this.#client.send({ method: "GET", path: `${this.#path}/steps/${step}/${part}` }, read);
  }
}
