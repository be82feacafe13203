//! Sends the call: one connection, one answer.

use std::io::{self, Write};

use axum::http::header::{ACCEPT, CONTENT_TYPE, HOST};
use axum::http::{Request as HttpRequest, StatusCode, Uri};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio_util::io::ReaderStream;

use super::arguments::{Request, Upload};
use super::calls::{ApiCall, Body};
use super::{AioError, text_of, usage};
use arenite_guest_runtime::dial::dial;
use arenite_guest_runtime::http::client;

/// The most bytes of a JSON answer. Files are streamed.
const MAX_JSON_BYTES: usize = 256 << 20;
/// The most bytes of an answer that is neither a file nor JSON, which reports a failure.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

type Outgoing = UnsyncBoxBody<Bytes, io::Error>;

#[derive(Debug)]
pub(super) enum ApiReply {
    Json {
        status: StatusCode,
        body: Value,
    },
    /// A file, already written to the output.
    File,
    Refusal {
        status: StatusCode,
        text: String,
    },
}

impl ApiReply {
    /// The reason of a failed call.
    pub(super) fn failure(&self) -> Option<String> {
        match self {
            Self::Json { status, body } if !status.is_success() || body["success"] == false => {
                let message = text_of(body, "message").unwrap_or_else(|| format!("the API answered {status}"));
                Some(with_details(message, body))
            }
            Self::Refusal { status, text } => Some(format!("the API answered {status}: {}", text.trim())),
            Self::Json { .. } | Self::File => None,
        }
    }

    pub(super) fn hint(&self) -> Option<String> {
        match self {
            Self::Json { body, .. } => text_of(body, "hint"),
            Self::File | Self::Refusal { .. } => None,
        }
    }
}

/// Adds the details of a malformed request to its message.
fn with_details(message: String, body: &Value) -> String {
    let wrong: Vec<String> = body["errors"].as_array().into_iter().flatten().filter_map(|e| text_of(e, "message")).collect();
    if wrong.is_empty() { message } else { format!("{message}: {}", wrong.join("; ")) }
}

/// Sends a request. If the answer is a file, writes it to `out`.
pub(super) fn send(api_url: &str, call: &ApiCall, request: Request, out: &mut dyn Write) -> Result<ApiReply, AioError> {
    let unreachable = |source| AioError::Unreachable { url: api_url.to_owned(), source };
    let uri: Uri = api_url.parse().map_err(|e| usage(format!("{api_url:?} is no address: {e}"), "aio --help"))?;
    let (Some(host), Some("http")) = (uri.host(), uri.scheme_str()) else {
        return Err(usage(format!("{api_url:?} is no address of the form http://host:port"), "aio --help"));
    };
    let mut builder = HttpRequest::builder()
        .method(call.verb.as_str())
        .uri(format!("{}{}", uri.path().trim_end_matches('/'), target(call, &request)))
        .header(HOST, uri.authority().map_or("", |a| a.as_str()))
        .header(ACCEPT, "application/json, */*;q=0.5");
    let (content_type, body) = body(call, request);
    if let Some(content_type) = content_type {
        builder = builder.header(CONTENT_TYPE, content_type);
    }
    let made = builder.body(body).map_err(|e| usage(format!("that makes no request: {e}"), "aio --help"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unreachable)?;
    let answer = runtime.block_on(async {
        let sent = async { client::send(dial(host, uri.port_u16().unwrap_or(80)).await?, made).await };
        let (head, body) = sent.await.map_err(unreachable)?.into_parts();
        let kind = head.headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes()).unwrap_or_default();
        if kind.starts_with(b"application/json") {
            let bytes = client::collect(body, MAX_JSON_BYTES).await.map_err(unreachable)?;
            let body = serde_json::from_slice(&bytes).map_err(|e| unreachable(e.into()))?;
            return Ok(ApiReply::Json { status: head.status, body });
        }
        if !head.status.is_success() {
            let bytes = client::collect(body, MAX_REFUSAL_BYTES).await.map_err(unreachable)?;
            return Ok(ApiReply::Refusal { status: head.status, text: String::from_utf8_lossy(&bytes).into_owned() });
        }
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|e| unreachable(io::Error::other(e)))?;
            out.write_all(&piece).map_err(AioError::Output)?;
        }
        Ok(ApiReply::File)
    });
    // A pending read of standard input must not delay the exit.
    runtime.shutdown_background();
    answer
}

/// The path and query of the request.
fn target(call: &ApiCall, request: &Request) -> String {
    let escaped = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let mut target = call.path.clone();
    for (name, value) in &request.path {
        target = target.replace(&format!("{{{name}}}"), &escaped(value));
    }
    for (number, (name, value)) in request.query.iter().enumerate() {
        target.push_str(if number == 0 { "?" } else { "&" });
        target.push_str(&format!("{name}={}", escaped(value)));
    }
    target
}

fn whole(bytes: Vec<u8>) -> Outgoing {
    Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed_unsync()
}

/// The content type and the body.
fn body(call: &ApiCall, request: Request) -> (Option<String>, Outgoing) {
    match call.body {
        Body::Nothing => (None, whole(Vec::new())),
        // Texts, numbers and lists: always valid JSON.
        Body::Json | Body::AnyJson => {
            (Some("application/json".to_owned()), whole(serde_json::to_vec(&request.body).unwrap_or_default()))
        }
        Body::Form => form(request),
    }
}

fn form(request: Request) -> (Option<String>, Outgoing) {
    let boundary = format!("aio-{}{}", arenite_guest_runtime::random_id(), arenite_guest_runtime::random_id());
    let content_type = Some(format!("multipart/form-data; boundary={boundary}"));
    let mut fields = String::new();
    for (name, value) in &request.body {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        fields.push_str(&format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n"));
    }
    let Some(Upload { field, name, file }) = request.file else {
        return (content_type, whole(format!("{fields}--{boundary}--\r\n").into_bytes()));
    };
    // Characters that would end the name are encoded as browsers do.
    let name = name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A");
    let head = format!(
        "{fields}--{boundary}\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"{name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let end = format!("\r\n--{boundary}--\r\n");
    let piece = |text: String| stream::iter([Ok(Bytes::from(text))]);
    let pieces = piece(head).chain(ReaderStream::new(tokio::fs::File::from_std(file))).chain(piece(end));
    (content_type, StreamBody::new(pieces.map_ok(Frame::data)).boxed_unsync())
}
