//! Translates the protocol's requests to calls of [`Tools`].

use std::sync::Arc;

use axum::http::request::Parts;
use futures_util::future::BoxFuture;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorCode, Implementation, JsonObject, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ProgressToken, ResultType, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{NotificationContext, Peer, RequestContext, RoleServer};
use tokio::sync::mpsc;

use crate::{Error, Tools};

/// Up to this many lines that arrive together are sent as separate notifications; more are sent as one.
const LINES_AT_ONCE: usize = 16;
/// Lines that wait to be sent. When the queue is full, the tool waits.
const NEWS: usize = 64;

/// A tool's result, or a protocol error.
pub type ToolResult = Result<CallToolResult, Error>;

/// [`Tools`] without their type, so that the protocol's code is compiled once, in this crate.
pub(crate) trait AnyTools: Send + Sync {
    fn introduction(&self) -> (&'static str, &'static str);

    fn list<'a>(&'a self, context: &'a RequestContext<RoleServer>) -> BoxFuture<'a, Result<Vec<Tool>, Error>>;

    fn call<'a>(
        &'a self,
        context: &'a RequestContext<RoleServer>,
        name: String,
        arguments: JsonObject,
        news: Option<mpsc::Sender<String>>,
    ) -> BoxFuture<'a, ToolResult>;
}

impl<T: Tools> AnyTools for T {
    fn introduction(&self) -> (&'static str, &'static str) {
        Tools::introduction(self)
    }

    fn list<'a>(&'a self, context: &'a RequestContext<RoleServer>) -> BoxFuture<'a, Result<Vec<Tool>, Error>> {
        Box::pin(async { Tools::list(self, caller::<T>(context)?).await })
    }

    fn call<'a>(
        &'a self,
        context: &'a RequestContext<RoleServer>,
        name: String,
        arguments: JsonObject,
        news: Option<mpsc::Sender<String>>,
    ) -> BoxFuture<'a, ToolResult> {
        Box::pin(async { Tools::call(self, caller::<T>(context)?, name, arguments, news).await })
    }
}

/// The caller that sent the request: whatever accepted the request put it beside the head.
fn caller<T: Tools>(context: &RequestContext<RoleServer>) -> Result<T::Caller, Error> {
    let parts = context.extensions.get::<Parts>();
    let caller = parts.and_then(|parts| parts.extensions.get::<T::Caller>());
    caller.cloned().ok_or_else(|| Error::internal_error("nobody knows who calls", None))
}

#[derive(Clone)]
pub(crate) struct Handler(pub(crate) Arc<dyn AnyTools>);

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let (name, instructions) = self.0.introduction();
        let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        info.server_info = Implementation::new(name, env!("CARGO_PKG_VERSION"));
        info.with_instructions(instructions)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, Error> {
        tokio::select! {
            tools = self.0.list(&context) => Ok(ListToolsResult::with_all_items(tools?)),
            () = context.ct.cancelled() => Err(cancelled()),
        }
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, Error> {
        let (name, arguments) = (request.name.into_owned(), request.arguments.unwrap_or_default());
        let token = context.meta.get_progress_token();
        let work = async {
            let mut result = match token {
                None => self.0.call(&context, name, arguments, None).await?,
                Some(token) => {
                    let (sender, news) = mpsc::channel(NEWS);
                    let call = self.0.call(&context, name, arguments, Some(sender));
                    let (result, ()) = tokio::join!(call, tell(&context.peer, token, news));
                    result?
                }
            };
            // The handler removes it again for clients that don't know the field.
            result.result_type = Some(ResultType::COMPLETE);
            Ok(result.into())
        };
        tokio::select! {
            answer = work => answer,
            () = context.ct.cancelled() => Err(cancelled()),
        }
    }

    async fn on_initialized(&self, _: NotificationContext<RoleServer>) {}
}

/// The error of a call that was cancelled; no client waits for it.
fn cancelled() -> Error {
    Error::new(ErrorCode::INTERNAL_ERROR, "the call was cancelled", None)
}

/// Sends lines as progress notifications as they arrive, until their sender is dropped.
async fn tell(peer: &Peer<RoleServer>, token: ProgressToken, mut news: mpsc::Receiver<String>) {
    let mut count = 0u32;
    while let Some(text) = news.recv().await {
        let lines: Vec<&str> = text.trim_end_matches('\n').split('\n').collect();
        let told = if lines.len() <= LINES_AT_ONCE { lines } else { vec![text.trim_end_matches('\n')] };
        for line in told {
            count += 1;
            let progress = ProgressNotificationParam::new(token.clone(), count.into()).with_message(line);
            // A client that is gone cancels the call, which ends this.
            drop(peer.notify_progress(progress).await);
        }
    }
}
