//! AIO's `sandbox` service: what this sandbox is and what is installed in it.
//!
//! Owns nothing. Rereads everything for each call, since users of the
//! sandbox may have installed or started something.

mod routes;
mod service;
mod services;
mod system;
mod tools;

pub use routes::{SandboxApi, router};
pub use service::{Context, SandboxDetail, SandboxService, context};
