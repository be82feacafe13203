//! A server that has answered its handshake.

use std::collections::HashMap;
use std::str::FromStr;

use axum::http::{HeaderName, HeaderValue};
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, Implementation, JsonObject, ListToolsResult,
    PaginatedRequestParams, ProtocolVersion, Tool,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, RoleClient, RunningService, ServiceError, serve_client_with_lifecycle,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;

use tokio::time::timeout;

use super::config::{ServerConfig, Transport};
use super::http_client::HttpClient;
use super::process::Process;
use crate::Guest;

/// Bytes of one message of a server; a longer one is dropped, and its call fails by its timeout.
pub(super) const MAX_MESSAGE: usize = 16 << 20;
/// Tools of a server.
const MAX_TOOLS: usize = 10_000;

#[derive(Debug)]
pub(super) struct Connection {
    client: RunningService<RoleClient, ClientConfig>,
    process: Option<Process>,
}

impl Connection {
    /// Starts or reaches the server. Says what went wrong in words.
    pub(super) async fn open(guest: &Guest, config: &ServerConfig) -> Result<Self, String> {
        match Self::open_with(guest, config, ClientLifecycleMode::Initialize).await? {
            Ok(connection) => Ok(connection),
            // It may know only the newest protocol, which has no such handshake.
            Err(first) => {
                let newest = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] };
                Self::open_with(guest, config, newest).await?.map_err(|_| first)
            }
        }
    }

    /// The inner error: the server is there, but refused this handshake.
    async fn open_with(
        guest: &Guest,
        config: &ServerConfig,
        lifecycle: ClientLifecycleMode,
    ) -> Result<Result<Self, String>, String> {
        let client = ClientConfig::new(ClientCapabilities::default(), Implementation::new("arenite", env!("CARGO_PKG_VERSION")));
        let limit = config.connect_timeout;
        let (outcome, process) = match &config.transport {
            Transport::Stdio { command, args, env, cwd } => {
                let argv = std::iter::once(command).chain(args).cloned().collect();
                let cwd = guest.absolute(cwd.as_deref().unwrap_or_default()).display().to_string();
                let (process, streams) = Process::start(guest, argv, env, cwd).await.map_err(|e| e.to_string())?;
                let transport = AsyncRwTransport::new_client(streams.stdout, streams.stdin).with_max_line_length(MAX_MESSAGE);
                (timeout(limit, serve_client_with_lifecycle(client, transport, lifecycle)).await, Some(process))
            }
            Transport::Http { url, headers } => {
                let http = HttpClient { certificates: guest.config().env.get("SSL_CERT_FILE").map(|file| file.as_str().into()) };
                let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                    .custom_headers(header_map(headers)?)
                    .max_sse_event_size(MAX_MESSAGE);
                config.max_concurrent_requests = super::service::MAX_CALLS;
                let transport = StreamableHttpClientTransport::with_client(http, config);
                (timeout(limit, serve_client_with_lifecycle(client, transport, lifecycle)).await, None)
            }
        };
        let (refused, message) = match outcome {
            Ok(Ok(client)) => return Ok(Ok(Self { client, process })),
            Ok(Err(error)) => (matches!(error, ClientInitializeError::JsonRpcError(_)), innermost(&error)),
            Err(_) => (false, format!("it did not answer the handshake within {} s", limit.as_secs_f64())),
        };
        let account = match &process {
            Some(process) => process.account().await,
            None => String::new(),
        };
        let message = format!("{message}{account}");
        if refused { Ok(Err(message)) } else { Err(message) }
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.client.is_closed() && !self.client.is_transport_closed() && self.process.as_ref().is_none_or(Process::is_running)
    }

    /// What is known of why it does not answer.
    pub(super) async fn account(&self) -> String {
        match &self.process {
            Some(process) => process.account().await,
            None => String::new(),
        }
    }

    /// All pages of its tools as one.
    pub(super) async fn tools(&self) -> Result<ListToolsResult, ServiceError> {
        let mut tools: Vec<Tool> = Vec::new();
        let mut cursor = None;
        loop {
            let page = PaginatedRequestParams::default().with_cursor(cursor);
            let mut page = self.client.list_tools(Some(page)).await?;
            let came = !page.tools.is_empty();
            tools.append(&mut page.tools);
            cursor = page.next_cursor.take();
            // A server that goes on for ever, or gives empty pages, is not followed.
            if cursor.is_none() || !came || tools.len() >= MAX_TOOLS {
                tools.truncate(MAX_TOOLS);
                page.tools = tools;
                return Ok(page);
            }
        }
    }

    /// Calls a tool. Dropping the future tells the server that the call is cancelled.
    pub(super) async fn call(&self, tool: &str, arguments: JsonObject) -> Result<CallToolResult, ServiceError> {
        self.client.call_tool(CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments)).await
    }
}

fn header_map(headers: &[(String, String)]) -> Result<HashMap<HeaderName, HeaderValue>, String> {
    let pair = |(name, value): &(String, String)| {
        let name = HeaderName::from_str(name).map_err(|_| format!("{name:?} is no header name"))?;
        // The value may be a secret.
        let value = HeaderValue::from_str(value).map_err(|_| format!("the value of header {name} can't be sent"))?;
        Ok((name, value))
    };
    headers.iter().map(pair).collect()
}

/// The cause without the layers around it.
fn innermost(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::JsonRpcError(error) => format!("it refused the handshake: {}", error.message),
        ClientInitializeError::ConnectionClosed(_) => "it closed the connection during the handshake".to_owned(),
        ClientInitializeError::TransportError { error, .. } => error.error.to_string(),
        other => other.to_string(),
    }
}
