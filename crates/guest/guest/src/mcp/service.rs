//! The registry: servers by name, started when needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{CallToolResult, JsonObject, ListToolsResult};
use rmcp::service::ServiceError;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use super::config::{self, ServerConfig};
use super::connection::Connection;
use arenite_guest_runtime::Runtime;

/// The most concurrent calls of one server.
pub(super) const MAX_CALLS: usize = 64;

#[derive(Debug, Error)]
pub enum McpError {
    #[error("MCP server {0:?} is not configured")]
    NoServer(String),
    #[error("Unknown tool: {0}")]
    NoTool(String),
    #[error("{place} does not configure MCP servers: {why}")]
    Configuration { place: String, why: String },
    #[error("MCP server {server:?} could not be started: {why}")]
    NotStarted { server: String, why: String },
    #[error("{MAX_CALLS} calls of MCP server {0:?} are under way already; wait for one")]
    TooManyCalls(String),
    /// The server's own error, with the protocol's error code.
    #[error("MCP server {server:?} answered with error {code}: {message}")]
    Refused { server: String, code: i32, message: String },
    #[error("MCP server {server:?} did not answer within {} s; the call was cancelled", .limit.as_secs_f64())]
    TimedOut { server: String, limit: Duration },
    #[error("MCP server {server:?} was lost while it worked on the call: {why}")]
    Lost { server: String, why: String },
}

/// All servers used so far.
#[derive(Debug)]
pub struct McpService {
    runtime: Arc<Runtime>,
    servers: Mutex<HashMap<String, Arc<Server>>>,
}

#[derive(Debug)]
struct Server {
    name: String,
    config: ServerConfig,
    calls: Semaphore,
    state: tokio::sync::Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// The last start that failed. Callers that waited for it get the same error.
    failed: Option<(Instant, String)>,
}

impl McpService {
    pub fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime, servers: Mutex::default() }
    }

    /// The servers' names in alphabetical order. Includes hidden ones on request.
    pub async fn servers(&self, include_hidden: bool) -> Result<Vec<String>, McpError> {
        let servers = config::servers(&self.runtime).await?;
        let shown = |server: &Result<ServerConfig, String>| include_hidden || !server.as_ref().is_ok_and(|s| s.hidden);
        Ok(servers.into_iter().filter(|(_, server)| shown(server)).map(|(name, _)| name).collect())
    }

    /// All tools of a configured server.
    pub async fn tools(&self, server: &str) -> Result<ListToolsResult, McpError> {
        let server = self.server(server).await?;
        server.ask(&self.runtime, async |connection| connection.tools().await).await
    }

    /// Calls a tool of a configured server. A failure reported by the tool itself is a result with `is_error`.
    pub async fn call(
        &self,
        server: &str,
        tool: &str,
        arguments: JsonObject,
        news: Option<&mpsc::Sender<String>>,
    ) -> Result<CallToolResult, McpError> {
        let server = self.server(server).await?;
        server.ask(&self.runtime, async |connection| connection.call(tool, arguments, news).await).await
    }

    /// The server by name in its current configuration. Drops servers that were removed or changed: they end after their last
    /// call.
    async fn server(&self, name: &str) -> Result<Arc<Server>, McpError> {
        let mut configured = config::servers(&self.runtime).await?;
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.retain(|name, server| matches!(configured.get(name), Some(Ok(config)) if *config == server.config));
        if let Some(server) = servers.get(name) {
            return Ok(server.clone());
        }
        let config = configured.remove(name).ok_or_else(|| McpError::NoServer(name.to_owned()))?;
        let config = config.map_err(|why| McpError::NotStarted { server: name.to_owned(), why })?;
        let server = Arc::new(Server {
            name: name.to_owned(),
            config,
            calls: Semaphore::new(MAX_CALLS),
            state: tokio::sync::Mutex::default(),
        });
        servers.insert(name.to_owned(), server.clone());
        Ok(server)
    }
}

impl Server {
    async fn ask<T>(
        &self,
        runtime: &Runtime,
        question: impl AsyncFnOnce(&Connection) -> Result<T, ServiceError>,
    ) -> Result<T, McpError> {
        let _call = self.calls.try_acquire().map_err(|_| McpError::TooManyCalls(self.name.clone()))?;
        let connection = self.connection(runtime).await?;
        let server = self.name.clone();
        match timeout(self.config.call_timeout, question(&connection)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(ServiceError::McpError(error))) => {
                Err(McpError::Refused { server, code: error.code.0, message: error.message.into_owned() })
            }
            Ok(Err(error)) => Err(McpError::Lost { server, why: format!("{error}{}", connection.account().await) }),
            Err(_) => Err(McpError::TimedOut { server, limit: self.config.call_timeout }),
        }
    }

    /// The current connection, or a new one. Concurrent calls wait for the same start.
    async fn connection(&self, runtime: &Runtime) -> Result<Arc<Connection>, McpError> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(connection) = state.connection.as_ref().filter(|c| c.is_alive()) {
            return Ok(connection.clone());
        }
        state.connection = None;
        let not_started = |why: &str| McpError::NotStarted { server: self.name.clone(), why: why.to_owned() };
        if let Some((_, why)) = state.failed.as_ref().filter(|(when, _)| *when >= asked) {
            return Err(not_started(why));
        }
        match Connection::open(runtime, &self.name, &self.config).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                state.failed = None;
                state.connection = Some(connection.clone());
                Ok(connection)
            }
            Err(why) => {
                let error = not_started(&why);
                state.failed = Some((Instant::now(), why));
                Err(error)
            }
        }
    }
}
