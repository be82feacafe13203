//! Programs that people use in a browser: VS Code at `/code-server/` and JupyterLab at `/jupyter`. Also terminal programs at
//! `/opencode` and `/codex`.
//!
//! ```text
//!  request ─► routes: switched off? ─► pass ─► service: the one process, started by `start` if it does not run
//!                                       ├─► its socket's file: HTTP and WebSockets
//!                                       └─► message: a page that says why it is not available
//! ```
//!
//! Nothing runs before the first request. A process that ended is replaced during the request that finds out; one without
//! connections for a while is ended. Both listen on a socket's file that only the user can open. They ask for no password: the
//! gateway has already admitted each client, or the client is in the sandbox.

mod agents;
mod error;
mod lab;
mod message;
mod pass;
mod program;
mod routes;
mod running;
mod service;
mod start;
mod vscode;

pub(crate) use routes::router;
pub use service::PagesService;
