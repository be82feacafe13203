//! Translates the protocol's requests to calls of [`Tools`].

use std::sync::Arc;

use axum::http::request::Parts;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorCode, Implementation, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ProgressToken, ResultType, ServerCapabilities, ServerConfig,
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

pub(crate) struct Handler<T>(pub(crate) Arc<T>);

impl<T: Tools> Handler<T> {
    /// The caller that sent the request: whatever accepted the request put it beside the head.
    fn caller(context: &RequestContext<RoleServer>) -> Result<T::Caller, Error> {
        let parts = context.extensions.get::<Parts>();
        let caller = parts.and_then(|parts| parts.extensions.get::<T::Caller>());
        caller.cloned().ok_or_else(|| Error::internal_error("nobody knows who calls", None))
    }
}

impl<T: Tools> ServerHandler for Handler<T> {
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
        let tools = self.0.list(Self::caller(&context)?);
        tokio::select! {
            tools = tools => Ok(ListToolsResult::with_all_items(tools?)),
            () = context.ct.cancelled() => Err(cancelled()),
        }
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, Error> {
        let caller = Self::caller(&context)?;
        let (name, arguments) = (request.name.into_owned(), request.arguments.unwrap_or_default());
        let token = context.meta.get_progress_token();
        let work = async {
            let mut result = match token {
                None => self.0.call(caller, name, arguments, None).await?,
                Some(token) => {
                    let (sender, news) = mpsc::channel(NEWS);
                    let (result, ()) =
                        tokio::join!(self.0.call(caller, name, arguments, Some(sender)), tell(&context.peer, token, news));
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
