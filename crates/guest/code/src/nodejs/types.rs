//! Arguments and results of the service; their JSON is AIO's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use arenite_guest_runtime::http::optional_within;

/// The default timeout of an execution, in seconds.
pub const DEFAULT_TIMEOUT: i64 = 30;
/// The default idle time of a session, in seconds.
pub(super) const DEFAULT_IDLE: i64 = 86_400;

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct NodeJSExecuteRequest {
    pub code: String,
    /// Seconds after which the execution is interrupted.
    #[serde(default, deserialize_with = "optional_within::<_, 1, 300>")]
    #[schema(default = 30, minimum = 1, maximum = 300)]
    pub timeout: Option<i64>,
    /// Standard input of the process. Not in a session: its process has read its input already.
    pub stdin: Option<String>,
    /// Files to put into the directory of execution first: relative paths and their texts.
    pub files: Option<BTreeMap<String, String>>,
    /// Execute in a session, which keeps its state.
    #[schema(default = false)]
    pub stateful: Option<bool>,
    /// The session to use; created if it does not exist.
    pub session_id: Option<String>,
    /// The directory of execution. Absent: a new directory, or the session's.
    pub cwd: Option<String>,
    /// `node24` or `24`, if that is installed.
    pub version: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct NodeJSOutput {
    /// `stream`, `execute_result` or `error`.
    #[schema(value_type = String)]
    pub output_type: &'static str,
    /// Of a stream: `stdout` or `stderr`.
    #[schema(value_type = Option<String>)]
    pub name: Option<&'static str>,
    /// Of a stream, its text; of a result, as Node.js shows it.
    pub text: Option<String>,
    pub ename: Option<String>,
    pub evalue: Option<String>,
    pub traceback: Option<Vec<String>>,
    /// Of a result: `text/plain`, and `application/json` for objects and arrays that have one.
    pub data: Option<BTreeMap<&'static str, Value>>,
    pub metadata: Option<BTreeMap<String, Value>>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NodeJSExecuteResponse {
    /// Always `javascript`.
    #[schema(value_type = String)]
    pub language: &'static str,
    /// `ok`, `error` or `timeout`.
    #[schema(value_type = String)]
    pub status: &'static str,
    /// The number of this execution in its session.
    pub execution_count: Option<i64>,
    pub outputs: Vec<NodeJSOutput>,
    pub code: String,
    pub stdout: String,
    pub stderr: String,
    /// The process's; in a session 1 for code that raised. 124 when the time was over.
    pub exit_code: i32,
    pub session_id: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct NodeJSCreateSessionRequest {
    /// Absent or empty: a new id. An existing session is returned unchanged.
    pub session_id: Option<String>,
    pub cwd: Option<String>,
    /// Seconds without a call after which the session ends.
    #[serde(default, deserialize_with = "optional_within::<_, 60, 86_400>")]
    #[schema(default = 86400, minimum = 60, maximum = 86400)]
    pub max_idle_time: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct NodeJSUpdateSessionRequest {
    /// Seconds without a call after which the session ends.
    #[serde(default, deserialize_with = "optional_within::<_, 60, 86_400>")]
    #[schema(minimum = 60, maximum = 86400)]
    pub max_idle_time: Option<i64>,
    /// The directory of its next execution.
    pub cwd: Option<String>,
}

/// The query of session calls.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct VersionQuery {
    /// `node24` or `24`: selects sessions of this version, and sets it for a new one.
    pub version: Option<String>,
}

/// Times are in milliseconds, but for `age_seconds`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NodeJSSessionInfo {
    pub session_id: String,
    pub cwd: String,
    /// Milliseconds since 1970.
    pub created_at: f64,
    /// Milliseconds since 1970.
    pub last_used: f64,
    /// Milliseconds.
    pub max_idle_time: i64,
    /// Seconds since it was used.
    pub age_seconds: u64,
    /// `IDLE` or `EXECUTING`.
    #[schema(value_type = String)]
    pub state: &'static str,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NodeJSCreateSessionResponse {
    pub session_id: String,
    pub created: bool,
    pub message: Option<String>,
    pub session: Option<NodeJSSessionInfo>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NodeJSSessionListResponse {
    pub sessions: BTreeMap<String, NodeJSSessionInfo>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NodeJSSessionResponse {
    pub session: NodeJSSessionInfo,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NodeJSUpdateSessionResponse {
    pub updated: bool,
    pub session: NodeJSSessionInfo,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NodeJSDeleteSessionResponse {
    pub deleted: bool,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NodeJSPackageInfo {
    pub name: String,
    pub version: String,
}

#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct NodeJSRuntimeInfo {
    pub node_version: String,
    pub npm_version: String,
    #[schema(value_type = Vec<String>)]
    pub supported_languages: Vec<&'static str>,
    pub description: String,
    /// Where executions without a directory get theirs.
    pub runtime_directory: Option<String>,
    pub global_npm_directory: Option<String>,
    pub runtime_packages: Vec<NodeJSPackageInfo>,
    pub global_packages: Vec<NodeJSPackageInfo>,
    /// Why there is no information.
    pub error: Option<String>,
    /// Such as `node24`.
    pub available_versions: Vec<String>,
    /// The default version.
    pub current_version: Option<String>,
}
