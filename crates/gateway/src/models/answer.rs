//! An answer of an upstream on its way to the client. It is read as it passes, for the step and for the use of tokens.

use std::io;
use std::time::{Duration, Instant};

use arenite_control::models::{ModelPermit, ModelRoute, ModelUse};
use arenite_trajectory::{ModelStep, OpenStep, Outcome, OutcomeKind};
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio_util::task::AbortOnDropHandle;

use super::assemble::Assembly;
use super::request::Endpoint;
use super::sse::{Events, Piece, data};
use super::usage::{UsageFields, estimate};

/// Largest answer that is read as a whole for its counts, in bytes. A larger one passes, and its tokens are estimated.
const MAX_WHOLE: usize = 8 << 20;

/// A call in progress: its reservation, and its step if it has one. Dropped without an end, the client has left.
pub(super) struct CallRecord {
    step: Option<OpenStep>,
    permit: Option<ModelPermit>,
    route: ModelRoute,
    about: ModelStep,
    begun: Instant,
    reading: Reading,
    /// Bytes of the answer's content.
    bytes: u64,
    status: Option<u16>,
}

/// How the answer is read.
pub(super) enum Reading {
    /// Not yet.
    Nothing,
    Events {
        events: Events,
        assembly: Box<Assembly>,
        hides_usage: bool,
    },
    Whole(Vec<u8>),
    /// It is too large.
    Passing,
}

