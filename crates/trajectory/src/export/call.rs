//! One step as a tool call: its name, arguments, and result.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::{MODEL_DIALECT, OutcomeKind, Step, StepResult};

/// The longest function name that chat APIs accept.
const MAX_NAME: usize = 64;

/// A body, as an export reads it.
#[derive(Debug)]
pub(super) enum Content {
    Nothing,
    Json(Value),
    Text(String),
    /// Binary, too large to be read, or not kept. `picture` is its media type if it is one.
    Elsewhere {
        blake3: String,
        bytes: u64,
        kept: bool,
        picture: Option<&'static str>,
    },
}

impl Content {
    pub(super) fn parse(text: &str) -> Self {
        serde_json::from_str(text).map_or_else(|_| Self::Text(text.to_owned()), Self::Json)
    }

    pub(super) fn parse_owned(text: String) -> Self {
        serde_json::from_str(&text).map_or(Self::Text(text), Self::Json)
    }
}

/// A step with its bodies read.
pub(super) struct ExportedCall<'a> {
    pub(super) step: &'a Step,
    pub(super) arguments: Map<String, Value>,
    pub(super) answer: Content,
}

impl<'a> ExportedCall<'a> {
    pub(super) fn new(step: &'a Step, arguments: Content, mut answer: Content) -> Self {
        let mut arguments = match arguments {
            Content::Json(Value::Object(fields)) => fields,
            Content::Nothing | Content::Json(Value::Null) => Map::new(),
            // Formats need names for arguments; a body without names gets one of Arenite's.
            Content::Json(other) => Map::from_iter([("input".to_owned(), other)]),
            Content::Text(text) => Map::from_iter([("input".to_owned(), Value::String(text))]),
            Content::Elsewhere { blake3, bytes, kept, picture } => {
                let told = super::shown::reference(picture, bytes, &blake3, kept);
                Map::from_iter([("input".to_owned(), Value::String(told))])
            }
        };
        for (name, value) in &mut arguments {
            super::shown::refer_to_pictures(value, step.step, &format!("arguments/{name}"));
        }
        if let Content::Json(value) = &mut answer {
            super::shown::refer_to_pictures(value, step.step, "observation");
        }
        Self { step, arguments, answer }
    }

    /// Whether it is a call of a model.
    pub(super) fn is_model(&self) -> bool {
        self.step.dialect == MODEL_DIALECT
    }

    pub(super) fn id(&self) -> String {
        format!("call_{}", self.step.step)
    }

    /// Why it has no answer; none if it has one.
    pub(super) fn unknown(&self) -> Option<&'static str> {
        unknown(self.step)
    }

    /// Whether the tool succeeded. None: not known.
    pub(super) fn success(&self) -> Option<bool> {
        match &self.step.result {
            Some(result) => Some(*result == StepResult::Succeeded),
            None if self.unknown().is_some() => None,
            // A step from before results were recorded, with an answer outside the record.
            None => Some(self.step.outcome == Some(OutcomeKind::Ok)),
        }
    }

    /// The error, if it failed.
    pub(super) fn error(&self) -> Option<String> {
        if let Some(why) = self.unknown() {
            return Some(format!("unknown: {why}"));
        }
        match &self.step.result {
            Some(StepResult::Failed(failure)) => Some(failure.to_string()),
            Some(StepResult::Succeeded) => None,
            None => self.step.error.clone(),
        }
    }

    /// The answer's payload: `data` of an envelope, otherwise the whole answer. Null if it isn't known.
    pub(super) fn result(&self) -> Value {
        if self.unknown().is_some() {
            return Value::Null;
        }
        match &self.answer {
            Content::Nothing => Value::Null,
            Content::Json(value) => value.get("data").filter(|_| is_envelope(value)).unwrap_or(value).clone(),
            Content::Text(text) => Value::String(text.clone()),
            Content::Elsewhere { blake3, bytes, kept, picture } => {
                Value::String(super::shown::reference(*picture, *bytes, blake3, *kept))
            }
        }
    }
}

