//! Server side of the Model Context Protocol.
//!
//! Owns the transports over HTTP (streamable with and without sessions, calls without any handshake, and the older one with two
//! endpoints) and what the protocol specifies for progress and cancellation. Never does a tool's work: that is behind [`Tools`],
//! which the gateway implements for callers from outside, and the guest for programs of its sandbox.
//!
//! ```text
//!  POST ──► is it a session's? ──yes──► the session's server ──┐
//!               │ no                                           ├──► Handler ──► Tools
//!               └──► a server for this one request ────────────┘
//!  GET …/sse ──► a server for this connection, fed by POST …/messages ──┘
//! ```
//!
//! A call ends early, and its future is dropped, in these cases: the client cancels it; a client without a session closes its
//! connection; a client with a session closes its connection and does not come back for the answer; its session is deleted or
//! expires.

#![forbid(unsafe_code)]

mod answer;
mod handler;
mod http;
mod older;
mod sessions;

use std::future::Future;

use rmcp::model::{CallToolResult, JsonObject, Tool};
use tokio::sync::mpsc;

pub use answer::{failed, hub_request, read_answer, read_list};
pub use handler::ToolResult;
pub use http::{Endpoint, Server};
pub use rmcp;
pub use sessions::MAX_SESSIONS;

/// Largest request body, in bytes.
pub const MAX_BODY: usize = 32 << 20;
/// Largest answer of a tool, in bytes; a longer one becomes an error that says so.
pub const MAX_ANSWER: usize = 32 << 20;

/// The protocol's own errors. A failure that a tool reports is a result.
pub type Error = rmcp::ErrorData;

/// The tools, and which of them each caller gets.
pub trait Tools: Send + Sync + 'static {
    /// The caller, as far as it matters to the tools. Each request has its own.
    type Caller: Clone + Send + Sync + 'static;

    /// The server's name for clients, and instructions for its tools.
    fn introduction(&self) -> (&'static str, &'static str);

    /// All tools that this caller may use.
    fn list(&self, caller: Self::Caller) -> impl Future<Output = Result<Vec<Tool>, Error>> + Send;

    /// Calls a tool. Sends its progress lines to `news`, if the caller wants them. Dropping the future stops the work.
    fn call(
        &self,
        caller: Self::Caller,
        name: String,
        arguments: JsonObject,
        news: Option<mpsc::Sender<String>>,
    ) -> impl Future<Output = Result<CallToolResult, Error>> + Send;
}
