/** Code in a sandbox. */

import type { Sandbox } from "./sandbox.js";
import type { CodeResult } from "./types.js";

export interface CodeOptions {
  /** The name of a session, which keeps its variables; created by its first use. */
  session?: string;
  cwd?: string;
  /** How long the code may run, from 1,000 to 300,000; 30,000 by default. */
  timeoutMs?: number;
}

/** Runs Python and JavaScript. */
export class Code {
  readonly #sandbox: Sandbox;

  constructor(sandbox: Sandbox) {
    this.#sandbox = sandbox;
  }

  /** Runs Python in a Jupyter kernel. */
  python(code: string, options: CodeOptions = {}): Promise<CodeResult> {
    return this.run("python", code, options);
  }

  /** Runs JavaScript in Node.js. */
  javascript(code: string, options: CodeOptions = {}): Promise<CodeResult> {
    return this.run("javascript", code, options);
  }

  run(language: "python" | "javascript", code: string, options: CodeOptions = {}): Promise<CodeResult> {
    const { session, cwd, timeoutMs = 30_000 } = options;
    const body = {
      language,
      code,
      timeout: Math.ceil(timeoutMs / 1000),
      stateful: session !== undefined,
      ...(session === undefined ? {} : { session_id: session }),
      ...(cwd === undefined ? {} : { cwd }),
    };
    return this.#sandbox.work("/v1/code/execute", body, timeoutMs);
  }
}
