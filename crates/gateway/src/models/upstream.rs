//! A request to the upstream of a route, with the upstream's key instead of the caller's.

use std::time::Duration;

use arenite_control::models::{ModelDialect, ModelRoute};
use arenite_model::{ErrorCode, SecretText};
use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio_util::task::AbortOnDropHandle;

use crate::gateway::Gateway;
use crate::outgoing::Target;
use crate::refusal::Refusal;

/// Time to look the name up, to connect, and to open TLS.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Largest head of an answer, in bytes, and the most that is read at once.
const MAX_HEAD: usize = 64 << 10;
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Headers of a request that are passed on, besides those of [`PREFIXES`].
const ASKED: [HeaderName; 3] = [CONTENT_TYPE, ACCEPT, USER_AGENT];
/// Headers of an answer that are passed on, besides those of [`PREFIXES`].
const ANSWERED: [&str; 5] = ["content-type", "retry-after", "retry-after-ms", "request-id", "x-should-retry"];
/// Of the dialects and their clients.
const PREFIXES: [&str; 4] = ["openai-", "anthropic-", "x-stainless-", "x-ratelimit-"];

/// An answer with its connection, which ends with it.
pub(super) struct Answer {
    pub(super) head: Response<Incoming>,
    pub(super) connection: AbortOnDropHandle<()>,
}

pub(super) fn failed(reason: impl std::fmt::Display) -> Refusal {
    let refusal = Refusal::new(ErrorCode::Internal, format!("the upstream of the model route can't be used: {reason}"));
    Refusal { status: StatusCode::BAD_GATEWAY, ..refusal }
}

pub(super) fn late(what: &str, time: Duration) -> Refusal {
    Refusal::new(ErrorCode::Timeout, format!("the upstream of the model route {what} within {} s", time.as_secs()))
}

/// The key of the upstream. None: it needs none.
async fn key(gateway: &Gateway, route: &ModelRoute) -> Result<Option<SecretText>, Refusal> {
    let Some(name) = &route.spec.secret else { return Ok(None) };
    Ok(Some(gateway.control.secret_value(&route.tenant, name).await?))
}

/// Sends a request, and waits for the head of the answer.
pub(super) async fn send(
    gateway: &Gateway,
    route: &ModelRoute,
    parts: &Parts,
    endpoint: &str,
    body: Bytes,
) -> Result<Answer, Refusal> {
    let target = Target::parse(&route.spec.upstream).map_err(failed)?;
    let key = key(gateway, route).await?;
    let request = request(&target, route.spec.dialect, parts, (endpoint, body), key.as_ref())?;
    let connect = async {
        let tcp = gateway.model_reach.dial(&target).await?;
        // Small pieces of an answer are passed on at once.
        let _ = tcp.set_nodelay(true);
        let stream = target.secure(tcp, gateway.config.outgoing_tls.as_ref()).await?;
        let mut builder = http1::Builder::new();
        let connected = builder.max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await;
        connected.map_err(|error| format!("the connection broke off: {error}"))
    };
    let connected = tokio::time::timeout(CONNECT_TIME, connect).await.map_err(|_| late("can't be connected to", CONNECT_TIME))?;
    let (mut sender, connection) = connected.map_err(failed)?;
    let connection = AbortOnDropHandle::new(tokio::spawn(async move {
        // Its end shows in the answer.
        let _ = connection.await;
    }));
    let time = Duration::from_secs(route.spec.timeout_seconds.into());
    let answered = tokio::time::timeout(time, sender.send_request(request)).await.map_err(|_| late("does not answer", time))?;
    let head = answered.map_err(|error| failed(format!("the connection broke off: {error}")))?;
    Ok(Answer { head, connection })
}

fn request(
    target: &Target,
    dialect: ModelDialect,
    parts: &Parts,
    (endpoint, body): (&str, Bytes),
    key: Option<&SecretText>,
) -> Result<Request<Full<Bytes>>, Refusal> {
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = format!("{}/{endpoint}{query}", target.path.trim_end_matches('/'));
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = if parts.method == Method::GET { Method::GET } else { Method::POST };
    *request.uri_mut() = path.parse().map_err(|_| Refusal::bad_request("the path or the query can't be read"))?;
    let headers = request.headers_mut();
    for (name, value) in &parts.headers {
        if ASKED.contains(name) || has_prefix(name) {
            headers.append(name.clone(), value.clone());
        }
    }
    let host = HeaderValue::from_str(&target.authority).map_err(failed)?;
    headers.insert(HOST, host);
    // The answer is read as it passes.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(concat!("arenite/", env!("CARGO_PKG_VERSION"))));
    if let Some(key) = key {
        let (name, text) = match dialect {
            ModelDialect::Openai => (AUTHORIZATION, format!("Bearer {}", key.as_str())),
            ModelDialect::Anthropic => (API_KEY, key.as_str().to_owned()),
        };
        let mut value = HeaderValue::from_str(&text).map_err(|_| failed("its secret can't be in a header"))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(request)
}

fn has_prefix(name: &HeaderName) -> bool {
    PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix))
}

/// The headers of an answer that the client gets.
pub(super) fn to_client(headers: &HeaderMap) -> HeaderMap {
    let passed = headers.iter().filter(|(name, _)| ANSWERED.contains(&name.as_str()) || has_prefix(name));
    passed.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upstream_gets_its_key_and_none_of_the_callers() {
        let request = Request::post("/models/a/v1/messages?beta=true")
            .header("authorization", "Bearer arn_secret")
            .header("x-api-key", "arn_secret")
            .header("x-aio-api-key", "arn_secret")
            .header("cookie", "arenite_session=arn_secret")
            .header("x-arenite-sandbox", "demo")
            .header("accept-encoding", "gzip")
            .header("anthropic-version", "2023-06-01")
            .header("content-type", "application/json")
            .body(())
            .unwrap();
        let (parts, ()) = request.into_parts();
        let target = Target::parse("https://up.example:8443/base/v1/").unwrap();
        let key = SecretText::from("up-key".to_owned());
        for (dialect, name, value) in
            [(ModelDialect::Anthropic, "x-api-key", "up-key"), (ModelDialect::Openai, "authorization", "Bearer up-key")]
        {
            let sent = super::request(&target, dialect, &parts, ("messages", Bytes::new()), Some(&key)).unwrap();
            assert_eq!(sent.uri(), "/base/v1/messages?beta=true");
            let header = |name: &str| sent.headers().get(name).map(|value| value.to_str().unwrap());
            assert_eq!(header(name), Some(value));
            assert_eq!(header("host"), Some("up.example:8443"));
            assert_eq!((header("anthropic-version"), header("accept-encoding")), (Some("2023-06-01"), Some("identity")));
            assert!(sent.headers().values().all(|value| !value.to_str().unwrap().contains("arn_secret")), "{:?}", sent.headers());
            assert!(header("x-arenite-sandbox").is_none());
        }
    }
}
