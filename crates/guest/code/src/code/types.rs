//! Arguments and results of the service; their JSON is AIO's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use arenite_guest_runtime::http::optional_within;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Python,
    Javascript,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct CodeExecuteRequest {
    pub language: Language,
    pub code: String,
    /// Seconds after which the execution is interrupted; absent: 30.
    #[serde(default, deserialize_with = "optional_within::<_, 1, 300>")]
    #[schema(minimum = 1, maximum = 300)]
    pub timeout: Option<i64>,
    /// The directory of execution.
    pub cwd: Option<String>,
    /// Execute in a session, which keeps its state.
    #[schema(default = false, value_type = bool)]
    pub stateful: Option<bool>,
    /// The session to use when `stateful`; created if it does not exist. Absent: a new one.
    pub session_id: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct CodeExecuteResponse {
    pub language: Language,
    /// `ok`, `error` or `timeout`.
    pub status: String,
    /// As `/v1/jupyter/execute` or `/v1/nodejs/execute` have them.
    #[schema(value_type = Vec<BTreeMap<String, Value>>)]
    pub outputs: Vec<Box<RawValue>>,
    pub code: String,
    pub stdout: Option<String>,
    pub stderr: Option<String>,
    /// 0 for code that ran to its end, 124 when the time was over.
    pub exit_code: Option<i32>,
    pub traceback: Option<Vec<String>>,
    /// Only when `stateful`.
    pub session_id: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct CodeInfoResponse {
    pub languages: Vec<CodeLanguageInfo>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct CodeLanguageInfo {
    pub language: Language,
    pub description: String,
    /// None: not installed.
    pub runtime_version: Option<String>,
    pub default_timeout: i64,
    pub max_timeout: i64,
    pub details: BTreeMap<String, Value>,
}
