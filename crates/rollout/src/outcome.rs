//! How attempts end, and what caused it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Exit code of an agent that could not work for reasons that are not its fault (`EX_TEMPFAIL` of sysexits.h).
pub const EX_TEMPFAIL: i32 = 75;

/// How an attempt ended. Infrastructure failures never count against the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The agent ended well, and its result does not say otherwise.
    Success,
    /// The agent failed, or its result says so.
    Agent,
    /// It exceeded its time.
    Timeout,
    /// The server, this host or something else that the agent needs failed.
    Infrastructure,
    /// A person stopped the run.
    Interrupted,
    /// The runner died before the end was recorded.
    Lost,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Agent => "agent",
            Self::Timeout => "timeout",
            Self::Infrastructure => "infrastructure",
            Self::Interrupted => "interrupted",
            Self::Lost => "lost",
        }
    }
}

/// Why an attempt did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// `exit`, `signal`, `unsuccessful`, `bad_result`, `timeout`, `temporary`, `server`, `start`, `interrupted` or `lost`.
    pub kind: String,
    pub message: String,
}

impl Trouble {
    pub(crate) fn new(kind: &str, message: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), message: message.into() }
    }
}

/// The end of an attempt, as recorded in the journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct End {
    pub status: Status,
    /// Whether the task is done with it.
    #[serde(rename = "final")]
    pub is_final: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Trouble>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    pub duration_ms: u64,
    /// Whether the worker's end was reported to the server.
    pub disconnected: bool,
    pub at: Timestamp,
}

/// What is known about an ended agent.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) how: How,
    /// The agent's result; the error says why it can't be read.
    pub(crate) result: Result<Option<Value>, String>,
    /// Whether the server was away at some time while the agent ran, or is.
    pub(crate) server_was_away: bool,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum How {
    Exit(i32),
    Signal(i32),
    /// It was ended because its time was over.
    TimedOut,
    /// It was ended because the run stops.
    Stopped,
    /// It could not be started.
    NotStarted(String),
}

/// Classifies the outcome: the agent's, or the infrastructure's.
pub(crate) fn judge(seen: &Seen, timeout_seconds: f64) -> (Status, Option<Trouble>) {
    let failed = |kind: &str, message: String| {
        // An agent that lost its server could only fail.
        if seen.server_was_away {
            let message = format!("the server was away while the agent ran: {message}");
            return (Status::Infrastructure, Some(Trouble::new("server", message)));
        }
        let status = if kind == "timeout" { Status::Timeout } else { Status::Agent };
        (status, Some(Trouble::new(kind, message)))
    };
    match &seen.how {
        How::Stopped => (Status::Interrupted, Some(Trouble::new("interrupted", "the run was stopped"))),
        How::NotStarted(why) => (Status::Infrastructure, Some(Trouble::new("start", why.clone()))),
        How::Exit(EX_TEMPFAIL) => {
            let message = format!("the agent ended with {EX_TEMPFAIL}: something it needs failed for now");
            (Status::Infrastructure, Some(Trouble::new("temporary", message)))
        }
        How::TimedOut => failed("timeout", format!("the agent was ended after {timeout_seconds} s")),
        How::Signal(signal) => failed("signal", format!("the agent was ended by signal {signal}")),
        How::Exit(0) => match &seen.result {
            Err(why) => failed("bad_result", why.clone()),
            Ok(result) if result.as_ref().and_then(|r| r.get("success")).and_then(Value::as_bool) == Some(false) => {
                let said = result.as_ref().and_then(|r| r.get("error")).and_then(Value::as_str);
                failed("unsuccessful", said.unwrap_or("the agent's result says that it did not succeed").to_owned())
            }
            Ok(_) => (Status::Success, None),
        },
        How::Exit(code @ (126 | 127)) => failed(
            "exit",
            format!(
                "the agent ended with {code}: the shell could not run its command; \
                 it runs in a directory of its own, so programs are to be named by absolute paths"
            ),
        ),
        How::Exit(code) => failed("exit", format!("the agent ended with {code}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_infrastructure_broke_is_never_the_agents() {
        let judged = |how, result, server_was_away| {
            let (status, trouble) = judge(&Seen { how, result, server_was_away }, 1.5);
            (status, trouble.map(|trouble| trouble.kind).unwrap_or_default())
        };
        let is = |status, kind: &str| (status, kind.to_owned());
        assert_eq!(judged(How::Exit(0), Ok(None), false), is(Status::Success, ""));
        assert_eq!(judged(How::Exit(0), Ok(Some(json!({"success": true}))), true), is(Status::Success, ""));
        assert_eq!(judged(How::Exit(0), Ok(Some(json!({"success": false}))), false), is(Status::Agent, "unsuccessful"));
        assert_eq!(judged(How::Exit(0), Ok(Some(json!({"success": "no"}))), false), is(Status::Success, ""));
        assert_eq!(judged(How::Exit(0), Err("x".into()), false), is(Status::Agent, "bad_result"));
        assert_eq!(judged(How::Exit(1), Ok(None), false), is(Status::Agent, "exit"));
        assert_eq!(judged(How::Exit(1), Ok(None), true), is(Status::Infrastructure, "server"));
        assert_eq!(judged(How::Exit(75), Ok(None), false), is(Status::Infrastructure, "temporary"));
        assert_eq!(judged(How::TimedOut, Ok(None), false), is(Status::Timeout, "timeout"));
        assert_eq!(judged(How::TimedOut, Ok(None), true), is(Status::Infrastructure, "server"));
        assert_eq!(judged(How::Signal(9), Ok(None), false), is(Status::Agent, "signal"));
        assert_eq!(judged(How::NotStarted("x".into()), Ok(None), false), is(Status::Infrastructure, "start"));
    }
}
