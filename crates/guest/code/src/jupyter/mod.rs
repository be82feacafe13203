//! AIO's `jupyter` service: runs code in Jupyter kernels, with results as in notebooks.
//!
//! ```text
//!  routes ─► service ─► session ─► kernel: a task that owns
//!                         │          ├─ the process, started by `start` as the sandbox's user
//!                         │          └─ three ZeroMQ sockets (`zmtp`), messages (`message`), their outputs (`outputs`)
//!                         └─ spare: one kernel started ahead
//! ```
//!
//! Nothing runs before the first call. Any installed kernel can be used. Its output is bounded, since the sandbox's user controls
//! it.

mod kernel;
mod kernelspec;
mod message;
mod outputs;
mod routes;
mod service;
mod session;
mod spare;
mod start;
mod types;
mod zmtp;

pub use kernel::Status;
pub use outputs::MAX_STREAM_CHARS;
pub use outputs::{JupyterOutput, MediaBundle};
pub use routes::call_message;
pub use routes::{JupyterApi, router};
pub use service::{JupyterError, JupyterService};
pub use start::StartError;
pub use types::*;
