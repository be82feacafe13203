//! The HTTP server.
//!
//! Owns authentication, targets, proxying to guests, recording of calls, the dialects, and the pages. Never does a dialect's
//! work: control, the engine or the guest does.
//!
//! # Path of a request
//!
//! ```text
//! server (connection) ──► guard (host, origin) ──► auth ──► route (path's owner) ──┬──► api, dialects, trajectories, pages …
//!                                                                                 ├──► target ──► proxy (step, guest)
//!                                                                                 └──► preview ──► proxy (a port inside)
//! ```

#![forbid(unsafe_code)]

mod api;
mod auth;
mod config;
mod connections;
mod corpora;
mod descriptors;
mod dialect;
mod export;
mod follow;
mod gateway;
mod guard;
#[cfg(test)]
mod harness;
mod health;
mod inside;
mod lifecycle;
mod metrics;
mod origin;
mod own_host;
mod pages;
mod path;
mod preview;
mod proxy;
mod quarantine;
mod refusal;
mod request;
mod route;
mod server;
mod steps;
mod target;
mod timing;
mod trajectories;
mod workers;

pub use auth::{AuthError, Authentication, TICKET_TTL};
pub use config::{GatewayConfig, ImageCatalog, ImageEntry};
pub use connections::ConnectionLimits;
pub use server::{GatewayError, Server, listen_on, serve};
