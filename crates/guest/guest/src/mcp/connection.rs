//! A connection to a server that has answered its handshake.

use std::collections::HashMap;
use std::str::FromStr;

use axum::http::{HeaderName, HeaderValue};
use futures_util::{FutureExt, StreamExt};
use rmcp::handler::client::ClientHandler;
use rmcp::handler::client::progress::ProgressDispatcher;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, CancelledNotificationParam, ClientCapabilities, ClientConfig,
    ClientRequest, Implementation, JsonObject, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam,
    ProtocolVersion, RequestId, ServerResult, Tool,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, NotificationContext, Peer, PeerRequestOptions, RoleClient, RunningService,
    ServiceError, serve_client_with_lifecycle,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::config::{ServerConfig, Transport};
use super::http_client::HttpClient;
use super::process::Process;
use arenite_guest_runtime::Runtime;

/// The most bytes of one message of a server. A longer one is dropped, and its call times out.
pub(super) const MAX_MESSAGE: usize = 16 << 20;
/// The most tools of a server.
const MAX_TOOLS: usize = 10_000;

#[derive(Debug)]
pub(super) struct Connection {
    client: RunningService<RoleClient, Client>,
    process: Option<Process>,
}

impl Connection {
    /// Starts or connects to the server. The error is a message.
    pub(super) async fn open(runtime: &Runtime, name: &str, config: &ServerConfig) -> Result<Self, String> {
        match Self::open_with(runtime, name, config, ClientLifecycleMode::Initialize).await? {
            Ok(connection) => Ok(connection),
            // It may speak only the newest protocol, which has no such handshake.
            Err(first) => {
                let newest = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] };
                Self::open_with(runtime, name, config, newest).await?.map_err(|_| first)
            }
        }
    }

    /// The inner error: the server runs, but refused this handshake.
    async fn open_with(
        runtime: &Runtime,
        name: &str,
        config: &ServerConfig,
        lifecycle: ClientLifecycleMode,
    ) -> Result<Result<Self, String>, String> {
        let identity =
            ClientConfig::new(ClientCapabilities::default(), Implementation::new("arenite", env!("CARGO_PKG_VERSION")));
        let client = Client { config: identity, progress: ProgressDispatcher::new() };
        let limit = config.connect_timeout;
        let (outcome, process) = match &config.transport {
            Transport::Stdio { command, args, env, cwd } => {
                let argv = std::iter::once(command).chain(args).cloned().collect();
                let cwd = runtime.absolute(cwd.as_deref().unwrap_or_default()).display().to_string();
                let (process, streams) = Process::start(runtime, name, argv, env, cwd).await.map_err(|e| e.to_string())?;
                let transport = AsyncRwTransport::new_client(streams.stdout, streams.stdin).with_max_line_length(MAX_MESSAGE);
                (timeout(limit, serve_client_with_lifecycle(client, transport, lifecycle)).await, Some(process))
            }
            Transport::Http { url, headers } => {
                let http =
                    HttpClient { certificates: runtime.config().env.get("SSL_CERT_FILE").map(|file| file.as_str().into()) };
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

    /// Details for an error message about a server that does not answer.
    pub(super) async fn account(&self) -> String {
        match &self.process {
            Some(process) => process.account().await,
            None => String::new(),
        }
    }

    /// All pages of its tools in one list.
    pub(super) async fn tools(&self) -> Result<ListToolsResult, ServiceError> {
        let mut tools: Vec<Tool> = Vec::new();
        let mut cursor = None;
        loop {
            let page = PaginatedRequestParams::default().with_cursor(cursor);
            let mut page = self.client.list_tools(Some(page)).await?;
            let came = !page.tools.is_empty();
            tools.append(&mut page.tools);
            cursor = page.next_cursor.take();
            // Stops at a server that lists without end or returns empty pages.
            if cursor.is_none() || !came || tools.len() >= MAX_TOOLS {
                tools.truncate(MAX_TOOLS);
                page.tools = tools;
                return Ok(page);
            }
        }
    }

    /// Calls a tool and forwards its progress. If the future is dropped, the server is notified that the call is cancelled.
    pub(super) async fn call(
        &self,
        tool: &str,
        arguments: JsonObject,
        news: Option<&mpsc::Sender<String>>,
    ) -> Result<CallToolResult, ServiceError> {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let Some(news) = news else { return self.client.call_tool(params).await };
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let call = self.client.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
        let mut told = self.client.service().progress.subscribe(call.progress_token.clone()).await;
        let mut leaving = Leaving { peer: call.peer.clone(), call: Some(call.id.clone()) };
        let answer = {
            let mut answer = std::pin::pin!(call.await_response());
            loop {
                tokio::select! {
                    biased;
                    Some(progress) = told.next() => tell(news, progress).await,
                    answer = &mut answer => break answer,
                }
            }
        };
        leaving.call = None;
        // Progress that was sent right before the answer may still be pending, since each message has a separate task.
        tokio::task::yield_now().await;
        while let Some(Some(progress)) = told.next().now_or_never() {
            tell(news, progress).await;
        }
        match answer? {
            ServerResult::CallToolResult(result) => Ok(result),
            _ => Err(ServiceError::UnexpectedResponse),
        }
    }
}

/// The guest as a server's client: it accepts no requests, but receives progress notifications.
#[derive(Debug)]
struct Client {
    config: ClientConfig,
    progress: ProgressDispatcher,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        self.config.clone()
    }

    async fn on_progress(&self, told: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.progress.handle_notification(told).await;
    }
}

/// A call in progress. When dropped, it notifies the server that the call is cancelled.
struct Leaving {
    peer: Peer<RoleClient>,
    call: Option<RequestId>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            let peer = self.peer.clone();
            tokio::spawn(async move {
                // A server that has ended has also stopped the call.
                drop(peer.notify_cancelled(CancelledNotificationParam::new(Some(call), None)).await);
            });
        }
    }
}

/// Forwards a server's progress as text: its message, or the numbers.
async fn tell(news: &mpsc::Sender<String>, told: ProgressNotificationParam) {
    let numbers = || match told.total {
        Some(total) => format!("{} of {total}", told.progress),
        None => told.progress.to_string(),
    };
    let text = told.message.clone().unwrap_or_else(numbers);
    // Without a listener, the call is about to end.
    drop(news.send(text).await);
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

/// The innermost cause.
fn innermost(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::JsonRpcError(error) => format!("it refused the handshake: {}", error.message),
        ClientInitializeError::ConnectionClosed(_) => "it closed the connection during the handshake".to_owned(),
        ClientInitializeError::TransportError { error, .. } => error.error.to_string(),
        other => other.to_string(),
    }
}
