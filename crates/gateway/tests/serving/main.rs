//! The gateway on a real port, with `control` and its in-memory engine. Its guests are scripts that speak raw HTTP.

#![allow(clippy::unwrap_used)]

mod agents;
mod auth;
mod calls;
mod connections;
mod harness;
mod hostile;
mod previews;
mod programs;
mod rights;
mod strangers;
mod streams;
mod tenants;
mod tls;
mod users;
mod webhooks;
