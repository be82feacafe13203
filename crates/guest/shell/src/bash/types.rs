//! Arguments and results of the service; their JSON is AIO's.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The state of a command; says nothing about its success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CommandStatus)]
pub enum CommandStatus {
    /// Accepted and not started yet; never seen in answers.
    Pending,
    Running,
    /// The process exited, with any `exit_code`.
    Completed,
    /// Killed after `hard_timeout`.
    TimedOut,
    /// Ended after `/v1/bash/kill` or because its session was closed.
    Killed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    Ready,
    Closed,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct BashExecRequest {
    /// The session to use; absent or empty: a new one.
    pub session_id: Option<String>,
    /// Run by `bash -c`.
    pub command: String,
    /// Absolute. Becomes the session's default directory.
    pub exec_dir: Option<String>,
    /// Added to the environment of this command alone; null removes a variable.
    pub env: Option<BTreeMap<String, Option<String>>>,
    /// Answer at once with status `running`.
    #[schema(default = false, value_type = bool)]
    pub async_mode: Option<bool>,
    /// Seconds after which the call answers with status `running`; the command goes on.
    pub timeout: Option<f64>,
    /// Seconds after which the command is killed. Absent or not positive: never.
    pub hard_timeout: Option<f64>,
    /// Arenite's extension: standard input is empty from the start, even if it could be written to.
    #[schema(default = false, value_type = bool)]
    pub close_stdin: Option<bool>,
    /// Characters of each stream in the answer; the middle is cut out. 0: all that is kept. Only without `async_mode`.
    #[schema(default = 50000, value_type = i64)]
    pub max_output_length: Option<i64>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct BashExecResult {
    pub session_id: String,
    pub command_id: String,
    pub command: String,
    pub status: CommandStatus,
    /// Up to now; null when there is none.
    pub stdout: Option<String>,
    /// Up to now; null when there is none.
    pub stderr: Option<String>,
    /// `stdout`, then `stderr`: one known client reads only this.
    pub output: String,
    /// Only when completed. 128 + n when signal n ended it.
    pub exit_code: Option<i32>,
    /// Bytes of standard output so far, also those not in `stdout`: where `/v1/bash/output` goes on.
    pub offset: u64,
    /// The same for standard error.
    pub stderr_offset: u64,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct BashOutputRequest {
    pub session_id: String,
    /// Absent: the outputs of all commands of the session as one stream, in the order in which they came.
    pub command_id: Option<String>,
    /// Bytes of standard output that the caller has.
    #[schema(default = 0, value_type = i64)]
    pub offset: Option<i64>,
    /// Bytes of standard error that the caller has.
    #[schema(default = 0, value_type = i64)]
    pub stderr_offset: Option<i64>,
    /// Wait for new output or the end.
    #[schema(default = false, value_type = bool)]
    pub wait: Option<bool>,
    /// The longest wait in seconds; at most 3600.
    #[schema(default = 30.0, value_type = f64)]
    pub wait_timeout: Option<f64>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct BashOutputResult {
    pub session_id: String,
    /// From `stdout_start_offset` on; a line stands where bytes are no longer kept.
    pub stdout: String,
    pub stderr: String,
    /// For the next call.
    pub offset: u64,
    pub stderr_offset: u64,
    /// Where `stdout` starts: the requested offset, or the end if that is less.
    pub stdout_start_offset: u64,
    pub stderr_start_offset: u64,
    /// How many bytes of standard output between the two offsets are no longer kept.
    pub stdout_gap: u64,
    pub stderr_gap: u64,
    /// The command asked for; else the latest that runs; else the latest.
    pub command: Option<BashCommandInfo>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct BashCommandInfo {
    pub command_id: String,
    pub command: String,
    pub status: CommandStatus,
    pub exit_code: Option<i32>,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct BashWriteRequest {
    pub session_id: String,
    /// Absent: the latest command that runs.
    pub command_id: Option<String>,
    /// Goes to standard input as it is, without a newline added.
    pub input: String,
    /// Then close standard input.
    #[schema(default = false, value_type = bool)]
    pub close: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct BashKillRequest {
    pub session_id: String,
    /// SIGTERM, SIGKILL or SIGINT.
    #[schema(default = "SIGTERM", value_type = String)]
    pub signal: Option<String>,
}

/// How many commands got the signal.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct BashKillResult {
    pub session_id: String,
    pub signal: String,
    pub signalled: usize,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct BashSessionCreateRequest {
    /// Absent or empty: a new id. An existing session is returned unchanged.
    pub session_id: Option<String>,
    /// Default directory of its commands, absolute.
    pub exec_dir: Option<String>,
    /// A script that each command of the session sources first.
    pub snapshot_path: Option<String>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct BashSessionInfo {
    pub session_id: String,
    pub status: SessionStatus,
    pub working_dir: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub last_used_at: Timestamp,
    pub current_command: Option<String>,
    /// How many commands it has started.
    pub command_count: u64,
}
