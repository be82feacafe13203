/** Commands in a sandbox. */

import { CommandFailed, NotFound } from "./errors.js";
import type { Sandbox } from "./sandbox.js";
import type { BashExecRequest, BashExecResult, BashOutputResult } from "./types.js";

export interface SpawnOptions {
  cwd?: string;
  /** Variables for this command; null removes one. */
  env?: Record<string, string | null>;
  /** How long the command may run. Then it is killed, and its result has the status `timed_out`. */
  timeoutMs?: number;
}

export interface RunOptions extends SpawnOptions {
  /** Standard input. */
  input?: string;
  /** Throw `CommandFailed` unless the exit code is 0. */
  check?: boolean;
}

/** A piece of a command's output. */
export interface Output {
  stream: "stdout" | "stderr";
  text: string;
}

export interface CommandResult {
  command: string;
  stdout: string;
  stderr: string;
  /** 128 + n when signal n ended the command; null when it was killed. */
  exitCode: number | null;
  /** `completed`, `timed_out`, or `killed`. */
  status: string;
}

/** How long one call waits for the end of a command, in seconds. Proxies cut connections that are silent for longer. */
const PATIENCE = 50;
/** How long one call waits for output, in seconds. */
const WAIT = 20;
const CALL_TIMEOUT_MS = 80_000;

/** Commands that share a default directory. Each of them is a fresh process. */
export class BashSession {
  readonly #sandbox: Sandbox;

  constructor(
    sandbox: Sandbox,
    /** Undefined: each command gets a new session. */
    readonly id: string | undefined,
  ) {
    this.#sandbox = sandbox;
  }

  /** Runs a command, and returns its output when it has ended. */
  async run(command: string, options: RunOptions = {}): Promise<CommandResult> {
    const result = await this.#run(command, options);
    if (options.check && result.exitCode !== 0) throw new CommandFailed(result);
    return result;
  }

  async #run(command: string, options: RunOptions): Promise<CommandResult> {
    if (options.input !== undefined) {
      const process = await this.spawn(command, options);
      await process.write(options.input, { close: true });
      return process.wait();
    }
    const body = { ...this.#body(command, options), close_stdin: true, max_output_length: 0, timeout: PATIENCE };
    const done = await post<BashExecResult>(this.#sandbox, "exec", body, undefined);
    if (done.status === "running") return new Process(this.#sandbox, done, undefined).wait();
    const { stdout, stderr, exit_code, status } = done;
    return { command, stdout: stdout ?? "", stderr: stderr ?? "", exitCode: exit_code ?? null, status };
  }

  /** Starts a command, to read its output while it runs, and to write to its standard input. */
  async spawn(command: string, options: SpawnOptions = {}): Promise<Process> {
    // The calls that follow a command with a separate session are one step.
    const step = this.id === undefined ? `exec ${stepId()}` : undefined;
    const body = { ...this.#body(command, options), async_mode: true };
    return new Process(this.#sandbox, await post<BashExecResult>(this.#sandbox, "exec", body, step), step);
  }

  /** Ends the session with all of its commands. */
  async close(): Promise<void> {
    if (this.id !== undefined) await this.#sandbox.request("POST", `/v1/bash/sessions/${encodeURIComponent(this.id)}/close`);
  }

  #body(command: string, { cwd, env, timeoutMs }: SpawnOptions): BashExecRequest {
    return {
      command,
      ...(this.id === undefined ? {} : { session_id: this.id }),
      ...(cwd === undefined ? {} : { exec_dir: cwd }),
      ...(env === undefined ? {} : { env }),
      ...(timeoutMs === undefined ? {} : { hard_timeout: timeoutMs / 1000 }),
    };
  }
}

/** A command that was started. Iterating over it yields its output until it ends. */
export class Process implements AsyncIterable<Output> {
  readonly command: string;
  /** The result, once the command has ended and its output was read. */
  result: CommandResult | undefined;
  readonly #sandbox: Sandbox;
  readonly #session: string;
  readonly #id: string;
  readonly #step: string | undefined;
  #offset = 0;
  #stderrOffset = 0;
  #stdout = "";
  #stderr = "";

  constructor(sandbox: Sandbox, started: BashExecResult, step: string | undefined) {
    this.command = started.command;
    this.#sandbox = sandbox;
    this.#session = started.session_id;
    this.#id = started.command_id;
    this.#step = step;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Output, void, undefined> {
    while (this.result === undefined) yield* await this.#read();
  }

  /** Reads the output to its end, and returns all of it with the exit code. */
  async wait(): Promise<CommandResult> {
    while (this.result === undefined) await this.#read();
    return this.result;
  }

  /** Writes to standard input, and closes it if `close`. */
  async write(text: string, { close = false } = {}): Promise<void> {
    const body = { session_id: this.#session, command_id: this.#id, input: text, close };
    await post(this.#sandbox, "write", body, this.#step);
  }

  /** Sends a signal to all processes of the command. */
  async kill(signal: "SIGTERM" | "SIGKILL" | "SIGINT" = "SIGTERM"): Promise<void> {
    await post(this.#sandbox, "kill", { session_id: this.#session, signal }, this.#step);
  }

  /** Kills the command if it still runs, and forgets it. */
  async close(): Promise<void> {
    if (this.result !== undefined) return;
    try {
      await this.kill("SIGKILL");
      await this.#release();
    } catch (error) {
      if (!(error instanceof NotFound)) throw error;
    }
  }

  /** Waits for output, and returns it. Sets the result at the end. */
  async #read(): Promise<Output[]> {
    const body = {
      session_id: this.#session,
      command_id: this.#id,
      offset: this.#offset,
      stderr_offset: this.#stderrOffset,
      wait: true,
      wait_timeout: WAIT,
    };
    const news = await post<BashOutputResult>(this.#sandbox, "output", body, this.#step);
    const isNew = news.offset !== this.#offset || news.stderr_offset !== this.#stderrOffset;
    this.#offset = news.offset;
    this.#stderrOffset = news.stderr_offset;
    this.#stdout += news.stdout;
    this.#stderr += news.stderr;
    const about = news.command;
    if (!isNew && about && !["pending", "running"].includes(about.status)) {
      const { command } = this;
      const exitCode = about.exit_code ?? null;
      this.result = { command, stdout: this.#stdout, stderr: this.#stderr, exitCode, status: about.status };
      await this.#release();
    }
    const pieces: Output[] = [
      { stream: "stdout", text: news.stdout },
      { stream: "stderr", text: news.stderr },
    ];
    return pieces.filter(({ text }) => text !== "");
  }

  /** Ends the session if it is the command's own. */
  async #release(): Promise<void> {
    if (this.#step === undefined) return;
    await post(this.#sandbox, `sessions/${encodeURIComponent(this.#session)}/close`, undefined, `${this.#step} end`);
  }
}

function post<T>(sandbox: Sandbox, path: string, json: unknown, step: string | undefined): Promise<T> {
  return sandbox.client.call({
    method: "POST",
    path: `${sandbox.path}/v1/bash/${path}`,
    json,
    headers: step === undefined ? {} : { "x-arenite-command": step },
    timeoutMs: Math.max(sandbox.client.timeoutMs, CALL_TIMEOUT_MS),
  });
}

function stepId(): string {
  return Array.from({ length: 16 }, () => Math.floor(Math.random() * 16).toString(16)).join("");
}
