//! `asciicast`: a trajectory's commands and their output, as a terminal recording (version 2).
//!
//! A command is typed when its step started, and its output appears when it ended. An exit code other than 0 is a marker, and so is an annotation. The
//! size is invented, because there was no terminal. For commands without an answer, the recording says only that.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::annotations::in_one_line;
use super::call::{Content, ExportedCall, is_envelope, tool, unknown};
use super::shown::{exit_code, of_parts_if_any};
use super::source::Source;
use super::tree::Tree;
use super::writer::Writer;
use crate::{Step, TrajectoryError};

const COLUMNS: u32 = 120;
const ROWS: u32 = 36;
/// Calls that run a command, or bring more of its output.
const COMMANDS: [&str; 8] =
    ["bash:run", "code:bash", "bash:execute", "bash_exec", "bash_output", "shell_exec", "sandbox_execute_bash", "execute_bash"];

/// When something appears. Events sort in the order of the recording.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Timestamp,
    step: u64,
    ended: bool,
}

pub(super) fn write(source: &mut Source<'_>, tree: &Tree, out: &mut Writer<'_>) -> Result<(), TrajectoryError> {
    let events = events(source, tree)?;
    let start = events.first().map(|event| event.at).or(tree.about.first_at).unwrap_or_default();
    let title = match &tree.about.sandbox {
        name if name.is_empty() => source.trajectory(),
        name => name,
    };
    out.raw("{\"version\":2,")?;
    out.fields(&json!({ "width": COLUMNS, "height": ROWS, "timestamp": start.as_second(), "title": title }))?;
    out.raw("}\n")?;
    let annotations = source.annotations();
    for annotation in annotations.of_all() {
        out.line(&json!([0.0, "m", in_one_line(annotation)]))?;
    }
    for Event { at, step, ended } in events {
        let Some(call) = source.call(step)? else { continue };
        let seconds = (at.duration_since(start).as_millis_f64() / 1e3).max(0.0);
        if !ended {
            if let Some(command) = command(&call) {
                out.line(&json!([seconds, "o", format!("$ {}\r\n", for_terminal(command.trim_end()))]))?;
            }
            continue;
        }
        let (text, code) = printed(&call);
        if !text.is_empty() {
            let end = if text.ends_with('\n') { "" } else { "\r\n" };
            out.line(&json!([seconds, "o", format!("{}{end}", for_terminal(&text))]))?;
        }
        if let Some(code) = code.filter(|code| *code != 0) {
            out.line(&json!([seconds, "m", format!("exit {code}")]))?;
        }
        for annotation in annotations.of_step(step) {
            out.line(&json!([seconds, "m", in_one_line(annotation)]))?;
        }
    }
    Ok(())
}

/// Starts and ends of commands by time: calls may overlap, and a recording only moves forward.
fn events(source: &mut Source<'_>, tree: &Tree) -> Result<Vec<Event>, TrajectoryError> {
    let mut events = Vec::new();
    let (mut after, last) = (0, tree.number(tree.steps()));
    while after < last {
        let steps = source.after(after)?;
        let Some(last) = steps.last() else { break };
        after = last.step;
        for step in steps.iter().filter(|step| tree.has(step.step) && COMMANDS.contains(&&*tool(&step.action))) {
            events.push(Event { at: step.started_at, step: step.step, ended: false });
            events.push(Event { at: ended_at(step), step: step.step, ended: true });
        }
    }
    events.sort_unstable();
    Ok(events)
}

/// When the step ended; its start, if its end was not recorded.
fn ended_at(step: &Step) -> Timestamp {
    step.ended_at.unwrap_or(step.started_at).max(step.started_at)
}

fn command<'a>(call: &'a ExportedCall<'_>) -> Option<&'a str> {
    let text = ["command", "cmd"].iter().find_map(|key| call.arguments.get(*key)?.as_str());
    text.filter(|text| !text.trim().is_empty())
}

/// What a command printed, and its exit code if it has one.
fn printed(call: &ExportedCall<'_>) -> (String, Option<i64>) {
    if let Some(why) = unknown(call.step) {
        return (format!("[no answer: {why}]"), None);
    }
    let value = match &call.answer {
        Content::Json(value) => value,
        Content::Text(text) => return (text.clone(), None),
        Content::Nothing | Content::Elsewhere { .. } => return (call.error().unwrap_or_default(), None),
    };
    let data = value.get("data").filter(|_| is_envelope(value)).or_else(|| value.get("structuredContent")).unwrap_or(value);
    let text = |key: &str| data.get(key).and_then(Value::as_str);
    let code = exit_code(data);
    if let Value::String(text) = data {
        return (text.clone(), code);
    }
    if text("stdout").is_some() || text("stderr").is_some() {
        let mut whole = text("stdout").unwrap_or_default().to_owned();
        if !whole.is_empty() && !whole.ends_with('\n') && text("stderr").is_some_and(|text| !text.is_empty()) {
            whole.push('\n');
        }
        whole.push_str(text("stderr").unwrap_or_default());
        return (whole, code);
    }
    let output = text("output").map(str::to_owned).or_else(|| of_parts_if_any(data));
    (output.or_else(|| call.error()).unwrap_or_default(), code)
}

/// A terminal also needs the carriage return.
fn for_terminal(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\n', "\r\n")
}
