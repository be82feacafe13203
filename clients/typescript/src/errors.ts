/** Errors of the client. `APIError` has one subclass for each kind of refusal, selected by the stable `code`. */

import type { CommandResult } from "./commands.js";

/** The base of all errors of this package. */
export class AreniteError extends Error {
  constructor(message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** No complete answer arrived: the server is unreachable, or the connection broke. */
export class ConnectionFailed extends AreniteError {}

/** The server did not answer in time. It may have executed the request. */
export class RequestTimedOut extends ConnectionFailed {}

/** A command with `check: true` did not end with exit code 0. */
export class CommandFailed extends AreniteError {
  constructor(readonly result: CommandResult) {
    const outcome = result.exitCode === null ? result.status : `exit code ${result.exitCode}`;
    const last = result.stderr.trim().split("\n").pop();
    super(`${JSON.stringify(result.command)} failed: ${outcome}${last ? `: ${last}` : ""}`);
  }
}

export interface Refusal {
  message: string;
  code: string;
  status: number;
  hint?: string | undefined;
  requestId?: string | undefined;
  retryAfterMs?: number | undefined;
  body?: unknown;
}

/** The server refused a request. */
export class APIError extends AreniteError {
  /** Stable across versions, such as `not_found`. */
  readonly code: string;
  /** The status of HTTP. */
  readonly status: number;
  /** How to go on. */
  readonly hint: string | undefined;
  /** Identifies the request in the server's log and in the step that it became. */
  readonly requestId: string | undefined;
  /** How long to wait before a repetition, if the server says so. */
  readonly retryAfterMs: number | undefined;
  /** The whole error body, with fields that depend on the error. */
  readonly body: unknown;

  constructor(refusal: Refusal) {
    super(refusal.hint === undefined ? refusal.message : `${refusal.message} (hint: ${refusal.hint})`);
    this.code = refusal.code;
    this.status = refusal.status;
    this.hint = refusal.hint;
    this.requestId = refusal.requestId;
    this.retryAfterMs = refusal.retryAfterMs;
    this.body = refusal.body;
  }
}

export class InvalidRequest extends APIError {}
/** The key is missing or not valid. */
export class Unauthorized extends APIError {}
/** The key lacks the right. */
export class Forbidden extends APIError {}
/** The request exceeds a quota of the tenant. */
export class QuotaExceeded extends APIError {}
export class NotFound extends APIError {}
export class Conflict extends APIError {}
export class AlreadyExists extends Conflict {}
/** It has changed since the caller read it. */
export class PreconditionFailed extends APIError {}
export class TooLarge extends APIError {}
/** A limit of rate, memory, disk, or number was reached. Retry later. */
export class Exhausted extends APIError {}
export class Unsupported extends APIError {}
/** The server gave up on the work. */
export class ServerTimedOut extends APIError {}
/** The sandbox, or a program in it, failed. */
export class SandboxFailed extends APIError {}
/** The server has an internal error, or is not available. */
export class ServerFailed extends APIError {}

const BY_CODE: Record<string, typeof APIError> = {
  invalid_request: InvalidRequest,
  unauthorized: Unauthorized,
  forbidden: Forbidden,
  quota_exceeded: QuotaExceeded,
  not_found: NotFound,
  already_exists: AlreadyExists,
  conflict: Conflict,
  precondition_failed: PreconditionFailed,
  too_large: TooLarge,
  exhausted: Exhausted,
  unsupported: Unsupported,
  timeout: ServerTimedOut,
  sandbox_failed: SandboxFailed,
  internal: ServerFailed,
};

/** For answers without a code, and for codes that this version does not know. */
const CODE_OF_STATUS: Record<number, string> = {
  401: "unauthorized",
  403: "forbidden",
  404: "not_found",
  409: "conflict",
  412: "precondition_failed",
  413: "too_large",
  424: "sandbox_failed",
  429: "exhausted",
  501: "unsupported",
  502: "sandbox_failed",
  504: "timeout",
};

/** Codes of what a call on files reports. */
const FILE_ERRORS: Record<string, string> = {
  not_found: "not_found",
  permission_denied: "forbidden",
  already_exists: "already_exists",
  no_space_left: "exhausted",
  timed_out: "timeout",
  io_error: "sandbox_failed",
};

function codeOfStatus(status: number): string {
  return CODE_OF_STATUS[status] ?? (status >= 500 ? "internal" : "invalid_request");
}

type Fields = Record<string, unknown>;

function fieldsOf(value: unknown): Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : {};
}

function first(...values: unknown[]): string | undefined {
  return values.find((value): value is string => typeof value === "string" && value !== "");
}

/** The error in an answer, in any of the server's formats. */
export function refusalOf(body: unknown, status: number, headers: Headers, text = ""): APIError {
  const fields = fieldsOf(body);
  const inner = fieldsOf(fields.error);
  let message = first(fields.detail, fields.message, inner.message, fields.error, fields.title);
  if (Array.isArray(fields.detail)) {
    const problems = fields.detail.map(fieldsOf).map((one) => `${[one.loc].flat().join(".")}: ${String(one.msg)}`);
    message = [message ?? "invalid request", ...problems].join("; ");
  }
  const line = body === undefined ? (text.trim().split("\n")[0] ?? "").slice(0, 200) : "";
  message ??= `the server answered ${status}${line ? `: ${line}` : ""}`;
  let code = first(fields.code, inner.code);
  if (code === undefined || !/^[a-z_]+$/.test(code)) {
    code = FILE_ERRORS[String(fieldsOf(fields.data).error_type)] ?? codeOfStatus(status);
  }
  const kind = BY_CODE[code] ?? BY_CODE[codeOfStatus(status)] ?? APIError;
  return new kind({
    message,
    code,
    status,
    hint: first(fields.hint, inner.hint),
    requestId: headers.get("x-request-id") ?? undefined,
    retryAfterMs: millisecondsOf(headers.get("retry-after")),
    body,
  });
}

/** The value of `Retry-After`: a number of seconds, or a date. */
function millisecondsOf(text: string | null): number | undefined {
  if (text === null) return undefined;
  if (/^\d+$/.test(text.trim())) return Number(text) * 1000;
  const at = Date.parse(text);
  return Number.isNaN(at) ? undefined : Math.max(0, at - Date.now());
}