/// Why a step has no answer.
pub(super) fn unknown(step: &Step) -> Option<&'static str> {
    match step.outcome {
        None => Some("the call was still under way"),
        Some(OutcomeKind::Interrupted) => Some("the server ended during the call"),
        Some(OutcomeKind::Aborted) => Some("the client left before the answer's end"),
        Some(OutcomeKind::Damaged) => Some("its record is damaged"),
        Some(OutcomeKind::Ok | OutcomeKind::Error | OutcomeKind::Failed) => None,
    }
}

/// `{code, message, data, meta}` and `{success, message, data}`.
pub(crate) fn is_envelope(value: &Value) -> bool {
    let has = |key| value.get(key).is_some();
    has("data") && has("message") && (has("code") || has("success"))
}

/// The tool that an action names: `bash:run` unchanged, `POST /v1/bash/exec?x` as `bash_exec`, and a tool that was called over a
/// separate route by its name.
pub fn tool(action: &str) -> String {
    let Some((method, place)) = action.split_once(' ').filter(|(_, place)| place.starts_with('/')) else {
        return action.to_owned();
    };
    let path = place.split(['?', '#']).next().unwrap_or_default().trim_matches('/');
    if let Some(name) = path.strip_prefix("v1/mcp/hub/tools/") {
        return name.to_owned();
    }
    let path = path.strip_prefix("v1/").unwrap_or(path).replace('/', "_");
    match method {
        "POST" => path,
        other => format!("{}_{path}", other.to_ascii_lowercase()),
    }
}

/// Function names that chat APIs accept: letters, digits, `_` and `-`, at most 64. Two tools never get the same name.
#[derive(Default)]
pub(super) struct Names {
    /// By the tool's name.
    given: BTreeMap<String, String>,
}

impl Names {
    /// `bash:run` becomes `bash-run`, as AgentFlow's own agents call it; any other character becomes `_`.
    pub(super) fn name_for(&mut self, tool: &str) -> String {
        if let Some(name) = self.given.get(tool) {
            return name.clone();
        }
        let sign = |c: char| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' => c,
            ':' => '-',
            _ => '_',
        };
        let mut name: String = tool.chars().map(sign).collect();
        if name.is_empty() || name.len() > MAX_NAME || self.given.values().any(|other| *other == name) {
            let hash = blake3::hash(tool.as_bytes()).to_hex();
            name.truncate(MAX_NAME - 9);
            name = format!("{name}-{}", &hash[..8]);
        }
        self.given.insert(tool.to_owned(), name.clone());
        name
    }

    /// Tools and their names.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.given.iter().map(|(tool, name)| (tool.as_str(), name.as_str()))
    }
}

/// A time with six fractional digits: some readers don't accept more.
pub(super) fn iso(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_named_by_what_was_called() {
        for (action, wanted) in [
            ("bash:run", "bash:run"),
            ("POST /v1/bash/exec", "bash_exec"),
            ("GET /v1/file/download?path=%2Fx", "get_file_download"),
            ("POST /v1/mcp/hub/tools/sandbox_execute_bash", "sandbox_execute_bash"),
            ("DELETE /api/v2/sandboxes/demo", "delete_api_v2_sandboxes_demo"),
            ("", ""),
        ] {
            assert_eq!(tool(action), wanted);
        }
    }

    #[test]
    fn names_of_functions_are_valid_and_never_the_same() {
        let mut names = Names::default();
        assert_eq!(names.name_for("bash:run"), "bash-run");
        assert_eq!(names.name_for("mcp:github.create_issue"), "mcp-github_create_issue");
        let long = "x".repeat(100);
        let given = [names.name_for("bash-run"), names.name_for(&long), names.name_for(""), names.name_for("é:é")];
        for name in &given {
            assert!((1..=64).contains(&name.len()), "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'), "{name}");
        }
        assert_ne!(given[0], "bash-run");
        assert_eq!(names.name_for("bash:run"), "bash-run");
    }
}