/// The parts of an answer that are read. The rest is not kept.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WholeAnswer {
    usage: Option<UsageFields>,
    choices: Vec<ChoiceEnd>,
    stop_reason: Option<String>,
    status: Option<String>,
    error: Option<ErrorFields>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChoiceEnd {
    finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ErrorFields {
    Object { message: String },
    Other(IgnoredAny),
}

impl CallRecord {
    pub(super) fn new(step: Option<OpenStep>, permit: ModelPermit, route: ModelRoute, model: &str, stream: bool) -> Self {
        let about = ModelStep { route: route.name.to_string(), model: model.to_owned(), stream, ..ModelStep::default() };
        let begun = Instant::now();
        Self { step, permit: Some(permit), route, about, begun, reading: Reading::Nothing, bytes: 0, status: None }
    }

    /// The head of the answer came.
    pub(super) fn begin_answer(&mut self, status: u16, is_events: bool, endpoint: Endpoint, hides_usage: bool) {
        self.status = Some(status);
        self.reading = match is_events && status < 400 {
            true => {
                let assembly = Box::new(Assembly::new(endpoint));
                Reading::Events { events: Events::default(), assembly, hides_usage }
            }
            false => Reading::Whole(Vec::new()),
        };
        if let Some(step) = &mut self.step {
            // Words of a model are no result of a call.
            step.response_tap().is_payload();
        }
    }

    /// Reads the next bytes, and returns those for the client.
    fn pass(&mut self, bytes: Bytes) -> Bytes {
        let Reading::Events { events, assembly, hides_usage } = &mut self.reading else {
            self.note_content(bytes.len());
            if let Some(step) = &mut self.step {
                step.response_tap().feed(&bytes);
            }
            match &mut self.reading {
                Reading::Whole(whole) if whole.len() + bytes.len() <= MAX_WHOLE => whole.extend_from_slice(&bytes),
                reading => *reading = Reading::Passing,
            }
            return bytes;
        };
        let (mut kept, mut content) = (Vec::new(), 0);
        let hides_usage = *hides_usage;
        for piece in events.feed(&bytes) {
            let (part, is_hidden) = match piece {
                Piece::Event(event) => {
                    let data = data(&event);
                    let seen = assembly.feed(&data);
                    if seen.is_content {
                        content += data.len();
                    }
                    (event, hides_usage && seen.is_usage)
                }
                Piece::Oversized(part) => {
                    assembly.skip();
                    content += part.len();
                    (part, false)
                }
            };
            if hides_usage && !is_hidden {
                kept.extend_from_slice(&part);
            }
        }
        if content > 0 {
            self.note_content(content);
        }
        if hides_usage { kept.into() } else { bytes }
    }

    fn note_content(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        let begun = self.begun;
        self.about.first_token_ms.get_or_insert_with(|| (begun.elapsed().as_secs_f64() * 1e6).round() / 1e3);
    }

    /// The upstream ended its answer. Returns what was held back of it.
    fn end(&mut self) -> Option<Bytes> {
        let status = self.status.unwrap_or_default();
        let mut rest = None;
        let outcome = match &mut self.reading {
            Reading::Events { events, assembly, hides_usage } => {
                let last = events.rest();
                assembly.feed(&data(&last));
                rest = (*hides_usage && !last.is_empty()).then(|| last.into());
                let error = match (assembly.error(), assembly.is_complete()) {
                    (Some(error), _) => Some(format!("the upstream reported an error: {error}")),
                    (None, false) => Some("the upstream ended before the answer's end".to_owned()),
                    (None, true) => None,
                };
                let result = if error.is_some() { OutcomeKind::Failed } else { OutcomeKind::Ok };
                Outcome { status: Some(status), result, error }
            }
            reading => {
                let error = match reading {
                    Reading::Whole(whole) if status >= 400 => error_in(whole),
                    _ => None,
                };
                let result = if status >= 400 { OutcomeKind::Error } else { OutcomeKind::Ok };
                Outcome { status: Some(status), result, error }
            }
        };
        self.conclude(outcome);
        rest
    }

    /// The call got no whole answer.
    pub(super) fn fail(&mut self, status: Option<u16>, why: String) {
        self.conclude(Outcome { status, result: OutcomeKind::Failed, error: Some(why) });
    }

    fn conclude(&mut self, outcome: Outcome) {
        let Some(permit) = self.permit.take() else { return };
        let mut usage = None;
        match &self.reading {
            Reading::Events { assembly, .. } => {
                usage = assembly.usage();
                self.about.finish_reason = assembly.finish_reason();
                if let (Some(step), Some(answer)) = (&mut self.step, assembly.answer()) {
                    step.response_tap().feed(answer.to_string().as_bytes());
                }
            }
            Reading::Whole(whole) => {
                let read: WholeAnswer = serde_json::from_slice(whole).unwrap_or_default();
                usage = read.usage;
                let of_choice = read.choices.into_iter().next().and_then(|choice| choice.finish_reason);
                self.about.finish_reason = of_choice.or(read.stop_reason).or(read.status);
            }
            Reading::Nothing | Reading::Passing => {}
        }
        // A refused request, and one that the upstream never got, use nothing.
        let is_unused = usage.is_none() && matches!(outcome.result, OutcomeKind::Error)
            || matches!(self.reading, Reading::Nothing) && outcome.result == OutcomeKind::Failed;
        let used = self.used(usage.filter(|usage| usage.prompt().is_some() || usage.completion().is_some()), is_unused, &permit);
        permit.settle(&used);
        if let Some(mut step) = self.step.take() {
            step.set_model(self.about.clone());
            let number = step.id();
            // The call was made, and its intent is recorded, so its answer still goes to the caller.
            if let Err(error) = step.finish(outcome) {
                tracing::error!(step = number, %error, "the outcome of a step could not be recorded");
            }
        }
    }

    /// What the call used, by the upstream's counts or by its bytes. Notes it for the step.
    fn used(&mut self, usage: Option<UsageFields>, is_unused: bool, permit: &ModelPermit) -> ModelUse {
        let mut used = ModelUse { calls: 1, ..ModelUse::default() };
        if is_unused {
            return used;
        }
        match usage {
            Some(usage) => {
                used.prompt_tokens = usage.prompt().unwrap_or(0);
                used.completion_tokens = usage.completion().unwrap_or(0);
                used.cached_tokens = usage.cached().unwrap_or(0).min(used.prompt_tokens);
                self.about.cached_tokens = usage.cached();
                self.about.reasoning_tokens = usage.reasoning();
            }
            None => {
                used.prompt_tokens = permit.expected().prompt_tokens;
                used.completion_tokens = estimate(self.bytes);
                used.estimated_calls = 1;
                self.about.estimated = true;
            }
        }
        let spec = &self.route.spec;
        used.cost_usd = spec.cost(&self.about.model, &used);
        self.about.cost_usd = spec.has_price(&self.about.model).then_some(used.cost_usd);
        self.about.prompt_tokens = Some(used.prompt_tokens);
        self.about.completion_tokens = Some(used.completion_tokens);
        used
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        // Many clients leave after the last event, without waiting for the answer's end.
        if let Reading::Events { assembly, .. } = &self.reading
            && assembly.is_complete()
        {
            self.end();
            return;
        }
        let error = Some("the client left before the answer's end".to_owned());
        self.conclude(Outcome { status: self.status, result: OutcomeKind::Aborted, error });
    }
}

fn error_in(body: &[u8]) -> Option<String> {
    match serde_json::from_slice::<WholeAnswer>(body).ok()?.error? {
        ErrorFields::Object { message } => Some(message),
        ErrorFields::Other(_) => None,
    }
}

/// A body and the call that it answers.
struct Passed {
    incoming: Incoming,
    record: CallRecord,
    time: Duration,
    is_ended: bool,
    _connection: AbortOnDropHandle<()>,
}

impl Passed {
    async fn next(&mut self) -> Option<Result<Bytes, io::Error>> {
        while !self.is_ended {
            let why = match tokio::time::timeout(self.time, self.incoming.frame()).await {
                Ok(Some(Ok(frame))) => {
                    let Ok(bytes) = frame.into_data() else { continue };
                    let passed = self.record.pass(bytes);
                    if passed.is_empty() {
                        continue;
                    }
                    return Some(Ok(passed));
                }
                Ok(None) => {
                    self.is_ended = true;
                    return self.record.end().map(Ok);
                }
                Ok(Some(Err(error))) => format!("the upstream broke its answer off: {error}"),
                Err(_) => format!("the upstream sent nothing for {} s", self.time.as_secs()),
            };
            self.is_ended = true;
            self.record.fail(self.record.status, why.clone());
            return Some(Err(io::Error::other(why)));
        }
        None
    }
}

/// The body for the client. The upstream's connection ends with it.
pub(super) fn body(incoming: Incoming, connection: AbortOnDropHandle<()>, record: CallRecord) -> Body {
    let time = Duration::from_secs(record.route.spec.timeout_seconds.into());
    let passed = Passed { incoming, record, time, is_ended: false, _connection: connection };
    Body::from_stream(stream::unfold(passed, |mut passed| async move {
        let next = passed.next().await?;
        Some((next, passed))
    }))
}
