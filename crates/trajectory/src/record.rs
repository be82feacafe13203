//! What a step is, in memory, on disk and in an export.

use arenite_model::TenantId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// The version of the records on disk and of exported steps.
pub const FORMAT_VERSION: u32 = 1;

/// What is about to be done: everything known before the dial.
#[derive(Debug, Clone)]
pub struct Intent {
    pub tenant: TenantId,
    /// The sandbox's id: 1 to 64 letters, digits, hyphens and underscores.
    pub trajectory: String,
    pub sandbox_name: String,
    /// The wire format it came in, such as `aio`, `agent_sandbox` or `inside`.
    pub dialect: &'static str,
    /// Method and path, or a tool's name. Pass query strings through [`crate::redact`] first.
    pub action: String,
    /// A JSON body or query that is already at hand; none when it will be streamed through the request tap.
    pub arguments: Option<Value>,
    /// The client's address, or `inside`.
    pub origin: Option<String>,
    pub request_id: String,
    /// None for a call that no worker made.
    pub work: Option<Work>,
}

/// Whose step it is in AgentFlow's words, and where it stands in a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Work {
    /// As the client named it.
    pub worker: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The step of this trajectory that it goes on from, where that is not the one before: branches make a tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u64>,
    pub trace_id: String,
    /// When it was asked for; what lies between that and the step's start it waited.
    pub queued_at: Timestamp,
    /// The sandbox in which it is done, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// What the client told of its model's tokens, as it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Box<RawValue>>,
}

/// How a step went.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The answer's HTTP status, where there was an answer.
    pub status: Option<u16>,
    pub result: OutcomeKind,
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutcomeKind {
    Ok,
    /// The tool answered with an error.
    Error,
    /// The client left before the answer's end.
    Aborted,
    /// The sandbox could not be reached, or its answer broke off.
    Failed,
    /// The server died during the call. Never passed in: computed on read.
    Interrupted,
}

/// A body as the record has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Body {
    /// JSON, byte for byte as it passed, but for line breaks between its tokens.
    Json(Box<RawValue>),
    /// Text that is not JSON.
    Text(String),
    Blob(BlobRef),
    /// Only in exports with bodies put in place of references: a blob that is not text.
    Base64(String),
}

/// A body that stands outside the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobRef {
    /// Of its bytes, in hexadecimal.
    pub blake3: String,
    pub bytes: u64,
    /// Whether the bytes can be read back; if not, hash and length are all there is.
    pub kept: bool,
    /// It was over the limit on one body.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_kept: Option<NotKept>,
}

/// Why a body's bytes were not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotKept {
    /// Over the limit on one body.
    TooLarge,
    /// The blob store was at its limit.
    StoreFull,
    /// The blob could not be written.
    WriteFailed,
}

/// One step, intent and outcome together: what is read back and exported.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    #[serde(rename = "v")]
    pub version: u32,
    /// From 1, without gaps within a trajectory.
    pub step: u64,
    pub tenant: String,
    pub sandbox_id: String,
    pub sandbox_name: String,
    pub dialect: String,
    pub action: String,
    pub arguments: Option<Body>,
    pub observation: Option<Body>,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub duration_ms: Option<f64>,
    /// None while the call is under way.
    pub outcome: Option<OutcomeKind>,
    pub status: Option<u16>,
    pub error: Option<String>,
    pub origin: Option<String>,
    pub request_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// Bytes that passed through the request tap, or of `arguments` when they were at hand.
    pub bytes_in: u64,
    /// Bytes that passed through the response tap.
    pub bytes_out: u64,
}

/// A trajectory at a glance.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    pub trajectory: String,
    pub sandbox_name: String,
    /// Of a worker's trajectory: the worker, and its task where one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    pub steps: u64,
    /// Bytes of its log, without blobs.
    pub bytes: u64,
    /// Its sandbox was deleted.
    pub ended: bool,
}

/// How much was recorded and how much could not be, since the recorder was opened.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Counters {
    pub steps_begun: u64,
    pub steps_finished: u64,
    /// Calls refused because their intent could not be recorded.
    pub refused: u64,
    /// Outcomes that could not be written; their steps read as interrupted.
    pub outcomes_lost: u64,
    /// Bodies of which only hash and length were kept, because the blob store was full or failed.
    pub bodies_not_kept: u64,
    pub logs_bytes: u64,
    pub blobs_bytes: u64,
    /// Failed calls of `fdatasync`.
    pub sync_errors: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Intent,
    Outcome,
    End,
}

