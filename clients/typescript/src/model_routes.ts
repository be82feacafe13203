/** Routes to models. */

import type { Client } from "./client.js";
import type { ModelRouteDetails, ModelRouteInfo, ModelRouteSpec } from "./types.js";

const PATH = "/api/v2/models";

/** Routes to models. Their calls are steps of a sandbox or a worker. The role is `admin`. */
export class Models {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /** Adds a route, or replaces it. */
  set(name: string, spec: ModelRouteSpec): Promise<ModelRouteDetails> {
    return this.#client.request("PUT", pathOf(name), { json: spec });
  }

  /** A route, with what it used. */
  get(name: string): Promise<ModelRouteDetails> {
    return this.#client.request("GET", pathOf(name));
  }

  /** Lists routes. */
  list(): AsyncGenerator<ModelRouteInfo, void, undefined> {
    return this.#client.pages(PATH, "models");
  }

  /** Deletes a route, with what it used. */
  async delete(name: string): Promise<void> {
    await this.#client.request("DELETE", pathOf(name));
  }
}

function pathOf(name: string): string {
  return `${PATH}/${encodeURIComponent(name)}`;
}
