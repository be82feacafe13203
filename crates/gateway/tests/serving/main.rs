//! The gateway on a real port, before control with its in-memory engine, whose guests are scripts that speak raw HTTP.

#![allow(clippy::unwrap_used)]

mod auth;
mod calls;
mod connections;
mod harness;
mod hostile;
mod previews;
mod programs;
mod rights;
mod streams;
