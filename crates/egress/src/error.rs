use std::io;

use thiserror::Error;

/// Why a policy can't be used, or the proxy can't run.
#[derive(Debug, Error)]
pub enum EgressError {
    #[error("invalid network rule {rule:?}: {reason}")]
    Rule { rule: String, reason: String },
    #[error("a network policy has {count} rules; at most {most} are possible")]
    TooManyRules { count: usize, most: usize },
    #[error("could not {what}: {source}")]
    Listen { what: &'static str, source: io::Error },
    #[error("could not read from the server: {0}")]
    Control(io::Error),
    #[error("a message of the server has more than {most} bytes")]
    LongMessage { most: usize },
}

impl EgressError {
    /// A stable code for clients.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Rule { .. } => "invalid_rule",
            Self::TooManyRules { .. } => "too_many_rules",
            Self::Listen { .. } => "listen_failed",
            Self::Control(_) | Self::LongMessage { .. } => "control_failed",
        }
    }
}
