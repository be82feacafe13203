/** The browser of a sandbox. */

import type { Sandbox } from "./sandbox.js";
import type { BrowserInfo } from "./types.js";

/** A Chromium on the sandbox's screen. The image must have one. */
export class Browser {
  readonly #sandbox: Sandbox;

  constructor(sandbox: Sandbox) {
    this.#sandbox = sandbox;
  }

  /** Starts the browser, and describes it. */
  info(): Promise<BrowserInfo> {
    return this.#sandbox.request("GET", "/v1/browser/info");
  }

  /** The address for clients of the DevTools protocol, such as Playwright and Puppeteer. */
  async cdpUrl(): Promise<string> {
    return (await this.info()).cdp_url;
  }

  /** A picture of the whole screen, as PNG. */
  screenshot(): Promise<Uint8Array> {
    return this.#sandbox.request("GET", "/v1/browser/screenshot");
  }

  /** Opens a page, and waits until it is loaded. */
  navigate(url: string, { timeoutMs = 30_000 } = {}): Promise<Record<string, unknown>> {
    return this.#sandbox.work("/v1/browser/page/navigate", { url, timeout: timeoutMs / 1000 }, timeoutMs);
  }
}
