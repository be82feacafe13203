//! Format of steps in memory, on disk and in exports.

use std::borrow::Cow;
use std::str::FromStr;

use arenite_model::{AnnotationSummary, TenantId};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::TrajectoryError;
use crate::class::FailureClass;
use crate::model_step::ModelStep;
use crate::seal::{self, Line};

/// The version of records on disk and of exported steps. Version 1 had no checksums, no `result`, and the client's address as
/// `origin`; its logs can still be read.
pub const FORMAT_VERSION: u32 = 2;

/// The origin of a step, derived from how its call came in. It is only for filters and grants no rights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// An agent, its harness's tool calls, or the command line: every call without another mark.
    #[default]
    Agent,
    /// A person, through one of this server's own pages.
    Person,
    /// The lifecycle of the sandbox itself, and calls of processes in the sandbox.
    System,
}

impl Origin {
    pub const ALL: [Self; 3] = [Self::Agent, Self::Person, Self::System];

    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Person => "person",
            Self::System => "system",
        }
    }

    /// For a record of version 1, which has no origin.
    fn of_dialect(dialect: &str) -> Self {
        match dialect {
            "api" | "agent_sandbox" | "inside" => Self::System,
            _ => Self::Agent,
        }
    }
}

impl FromStr for Origin {
    type Err = TrajectoryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|origin| origin.name() == text);
        found.ok_or_else(|| TrajectoryError::BadOrigin { given: text.chars().take(80).collect() })
    }
}

impl<'de> Deserialize<'de> for Origin {
    /// Version 1 has an address or null here.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        Ok(text.and_then(|text| text.parse().ok()).unwrap_or_default())
    }
}

/// Whether a call succeeded, by its answer. [`OutcomeKind`] states whether an answer came at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepResult {
    Succeeded,
    Failed(Failure),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = StepFailure)]
pub enum Failure {
    /// A command ended with this code, which is not 0.
    ExitCode(i64),
    Error(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ExitCode(code) => write!(f, "exit code {code}"),
            Self::Error(error) => f.write_str(error),
        }
    }
}

/// A call that is about to be made: everything known before the guest is dialled.
#[derive(Debug, Clone)]
pub struct Intent {
    pub tenant: TenantId,
    /// The sandbox's id: 1 to 64 letters, digits, hyphens and underscores.
    pub trajectory: String,
    pub sandbox_name: String,
    /// The wire format of the call, such as `aio`, `agent_sandbox` or `inside`.
    pub dialect: &'static str,
    /// Method and path, or a tool's name. Pass query strings through [`mod@crate::redact`] first.
    pub action: String,
    /// A JSON body or query that is already available; none if it will be streamed through the request tap.
    pub arguments: Option<Value>,
    pub origin: Origin,
    /// The client's address, or `inside`.
    pub client: Option<String>,
    pub request_id: String,
    /// None for a call without a worker.
    pub work: Option<Work>,
}

/// The step's owner in AgentFlow's terms, and its position in a task.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Work {
    /// The client's name for it.
    pub worker: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The step of this trajectory that it continues, if not the one before: branches form a tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u64>,
    pub trace_id: String,
    /// Time of the request; it waited from then until the step's start.
    pub queued_at: Timestamp,
    /// The sandbox in which it runs, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The call's own timeout in seconds, if it has one; 0 is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// The client's token counts of its model, as received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    pub tokens: Option<Box<RawValue>>,
}

/// How the transport of a step ended; its [`StepResult`] is read from the answer.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The answer's HTTP status, if an answer came.
    pub status: Option<u16>,
    pub result: OutcomeKind,
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutcomeKind {
    Ok,
    /// The answer's status is 400 or more.
    Error,
    /// The client left before the answer's end.
    Aborted,
    /// The sandbox could not be reached, or its answer broke off.
    Failed,
    /// The server died during the call. Never passed in: computed on read.
    Interrupted,
    /// A log line with the outcome is damaged. Never passed in: computed on read.
    Damaged,
}

/// A body in a record.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Body {
    /// JSON, byte for byte as it passed, except line breaks between its tokens.
    Json(Box<RawValue>),
    /// Text that is not JSON.
    Text(String),
    Blob(BlobRef),
    /// Only in exports with inlined bodies: a blob that is not text.
    Base64(String),
}

