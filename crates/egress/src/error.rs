use std::io;

use thiserror::Error;

/// Why a policy can't be used, or the proxy can't run.
#[derive(Debug, Error)]
pub enum EgressError {
    #[error("invalid network rule {rule:?}: {reason}")]
    Rule { rule: String, reason: String },
    #[error("a network policy has {count} rules; at most {most} are possible")]
    TooManyRules { count: usize, most: usize },
    #[error("invalid secret {name:?}: {reason}")]
    Secret { name: String, reason: String },
    #[error("a sandbox has {count} secrets; at most {most} are possible")]
    TooManySecrets { count: usize, most: usize },
    #[error("the values of a sandbox's secrets have {bytes} bytes together; at most {most} are possible")]
    LongSecrets { bytes: usize, most: usize },
    #[error("the certificate authority of a sandbox can't be used: {0}")]
    Authority(String),
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
            Self::Secret { .. } => "invalid_secret",
            Self::TooManySecrets { .. } => "too_many_secrets",
            Self::LongSecrets { .. } => "long_secrets",
            Self::Authority(_) => "invalid_authority",
            Self::Listen { .. } => "listen_failed",
            Self::Control(_) | Self::LongMessage { .. } => "control_failed",
        }
    }
}
