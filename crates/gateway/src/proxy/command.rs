//! Commands of the command line. One `arenite exec` or `arenite cp` makes several calls, which name the command in a header.
//! Together they are one step, with the request, the result, and each of the calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_model::SandboxId;
use arenite_trajectory::{
    Intent, OpenPart, OpenStep, Outcome, OutcomeKind, Recorder, StepResult, StepState, Tap, TrajectoryError,
};
use http::HeaderMap;
use serde_json::{Map, Value, json};

use super::Act;
use super::record::finish;
use crate::path::query_pairs;

/// The command's name and id, and `end` with its last call.
const HEADER: &str = "x-arenite-command";
/// The command's arguments, written as a query; for commands with a first call that does not have them.
const ARGUMENTS: &str = "x-arenite-arguments";
const NAMES: [&str; 2] = ["exec", "cp"];
/// A command line without a further call for this time has exited.
const GONE: Duration = Duration::from_secs(30);
/// The most of a command's output that is recorded, in bytes.
const MAX_OUTPUT: usize = 1 << 20;
/// The most of one answer that is read for output, in bytes.
const MAX_ANSWER: usize = 4 << 20;
/// Fields of a call to run a command that the command line sets to follow it.
const PLUMBING: [&str; 4] = ["async_mode", "close_stdin", "timeout", "max_output_length"];

/// A call that belongs to a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Named {
    name: &'static str,
    id: String,
    pub(crate) is_last: bool,
    arguments: Option<Value>,
}

pub(crate) fn named(headers: &HeaderMap) -> Option<Named> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let mut words = text(HEADER)?.split(' ');
    let name = words.next()?;
    let name = NAMES.into_iter().find(|known| *known == name)?;
    let id = words.next().filter(|id| id.len() == 16 && id.bytes().all(|b| b.is_ascii_hexdigit()))?;
    let is_last = words.next() == Some("end");
    let arguments = text(ARGUMENTS).map(|query| query_pairs(query).map(|(k, v)| (k, Value::String(v))).collect::<Map<_, _>>());
    Some(Named { name, id: id.to_owned(), is_last, arguments: arguments.map(Value::Object) })
}

/// Whether a call may be one of several of a step, as commands make them.
pub(crate) fn takes(path: &str) -> bool {
    ["/v1/bash/", "/v1/file/"].iter().any(|root| path.starts_with(root))
}

type Key = (SandboxId, String);

/// Commands in progress.
#[derive(Default)]
pub(crate) struct Commands {
    open: Mutex<HashMap<Key, Command>>,
}

struct Command {
    name: &'static str,
    step: OpenStep,
    in_flight: usize,
    /// Calls so far: shows whether one arrived between two checks.
    calls: u64,
    output: Output,
    status: Option<u16>,
    /// The first incomplete call.
    broken: Option<(OutcomeKind, Option<String>)>,
    failed: Option<String>,
    ending: bool,
}

/// A command's output, from the answers of several calls.
#[derive(Default)]
struct Output {
    stdout: String,
    stderr: String,
    exit_code: Option<i64>,
    status: Option<String>,
}

impl Commands {
    fn open(&self) -> MutexGuard<'_, HashMap<Key, Command>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts one call of a command, and with the first of them the command's step.
    pub(super) fn begin(
        self: &Arc<Self>,
        recorder: &Recorder,
        named: &Named,
        act: &Act<'_>,
        body: Option<&[u8]>,
    ) -> Result<Part, TrajectoryError> {
        let (sandbox, path_and_query) = (&act.sandbox.id, act.path_and_query());
        let key = (sandbox.clone(), named.id.clone());
        let mut open = self.open();
        if open.get(&key).is_some_and(|command| command.step.is_full())
            && let Some(full) = open.remove(&key)
        {
            full.finish();
        }
        if !open.contains_key(&key) {
            let arguments = named.arguments.clone().or_else(|| body.and_then(asked));
            let intent = Intent { dialect: "cli", action: named.name.to_owned(), ..act.intent(arguments) };
            let command = Command {
                name: named.name,
                step: recorder.begin(intent)?,
                in_flight: 0,
                calls: 0,
                output: Output::default(),
                status: None,
                broken: None,
                failed: None,
                ending: false,
            };
            open.insert(key.clone(), command);
        }
        let Some(command) = open.get_mut(&key) else {
            return Err(TrajectoryError::NoTrajectory { trajectory: sandbox.to_string() });
        };
        command.in_flight += 1;
        command.calls += 1;
        command.ending |= named.is_last;
        let mut part = command.step.begin_part(format!("{} {path_and_query}", act.method));
        if let Some(body) = body {
            part.request_tap().feed(body);
        }
        let prints = command.name == "exec" && ["/v1/bash/exec", "/v1/bash/output"].contains(&path_and_query);
        Ok(Part { commands: Arc::clone(self), key, part: Some(part), answer: prints.then(Vec::new) })
    }

    /// Ends a command, when the command line reports that there are no further calls.
    pub(super) fn end(&self, sandbox: &SandboxId, named: &Named) {
        let key = (sandbox.clone(), named.id.clone());
        let mut open = self.open();
        if let Some(command) = open.get_mut(&key) {
            command.ending = true;
            if command.in_flight == 0
                && let Some(command) = open.remove(&key)
            {
                command.finish();
            }
        }
    }