/// The schema of [`Body`], which holds JSON as bytes.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = RecordedBody)]
#[expect(dead_code, reason = "only its schema is used")]
enum BodySchema {
    Json(Value),
    Text(String),
    Blob(BlobRef),
    Base64(String),
}

impl PartialSchema for Body {
    fn schema() -> RefOr<Schema> {
        BodySchema::schema()
    }
}

impl ToSchema for Body {
    fn name() -> Cow<'static, str> {
        BodySchema::name()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        BodySchema::schemas(schemas);
    }
}

/// A reference to a body outside the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlobRef {
    /// Hash of its bytes, in hexadecimal.
    pub blake3: String,
    pub bytes: u64,
    /// Whether the bytes can be read back; if not, only hash and length are known.
    pub kept: bool,
    /// It exceeded the limit on one body.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_kept: Option<NotKept>,
}

/// Why a body's bytes were not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotKept {
    /// Over the limit on one body.
    TooLarge,
    /// The blob store was at its limit.
    StoreFull,
    /// The blob could not be written.
    WriteFailed,
}

/// One of the calls of a step that stands for several: the calls that one command of the command line makes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PartOfStep {
    pub action: String,
    pub outcome: OutcomeKind,
    pub status: Option<u16>,
    pub result: Option<StepResult>,
    pub arguments: Option<Body>,
    pub observation: Option<Body>,
}

/// The disk of a sandbox with automatic checkpoints, around a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepState {
    /// The number of the checkpoint that equals the disk before the step.
    pub before: u32,
    /// The same after the step. It is another number if files or their times changed.
    pub after: u32,
    /// The hash of the content after the step, as hexadecimal digits: equal content of the same image has an equal hash. None:
    /// there is too much content to hash.
    #[serde(default)]
    pub hash: Option<String>,
    /// The step, or what ran beside it, changed the content.
    pub changed: bool,
}

/// One step, intent and outcome together, as it is read back and exported.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
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
    /// None while the call is in progress.
    pub outcome: Option<OutcomeKind>,
    pub status: Option<u16>,
    /// None without a complete answer, which has the result.
    #[serde(default)]
    pub result: Option<StepResult>,
    /// The side at fault, if it failed. None: it did not fail, or nobody knows.
    #[serde(default)]
    pub class: Option<FailureClass>,
    pub error: Option<String>,
    #[serde(default)]
    pub origin: Origin,
    #[serde(default)]
    pub client: Option<String>,
    pub request_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// The calls that one command of the command line made, in the order of their ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<PartOfStep>,
    /// Of a sandbox with automatic checkpoints, for a step that can change its disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StepState>,
    /// Of a call of a model, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelStep>,
    /// Bytes that passed through the request tap, or of `arguments` if they were available at the start.
    pub bytes_in: u64,
    /// Bytes that passed through the response tap.
    pub bytes_out: u64,
}

/// A summary of one trajectory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = TrajectorySummary)]
pub struct Summary {
    pub trajectory: String,
    pub sandbox_name: String,
    /// Of a worker's trajectory: the worker, and its task if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    pub steps: u64,
    /// Absent: an older version, which did not count them, began the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
    /// Bytes of its log, without blobs.
    pub bytes: u64,
    /// Its sandbox was deleted.
    pub ended: bool,
    /// It is in object storage.
    #[serde(default)]
    pub archived: bool,
    /// What its annotations say together. Absent: it has none. They are not in the record, so lists add them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<AnnotationSummary>,
}

/// The failed steps of a trajectory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = TrajectoryFailures)]
pub struct Failures {
    /// The number of steps with the result `failed`.
    pub steps: u64,
    /// The last one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
}

impl Failures {
    pub(crate) fn and(self, step: u64) -> Self {
        Self { steps: self.steps + 1, last: self.last.max(Some(step)) }
    }
}

/// What was recorded and what could not be, since the recorder was opened.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Counters {
    pub steps_begun: u64,
    pub steps_finished: u64,
    /// Calls refused because their intent could not be recorded.
    pub refused: u64,
    /// Outcomes that could not be written; their steps read as interrupted.
    pub outcomes_lost: u64,
    /// Bodies with only hash and length kept, because the blob store was full or failed.
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
    Session,
    Network,
}

