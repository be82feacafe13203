//! Programs that people use in a browser: VS Code at `/code-server/`, JupyterLab at `/jupyter`; and at `/opencode` and
//! `/codex` programs that are used in a terminal.
//!
//! ```text
//!  request ─► routes: switched off? ─► pass ─► service: the one process, started by `start` if it is not there
//!                                       ├─► its socket's file: HTTP and WebSockets
//!                                       └─► message: a page that says why it can't be had
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
