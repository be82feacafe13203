/** Secrets. */

import type { Client } from "./client.js";
import type { SecretInfo, SecretPlace } from "./types.js";

const PATH = "/api/v2/secrets";

/** What to set of a secret. What is absent stays. */
export interface SetSecret {
  /** Required for a new secret. */
  value?: string;
  /** The servers that get it, such as `api.example.com` or `*.example.com:8443`. */
  hosts?: readonly string[];
  /** Where it is put; at first in a `header`. `ssh` is alone, with a private key of OpenSSH as the value. */
  places?: readonly SecretPlace[];
  /** For `ssh`: keys of the servers, each as `TYPE KEY` or `HOST TYPE KEY`. With one or more, only logins to servers with these keys are
   * signed. */
  hostKeys?: readonly string[];
}

/** Values of the key's tenant that sandboxes use and never have. No answer shows a value. Changes need the role `admin`. */
export class Secrets {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /** Creates a secret, or changes it. In effect at once, also in running sandboxes. */
  set(name: string, secret: SetSecret): Promise<SecretInfo> {
    const { hostKeys: host_keys, ...rest } = secret;
    return this.#client.request("PUT", pathOf(name), { json: { ...rest, host_keys } });
  }

  get(name: string): Promise<SecretInfo> {
    return this.#client.request("GET", pathOf(name));
  }

  /** Lists secrets, without their values. */
  list(): AsyncGenerator<SecretInfo, void, undefined> {
    return this.#client.pages(PATH, "secrets");
  }

  /** Removes a secret. Further requests with its placeholders are refused. */
  async delete(name: string): Promise<void> {
    await this.#client.request("DELETE", pathOf(name));
  }
}

function pathOf(name: string): string {
  return `${PATH}/${encodeURIComponent(name)}`;
}