/// The start or end of a session in which steps are done, such as one of an AgentFlow worker. It stands between the steps and has
/// no number.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionEvent {
    pub event: SessionChange,
    pub id: String,
    /// The kind of resource, such as `bash` or `vm`.
    pub resource_type: String,
    /// Its configuration at creation: everything that its replay needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
    /// Idle time in seconds after which it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<f64>,
    /// The name of its sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// When it started or ended.
    pub at: Timestamp,
    /// The last step that started before this was written; set by the log.
    #[serde(default)]
    pub after: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SessionChange {
    Begin,
    End,
}

/// A session's event in the log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SessionRecord {
    pub(crate) v: u32,
    pub(crate) kind: Kind,
    pub(crate) last: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) open: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failures: Option<Failures>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ended: bool,
    pub(crate) session: SessionEvent,
    pub(crate) at: Timestamp,
}

/// Result of a check of a trajectory's log and blobs.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Verification {
    pub trajectory: String,
    pub lines: u64,
    /// Lines written before lines had checksums.
    pub unchecked: u64,
    pub steps: u64,
    /// Kept bodies outside the log that it refers to.
    pub blobs: u64,
    /// Altered or missing parts, in order; at most a thousand.
    pub problems: Vec<Problem>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = VerificationProblem)]
pub struct Problem {
    /// From 1; none for a body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    pub what: String,
}

impl Verification {
    const MOST: usize = 1000;

    pub(crate) fn note(&mut self, line: Option<u64>, step: Option<u64>, what: impl Into<String>) {
        if self.problems.len() < Self::MOST {
            self.problems.push(Problem { line, step, what: what.into() });
        }
    }
}

/// An intent in the log. The log itself sets `step`, `last`, `open`, `failures` and `ended`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IntentRecord {
    pub v: u32,
    pub kind: Kind,
    pub step: u64,
    /// The last step that started in this trajectory.
    pub last: u64,
    /// The oldest open step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<u64>,
    /// The trajectory's end was already recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
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
    #[serde(default)]
    pub origin: Origin,
    #[serde(default)]
    pub client: Option<String>,
    pub request_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
}

/// An outcome in the log. The log itself sets `last`, `open`, `failures` and `ended`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OutcomeRecord {
    pub v: u32,
    pub kind: Kind,
    pub step: u64,
    pub last: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    pub outcome: OutcomeKind,
    pub status: Option<u16>,
    #[serde(default)]
    pub result: Option<StepResult>,
    /// The class of its failure, if the tool itself names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<FailureClass>,
    pub error: Option<String>,
    /// What passed the request tap, if the intent had no arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Body>,
    pub observation: Option<Body>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<PartOfStep>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StepState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelStep>,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub ended_at: Option<Timestamp>,
    pub duration_ms: Option<f64>,
}

impl OutcomeRecord {
    /// Outcome of a step that was open when its server died.
    pub(crate) fn interrupted(step: u64) -> Self {
        Self {
            v: FORMAT_VERSION,
            kind: Kind::Outcome,
            step,
            last: 0,
            open: None,
            failures: None,
            ended: false,
            outcome: OutcomeKind::Interrupted,
            status: None,
            result: None,
            class: None,
            error: Some("the server ended during the call".to_owned()),
            arguments: None,
            observation: None,
            calls: Vec::new(),
            state: None,
            model: None,
            bytes_in: 0,
            bytes_out: 0,
            ended_at: None,
            duration_ms: None,
        }
    }

    /// Outcome of a step with an unreadable outcome line.
    pub(crate) fn damaged(step: u64) -> Self {
        let error = Some("the record of how it went is damaged".to_owned());
        Self { outcome: OutcomeKind::Damaged, error, ..Self::interrupted(step) }
    }

    /// Its result, also for a record without one.
    fn result(&self) -> Option<StepResult> {
        if self.result.is_some() || self.v > 1 {
            return self.result.clone();
        }
        let told = match &self.observation {
            Some(Body::Json(raw)) => Some(crate::verdict::Verdict::judge(raw.get().as_bytes())),
            Some(Body::Blob(_)) => None,
            _ => Some(StepResult::Succeeded),
        };
        conclude(self.outcome, told, self.error.as_deref(), self.status)
    }
}

