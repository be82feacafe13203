//! Why the page of a program is not available.

use std::io;

use arenite_isolation::spawner::SpawnError;
use axum::http::StatusCode;
use thiserror::Error;

use super::program::Program;
use super::running::MAX_REQUESTS;
use super::start::START;
use arenite_guest_runtime::http::ApiError;
use arenite_guest_runtime::process::told;
use arenite_guest_runtime::requirements::MISSING_PROGRAM;

#[derive(Debug, Error)]
pub(super) enum PageError {
    #[error("{} is switched off in this sandbox, by {} of its environment", .0.name(), .0.switch())]
    Off(Program),
    #[error("{}", .0.requirement().message())]
    Missing(Program),
    #[error("{} could not be started: {why}", .program.name())]
    NotSpawned { program: Program, why: SpawnError },
    #[error("{} could not be started: {what}: {why}", .program.name())]
    Io { program: Program, what: &'static str, why: io::Error },
    #[error("{} ended before it served ({how}){}", .program.name(), told(.said))]
    Ended { program: Program, how: String, said: String },
    #[error("{} did not serve within {} s{}", .program.name(), START.as_secs(), told(.said))]
    TooSlow { program: Program, said: String },
    #[error("the start of {} broke off", .0.name())]
    BrokeOff(Program),
    #[error("{} {why}{}", .program.name(), told(.said))]
    NoAnswer { program: Program, why: String, said: String },
    #[error("the request's body broke off")]
    Body,
    #[error("{} has {MAX_REQUESTS} requests at work already", .0.name())]
    TooMany(Program),
}

impl PageError {
    /// The last output of the program.
    pub(super) fn said(&self) -> &str {
        match self {
            Self::Ended { said, .. } | Self::TooSlow { said, .. } | Self::NoAnswer { said, .. } => said,
            _ => "",
        }
    }

    /// None is a 5xx: clients would repeat the request.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Off(_) => StatusCode::NOT_FOUND,
            Self::Body => StatusCode::BAD_REQUEST,
            Self::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::FAILED_DEPENDENCY,
        }
    }

    pub(super) fn hint(&self) -> Option<String> {
        match self {
            Self::Off(program) => Some(format!("make the sandbox without {}", program.switch())),
            Self::Missing(program) => Some(program.requirement().hint()),
            Self::Body | Self::TooMany(_) => None,
            _ => Some("the next request restarts it".to_owned()),
        }
    }
}

impl From<&PageError> for ApiError {
    fn from(error: &PageError) -> Self {
        let code = matches!(error, PageError::Missing(_)).then_some(MISSING_PROGRAM);
        ApiError { status: error.status(), message: error.to_string(), hint: error.hint(), code }
    }
}
