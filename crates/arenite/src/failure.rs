//! Failures of commands: a message, a hint, an exit code.

use std::process::ExitCode;

use crate::config::ConfigError;

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
        Self { message: message.into(), hint: None, code: 1, status: None }
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

    /// Sets an exit code other than 1.
    #[must_use]
    pub(crate) fn exit_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Sets the HTTP status that the server refused with.
    #[must_use]
    pub(crate) fn of_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
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
        Self::new(error.to_string()).maybe_hint(error.hint()).exit_code(2)
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
