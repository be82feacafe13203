//! Arguments and results of the service; their JSON is AIO's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::outputs::JupyterOutput;
use arenite_guest_runtime::http::optional_within;

/// The default timeout of an execution, in seconds.
pub const DEFAULT_TIMEOUT: i64 = 30;

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct JupyterExecuteRequest {
    pub code: String,
    /// Seconds after which the execution is interrupted.
    #[serde(default, deserialize_with = "optional_within::<_, 1, 300>")]
    #[schema(default = 30, minimum = 1, maximum = 300)]
    pub timeout: Option<i64>,
    /// One of `/v1/jupyter/info`. Absent: the session's; of a new session the default.
    pub kernel_name: Option<String>,
    /// The session to use; created if it does not exist. Absent: a new one.
    pub session_id: Option<String>,
    /// The directory that the kernel changes to first.
    pub cwd: Option<String>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct JupyterExecuteResponse {
    pub kernel_name: String,
    pub session_id: Option<String>,
    /// `ok`, `error` or `timeout`.
    pub status: String,
    pub execution_count: Option<i64>,
    /// What was printed first, then the rest in its order.
    pub outputs: Vec<JupyterOutput>,
    pub code: String,
    pub msg_id: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct JupyterCreateSessionRequest {
    /// Absent or empty: a new id. An existing session is returned unchanged.
    pub session_id: Option<String>,
    /// One of `/v1/jupyter/info`.
    pub kernel_name: Option<String>,
    /// The directory that the kernel starts in.
    pub cwd: Option<String>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct JupyterCreateSessionResponse {
    pub session_id: String,
    pub kernel_name: String,
    pub message: String,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct JupyterInfoResponse {
    pub default_kernel: String,
    pub available_kernels: Vec<String>,
    pub active_sessions: usize,
    /// An idle session ends after this time.
    pub session_timeout_seconds: u64,
    pub max_sessions: usize,
    pub description: String,
    pub kernel_detection: String,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ActiveSessionsResult {
    pub sessions: BTreeMap<String, SessionInfo>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SessionInfo {
    pub kernel_name: String,
    /// Seconds since 1970.
    pub last_used: f64,
    /// Since it was made.
    pub age_seconds: u64,
}
