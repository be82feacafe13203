//! Failures of commands: a message, a hint, an exit code.

use std::process::ExitCode;

use crate::config::ConfigError;

// The exit codes of all commands. The help of `arenite` lists them: see `EXIT_CODES`.
/// Everything that has no code below.
pub(crate) const FAILED: u8 = 1;
/// The command line, the configuration or a value in them is wrong.
pub(crate) const USAGE: u8 = 2;
/// A name that was given doesn't exist.
pub(crate) const NOT_FOUND: u8 = 3;
/// A key, a quota or a state doesn't allow it.
pub(crate) const REFUSED: u8 = 4;
/// No server answers.
pub(crate) const UNREACHABLE: u8 = 5;
/// `exec`: the command was killed at its time limit.
pub(crate) const TIMED_OUT: u8 = 124;
/// `exec`: Arenite failed, and not the command.
pub(crate) const EXEC_FAILED: u8 = 125;
/// 128 and the number of SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;
/// 128 and the number of SIGPIPE.
pub(crate) const STDOUT_CLOSED: u8 = 141;

/// The table of exit codes in the help.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    success
  1    failure that no other code stands for
  2    the command line, the configuration or a value is not valid
  3    a name doesn't exist
  4    refused: the key, a quota or the current state doesn't allow it
  5    no server answers
  124  exec: the command was killed at its --timeout
  125  exec: Arenite failed, for one of the reasons above; other codes are those of the command
  130  interrupted
  141  the reader of the output is gone";

/// The exit code for a refusal with an HTTP status.
fn code_of_status(status: u16) -> u8 {
    match status {
        400 | 413 | 422 => USAGE,
        404 => NOT_FOUND,
        401 | 403 | 409 | 412 | 429 => REFUSED,
        _ => FAILED,
    }
}

/// A failure of a command, for the user.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
    status: Option<u16>,
}

/// The result of commands: an exit code, since `exec` passes on that of its command.
pub(crate) type Outcome = Result<ExitCode, Failure>;

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, code: FAILED, status: None }
    }

    #[must_use]
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        self.maybe_hint(Some(hint.into()))
    }

    /// Adds the hint of another crate's error, if it has one.
    #[must_use]
    pub(crate) fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }

    /// Sets an exit code other than [`FAILED`].
    #[must_use]
    pub(crate) fn exit_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Sets the HTTP status that the server refused with, and its exit code.
    #[must_use]
    pub(crate) fn of_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self.code = code_of_status(status);
        self
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    pub(crate) fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    pub(crate) fn status(&self) -> Option<u16> {
        self.status
    }

    /// Message and hint in one text, for programs that pass it on.
    pub(crate) fn whole(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{}; {hint}", self.message),
            None => self.message.clone(),
        }
    }

    /// Prints the failure, and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("error: {}", self.message);
        if let Some(hint) = &self.hint {
            eprintln!("hint: {hint}");
        }
        ExitCode::from(self.code)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(error.to_string()).maybe_hint(error.hint()).exit_code(USAGE)
    }
}

/// Converts an error into a failure that says what was attempted.
pub(crate) trait Attempt<T> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T, E: std::fmt::Display> Attempt<T> for Result<T, E> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(format!("{}: {error}", what())))
    }
}
