//! The client of the server: checks whether it is up, and reports ended workers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::connector::Connector;
use crate::error::RolloutError;

/// Timeout of a health check.
const HEALTH_LIMIT: Duration = Duration::from_secs(5);
/// Interval of health checks. A server's death is only noticed by polling.
const HEALTH_EVERY: Duration = Duration::from_secs(1);
/// Number of health checks that may time out before the server counts as away: one that is only busy is late, too.
const LATE_ANSWERS: u32 = 3;
/// Timeout of any other request.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);
/// Maximum size of an answer, in bytes.
const MAX_ANSWER: usize = 64 << 20;
/// Attempts to report a worker's end while the server is too busy to accept it.
const TELLINGS: u32 = 4;
const KEY_HEADER: HeaderName = HeaderName::from_static("x-api-key");
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Text encoded as a query's value or a path's segment.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// A client of one server.
#[derive(Debug, Clone)]
pub struct Server {
    base: String,
    http: Client<Connector, Full<Bytes>>,
    key: Option<HeaderValue>,
    ca: Option<PathBuf>,
}

/// The result of a request.
#[derive(Debug)]
pub(crate) enum ServerReply {
    Response(StatusCode, Bytes),
    /// Nothing accepts connections.
    Unreachable,
    /// It may be up, but doesn't answer in time, or breaks off.
    Broken,
}

/// Whether the server is up, and how often it was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Presence {
    pub(crate) is_there: bool,
    /// Number of times that it went away since the runner started.
    pub(crate) absences: u64,
    /// Since when it is away, if it is.
    pub(crate) away_since: Option<Instant>,
}

impl Presence {
    /// Sets the state, and returns whether it changed.
    fn becomes(&mut self, is_there: bool) -> bool {
        if self.is_there == is_there {
            return false;
        }
        self.is_there = is_there;
        self.away_since = (!is_there).then(Instant::now);
        self.absences += u64::from(!is_there);
        true
    }
}

/// Reports an absence that another part noticed first: the next check comes up to a second later, and until then further
/// attempts would fail.
#[derive(Debug, Clone)]
pub(crate) struct Absence(Arc<watch::Sender<Presence>>);

impl Absence {
    pub(crate) fn tell(&self) {
        self.0.send_if_modified(|presence| presence.becomes(false));
    }
}

