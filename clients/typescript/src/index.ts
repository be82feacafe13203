/** Client of Arenite: sandboxes for AI agents. */

export { Browser } from "./browser.js";
export { Client, type ClientOptions, type EventGap, type EventOptions, type Params, type RequestOptions } from "./client.js";
export { Code, type CodeOptions } from "./code.js";
export { BashSession, type CommandResult, type Output, Process, type RunOptions, type SpawnOptions } from "./commands.js";
export {
  AlreadyExists,
  APIError,
  AreniteError,
  CommandFailed,
  Conflict,
  ConnectionFailed,
  Exhausted,
  Forbidden,
  InvalidRequest,
  NotFound,
  PreconditionFailed,
  QuotaExceeded,
  RequestTimedOut,
  SandboxFailed,
  ServerFailed,
  ServerTimedOut,
  TooLarge,
  Unauthorized,
  Unsupported,
} from "./errors.js";
export { Files, FileWatch, type WatchOptions } from "./files.js";
export { Group, Groups } from "./groups.js";
export { Models } from "./model_routes.js";
export { type ReturnOptions, Sandbox, type SandboxBatch, Sandboxes } from "./sandbox.js";
export { Secrets, type SetSecret } from "./secrets.js";
export { Snapshots } from "./snapshots.js";
export {
  type AnnotationChange,
  type ExportOptions,
  type Format,
  type NewAnnotation,
  type StepFilter,
  type StepOptions,
  Trajectories,
  Trajectory,
  type TrajectoryFilter,
} from "./trajectory.js";
export type * from "./types.js";
export { Volume, type VolumeOptions, Volumes } from "./volumes.js";
export { Webhooks } from "./webhooks.js";
