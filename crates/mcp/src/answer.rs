//! A sandbox's hub over its routes: how its tools are called, and what an answer means to the protocol.

use ::http::header::{ACCEPT, CONTENT_TYPE};
use ::http::{HeaderValue, Method, Request, Response, StatusCode};
use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, ListToolsResult, Tool};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::handler::ToolResult;
use crate::{Error, MAX_ANSWER};

const TOOLS: &str = "/v1/mcp/hub/tools";
const JSON_LINES: HeaderValue = HeaderValue::from_static("application/x-ndjson");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

#[derive(Deserialize)]
struct Envelope<T> {
    message: Option<String>,
    data: Option<T>,
    hint: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    News { progress: String },
    Last { status: u16, answer: Envelope<CallToolResult> },
}

/// Builds the request that calls a tool of a sandbox's hub, or lists all tools.
pub fn hub_request(call: Option<(&str, &JsonObject)>, wants_news: bool) -> Request<Bytes> {
    let mut request = Request::new(Bytes::new());
    let path = match call {
        Some((tool, arguments)) => {
            *request.method_mut() = Method::POST;
            *request.body_mut() = serde_json::to_vec(arguments).unwrap_or_default().into();
            request.headers_mut().insert(CONTENT_TYPE, JSON);
            // Names are usually plain.
            match tool.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) {
                true => format!("{TOOLS}/{tool}"),
                false => format!("{TOOLS}/{}", utf8_percent_encode(tool, NON_ALPHANUMERIC)),
            }
        }
        None => TOOLS.to_owned(),
    };
    *request.uri_mut() = path.parse().unwrap_or_default();
    request.headers_mut().insert(ACCEPT, if wants_news { JSON_LINES } else { JSON });
    request
}

/// Reads the answer to a call. Sends its news, if wanted, as they arrive.
pub async fn read_answer<B>(response: Response<B>, news: Option<&mpsc::Sender<String>>) -> ToolResult
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let (parts, mut body) = response.into_parts();
    if parts.headers.get(CONTENT_TYPE) != Some(&JSON_LINES) {
        return match whole::<CallToolResult>(body).await {
            Ok(answer) => told(parts.status, answer),
            Err(why) => Ok(failed(why)),
        };
    }
    let mut held = BytesMut::new();
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        let bytes = match frame.map(|frame| frame.into_data().unwrap_or_default()) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(failed(format!("the sandbox's answer broke off: {error}"))),
        };
        held.extend_from_slice(&bytes);
        while let Some(end) = held[seen..].iter().position(|byte| *byte == b'\n') {
            let line = held.split_to(seen + end + 1);
            seen = 0;
            match serde_json::from_slice(&line) {
                Ok(Line::News { progress }) => {
                    if let Some(news) = news {
                        // A receiver that no longer listens is about to be dropped.
                        drop(news.send(progress).await);
                    }
                }
                Ok(Line::Last { status, answer }) => {
                    return told(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), answer);
                }
                Err(error) => return Ok(failed(format!("the sandbox's answer makes no sense: {error}"))),
            }
        }
        seen = held.len();
        if held.len() > MAX_ANSWER {
            return Ok(failed(too_long()));
        }
    }
    Ok(failed("the sandbox's answer broke off".to_owned()))
}

/// Reads the answer to a list request.
pub async fn read_list<B>(response: Response<B>) -> Result<Vec<Tool>, Error>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let answer = whole::<ListToolsResult>(response.into_body()).await.map_err(|why| Error::internal_error(why, None))?;
    let why = || Error::internal_error(answer.message.unwrap_or_else(|| "the tools can't be listed".to_owned()), None);
    Ok(answer.data.ok_or_else(why)?.tools)
}

async fn whole<T: DeserializeOwned>(
    body: impl Body<Data = Bytes, Error = impl std::fmt::Display> + Unpin,
) -> Result<Envelope<T>, String> {
    let mut body = body;
    let mut held = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("the sandbox's answer broke off: {error}"))?;
        held.extend_from_slice(&frame.into_data().unwrap_or_default());
        if held.len() > MAX_ANSWER {
            return Err(too_long());
        }
    }
    serde_json::from_slice(&held).map_err(|error| format!("the sandbox's answer makes no sense: {error}"))
}

fn told(status: StatusCode, answer: Envelope<CallToolResult>) -> ToolResult {
    match answer.data {
        Some(result) if status == StatusCode::OK => Ok(result),
        _ => {
            let message = answer.message.unwrap_or_else(|| format!("the sandbox answered with status {status}"));
            match status {
                StatusCode::NOT_FOUND => Err(Error::invalid_params(message, None)),
                _ => Ok(failed(match answer.hint {
                    Some(hint) => format!("{message}\nHint: {hint}"),
                    None => message,
                })),
            }
        }
    }
}

fn too_long() -> String {
    format!(
        "the answer is longer than {MAX_ANSWER} bytes; ask for less at once, or have it written to a file and read that in parts"
    )
}

/// A tool failure, as the agent reads it.
pub fn failed(why: impl Into<String>) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(why.into())])
}
