/** Types of requests and answers, from the OpenAPI documents. */

import type { components as OfSandbox } from "./schema/sandbox.js";
import type { components as OfServer } from "./schema/server.js";

type Server = OfServer["schemas"];
type Sandbox = OfSandbox["schemas"];

export type CreateSandbox = Partial<Server["CreateSandbox"]>;
export type SandboxInfo = Server["SandboxInfo"];
export type CreatedSandboxes = Server["CreatedSandboxes"];
export type FailedCreate = Server["FailedCreate"];
export type SandboxList = Server["SandboxList"];
export type PauseKind = Server["PauseKind"];
export type CheckpointInfo = Server["CheckpointInfo"];
export type CheckpointPolicy = Server["CheckpointPolicy"];
export type HistoryInfo = Server["HistoryInfo"];
export type NetworkInfo = Server["NetworkInfo"];
export type NetworkRequest = Server["NetworkRequest"];
export type NetworkRule = Server["NetworkRule"];
export type RolledBack = Server["RolledBack"];
export type ChangedPath = Server["ChangedPath"];
export type Differences = Server["Differences"];
export type ForkSandbox = Partial<Server["ForkSandbox"]>;
export type SnapshotInfo = Server["SnapshotInfo"];
export type SandboxUsage = Server["SandboxUsage"];
export type ServerInfo = Server["ServerInfo"];
export type Me = Server["Me"];
export type EventInfo = Server["EventInfo"];
export type EventPage = Server["EventPage"];
export type GroupInfo = Server["GroupInfo"];
export type DeletedGroup = Server["DeletedGroup"];
export type VolumeInfo = Server["VolumeInfo"];
export type RemovedVolume = Server["RemovedVolume"];
export type FileEntry = Server["FileEntry"];
export type RemovedFile = Server["RemovedFile"];
export type SecretInfo = Server["SecretInfo"];
export type SecretPlace = Server["SecretPlace"];
export type WebhookInfo = Server["WebhookInfo"];
export type NewWebhookInfo = Server["NewWebhookInfo"];
export type WebhookTest = Server["WebhookTest"];
export type DeliveryInfo = Server["DeliveryInfo"];
export type ModelRouteSpec = Partial<Server["ModelRouteSpec"]> & { upstream: string };
export type ModelRouteInfo = Server["ModelRouteInfo"];
export type ModelRouteDetails = Server["ModelRouteDetails"];
export type Step = Server["Step"];
export type StepState = Server["StepState"];
export type StepPage = Server["StepPage"];
export type Annotation = Server["Annotation"];
export type AnnotationSummary = Server["AnnotationSummary"];
export type TrajectorySummary = Server["TrajectorySummary"];
export type TrajectoryList = Server["TrajectoryList"];
export type Verification = Server["Verification"];
export type BashExecRequest = Partial<Sandbox["BashExecRequest"]>;
export type BashExecResult = Sandbox["BashExecResult"];
export type BashOutputResult = Sandbox["BashOutputResult"];
export type BashSessionInfo = Sandbox["BashSessionInfo"];
export type BrowserInfo = Sandbox["BrowserInfoResult"];
export type CodeResult = Sandbox["CodeExecuteResponse"];
export type FileInfo = Sandbox["FileInfo"];

/** A change of a watched file. */
export interface FileChange {
  type: "create" | "write" | "remove" | "rename" | "chmod";
  path: string;
  /** Where it was, for `rename`. */
  old_path: string | null;
  is_dir: boolean;
  /** Seconds since 1970. */
  timestamp: number;
}
