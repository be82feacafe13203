//! AIO's `nodejs` service: JavaScript, in a process for each execution or in a session that keeps its state.
//!
//! ```text
//!  routes ─► service ─┬─ once ───► process: Node.js with `driver.js`, as the sandbox's user
//!                     └─ session ─►   ▲ code over a socket; output over its own pipes
//! ```
//!
//! Any installed Node.js can be used. Nothing runs before the first call.

mod process;
mod routes;
mod runtime;
mod service;
mod session;
mod types;

pub use routes::call_message;
pub use routes::{NodeApi, router};
pub use service::{NodeError, NodeService};
pub use types::*;
