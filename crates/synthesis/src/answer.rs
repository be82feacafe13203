//! Answers of calls: AgentFlow's envelope and its codes.

use std::time::Duration;

use arenite_trajectory::FailureClass;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// AgentFlow's codes, as in its code; its documents number some of them differently.
pub mod code {
    pub const SUCCESS: i64 = 0;
    pub const INVALID_INPUT: i64 = 4000;
    /// The tool worked, and reports a failure.
    pub const BUSINESS_FAILURE: i64 = 4001;
    pub const INVALID_REQUEST_FORMAT: i64 = 4002;
    pub const RESOURCE_NOT_INITIALIZED: i64 = 4007;
    pub const EXECUTION_ERROR: i64 = 5000;
    pub const UNEXPECTED_ERROR: i64 = 5005;
    pub const TIMEOUT: i64 = 5006;
    pub const ALL_FAILED: i64 = 5009;
    pub const PARTIAL_FAILURE: i64 = 5010;
    pub const BACKEND_NOT_INITIALIZED: i64 = 5011;
    pub const DEPENDENCY_FAILURE: i64 = 5012;
}

/// A text of at most `most` characters: AgentFlow marks where it is cut.
pub(crate) fn truncated(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}...[Truncated]", &text[..at]),
        None => text.to_owned(),
    }
}

/// The envelope. `meta` always has `tool`, `execution_time_ms`, `resource_type`, `session_id` and `trace_id`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToolAnswer {
    pub code: i64,
    pub message: String,
    pub data: Value,
    pub meta: Map<String, Value>,
    /// What should have carried out the call failed, and not the call itself. For its step only.
    #[serde(skip)]
    pub is_infrastructure: bool,
}

impl ToolAnswer {
    pub fn new(code: i64, message: impl Into<String>, data: Value, meta: Meta<'_>) -> Self {
        Self { code, message: message.into(), data, meta: meta.into_map(), is_infrastructure: false }
    }

    pub fn success(data: Value, meta: Meta<'_>) -> Self {
        Self::new(code::SUCCESS, "success", data, meta)
    }

    /// The side at fault for the failure.
    pub fn class(&self) -> FailureClass {
        let is_infrastructure =
            self.is_infrastructure || matches!(self.code, code::BACKEND_NOT_INITIALIZED | code::DEPENDENCY_FAILURE);
        if is_infrastructure { FailureClass::Infrastructure } else { FailureClass::Agent }
    }

    pub fn is_success(&self) -> bool {
        self.code == code::SUCCESS
    }

    /// The HTTP status of an answer to `execute`.
    pub fn status(&self) -> u16 {
        match self.code {
            code::SUCCESS => 200,
            4000..=4999 => 400,
            _ => 500,
        }
    }

    /// The HTTP status of an answer for several calls: a batch.
    pub fn status_of_many(&self) -> u16 {
        if self.code == code::PARTIAL_FAILURE { 207 } else { self.status() }
    }
}

/// Metadata of a call beside its result.
#[derive(Debug, Clone, Copy)]
pub struct Meta<'a> {
    pub tool: &'a str,
    pub took: Option<Duration>,
    pub resource_type: Option<&'a str>,
    pub session_id: Option<&'a str>,
    pub trace_id: &'a str,
}

impl Meta<'_> {
    pub fn into_map(self) -> Map<String, Value> {
        let mut meta = Map::new();
        meta.insert("tool".to_owned(), self.tool.into());
        meta.insert("execution_time_ms".to_owned(), self.took.map(|took| took.as_secs_f64() * 1e3).into());
        meta.insert("resource_type".to_owned(), self.resource_type.into());
        meta.insert("session_id".to_owned(), self.session_id.into());
        meta.insert("trace_id".to_owned(), self.trace_id.into());
        meta
    }
}

/// The return value of a tool.
#[derive(Debug, Clone)]
pub enum Returned {
    /// The `data` of a successful answer.
    Data(Value),
    /// A whole envelope, in which some of `meta` may be missing.
    Envelope(Map<String, Value>),
}

/// A tool's failure, as in AgentFlow's answer.
#[derive(Debug, Clone)]
pub struct Failure {
    pub code: i64,
    pub message: String,
    pub data: Value,
    /// What should have carried out the call failed, and not the call itself.
    pub is_infrastructure: bool,
}

/// Why a tool failed: a text, or an error that also says which side is at fault.
pub trait Reason: Into<String> {
    fn is_infrastructure(&self) -> bool {
        false
    }

    /// The `data` of the answer.
    fn data(&self) -> Value {
        json!({})
    }
}

impl Reason for &str {}
impl Reason for String {}

impl Failure {
    pub fn new(code: i64, reason: impl Reason) -> Self {
        let (is_infrastructure, data) = (reason.is_infrastructure(), reason.data());
        Self { code, message: reason.into(), data, is_infrastructure }
    }

    /// The same as a failure of the infrastructure.
    #[must_use]
    pub fn of_infrastructure(mut self) -> Self {
        self.is_infrastructure = true;
        self
    }

    #[must_use]
    pub fn with(mut self, data: Value) -> Self {
        self.data = data;
        self
    }
}

/// A trace id: a random UUID of version 4.
pub fn trace_id() -> String {
    let mut bytes = [0u8; 16];
    // Nothing works without the kernel's random numbers.
    if getrandom::fill(&mut bytes).is_err() {
        bytes[..8].copy_from_slice(&jiff::Timestamp::now().as_microsecond().to_be_bytes());
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = hex::encode(bytes);
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Some random hexadecimal digits.
pub(crate) fn random_hex(digits: usize) -> String {
    let mut id = trace_id().replace('-', "");
    // The first digits are all random.
    id.truncate(digits.min(12));
    id
}

/// UTC without a zone, with microseconds, in the format of Python's `utcnow().isoformat()`.
pub fn naive(at: jiff::Timestamp) -> String {
    at.to_zoned(jiff::tz::TimeZone::UTC).strftime("%Y-%m-%dT%H:%M:%S%.6f").to_string()
}
