//! MCP servers that run in the sandbox or are reached from it, and the sandbox's own tools, for AIO's `mcp` routes.
//!
//! The server `hub` has all tools. The gateway implements MCP's transports, and each tool call arrives here as one request.
//!
//! ```text
//!  named ──first call──► starting ──handshake──► connected ──its end──► named
//!    ▲                      │                        │
//!    └── failed, reported ──┘      new configuration ┘ (ended, then restarted by the next call)
//! ```
//!
//! The configuration is reread for each call: the image's file, overridden by the environment. A server is started by the first
//! call that needs it, as the sandbox's user, and runs until it ends or its configuration changes. If a server dies during a
//! call, the call is not repeated: how far it came is unknown.

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
