use std::fmt::Display;
use std::io;
use std::sync::Arc;

use arenite_model::IdError;
use arenite_trajectory::FailureClass;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::AcquireError;
use tokio::task::JoinError;

use crate::answer::Reason;

/// Why an operation of the workers' part of a server failed. Its text is the message for clients.
#[derive(Debug, Error, Clone)]
pub enum SynthesisError {
    /// A value in a request, a configuration or a script can't be used.
    #[error("{reason}")]
    Invalid { reason: String },
    #[error("the session's configuration: {reason}")]
    SessionConfiguration { reason: String },
    #[error(transparent)]
    Name(#[from] IdError),
    #[error("network is {given:?}, and has to be none or open")]
    Network { given: String },
    #[error("cpus is {cpus}, and has to be more than 0 and at most 1024")]
    Cpus { cpus: f64 },
    #[error("a worker has at most {most} sessions; destroy some")]
    TooManySessions { most: usize },
    #[error("the session has ended")]
    SessionEnded,
    #[error("the session has no sandbox")]
    NoSandbox,
    #[error("the server is stopping")]
    Stopping,
    /// A sandbox could not be created or called.
    #[error("{reason}")]
    Unreachable { reason: String },
    /// No program listens on a port of a sandbox, so nothing was sent.
    #[error("nothing listens on port {port} of the sandbox")]
    NothingListens { port: u16 },
    /// A sandbox answered a call with an error.
    #[error("{message}")]
    Refused {
        status: u16,
        message: String,
        /// The sandbox's own code, such as `missing_program`.
        code: Option<String>,
    },
    /// A program in a sandbox failed; the message is its own.
    #[error("{message}")]
    Program { message: String },
    /// A VM, or what runs it, failed or does not support the operation.
    #[error("{reason}")]
    Machine { reason: String },
    /// An exception in a plugin's code.
    #[error("{message}")]
    Exception { kind: String, message: String },
    /// A plugin's process could not be started or called, or violated the protocol.
    #[error("{reason}")]
    Plugin { reason: String },
    /// The problems of MCP servers, each with the server's name.
    #[error("{problems}")]
    Servers { problems: String },
    /// An external service, such as a model, failed or could not be reached.
    #[error("{reason}")]
    Service { reason: String },
    /// Something did not end in time.
    #[error("{reason}")]
    Timeout { reason: String },
    /// A task of the server was aborted.
    #[error("{reason}")]
    Aborted { reason: String },
    #[error("{what}: {source}")]
    Io { what: String, source: Arc<io::Error> },
    /// The corpus of `rag` could not be opened.
    #[error("{reason}")]
    Corpus { reason: String },
    /// An error in a part of something, such as a step or a line.
    #[error("{part}: {source}")]
    In { part: String, source: Box<Self> },
    #[error("{source}; {hint}")]
    Hinted { source: Box<Self>, hint: String },
}

impl SynthesisError {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source: Arc::new(source) }
    }

    /// Whether what should have carried out a call failed, as opposed to the call itself.
    pub(crate) fn is_infrastructure(&self) -> bool {
        match self {
            Self::Invalid { .. }
            | Self::SessionConfiguration { .. }
            | Self::Name(_)
            | Self::Network { .. }
            | Self::Cpus { .. }
            | Self::TooManySessions { .. }
            | Self::SessionEnded
            | Self::NoSandbox
            | Self::Program { .. }
            | Self::Exception { .. } => false,
            Self::Refused { status, .. } => *status >= 400 && FailureClass::of_status(*status) == FailureClass::Infrastructure,
            Self::Stopping
            | Self::Unreachable { .. }
            | Self::NothingListens { .. }
            | Self::Machine { .. }
            | Self::Plugin { .. }
            | Self::Servers { .. }
            | Self::Service { .. }
            | Self::Timeout { .. }
            | Self::Aborted { .. }
            | Self::Io { .. }
            | Self::Corpus { .. } => true,
            Self::In { source, .. } | Self::Hinted { source, .. } => source.is_infrastructure(),
        }
    }

    /// The code that a sandbox gave.
    pub(crate) fn sandbox_code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => code.as_deref(),
            Self::In { source, .. } | Self::Hinted { source, .. } => source.sandbox_code(),
            _ => None,
        }
    }

    /// Names the part in which the error occurred.
    pub(crate) fn within(self, part: impl Into<String>) -> Self {
        Self::In { part: part.into(), source: Box::new(self) }
    }

    pub(crate) fn hinted(self, hint: impl Into<String>) -> Self {
        Self::Hinted { source: Box::new(self), hint: hint.into() }
    }
}

impl From<JoinError> for SynthesisError {
    fn from(error: JoinError) -> Self {
        Self::Aborted { reason: error.to_string() }
    }
}

impl From<AcquireError> for SynthesisError {
    fn from(error: AcquireError) -> Self {
        Self::Aborted { reason: error.to_string() }
    }
}

impl Reason for SynthesisError {
    fn is_infrastructure(&self) -> bool {
        Self::is_infrastructure(self)
    }

    fn data(&self) -> Value {
        self.sandbox_code().map_or_else(|| json!({}), |code| json!({ "error_code": code }))
    }
}

/// The message for answers.
impl From<SynthesisError> for String {
    fn from(error: SynthesisError) -> Self {
        error.to_string()
    }
}

pub(crate) fn invalid(reason: impl Display) -> SynthesisError {
    SynthesisError::Invalid { reason: reason.to_string() }
}

pub(crate) fn machine(reason: impl Display) -> SynthesisError {
    SynthesisError::Machine { reason: reason.to_string() }
}

pub(crate) fn plugin(reason: impl Display) -> SynthesisError {
    SynthesisError::Plugin { reason: reason.to_string() }
}

pub(crate) fn timeout(reason: impl Display) -> SynthesisError {
    SynthesisError::Timeout { reason: reason.to_string() }
}
