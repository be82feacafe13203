//! Arguments and results of the service; their JSON is AIO's.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The state of a shell command. (AIO's document calls this `BashCommandStatus`, though `bash` has other values.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = BashCommandStatus)]
pub enum ShellStatus {
    /// It runs, or waits for the session's earlier commands.
    Running,
    /// It ended by itself; its `exit_code` may be anything.
    Completed,
    /// No output came for `no_change_timeout`. The command goes on.
    NoChangeTimeout,
    /// It was stopped when `hard_timeout` was over.
    HardTimeout,
    /// It was stopped by `/v1/shell/kill`, or its shell was.
    Terminated,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct ShellExecRequest {
    /// The session to use; absent or empty: a new one.
    pub id: Option<String>,
    /// Absolute. The command starts there, and the session stays there.
    pub exec_dir: Option<String>,
    pub command: String,
    /// Answer at once with status `running`.
    #[schema(default = false, value_type = bool)]
    pub async_mode: Option<bool>,
    /// Seconds after which the call answers with status `running`; the command goes on.
    pub timeout: Option<f64>,
    /// An `exec_dir` that does not exist is an error; else it is passed over.
    pub strict: Option<bool>,
    /// Seconds without new output after which the call answers with status `no_change_timeout`; the command goes on.
    /// Absent: the session's; 0: never. Not with `async_mode`.
    #[schema(value_type = Option<i64>)]
    pub no_change_timeout: Option<f64>,
    /// Seconds after which the command is stopped: ^C, then TERM, then KILL, a second apart. Absent or 0: never.
    pub hard_timeout: Option<f64>,
    /// `pwd` shows `exec_dir` as given, with its symbolic links.
    #[schema(default = false)]
    pub preserve_symlinks: Option<bool>,
    /// Cut the output to 30,000 characters: the first and the last half. Else all of it, up to 10 MiB.
    #[schema(default = true, value_type = bool)]
    pub truncate: Option<bool>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ShellCommandResult {
    pub session_id: String,
    pub command: String,
    pub status: ShellStatus,
    /// What it printed, without prompt, echo, colours and trailing newline; up to now when it still runs.
    pub output: Option<String>,
    /// The session's last commands.
    pub console: Option<Vec<ConsoleRecord>>,
    /// Only when completed.
    pub exit_code: Option<i32>,
    #[serde(skip)]
    pub hint: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConsoleRecord {
    pub ps1: String,
    pub command: String,
    #[serde(default)]
    pub output: String,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct ShellViewRequest {
    pub id: String,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ShellViewResult {
    /// Of the command that runs, or of the last one; at most 30,000 characters.
    pub output: String,
    pub session_id: String,
    pub console: Option<Vec<ConsoleRecord>>,
    pub status: ShellStatus,
    pub command: Option<String>,
    pub exit_code: Option<i32>,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct ShellWaitRequest {
    pub id: String,
    /// The longest wait in seconds; absent: 30.
    #[schema(value_type = Option<i64>)]
    pub seconds: Option<f64>,
    /// The same; goes before `seconds`.
    #[schema(value_type = Option<i64>)]
    pub max_wait_seconds: Option<f64>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ShellWaitResult {
    pub status: ShellStatus,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(as = ShellWriteToProcessRequest)]
pub struct ShellWriteRequest {
    pub id: String,
    /// Typed unchanged.
    pub input: String,
    /// Then the enter key.
    #[serde(default = "yes")]
    pub press_enter: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ShellWriteResult {
    pub status: ShellStatus,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(as = ShellKillProcessRequest)]
pub struct ShellKillRequest {
    pub id: String,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ShellKillResult {
    pub status: ShellStatus,
    /// Of the last command, when none was running.
    pub exit_code: Option<i32>,
    /// The same, for old clients.
    pub returncode: Option<i32>,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct ShellCreateSessionRequest {
    /// Absent or empty: a new id. An existing session is returned unchanged.
    #[serde(default)]
    pub id: Option<String>,
    /// Absolute.
    pub exec_dir: Option<String>,
    /// Seconds; absent: 120; 0: never.
    #[schema(value_type = Option<i64>)]
    pub no_change_timeout: Option<f64>,
    /// `pwd` shows `exec_dir` as given, with its symbolic links.
    #[schema(default = false)]
    pub preserve_symlinks: Option<bool>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ShellCreateSessionResponse {
    pub session_id: String,
    pub working_dir: String,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct ShellUpdateSessionRequest {
    pub id: String,
    /// Seconds; absent: unchanged; 0: never.
    #[schema(value_type = Option<i64>)]
    pub no_change_timeout: Option<f64>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ShellSessionStats {
    pub total_sessions: usize,
    /// Used in the last 5 minutes, or running a command.
    pub active_sessions: usize,
    pub idle_sessions: usize,
    pub max_sessions: usize,
    /// Seconds without use after which a session ends.
    pub session_timeout: u64,
    /// From 0 to 1.
    pub usage_ratio: f64,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ActiveShellSessionsResult {
    pub sessions: BTreeMap<String, ShellSessionInfo>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ShellSessionInfo {
    pub working_dir: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub last_used_at: Timestamp,
    pub age_seconds: u64,
    /// `running` or `idle`.
    pub status: String,
    pub current_command: Option<String>,
}
