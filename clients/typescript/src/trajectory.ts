/** Recorded steps. */

import type { Client } from "./client.js";
import { randomId } from "./random.js";
import type { Annotation, Step, StepPage, TrajectorySummary, Verification } from "./types.js";

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

export interface TrajectoryFilter {
  worker?: string;
  task?: string;
  sandbox?: string;
  /** Only those with all of these labels, on them or on one of their steps. */
  labels?: readonly string[];
  /** Only those with at least this mean rating of the whole trajectory, from 1 to 5. */
  minRating?: number;
  /** Only those with annotations. */
  annotated?: boolean;
  /** Only those with failed steps, or only those without. */
  failed?: boolean;
}

export interface ExportOptions extends StepFilter {
  /** With annotations: the default, except for `openai-messages` and `sharegpt`. */
  annotations?: boolean;
}

/** A note, labels, or a rating. */
export interface NewAnnotation {
  /** The number of a step. Without it, the annotation is about the whole trajectory. */
  step?: number;
  text?: string;
  labels?: readonly string[];
  /** From 1, the worst, to 5, the best. */
  rating?: number;
}

/** What is absent stays as it is. */
export interface AnnotationChange {
  text?: string;
  labels?: readonly string[];
  /** `null` removes the rating. */
  rating?: number | null;
}

/** The trajectories that the key may see. */
export class Trajectories {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /** Lists trajectories, or those of a worker, of a task, and of a sandbox. Those that started last are first. */
  async list({ labels, minRating: min_rating, ...rest }: TrajectoryFilter = {}): Promise<TrajectorySummary[]> {
    const found: TrajectorySummary[] = [];
    const params = { ...rest, label: labels, min_rating };
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
  async export(format: Format = "jsonl", filter: ExportOptions = {}): Promise<string> {
    const call = { method: "GET", path: `${this.#path}/export`, params: { format, ...filter } };
    return this.#client.send(call, (response) => response.text());
  }

  /** Lists the annotations of the trajectory, or of one of its steps, the oldest first. */
  async annotations(params: { step?: number } = {}): Promise<Annotation[]> {
    const found: Annotation[] = [];
    for await (const one of this.#client.pages<Annotation>(`${this.#path}/annotations`, "annotations", params)) found.push(one);
    return found;
  }

  /** Adds an annotation. A repetition with the same `idempotencyKey` adds nothing. */
  annotate(annotation: NewAnnotation, { idempotencyKey = randomId() }: { idempotencyKey?: string } = {}): Promise<Annotation> {
    return this.#client.request("POST", `${this.#path}/annotations`, { json: annotation, idempotencyKey });
  }

  /**
   * Changes an annotation, by its id or as it was read. Given as it was read, it is changed only if nobody has changed it since.
   * Otherwise the error is `PreconditionFailed`.
   */
  changeAnnotation(annotation: string | Annotation, change: AnnotationChange): Promise<Annotation> {
    return this.#client.call({ method: "PATCH", ...this.#one(annotation), json: change });
  }

  /** Removes an annotation. Given as it was read, only if nobody has changed it since. */
  async removeAnnotation(annotation: string | Annotation): Promise<void> {
    await this.#client.call({ method: "DELETE", ...this.#one(annotation) });
  }

  #one(annotation: string | Annotation): { path: string; headers: Record<string, string> } {
    const id = typeof annotation === "string" ? annotation : annotation.id;
    const headers: Record<string, string> = typeof annotation === "string" ? {} : { "if-match": `"${id}-${annotation.revision}"` };
    return { path: `${this.#path}/annotations/${encodeURIComponent(id)}`, headers };
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