/// The result of a step, from its answer and its transport.
pub(crate) fn conclude(
    kind: OutcomeKind,
    told: Option<StepResult>,
    error: Option<&str>,
    status: Option<u16>,
) -> Option<StepResult> {
    match (kind, told) {
        (OutcomeKind::Ok, told) | (OutcomeKind::Error, told @ Some(StepResult::Failed(_))) => told,
        (OutcomeKind::Error | OutcomeKind::Failed, _) => {
            let status = || status.map(|status| format!("the answer was {status}"));
            let error = error.map(str::to_owned).or_else(status).unwrap_or_else(|| "it failed".to_owned());
            Some(StepResult::Failed(Failure::Error(error)))
        }
        (OutcomeKind::Aborted | OutcomeKind::Interrupted | OutcomeKind::Damaged, _) => None,
    }
}

/// The end of a trajectory in the log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EndRecord {
    pub(crate) v: u32,
    pub(crate) kind: Kind,
    pub(crate) last: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) open: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failures: Option<Failures>,
    pub(crate) ended: bool,
    pub(crate) at: Timestamp,
}

/// The part of any line that shows the log's position.
#[derive(Debug, Deserialize)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    #[serde(default)]
    pub(crate) step: u64,
    pub(crate) last: u64,
    #[serde(default)]
    pub(crate) open: Option<u64>,
    #[serde(default)]
    pub(crate) failures: Option<Failures>,
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

/// The part of [`Work`] that a list shows.
#[derive(Debug, Deserialize)]
pub(crate) struct Whose {
    pub(crate) worker: String,
    #[serde(default)]
    pub(crate) task: Option<String>,
}

impl Head {
    /// None for a damaged line.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        match seal::check(line) {
            Line::Sealed { .. } | Line::Unsealed => serde_json::from_slice(line).ok(),
            Line::Torn | Line::Damaged => None,
        }
    }

    /// When the line was written.
    pub(crate) fn time(&self) -> Option<Timestamp> {
        self.started_at.or(self.ended_at).or(self.at)
    }
}

impl IntentRecord {
    /// Reads a line of any version.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Old {
            origin: Option<String>,
        }
        let mut record: Self = serde_json::from_slice(line).ok()?;
        if record.v < 2 {
            record.client = serde_json::from_slice::<Old>(line).ok()?.origin;
            record.origin = Origin::of_dialect(&record.dialect);
        }
        Some(record)
    }
}

impl Step {
    /// A step with an unreadable intent. `like` is a step near it.
    pub(crate) fn lost(step: u64, like: Option<&Self>) -> Self {
        let text = |of: fn(&Self) -> &String| like.map(of).cloned().unwrap_or_default();
        Self {
            version: FORMAT_VERSION,
            step,
            tenant: text(|step| &step.tenant),
            sandbox_id: text(|step| &step.sandbox_id),
            sandbox_name: text(|step| &step.sandbox_name),
            dialect: String::new(),
            action: "unknown".to_owned(),
            arguments: None,
            observation: None,
            started_at: like.map_or(Timestamp::UNIX_EPOCH, |step| step.started_at),
            ended_at: None,
            duration_ms: None,
            outcome: Some(OutcomeKind::Damaged),
            status: None,
            result: None,
            class: Some(FailureClass::Infrastructure),
            error: Some("the record of this step is damaged or missing".to_owned()),
            origin: Origin::Agent,
            client: None,
            request_id: String::new(),
            work: None,
            calls: Vec::new(),
            state: None,
            model: None,
            bytes_in: 0,
            bytes_out: 0,
        }
    }

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
            result: None,
            class: None,
            error: None,
            origin: intent.origin,
            client: intent.client,
            request_id: intent.request_id,
            work: intent.work,
            calls: Vec::new(),
            state: None,
            model: None,
            bytes_in: intent.bytes_in,
            bytes_out: 0,
        }
    }

    pub(crate) fn conclude(&mut self, outcome: OutcomeRecord) {
        self.result = outcome.result();
        self.class = FailureClass::derive(outcome.outcome, outcome.status, self.result.as_ref(), outcome.class);
        self.arguments = self.arguments.take().or(outcome.arguments);
        self.observation = outcome.observation;
        self.ended_at = outcome.ended_at;
        self.duration_ms = outcome.duration_ms;
        self.outcome = Some(outcome.outcome);
        self.status = outcome.status;
        self.error = outcome.error;
        self.calls = outcome.calls;
        self.state = outcome.state;
        self.model = outcome.model;
        self.bytes_in = self.bytes_in.max(outcome.bytes_in);
        self.bytes_out = outcome.bytes_out;
    }
}
