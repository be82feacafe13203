//! MCP servers that run in the sandbox or are reached from it, and the sandbox's own tools, for AIO's `mcp` routes.
//!
//! The server `hub` has all tools: MCP's transports are the gateway's, and each call of a tool comes here as one request.
//!
//! ```text
//!  named ──first call──► starting ──handshake──► connected ──its end──► named
//!    ▲                      │                        │
//!    └── failed, told ──────┘      new configuration ┘ (ended, then restarted by the next call)
//! ```
//!
//! Which servers there are is reread for each call: from the image's file, the environment over it. A server is
//! started by the first call that needs it, as the sandbox's user, and stays until it ends or its configuration changes.
//! A call that was under way when a server died is not repeated: nobody knows how far it came.

mod config;
mod connection;
mod http_client;
mod hub;
mod inside;
mod process;
mod routes;
mod service;
mod types;

pub use config::{FILE, ServerConfig, Transport};
pub(crate) use inside::router as inside_router;
pub use routes::{McpApi, router};
pub use service::{McpError, McpService};