/// An intent as it is logged. The log itself sets `step`, `last`, `open` and `ended`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IntentRecord {
    pub v: u32,
    pub kind: Kind,
    pub step: u64,
    /// The last step begun in this trajectory.
    pub last: u64,
    /// The oldest step under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<u64>,
    /// The trajectory's end was noted before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    pub tenant: String,
    pub sandbox_id: String,
    pub sandbox_name: String,
    pub dialect: String,
    pub action: String,
    pub arguments: Option<Body>,
    pub bytes_in: u64,
    pub started_at: Timestamp,
    pub origin: Option<String>,
    pub request_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
}

/// An outcome as it is logged. The log itself sets `last`, `open` and `ended`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OutcomeRecord {
    pub v: u32,
    pub kind: Kind,
    pub step: u64,
    pub last: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    pub outcome: OutcomeKind,
    pub status: Option<u16>,
    pub error: Option<String>,
    /// What passed the request tap, when the intent had no arguments at hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Body>,
    pub observation: Option<Body>,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub ended_at: Option<Timestamp>,
    pub duration_ms: Option<f64>,
}

impl OutcomeRecord {
    /// A step whose server died.
    pub(crate) fn interrupted(step: u64) -> Self {
        Self {
            v: FORMAT_VERSION,
            kind: Kind::Outcome,
            step,
            last: 0,
            open: None,
            ended: false,
            outcome: OutcomeKind::Interrupted,
            status: None,
            error: Some("the server ended during the call".to_owned()),
            arguments: None,
            observation: None,
            bytes_in: 0,
            bytes_out: 0,
            ended_at: None,
            duration_ms: None,
        }
    }
}

/// The end of a trajectory as it is logged.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EndRecord {
    pub(crate) v: u32,
    pub(crate) kind: Kind,
    pub(crate) last: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) open: Option<u64>,
    pub(crate) ended: bool,
    pub(crate) at: Timestamp,
}

/// What of any line tells where the log stands.
#[derive(Debug, Deserialize)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    #[serde(default)]
    pub(crate) step: u64,
    pub(crate) last: u64,
    #[serde(default)]
    pub(crate) open: Option<u64>,
    #[serde(default)]
    pub(crate) ended: bool,
    #[serde(default)]
    pub(crate) sandbox_name: Option<String>,
    #[serde(default)]
    pub(crate) work: Option<Whose>,
    #[serde(default)]
    pub(crate) started_at: Option<Timestamp>,
    #[serde(default)]
    pub(crate) ended_at: Option<Timestamp>,
    #[serde(default)]
    pub(crate) at: Option<Timestamp>,
}

/// Of [`Work`], what a list shows.
#[derive(Debug, Deserialize)]
pub(crate) struct Whose {
    pub(crate) worker: String,
    #[serde(default)]
    pub(crate) task: Option<String>,
}

impl Head {
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// When the line was written.
    pub(crate) fn time(&self) -> Option<Timestamp> {
        self.started_at.or(self.ended_at).or(self.at)
    }
}

impl Step {
    pub(crate) fn of_intent(intent: IntentRecord) -> Self {
        Self {
            version: intent.v,
            step: intent.step,
            tenant: intent.tenant,
            sandbox_id: intent.sandbox_id,
            sandbox_name: intent.sandbox_name,
            dialect: intent.dialect,
            action: intent.action,
            arguments: intent.arguments,
            observation: None,
            started_at: intent.started_at,
            ended_at: None,
            duration_ms: None,
            outcome: None,
            status: None,
            error: None,
            origin: intent.origin,
            request_id: intent.request_id,
            work: intent.work,
            bytes_in: intent.bytes_in,
            bytes_out: 0,
        }
    }

    pub(crate) fn conclude(&mut self, outcome: OutcomeRecord) {
        self.arguments = self.arguments.take().or(outcome.arguments);
        self.observation = outcome.observation;
        self.ended_at = outcome.ended_at;
        self.duration_ms = outcome.duration_ms;
        self.outcome = Some(outcome.outcome);
        self.status = outcome.status;
        self.error = outcome.error;
        self.bytes_in = self.bytes_in.max(outcome.bytes_in);
        self.bytes_out = outcome.bytes_out;
    }
}
