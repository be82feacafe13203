/** Webhooks. */

import type { Client } from "./client.js";
import { randomId } from "./random.js";
import type { DeliveryInfo, NewWebhookInfo, WebhookInfo, WebhookTest } from "./types.js";

const PATH = "/api/v2/webhooks";

/** Addresses to which the server sends the events of the key's tenant. The role is `admin`. */
export class Webhooks {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /** Creates a webhook for events of these types, or of all. Only this answer has the secret that signs deliveries. */
  create(url: string, types: readonly string[] = [], idempotencyKey: string = randomId()): Promise<NewWebhookInfo> {
    return this.#client.request("POST", PATH, { json: { url, types }, idempotencyKey });
  }

  get(id: string): Promise<WebhookInfo> {
    return this.#client.request("GET", pathOf(id));
  }

  /** Lists webhooks. */
  list(): AsyncGenerator<WebhookInfo, void, undefined> {
    return this.#client.pages(PATH, "webhooks");
  }

  /** Deletes a webhook with its deliveries. */
  async delete(id: string): Promise<void> {
    await this.#client.request("DELETE", pathOf(id));
  }

  /** Sends a test once, and returns the result. */
  test(id: string): Promise<WebhookTest> {
    return this.#client.request("POST", `${pathOf(id)}/test`, { json: {} });
  }

  /** Lists deliveries, the newest first. `state` is `pending`, `delivered`, or `dead`. */
  deliveries(id: string, options: { state?: string } = {}): AsyncGenerator<DeliveryInfo, void, undefined> {
    return this.#client.pages(`${pathOf(id)}/deliveries`, "deliveries", options);
  }

  /** Delivers an event again, with all retries. */
  redeliver(id: string, number: number): Promise<DeliveryInfo> {
    return this.#client.request("POST", `${pathOf(id)}/deliveries/${number}/redeliver`, { json: {} });
  }
}

function pathOf(id: string): string {
  return `${PATH}/${encodeURIComponent(id)}`;
}
