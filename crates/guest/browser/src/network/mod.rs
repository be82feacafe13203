//! AIO's `browser_network` service: rules for the requests of pages, and a record of these requests.
//!
//! ```text
//!  routes ─► rules: headers, scoped headers, routes ─► intercept: a connection that holds requests for them
//!         ─► traffic: requests of pages, recorded by the automation's pump ─► har: as a file
//! ```
//!
//! Rules apply to the whole browser and outlive it: a restarted browser has them again. Recorded requests belong to the tabs that
//! operations can work in, and to the automation's connection: a new connection starts with an empty record.

mod events;
mod har;
mod headers;
mod intercept;
mod pattern;
mod routes;
mod rules;
mod traffic;
mod types;

use thiserror::Error;

use super::service::BrowserError;
use arenite_guest_cdp::CdpError;
pub(super) use intercept::Network;
pub(super) use pattern::{Pattern, PatternError};
pub use routes::NetworkApi;
pub(super) use routes::router;
pub(super) use traffic::Traffic;
use types::*;

#[derive(Debug, Error)]
pub(super) enum NetworkError {
    #[error("the header {name:?} can't be set: {why}")]
    Header { name: String, why: &'static str },
    #[error("one call can set {} headers", headers::MAX_HEADERS)]
    TooManyHeaders,
    #[error("{0:?} is no origin; one is like https://api.example.com, or http://127.0.0.1:8080")]
    Origin(String),
    #[error("{most} origins have headers of their own already; set {{}} for one to end its")]
    TooManyOrigins { most: usize },
    #[error("there are {most} routes already; remove some first")]
    TooManyRoutes { most: usize },
    #[error("the status of an answer is from 200 to 599")]
    Status,
    #[error("the body of a route can have {most} MiB")]
    LargeBody { most: usize },
    #[error("the bodies of all routes together can have {most} MiB; remove some first")]
    LargeBodies { most: usize },
    #[error("there is no route for {0:?}")]
    NoRoute(String),
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error(transparent)]
    Cdp(#[from] CdpError),
    #[error(transparent)]
    Browser(#[from] BrowserError),
}