impl Server {
    /// Parses a server's URL and its key. `ca`: see [`Connector::new`]. Does not connect.
    pub fn new(address: &str, key: Option<&str>, ca: Option<&Path>) -> Result<Self, RolloutError> {
        let key = match key {
            Some(key) => {
                let mut value = HeaderValue::from_str(key).map_err(|_| RolloutError::BadKey)?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        // Agents run in other directories.
        let ca = ca.map(|ca| std::path::absolute(ca).unwrap_or_else(|_| ca.to_owned()));
        let http = Client::builder(TokioExecutor::new()).build(Connector::new(address, ca.as_deref())?);
        Ok(Self { base: address.trim_end_matches('/').to_owned(), http, key, ca })
    }

    /// The server's URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_ref()?.to_str().ok()
    }

    /// The file of the certificate authorities to trust for it.
    pub(crate) fn ca(&self) -> Option<&Path> {
        self.ca.as_deref()
    }

    pub(crate) async fn get(&self, path: &str) -> ServerReply {
        self.send(Method::GET, path, Bytes::new(), REQUEST_LIMIT).await
    }

    async fn send(&self, method: Method, path: &str, body: Bytes, limit: Duration) -> ServerReply {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        request = request.header(header::USER_AGENT, concat!("arenite-rollout/", env!("CARGO_PKG_VERSION")));
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &self.key {
            request = request.header(KEY_HEADER, key);
        }
        let Ok(request) = request.body(Full::new(body)) else { return ServerReply::Broken };
        let answered = async {
            let response = match self.http.request(request).await {
                Ok(response) => response,
                Err(error) if error.is_connect() => return ServerReply::Unreachable,
                Err(_) => return ServerReply::Broken,
            };
            let status = response.status();
            match Limited::new(response.into_body(), MAX_ANSWER).collect().await {
                Ok(body) => ServerReply::Response(status, body.to_bytes()),
                Err(_) => ServerReply::Broken,
            }
        };
        timeout(limit, answered).await.unwrap_or(ServerReply::Broken)
    }

    /// Checks once whether it is healthy. A server that is too busy is healthy.
    async fn health(&self) -> ServerReply {
        match self.send(Method::GET, "/health", Bytes::new(), HEALTH_LIMIT).await {
            ServerReply::Response(status, body) if status.is_success() || status == StatusCode::TOO_MANY_REQUESTS => {
                ServerReply::Response(status, body)
            }
            // A proxy in front of a dead server answers with such a status.
            ServerReply::Response(status, _) if status.is_server_error() => ServerReply::Unreachable,
            other => other,
        }
    }

    /// Whether the server is unreachable now; for an attempt with an agent that has just failed.
    pub(crate) async fn is_away(&self) -> bool {
        !matches!(self.health().await, ServerReply::Response(..))
    }

    /// Reports a worker's end, so that the server removes what the worker had. Returns whether the report arrived, and whether
    /// the server was too busy at first.
    pub(crate) async fn disconnect(&self, worker: &str) -> (bool, bool) {
        let body = Bytes::from(serde_json::json!({ "worker_id": worker }).to_string());
        let mut busy = false;
        for telling in 0..TELLINGS {
            let answer = self.send(Method::POST, "/api/v1/worker/disconnect", body.clone(), REQUEST_LIMIT).await;
            match answer {
                ServerReply::Response(status, _) if status.is_success() => return (true, busy),
                ServerReply::Response(StatusCode::TOO_MANY_REQUESTS, _) => busy = true,
                ServerReply::Response(status, _) if status.is_client_error() => return (false, busy),
                ServerReply::Unreachable => return (false, busy),
                ServerReply::Response(..) | ServerReply::Broken => {}
            }
            sleep(Duration::from_millis(200 << telling)).await;
        }
        (false, busy)
    }

    /// Checks the server's health until the task is ended.
    pub(crate) fn observe(self: &Arc<Self>) -> (watch::Receiver<Presence>, Absence, tokio::task::JoinHandle<()>) {
        // Until the first answer it counts as away, but not as having gone away.
        let (told, seen) = watch::channel(Presence { is_there: false, absences: 0, away_since: Some(Instant::now()) });
        let absence = Absence(Arc::new(told));
        let told = Arc::clone(&absence.0);
        let server = Arc::clone(self);
        let observer = tokio::spawn(async move {
            let mut late = 0;
            loop {
                let is_there = match server.health().await {
                    ServerReply::Response(..) => {
                        late = 0;
                        true
                    }
                    ServerReply::Unreachable => false,
                    ServerReply::Broken => {
                        late += 1;
                        late < LATE_ANSWERS && told.borrow().is_there
                    }
                };
                told.send_if_modified(|presence| presence.becomes(is_there));
                sleep(HEALTH_EVERY).await;
            }
        });
        (seen, absence, observer)
    }

    /// Whether the server accepts the key. Otherwise every agent would fail.
    pub(crate) async fn check_key(&self) -> Result<(), RolloutError> {
        match self.get("/api/v1/tools").await {
            ServerReply::Response(status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN), _) => {
                Err(RolloutError::Refused { status: status.as_u16() })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_could_not_work_are_refused_before_anything_is_sent() {
        for bad in ["127.0.0.1:8080", "ftp://x", "http://u@x", "http://x/?q", "", "http://a b"] {
            assert!(Server::new(bad, None, None).is_err(), "{bad}");
        }
        assert!(Server::new("http://x", Some("a\nb"), None).is_err());
        assert_eq!(Server::new("http://localhost:1/prefix/", None, None).unwrap().base(), "http://localhost:1/prefix");
    }
}
