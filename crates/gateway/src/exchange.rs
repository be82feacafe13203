//! One request on its way to its answer.
//!
//! ```text
//! host ──► route ──► origin ──► caller ──► rights ──► admission ──► method ──► handler of the route
//! ```

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arenite_control::store::StoreWaits;
use axum::body::Body;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, CONNECTION, CONTENT_SECURITY_POLICY,
    HeaderName, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tracing::Instrument;
use tracing::field::Empty;

use crate::agent_calls::FromInside;
use crate::auth::Identity;
use crate::connections::Connection;
use crate::gateway::{Context, Gateway};
use crate::guard::{Host, HostKind};
use crate::nodes::Passed;
use crate::path::{Path, query_value};
use crate::preview::Preview;
use crate::refusal::Refusal;
use crate::routes::{self, Found, Params, Route};
use crate::target::{self, Target};
use crate::timing::Timing;
use crate::traces::Trace;
use crate::{GatewayConfig, api, audit, auth, dialect, guard, health, nodes, origin, own_host, preview, proxy};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// How long a call may still take when its caller's key ends: it may be the one that revokes the key.
const LAST_ANSWER: Duration = Duration::from_millis(300);
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// A handler's answer.
pub(crate) type Answered = Result<Response<Body>, Refusal>;

/// A request, with everything that is known about it before its handler runs.
pub(crate) struct Exchange {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) context: Context,
    pub(crate) host: Host,
    pub(crate) caller: Identity,
    /// The client's address.
    pub(crate) client: IpAddr,
    pub(crate) route: &'static Route,
    pub(crate) path: Path,
    /// The request's head. Its path and its headers are as received, without the credentials for this server.
    pub(crate) parts: Parts,
    pub(crate) timing: Timing,
    /// A browser opens it as a separate page.
    pub(crate) is_navigation: bool,
    /// The same for a browser that does not say so, see [`own_host::is_opened`].
    pub(crate) is_opened: bool,
    /// Nodes that may have the wanted trajectory, and could not be asked.
    pub(crate) silent_nodes: Vec<String>,
    /// The port of a sandbox that the request is for.
    preview: Option<Preview>,
    params: Params,
    /// Bodies can't be shared between threads, and handlers share the exchange. Only `take_body` touches it.
    body: Mutex<Body>,
    /// Set if the route has other methods.
    wrong_method: Option<Refusal>,
    /// The origin to name in CORS headers.
    allowed_origin: Option<HeaderValue>,
}

impl Exchange {
    fn new(
        gateway: &Arc<Gateway>,
        client: &Client,
        request_id: &str,
        trace: Option<Arc<Trace>>,
        parts: Parts,
        body: Body,
    ) -> Result<Self, Refusal> {
        let host = match parts.extensions.get::<Passed>() {
            // The other node has checked it.
            Some(passed) => passed.host.clone(),
            None => guard::host(&gateway.config, &parts, client.host.as_deref())?,
        };
        let preview = preview::find(parts.uri.path(), &parts.headers, &host.kind)?;
        let (path, found) = match &preview {
            // Its path belongs to the program, whatever it contains.
            Some(_) => (Path::root(), Found::preview()),
            None => {
                let path = Path::parse(parts.uri.path())?;
                let found = routes::find(&path.decoded, &host.kind, &parts.method);
                (path, found)
            }
        };
        let caller = Identity::nobody();
        let context = Context {
            principal: Arc::clone(&caller.principal),
            dialect: if parts.extensions.get::<Passed>().is_some_and(|passed| passed.is_mcp) {
                dialect::mcp::DIALECT
            } else {
                "aio"
            },
            request_id: request_id.to_owned(),
            client: Some(match parts.extensions.get::<FromInside>() {
                Some(FromInside(id)) => format!("sandbox {id}"),
                None => client.address.to_string(),
            }),
            origin: origin::classify(&host, &parts),
            base_url: Some(format!("{}://{}{}", client.scheme, host.authority, client.prefix)),
            trace,
        };
        Ok(Self {
            gateway: Arc::clone(gateway),
            context,
            host,
            caller,
            client: client.address,
            route: found.route,
            path,
            timing: Timing::start(),
            is_navigation: guard::is_navigation(&parts),
            is_opened: own_host::is_opened(&parts),
            silent_nodes: Vec::new(),
            parts,
            preview,
            params: found.params,
            body: Mutex::new(body),
            wrong_method: found.wrong_method,
            allowed_origin: None,
        })
    }