    fn end_part(self: &Arc<Self>, key: &Key, part: OpenPart, answer: Option<&[u8]>, outcome: &Outcome) {
        let mut open = self.open();
        let Some(command) = open.get_mut(key) else { return };
        command.in_flight -= 1;
        command.status = outcome.status.or(command.status);
        if let Some(answer) = answer {
            command.output.add(answer);
        }
        let result = command.step.add_part(part, outcome);
        match outcome.result {
            OutcomeKind::Ok | OutcomeKind::Error => {}
            other => {
                command.broken.get_or_insert((other, outcome.error.clone()));
            }
        }
        if let Some(StepResult::Failed(failure)) = result
            && command.failed.is_none()
        {
            command.failed = Some(failure.to_string());
        }
        if command.in_flight > 0 {
            return;
        }
        if command.ending {
            if let Some(command) = open.remove(key) {
                command.finish();
            }
            return;
        }
        let (calls, commands, key) = (command.calls, Arc::clone(self), key.clone());
        tokio::spawn(async move {
            tokio::time::sleep(GONE).await;
            let mut open = commands.open();
            if open.get(&key).is_some_and(|command| command.in_flight == 0 && command.calls == calls)
                && let Some(mut command) = open.remove(&key)
            {
                let why = "the command line left before the command's end".to_owned();
                command.broken.get_or_insert((OutcomeKind::Aborted, Some(why)));
                command.finish();
            }
        });
    }
}

/// The request to run a command, from its call.
fn asked(body: &[u8]) -> Option<Value> {
    let mut fields: Map<String, Value> = serde_json::from_slice(body).ok()?;
    fields.retain(|name, _| !PLUMBING.contains(&name.as_str()));
    Some(Value::Object(fields))
}

impl Output {
    fn add(&mut self, answer: &[u8]) {
        let Ok(answer) = serde_json::from_slice::<Value>(answer) else { return };
        let data = &answer["data"];
        for (all, more) in [(&mut self.stdout, &data["stdout"]), (&mut self.stderr, &data["stderr"])] {
            let more = more.as_str().unwrap_or_default();
            let end = more.floor_char_boundary(MAX_OUTPUT.saturating_sub(all.len()));
            all.push_str(&more[..end]);
        }
        let ended = if data["command"].is_object() { &data["command"] } else { data };
        self.exit_code = ended["exit_code"].as_i64().or(self.exit_code);
        if let Some(status) = ended["status"].as_str() {
            self.status = Some(status.to_owned());
        }
    }
}

impl Command {
    fn finish(mut self) {
        let answer = match self.name {
            "exec" => json!({
                "success": true,
                "message": "",
                "data": {
                    "stdout": self.output.stdout,
                    "stderr": self.output.stderr,
                    "exit_code": self.output.exit_code,
                    "status": self.output.status,
                },
            }),
            _ => json!({
                "success": self.failed.is_none(),
                "message": self.failed.as_deref().unwrap_or("copied"),
                "data": null,
            }),
        };
        self.step.response_tap().feed(answer.to_string().as_bytes());
        let (result, error) = self.broken.unwrap_or((OutcomeKind::Ok, None));
        finish(self.step, Outcome { status: self.status, result, error });
    }
}

/// One call of a command. If dropped without an outcome, it is recorded as aborted.
pub(super) struct Part {
    commands: Arc<Commands>,
    key: Key,
    part: Option<OpenPart>,
    /// Its answer, if that contains the command's output.
    answer: Option<Vec<u8>>,
}

impl Part {
    pub(super) fn feed_request(&mut self, bytes: &[u8]) {
        if let Some(part) = &mut self.part {
            part.request_tap().feed(bytes);
        }
    }

    pub(super) fn feed_response(&mut self, bytes: &[u8]) {
        if let Some(answer) = &mut self.answer
            && answer.len() + bytes.len() <= MAX_ANSWER
        {
            answer.extend_from_slice(bytes);
        }
        if let Some(tap) = self.response_tap() {
            tap.feed(bytes);
        }
    }

    pub(super) fn response_tap(&mut self) -> Option<&mut Tap> {
        self.part.as_mut().map(OpenPart::response_tap)
    }

    pub(super) fn set_state(&self, state: StepState) {
        if let Some(command) = self.commands.open().get_mut(&self.key) {
            command.step.set_state(state);
        }
    }

    pub(super) fn end(mut self, outcome: Outcome) {
        self.conclude(&outcome);
    }

    fn conclude(&mut self, outcome: &Outcome) {
        if let Some(part) = self.part.take() {
            self.commands.end_part(&self.key, part, self.answer.as_deref(), outcome);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let error = Some("the client left before the answer's end".to_owned());
        self.conclude(&Outcome { status: None, result: OutcomeKind::Aborted, error });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_name_their_command() {
        let of = |text: &str| named(&HeaderMap::from_iter([(http::HeaderName::from_static(HEADER), text.parse().unwrap())]));
        let wanted = |is_last| Named { name: "exec", id: "0123456789abcdef".to_owned(), is_last, arguments: None };
        assert_eq!(of("exec 0123456789abcdef"), Some(wanted(false)));
        assert_eq!(of("exec 0123456789abcdef end"), Some(wanted(true)));
        for bad in ["exec", "exec 1", "rm 0123456789abcdef", "exec ../../../../../x", ""] {
            assert_eq!(of(bad), None, "{bad}");
        }
        assert!(takes("/v1/bash/exec") && !takes("/v1/proxy/upstream") && !takes("/v1/bash"));
    }

    #[test]
    fn output_is_gathered_from_all_calls() {
        let mut output = Output::default();
        output.add(br#"{"data":{"stdout":"a","stderr":null,"status":"running","exit_code":null}}"#);
        output.add(br#"{"data":{"stdout":"b","stderr":"e","command":{"status":"completed","exit_code":3}}}"#);
        assert_eq!((&*output.stdout, &*output.stderr, output.exit_code), ("ab", "e", Some(3)));
        assert_eq!(asked(br#"{"command":"x","async_mode":true,"timeout":1}"#), Some(json!({"command": "x"})));
    }
}
