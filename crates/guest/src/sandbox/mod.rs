//! AIO's `sandbox` service: what this sandbox is and what is installed in it.
//!
//! Owns the known versions of programs, until the programs change. Rereads everything else for each call, since users of the
//! sandbox may have installed or started something.

mod packages;
pub(crate) mod programs;
mod routes;
mod service;
mod system;
mod tools;

pub use packages::Package;
pub use programs::Versions;
pub use routes::{SandboxApi, router};
pub use service::{Context, SandboxDetail, context, nodejs_packages, python_packages};
