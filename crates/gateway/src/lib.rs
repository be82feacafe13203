//! The one HTTP server.
//!
//! Owns authentication, targets, proxying to guests, recording of what passes, the dialects, and the pages. Never does a
//! dialect's work: that is control's, the engine's or the guest's.

#![forbid(unsafe_code)]

mod config;
mod gateway;
mod path;
mod refusal;
mod request;

pub use config::GatewayConfig;
