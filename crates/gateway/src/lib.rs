//! The HTTP server.
//!
//! Owns authentication, targets, proxying to guests, recording of calls, the dialects, and the pages. Never does a dialect's
//! work: control, the engine or the guest does.
//!
//! # Path of a request
//!
//! ```text
//! server (connection) ──► exchange (host, route, origin, caller) ──┬──► api, dialects, trajectories, pages …
//!                                                                  ├──► proxy (sandbox, step, guest)
//!                                                                  └──► proxy::preview (a port of a sandbox)
//! ```

#![forbid(unsafe_code)]

mod agent_calls;
mod annotations;
mod api;
mod audit;
mod auth;
mod batch;
mod builds;
mod changes;
mod config;
mod connections;
mod corpora;
mod descriptors;
mod dialect;
mod events;
mod exchange;
mod export;
mod files;
mod follow;
mod gateway;
mod groups;
mod guard;
#[cfg(test)]
mod harness;
mod health;
mod idempotency;
mod images;
mod inside;
mod lifecycle;
mod lists;
mod metrics;
mod models;
mod network;
mod network_records;
mod nodes;
mod operation;
mod origin;
mod outgoing;
mod own_host;
mod own_state;
mod pages;
mod path;
mod preview;
mod problem;
mod proxy;
mod quarantine;
mod query;
mod refusal;
mod registries;
mod routes;
mod sandbox_filter;
mod secrets;
mod server;
mod snapshots;
mod ssh_agent;
mod states;
mod steps;
mod target;
mod tenants;
mod timing;
mod tls;
mod traces;
mod trajectories;
mod unread;
mod usage;
mod volumes;
mod webhooks;
mod workers;

pub use auth::{AuthError, Authentication, TICKET_TTL, TokenRules};
pub use config::{GatewayConfig, GuestDescription};
pub use connections::ConnectionLimits;
pub use dialect::agent_sandbox::AgentSandboxVersion;
pub use nodes::NodeConfig;
pub use pages::openapi::documents;
#[doc(hidden)]
pub use routes::{RouteFacts, route_facts};
pub use server::{GatewayError, Server, listen_on, serve};
pub use tls::{Certificates, TlsError};
pub use traces::TraceConfig;