    async fn run(&mut self) -> Answered {
        let answered = match self.enter().await {
            Ok(None) => {
                let answered = self.handle().await;
                if !self.route.runs_in_sandbox {
                    self.timing.mark("handler");
                }
                answered
            }
            Ok(Some(answer)) => Ok(answer),
            Err(refusal) => Err(refusal),
        };
        answered.inspect_err(|refusal| audit::record_refusal(self, refusal))
    }

    /// Checks everything that comes before the handler, which may not be needed for the answer.
    async fn enter(&mut self) -> Result<Option<Response<Body>>, Refusal> {
        self.allowed_origin =
            guard::origin(&self.gateway.config, &self.host, &self.parts, self.route.page && self.is_navigation)?;
        if self.route.runs_in_sandbox {
            guard::worker(&self.host, &self.parts)?;
        }
        if self.is_preflight() {
            return Ok(Some(preflight(&self.parts.headers)));
        }
        let identified = match self.passed() {
            Some(passed) => Some(passed.caller()),
            None => auth::identify(self),
        };
        match identified {
            Some(caller) => {
                self.context.principal = Arc::clone(&caller.principal);
                tracing::Span::current().record("tenant", self.context.tenant().as_str());
                self.caller = caller;
            }
            // They are public, or check credentials themselves.
            None if self.route.public => {}
            None if health::is_public_ping(self) => return health::ping(self).map(Some),
            None => {
                let refusal = auth::unauthorized();
                let Some(page) = auth::page(self).filter(|_| self.route.signs_in) else { return Err(refusal) };
                audit::record_refusal(self, &refusal);
                return Ok(Some(page));
            }
        }
        if !self.route.public {
            auth::check_rights(&self.context.principal, self.route, &self.parts.method)?;
        }
        self.timing.mark("auth");
        // Public routes are answered even when all slots are taken.
        if !self.route.public
            && let Some(connection) = self.parts.extensions.get::<Arc<Connection>>()
        {
            connection.admit(self.route.surface.frugal)?;
        }
        if !self.route.public {
            self.gateway.control.admit_request(self.context.tenant())?;
        }
        let query = self.parts.uri.query().map(str::to_owned);
        // These have their own credentials and cookies.
        let is_website =
            self.preview.is_some() || self.host.kind != HostKind::Server && own_host::program(&self.path.decoded).is_some();
        auth::take_off(&self.gateway, &self.host, &mut self.parts, is_website);
        if self.route.page
            && self.passed().is_none()
            && let Some(answer) = auth::enter(self, query.as_deref()).await?
        {
            return Ok(Some(answer));
        }
        self.timing.mark(if self.route.runs_in_sandbox { "target" } else { "admit" });
        if let Some(refusal) = self.wrong_method.take() {
            return (self.route.surface.wrong_method)(self, refusal).map(Some);
        }
        self.route.check_query(self.parts.uri.query())?;
        nodes::pass_on(self).await
    }

    /// Runs the handler, until the caller's key ends.
    async fn handle(&mut self) -> Answered {
        let Some(ended) = self.gateway.ended(&self.context.principal) else { return (self.route.handler)(self).await };
        let overdue = async {
            ended.await;
            tokio::time::sleep(LAST_ANSWER).await;
        };
        tokio::select! {
            answered = (self.route.handler)(self) => answered,
            () = overdue => Err(auth::unauthorized()),
        }
    }

