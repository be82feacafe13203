//! Requests and answers of AgentFlow's routes, as the document describes them.
//!
//! The original checks some bodies with pydantic: their fields are strict, and [`super::check`] reads them. Its handlers read the
//! others themselves: their fields are lenient, and a wrong value counts as absent.

use std::collections::BTreeMap;

use arenite_model::ErrorCode;
use arenite_synthesis::{Action, Execute, SessionInfo, SessionStatus};
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::check;
use crate::health::NotReady;

/// A field that counts as absent if its value is wrong.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned>(input: D) -> Result<Option<T>, D::Error> {
    Ok(T::deserialize(Value::deserialize(input)?).ok())
}

fn lenient_integer<'de, D: Deserializer<'de>>(input: D) -> Result<Option<i64>, D::Error> {
    Ok(check::integer(&Value::deserialize(input)?))
}

/// One name, or several.
fn names<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Vec<String>>, D::Error> {
    let name = |value| if let Value::String(name) = value { Some(name) } else { None };
    Ok(match Value::deserialize(input)? {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) => Some(names.into_iter().filter_map(name).collect()),
        _ => None,
    })
}

/// A lenient text: a number counts as one, and an empty text as absent.
#[derive(Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct Given(Option<Value>);

impl Given {
    pub(super) fn text(&self) -> Option<String> {
        match self.0.as_ref()? {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }
}

/// Fields that a message may have beside those of its request. Calls of tools use `trace_id` and the later ones.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "some fields are only checked")]
pub(crate) struct Message {
    #[serde(default)]
    message_id: String,
    #[serde(default)]
    message_type: String,
    #[serde(default)]
    timestamp: String,
    session_id: Option<String>,
    /// The client's own id of the call, kept in answer and record.
    #[serde(default, deserialize_with = "lenient")]
    trace_id: Option<String>,
    /// Identifies the trajectory together with the worker.
    #[serde(default, deserialize_with = "lenient")]
    task_id: Option<String>,
    /// The number of the step that this one continues, if not the one before.
    #[serde(default, deserialize_with = "lenient_integer")]
    parent: Option<i64>,
    /// Token counts of the client's model, for the record.
    tokens: Option<Value>,
    /// The same as `tokens`.
    usage: Option<Value>,
    /// The same as `tokens`.
    token_usage: Option<Value>,
}

impl Message {
    pub(super) fn execute(self, worker: String, action: Action) -> Execute {
        let tokens = self.tokens.or(self.usage).or(self.token_usage);
        Execute {
            worker,
            action,
            trace_id: self.trace_id.filter(|id| (1..=128).contains(&id.len())),
            task: self.task_id.filter(|id| !id.is_empty()),
            parent: self.parent.and_then(|step| u64::try_from(step).ok()),
            tokens: tokens.and_then(|tokens| serde_json::value::to_raw_value(&tokens).ok()),
        }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ExecuteRequest {
    pub(super) worker_id: String,
    /// The tool, such as `bash:run`.
    pub(super) action: String,
    #[serde(default)]
    #[schema(value_type = Object)]
    pub(super) params: Map<String, Value>,
    /// In seconds; 0: none.
    pub(super) timeout: Option<i64>,
    /// Has no effect.
    #[serde(default, rename = "async_mode")]
    _async_mode: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ExecuteBatchRequest {
    pub(super) worker_id: String,
    pub(super) actions: Vec<BatchAction>,
    /// Runs the actions at the same time.
    #[serde(default)]
    pub(super) parallel: bool,
    /// Skips the actions after a failed one; true by default.
    #[serde(default = "yes")]
    pub(super) stop_on_error: bool,
}

/// A call in a batch. A field with a wrong type counts as absent.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct BatchAction {
    #[serde(default, deserialize_with = "lenient")]
    #[schema(value_type = String)]
    action: Option<String>,
    #[serde(default = "no_params", deserialize_with = "lenient")]
    #[schema(value_type = Object)]
    params: Option<Map<String, Value>>,
    /// In seconds; 0: none.
    #[serde(default, deserialize_with = "lenient_integer")]
    timeout: Option<i64>,
}

fn yes() -> bool {
    true
}

fn no_params() -> Option<Map<String, Value>> {
    Some(Map::new())
}

impl From<BatchAction> for Action {
    fn from(item: BatchAction) -> Self {
        Self { name: item.action.unwrap_or_default(), params: item.params, timeout: item.timeout }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct WorkerDisconnectRequest {
    pub(super) worker_id: String,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct InitResourceRequest {
    pub(super) worker_id: String,
    pub(super) resource_type: String,
    #[serde(default)]
    #[schema(value_type = Object)]
    pub(super) init_config: Map<String, Value>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct InitBatchRequest {
    pub(super) worker_id: String,
    /// By the type of resource: its configuration, or an object with that as `content`.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Object>)]
    pub(super) resource_configs: BTreeMap<String, Map<String, Value>>,
    /// Has no effect.
    #[serde(default, rename = "allocated_resources")]
    #[schema(value_type = Object)]
    _allocated_resources: Map<String, Value>,
    /// Has no effect.
    #[serde(rename = "task_session_id")]
    _task_session_id: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct InitFromConfigRequest {
    #[serde(rename = "worker_id")]
    _worker_id: String,
    /// Below the folder that the server's configuration names.
    pub(super) config_path: String,
    /// Replaces values of the file. Objects are merged.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub(super) override_params: Map<String, Value>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct WorkerRequest {
    #[schema(value_type = String)]
    pub(super) worker_id: Given,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct SessionDestroyRequest {
    #[schema(value_type = String)]
    pub(super) worker_id: Given,
    #[schema(value_type = String)]
    pub(super) resource_type: Given,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct SessionCreateRequest {
    #[schema(value_type = String)]
    pub(super) worker_id: Given,
    #[schema(value_type = String)]
    pub(super) resource_type: Given,
    #[schema(value_type = Option<Object>)]
    pub(super) session_config: Option<Value>,
    /// The same as `session_config`.
    #[schema(value_type = Option<Object>)]
    pub(super) config: Option<Value>,
    /// A part of the session's name.
    #[schema(value_type = Option<String>)]
    pub(super) custom_name: Given,
    /// Idle time in seconds after which it ends.
    #[serde(default, deserialize_with = "lenient")]
    pub(super) ttl: Option<f64>,
    /// Whether calls restart this time.
    #[serde(default, deserialize_with = "lenient")]
    pub(super) auto_extend: Option<bool>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct SessionRefreshRequest {
    #[schema(value_type = String)]
    pub(super) worker_id: Given,
    /// Absent: all sessions.
    #[schema(value_type = Option<String>)]
    pub(super) resource_type: Given,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct WarmupRequest {
    /// Absent or empty: all.
    #[serde(default, deserialize_with = "names")]
    pub(super) backends: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct ShutdownRequest {
    /// Has no effect.
    #[serde(default, rename = "force", deserialize_with = "lenient")]
    _force: Option<bool>,
    /// Ends all sessions before; true by default.
    #[serde(default, deserialize_with = "lenient")]
    pub(super) cleanup_sessions: Option<bool>,
}

/// AgentFlow's envelope.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct Envelope {
    /// 0: success; from 4000: an error of the request; from 5000: another one.
    code: i64,
    message: String,
    data: Value,
    meta: Meta,
}

#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Meta {
    tool: String,
    execution_time_ms: Option<f64>,
    resource_type: Option<String>,
    session_id: Option<String>,
    trace_id: String,
    /// The call had no session, and used a temporary one.
    #[schema(required = false)]
    temporary_session: bool,
}

/// A refused or failed request.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum Failure {
    Failed(Envelope),
    /// In FastAPI's format: a text, or pydantic's list of errors.
    Invalid {
        detail: Value,
    },
    Message(ErrorMessage),
    NotReady(NotReady),
    /// By the server, before the request reaches AgentFlow's routes.
    Refused {
        success: bool,
        message: String,
        hint: Option<String>,
        code: ErrorCode,
    },
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorMessage {
    /// `error`
    pub(super) status: &'static str,
    pub(super) message: String,
}

/// The results of a batch: envelopes.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct BatchResults {
    results: Vec<Envelope>,
    total: usize,
    /// Without the skipped ones.
    executed: usize,
    success_count: usize,
}

/// A created session, or the one that was there before.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct CreatedSession {
    pub(super) session_id: String,
    pub(super) session_name: String,
    pub(super) resource_type: String,
    pub(super) session_status: &'static str,
    /// `exists`, for one that was there before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<&'static str>,
    /// Why its initialization failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(super) error: Option<Option<String>>,
    /// True if its type has no backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) compatibility_mode: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) compatibility_message: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DestroyedSession {
    pub(super) message: String,
    pub(super) session_id: String,
    pub(super) session_name: String,
    pub(super) resource_type: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerSessions {
    pub(super) worker_id: String,
    pub(super) count: usize,
    pub(super) sessions: Vec<SessionInfo>,
}

/// One refreshed session, or all.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum RefreshedSessions {
    One { message: String, resource_type: String, session_id: String, expires_at: String },
    All { message: String, worker_id: String, refreshed_count: usize, details: BTreeMap<String, RefreshedSession> },
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RefreshedSession {
    /// `refreshed`
    pub(super) status: &'static str,
    pub(super) expires_at: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ActiveSessions {
    pub(super) worker_id: String,
    /// The sessions' types.
    pub(super) active_sessions: Vec<String>,
    pub(super) timestamp: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerStatus {
    pub(super) worker_id: String,
    pub(super) active_resources: Vec<String>,
    /// By their types.
    pub(super) sessions: BTreeMap<String, SessionStatus>,
    pub(super) tools_available: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DisconnectedWorker {
    pub(super) worker_id: String,
    pub(super) sessions_cleaned: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InitializedResource {
    pub(super) session_id: String,
    pub(super) resource_type: String,
    pub(super) session_status: &'static str,
    pub(super) error: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InitializedBatch {
    pub(super) worker_id: String,
    /// By the type of resource.
    pub(super) results: BTreeMap<String, InitResult>,
    pub(super) total: usize,
    pub(super) success_count: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InitResult {
    /// `success` or `error`
    pub(super) status: &'static str,
    pub(super) session_id: Option<String>,
    pub(super) session_status: &'static str,
    pub(super) error: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LoadedConfig {
    pub(super) config_loaded: String,
    #[schema(value_type = Object)]
    pub(super) config: Map<String, Value>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolList {
    pub(super) count: usize,
    /// In the requested format; by default as `/api/v1/tools/{tool_name}/schema` returns them.
    #[schema(value_type = Vec<Object>)]
    pub(super) tools: Vec<Value>,
    /// By backend: the problems of its discovery.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) errors: BTreeMap<String, BTreeMap<String, String>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WarmedBackends {
    /// `success` or `partial_error`
    pub(super) status: &'static str,
    pub(super) results: BTreeMap<String, bool>,
    pub(super) summary: WarmupSummary,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) errors: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WarmupSummary {
    pub(super) total: usize,
    pub(super) warmed_up: usize,
    pub(super) pending: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WarmupStatus {
    pub(super) backends: BTreeMap<String, BackendStatus>,
    pub(super) summary: WarmupSummary,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BackendStatus {
    pub(super) loaded: bool,
    pub(super) warmed_up: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ServerShutdown {
    pub(super) status: &'static str,
    pub(super) message: &'static str,
    pub(super) sessions_cleaned: usize,
}