    /// A part of the path that the route's pattern names; empty for an unknown name.
    pub(crate) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(of, _)| of == name).map_or("", |(_, value)| value)
    }

    /// The decoded value of a key in the query.
    pub(crate) fn query(&self, key: &str) -> Option<String> {
        query_value(self.parts.uri.query(), key)
    }

    /// The request's body; empty from the second time on.
    pub(crate) fn take_body(&mut self) -> Body {
        std::mem::take(self.body.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a body that was read back in its place.
    pub(crate) fn put_body(&mut self, body: bytes::Bytes) {
        *self.body.get_mut().unwrap_or_else(PoisonError::into_inner) = Body::from(body);
    }

    /// The head of the request, for a library that needs all of it.
    pub(crate) fn take_parts(&mut self) -> Parts {
        std::mem::replace(&mut self.parts, Request::new(()).into_parts().0)
    }

    /// The request's JSON body, and the same as a value; an empty body means an object without fields.
    pub(crate) async fn json<T: DeserializeOwned + Default>(&mut self) -> Result<(T, Value), Refusal> {
        api::read_json(self.take_body()).await
    }

    /// What another node says of the request that it has passed on.
    pub(crate) fn passed(&self) -> Option<&Passed> {
        self.parts.extensions.get()
    }

    pub(crate) fn preview(&self) -> Option<&Preview> {
        self.preview.as_ref()
    }

    /// The sandbox that the request is for. Looks nothing up.
    pub(crate) fn target(&self) -> Result<Target, Refusal> {
        target::find(&self.path, &self.parts.headers, &self.host.kind)
    }

    /// The port that the request is for.
    pub(crate) fn take_preview(&mut self) -> Result<Preview, Refusal> {
        self.preview.take().ok_or_else(|| Refusal::not_found("there is nothing at this path"))
    }

    fn is_preflight(&self) -> bool {
        self.allowed_origin.is_some()
            && self.parts.method == Method::OPTIONS
            && self.parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// `http`, or `https` over TLS.
    pub(crate) scheme: &'static str,
}

/// Answers any request.
pub(crate) async fn answer(gateway: Arc<Gateway>, peer: Peer, request: Request<Body>) -> Response<Body> {
    let begun = Instant::now();
    let in_flight = InFlight::begin(&gateway);
    let (parts, body) = request.into_parts();
    let request_id = gateway.request_id();
    let closing = dialect::agentflow::closing(&gateway, &parts);
    let client = match parts.extensions.get::<Passed>() {
        Some(passed) => Client { address: passed.client, scheme: peer.scheme, host: None, prefix: passed.prefix.clone() },
        None => Client::from_headers(&gateway.config, peer, &parts.headers),
    };
    let open_trace = gateway.traces.begin(&parts.headers, &request_id);
    let trace = open_trace.as_ref().map(|open| Arc::clone(&open.trace));
    // Fields of log lines.
    let span = tracing::info_span!("request", id = %request_id, tenant = Empty, sandbox = Empty, step = Empty);
    let (method, uri) = (parts.method.clone(), parts.uri.clone());
    let mut tenant = None;
    let (route, name, mut answer, server_timing) = match Exchange::new(&gateway, &client, &request_id, trace, parts, body) {
        Ok(mut exchange) => {
            let waits = StoreWaits::default();
            let answered = waits.count(exchange.run()).instrument(span).await;
            if waits.total() > Duration::ZERO {
                exchange.timing.add("store", waits.total());
            }
            let error = answered.as_ref().err().filter(|refusal| refusal.status.is_server_error());
            let error = error.map(|refusal| refusal.message.clone());
            tenant = Some((exchange.context.tenant().to_string(), error));
            let mut answer = answered.unwrap_or_else(|refusal| refused(refusal, exchange.route, &exchange.path.raw));
            if let Some(ended) = gateway.ended(&exchange.context.principal) {
                answer = answer.map(|body| auth::until_ended(body, ended));
            }
            if let Some(origin) = exchange.allowed_origin.take() {
                name_origin(answer.headers_mut(), origin);
            }
            let name = routes::metric_name(&gateway, exchange.route, &exchange.path);
            (exchange.route, name, answer, exchange.timing.header())
        }
        Err(refusal) => {
            // Its path may be the reason.
            let route = routes::find_interface(uri.path());
            (route, route.pattern, refused(refusal, route, uri.path()), Timing::start().header())
        }
    };
    let headers = answer.headers_mut();
    if closing.applies_to(route) {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Ok(id) = HeaderValue::from_str(&request_id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(SERVER_TIMING, server_timing);
    gateway.metrics.observe((route.surface.name, name), answer.status().as_u16(), begun.elapsed());
    if let Some(open) = open_trace {
        let (tenant, error) = tenant.unwrap_or_default();
        let attributes = vec![
            ("http.request.method", method.to_string()),
            ("http.route", name.to_owned()),
            ("http.response.status_code", answer.status().as_str().to_owned()),
            ("arenite.request_id", request_id),
            ("arenite.tenant", tenant),
        ];
        open.finish(format!("{method} {name}"), attributes, error);
    }
    drop(in_flight);
    answer
}

fn refused(refusal: Refusal, route: &Route, path: &str) -> Response<Body> {
    let mut answer = (route.surface.refuse)(&refusal.of_request(path));
    // It may repeat text from the caller or from a sandbox.
    answer.headers_mut().append(CONTENT_SECURITY_POLICY, proxy::SANDBOXED);
    answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// Counts a request until its answer starts, or until its client leaves.
struct InFlight<'a>(&'a Gateway);

impl<'a> InFlight<'a> {
    fn begin(gateway: &'a Gateway) -> Self {
        gateway.metrics.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(gateway)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The client of a request, as far as its address can be trusted.
struct Client {
    address: IpAddr,
    scheme: &'static str,
    host: Option<String>,
    /// The path under which a trusted proxy serves this server.
    prefix: String,
}

impl Client {
    /// The peer, or the address from a trusted proxy: the last one that it added itself.
    fn from_headers(config: &GatewayConfig, peer: Peer, headers: &HeaderMap) -> Self {
        let address = peer.address.to_canonical();
        let mut client = Self { address, scheme: peer.scheme, host: None, prefix: String::new() };
        if config.trusted_proxies.contains(&address) {
            let last = |name: &str| {
                let text = headers.get_all(name).iter().next_back()?.to_str().ok()?;
                Some(text.rsplit(',').next().unwrap_or_default().trim().to_owned())
            };
            if let Some(address) = last("x-forwarded-for").and_then(|text| text.parse().ok()) {
                client.address = address;
            }
            match last("x-forwarded-proto").as_deref() {
                Some("https") => client.scheme = "https",
                Some("http") => client.scheme = "http",
                _ => {}
            }
            client.host = last("x-forwarded-host");
            let plain = |text: &String| {
                text.len() <= 256
                    && text.starts_with('/')
                    && !text.contains("//")
                    && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._~-".contains(&b))
            };
            if let Some(prefix) = last("x-forwarded-prefix").filter(plain) {
                prefix.trim_end_matches('/').clone_into(&mut client.prefix);
            }
        }
        client
    }
}

/// Answers preflights of pages from an origin that the configuration allows.
fn preflight(headers: &HeaderMap) -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    for (asked, granted) in [
        (ACCESS_CONTROL_REQUEST_METHOD, ACCESS_CONTROL_ALLOW_METHODS),
        (ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_ALLOW_HEADERS),
    ] {
        if let Some(value) = headers.get(asked) {
            answer.headers_mut().insert(granted, value.clone());
        }
    }
    answer.headers_mut().insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    answer
}

fn name_origin(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("x-request-id, server-timing, retry-after, idempotency-replayed, etag"),
    );
    headers.append(VARY, HeaderValue::from_static("origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trusted_proxy_is_believed_and_nobody_else() {
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", HeaderValue::from_static("6.6.6.6, 192.0.2.1"));
        headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
        headers.insert("x-forwarded-host", HeaderValue::from_static("box.example"));
        let config = GatewayConfig { trusted_proxies: vec![[10, 0, 0, 1].into()], ..GatewayConfig::default() };
        let peer = |last: u8, scheme| Peer { address: [10, 0, 0, last].into(), scheme };
        let client = Client::from_headers(&config, peer(1, "http"), &headers);
        assert_eq!(client.address, IpAddr::from([192, 0, 2, 1]));
        assert_eq!((client.scheme, client.host.as_deref()), ("https", Some("box.example")));
        let client = Client::from_headers(&config, peer(2, "http"), &headers);
        assert_eq!(client.address, IpAddr::from([10, 0, 0, 2]));
        assert_eq!((client.scheme, client.host), ("http", None));
        // A trusted proxy may reach this server by TLS for a client without it.
        headers.insert("x-forwarded-proto", HeaderValue::from_static("http"));
        for (last, wanted) in [(1, "http"), (2, "https")] {
            assert_eq!(Client::from_headers(&config, peer(last, "https"), &headers).scheme, wanted);
        }
    }
}
