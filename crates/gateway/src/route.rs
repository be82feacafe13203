//! Routing: finds the owner of each path.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arenite_model::{ErrorCode, TenantId};
use axum::body::Body;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, CONNECTION, CONTENT_SECURITY_POLICY,
    HeaderName, LOCATION, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::auth::Identity;
use crate::connections::Connection;
use crate::gateway::{Context, Gateway};
use crate::guard::{self, HostKind};
use crate::path::Path;
use crate::refusal::Refusal;
use crate::target::{self, Target};
use crate::timing::Timing;
use crate::{GatewayConfig, api, auth, dialect, health, metrics, origin, own_host, pages, preview, proxy, trajectories};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// The owner of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The target sandbox's guest.
    Guest,
    Console,
    Docs,
    OpenApi,
    AgentSandbox,
    /// Workers, their sessions and tools.
    AgentFlow,
    Trajectories,
    /// The steps of one sandbox.
    Steps,
    /// The page of one sandbox.
    Dashboard,
    /// The page of one trajectory, and the list of all.
    Viewer,
    Api,
    Health,
    Metrics,
    /// A port of a sandbox.
    Preview,
    /// MCP's transports.
    Mcp,
    /// `POST /tickets`
    Tickets,
    /// `GET /auth`
    Auth,
    SignIn,
    SignOut,
    Terminal,
    /// The desktop's page.
    Desktop,
    /// Files of Arenite's pages.
    Static,
    Manual,
    /// Planned but not implemented; with its name.
    Missing(&'static str),
    /// Never answered from outside.
    Internal,
    Unknown,
}

impl Owner {
    /// The owner's name, for metrics.
    fn name(self) -> &'static str {
        match self {
            Self::Guest => "aio",
            Self::Console | Self::Dashboard | Self::Viewer => "console",
            Self::Docs => "docs",
            Self::OpenApi => "openapi",
            Self::AgentSandbox => "agent_sandbox",
            Self::AgentFlow => "agentflow",
            Self::Trajectories | Self::Steps => "trajectories",
            Self::Api => "api",
            Self::Health => "health",
            Self::Metrics => "metrics",
            Self::Preview => "preview",
            Self::Tickets | Self::Auth | Self::SignIn | Self::SignOut => "auth",
            Self::Terminal | Self::Static => "terminal",
            Self::Desktop => "desktop",
            Self::Manual => "llms",
            Self::Mcp => "mcp",
            Self::Missing(_) => "missing",
            Self::Internal | Self::Unknown => "unknown",
        }
    }
}

/// Whether a path is `root` itself or below it.
fn is_under(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Paths of AIO that belong to a sandbox, at the root and again under `/sandbox/{name}`.
const OF_GUESTS: [&str; 10] =
    ["/v1", "/cdp", "/json", "/websockify", "/code-server", "/jupyter", "/proxy", "/absproxy", "/opencode", "/codex"];
/// Paths of dialects that are not implemented yet, at the root.
const MISSING: [(&str, &str); 3] = [("/sandboxes", "E2B's API"), ("/v2/sandboxes", "E2B's API"), ("/templates", "E2B's API")];

/// The owner of a path on the server's own hosts.
pub(crate) fn owner(path: &str) -> Owner {
    let at_root = match path {
        "/" => Some(Owner::Console),
        "/health" | "/ready" | "/healthz" => Some(Owner::Health),
        "/metrics" => Some(Owner::Metrics),
        "/login" => Some(Owner::SignIn),
        "/logout" => Some(Owner::SignOut),
        _ if pages::viewer::is_at(path) => Some(Owner::Viewer),
        _ => None,
    };
    if let Some(owner) = at_root.or_else(|| page_of_sandbox(path)) {
        return owner;
    }
    if let Some((_, what)) = MISSING.iter().find(|(root, _)| is_under(path, root)) {
        return Owner::Missing(what);
    }
    if is_under(path, "/api/v1/sandbox") {
        Owner::AgentSandbox
    } else if is_under(path, "/api/v1/trajectories") {
        Owner::Trajectories
    } else if dialect::agentflow::owns_path(path) {
        Owner::AgentFlow
    } else if is_under(path, "/api/v2") {
        Owner::Api
    } else if let Some(rest) = path.strip_prefix("/sandbox/") {
        match rest.split_once('/') {
            Some((_, rest)) => owner_in_sandbox(&format!("/{rest}")),
            None => owner_in_sandbox("/"),
        }
    } else if OF_GUESTS.iter().any(|root| is_under(path, root)) {
        Owner::Guest
    } else if is_under(path, "/internal") {
        Owner::Internal
    } else {
        Owner::Unknown
    }
}

/// Paths that this server answers itself wherever a sandbox has them: at the root, under its prefix, or on its own host.
fn page_of_sandbox(path: &str) -> Option<Owner> {
    Some(match path {
        "/v1/docs" => Owner::Docs,
        "/v1/openapi.json" => Owner::OpenApi,
        "/tickets" => Owner::Tickets,
        "/auth" => Owner::Auth,
        "/terminal" => Owner::Terminal,
        "/vnc" | "/vnc/" | "/vnc/index.html" | "/vnc/vnc.html" | "/vnc/vnc_lite.html" => Owner::Desktop,
        "/llms.txt" => Owner::Manual,
        "/index.html" => Owner::Dashboard,
        _ if is_under(path, "/steps") => Owner::Steps,
        // The routes below /v1/mcp belong to the guest.
        _ if dialect::mcp::endpoint(path).is_some() => Owner::Mcp,
        _ if is_under(path, "/static/sandbox") => Owner::Static,
        _ => return None,
    })
}

/// The owner of a path of a sandbox: under its prefix, or on its own host. Control routes don't exist there.
pub(crate) fn owner_in_sandbox(path: &str) -> Owner {
    if let Some(owner) = page_of_sandbox(path) {
        owner
    } else if path == "/" {
        Owner::Dashboard
    } else if OF_GUESTS.iter().any(|root| is_under(path, root)) {
        Owner::Guest
    } else if is_under(path, "/internal") {
        Owner::Internal
    } else {
        Owner::Unknown
    }
}

/// Whether people open it in a browser, so that links from elsewhere may lead to it.
fn is_page(owner: Owner, path: &str) -> bool {
    match owner {
        Owner::Console
        | Owner::Dashboard
        | Owner::Viewer
        | Owner::Docs
        | Owner::Terminal
        | Owner::Desktop
        | Owner::Manual
        | Owner::Preview => true,
        Owner::Guest => !path.split('/').any(|segment| segment == "v1"),
        Owner::AgentFlow => matches!(path, "/docs" | "/redoc"),
        _ => false,
    }
}

/// Whether it is public, or checks credentials itself.
fn asks_for_nothing(owner: Owner) -> bool {
    matches!(owner, Owner::Health | Owner::Static | Owner::SignIn | Owner::SignOut | Owner::Auth)
}

/// Answers any request.
pub(crate) async fn answer(gateway: Arc<Gateway>, peer: IpAddr, request: Request<Incoming>) -> Response<Body> {
    let mut timing = Timing::start();
    let in_flight = InFlight::begin(&gateway);
    let (mut parts, body) = request.into_parts();
    let request_id = gateway.request_id();
    let caller = Caller::from_headers(&gateway.config, peer, &parts.headers);
    let mut owner = Owner::Unknown;
    let mut allowed = None;
    let closing = dialect::agentflow::closing(&gateway, &parts);
    let answered = dispatch(&gateway, &caller, &request_id, &mut parts, Body::new(body), &mut timing, &mut owner, &mut allowed);
    let mut answer = match answered.await {
        Ok(answer) => answer,
        Err(refusal) => {
            let mut answer = match owner {
                Owner::Api | Owner::AgentSandbox | Owner::Trajectories | Owner::Steps | Owner::Metrics => refusal.api(),
                _ => refusal.envelope(),
            };
            // It may repeat text from the caller or from a sandbox.
            answer.headers_mut().append(CONTENT_SECURITY_POLICY, proxy::SANDBOXED);
            answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            answer
        }
    };
    let headers = answer.headers_mut();
    if closing.applies_to(owner) {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(origin) = allowed {
        name_origin(headers, origin);
    }
    if let Ok(id) = HeaderValue::from_str(&request_id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(SERVER_TIMING, timing.header());
    gateway.metrics.observe((owner.name(), metrics::route(parts.uri.path())), answer.status().as_u16(), timing.total());
    drop(in_flight);
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
struct Caller {
    address: IpAddr,
    scheme: &'static str,
    host: Option<String>,
    /// The path under which a trusted proxy serves this server.
    prefix: String,
}

impl Caller {
    /// The peer, or the address from a trusted proxy: the last one that it added itself.
    fn from_headers(config: &GatewayConfig, peer: IpAddr, headers: &HeaderMap) -> Self {
        let peer = peer.to_canonical();
        let mut caller = Self { address: peer, scheme: "http", host: None, prefix: String::new() };
        if config.trusted_proxies.contains(&peer) {
            let last = |name: &str| {
                let text = headers.get_all(name).iter().next_back()?.to_str().ok()?;
                Some(text.rsplit(',').next().unwrap_or_default().trim().to_owned())
            };
            if let Some(address) = last("x-forwarded-for").and_then(|text| text.parse().ok()) {
                caller.address = address;
            }
            if last("x-forwarded-proto").as_deref() == Some("https") {
                caller.scheme = "https";
            }
            caller.host = last("x-forwarded-host");
            let plain = |text: &String| {
                text.len() <= 256
                    && text.starts_with('/')
                    && !text.contains("//")
                    && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._~-".contains(&b))
            };
            if let Some(prefix) = last("x-forwarded-prefix").filter(plain) {
                prefix.trim_end_matches('/').clone_into(&mut caller.prefix);
            }
        }
        caller
    }
}

#[allow(clippy::too_many_arguments)]
async fn dispatch(
    gateway: &Arc<Gateway>,
    caller: &Caller,
    request_id: &str,
    parts: &mut Parts,
    body: Body,
    timing: &mut Timing,
    owned_by: &mut Owner,
    allowed: &mut Option<HeaderValue>,
) -> Result<Response<Body>, Refusal> {
    let host = guard::host(&gateway.config, parts, caller.host.as_deref())?;
    let preview = preview::find(parts.uri.path(), &parts.headers, &host.kind)?;
    let (path, owner) = match (&preview, &host.kind) {
        // Its path belongs to the program, whatever it contains.
        (Some(_), _) => (Path::root(), Owner::Preview),
        (None, kind) => {
            let path = Path::parse(parts.uri.path())?;
            let owner = if *kind == HostKind::Server { owner(&path.decoded) } else { owner_in_sandbox(&path.decoded) };
            (path, owner)
        }
    };
    *owned_by = owner;
    *allowed = guard::origin(&gateway.config, &host, parts, is_page(owner, &path.decoded))?;
    if matches!(owner, Owner::Guest | Owner::Preview) {
        guard::worker(&host, parts)?;
    }
    if allowed.is_some() && parts.method == Method::OPTIONS && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return Ok(preflight(&parts.headers));
    }
    let mut context = Context {
        tenant: TenantId::default_tenant(),
        dialect: "aio",
        request_id: request_id.to_owned(),
        client: Some(caller.address.to_string()),
        origin: origin::classify(&host, parts),
        base_url: format!("{}://{}{}", caller.scheme, host.authority, caller.prefix),
    };
    let who = match auth::identify(gateway, &host, parts) {
        Some(who) => who,
        // They are public, or check credentials themselves.
        None if asks_for_nothing(owner) => Identity::nobody(),
        None if owner == Owner::Guest && host.kind == HostKind::Server && path.decoded == "/v1/ping" => {
            return health::ping(parts);
        }
        None => {
            let is_page = is_page(owner, &path.decoded) || matches!(owner, Owner::Metrics | Owner::OpenApi);
            return auth::page(&host, parts).filter(|_| is_page).ok_or_else(auth::unauthorized);
        }
    };
    context.tenant = who.tenant.clone();
    // Public routes are answered even when all slots are taken.
    if !asks_for_nothing(owner)
        && let Some(connection) = parts.extensions.get::<Arc<Connection>>()
    {
        let is_frugal = matches!(owner, Owner::Api | Owner::AgentSandbox | Owner::Metrics);
        connection.admit(is_frugal)?;
    }
    if owner == Owner::Auth {
        return auth::authenticate(gateway, &host, parts);
    }
    let query = parts.uri.query().map(str::to_owned);
    // These have their own credentials and cookies.
    let is_website = owner == Owner::Preview || host.kind != HostKind::Server && own_host::program(&path.decoded).is_some();
    auth::take_off(gateway, &host, parts, is_website);
    if is_page(owner, &path.decoded)
        && let Some(answer) = auth::enter(gateway, &context, &host, parts, query.as_deref())?
    {
        return Ok(answer);
    }
    if let Some(preview) = &preview {
        timing.mark("target");
        return proxy::forward_to_port(gateway, &context, &host, &who, preview, parts, body, timing).await;
    }
    timing.mark("target");
    let at = path.decoded.as_str();
    match owner {
        Owner::Dashboard => match with_slash(&path, parts) {
            Some(redirect) => Ok(redirect),
            None => pages::dashboard::serve(gateway, &context, &host, &who, &path, parts).await,
        },
        Owner::Steps => {
            let target = target::find(&path, &parts.headers, &host.kind)?;
            trajectories::serve_steps(gateway, &context, &target, parts).await
        }
        Owner::Mcp => {
            let target = target::find(&path, &parts.headers, &host.kind)?;
            let parts = std::mem::replace(parts, Request::new(()).into_parts().0);
            dialect::mcp::serve(gateway, context, (&host, &who, target), parts, body).await
        }
        Owner::Guest => {
            let target: Target = target::find(&path, &parts.headers, &host.kind)?;
            proxy::forward(gateway, &context, &host, &who, &target, parts, body, timing).await
        }
        Owner::Console => pages::console::serve(gateway, &context, at, parts, body).await,
        Owner::Viewer => pages::viewer::serve(at, parts),
        Owner::Docs => pages::docs::serve(gateway, &context, at, parts, body).await,
        Owner::OpenApi => pages::openapi::serve(gateway, &context, at, parts, body).await,
        Owner::AgentFlow => dialect::agentflow::serve(gateway, &context, &who, at, parts, body).await,
        Owner::AgentSandbox => dialect::agent_sandbox::serve(gateway, &context, at, parts, body).await,
        Owner::Trajectories => trajectories::serve(gateway, &context, at, parts).await,
        Owner::Api => api::serve(gateway, &context, &who, at, parts, body).await,
        Owner::Health => health::serve(gateway, &context, at, parts, body).await,
        Owner::Metrics => metrics::serve(gateway, &context, at, parts, body).await,
        Owner::Tickets => auth::create_ticket(gateway, &host, &who, parts),
        Owner::SignIn => auth::sign_in(gateway, &context, &host, parts, body).await,
        Owner::SignOut => auth::sign_out(gateway, parts),
        Owner::Terminal => pages::terminal::serve(parts),
        Owner::Desktop => pages::vnc::serve(parts),
        Owner::Static => pages::assets::serve(at, parts),
        Owner::Manual => pages::manual::serve(&context, &path, parts),
        Owner::Missing(what) => {
            Err(Refusal::new(ErrorCode::Unsupported, format!("{what} is not there yet")).hint("GET /v1/docs shows what is"))
        }
        // All of them were answered above.
        Owner::Preview | Owner::Auth | Owner::Internal => Err(Refusal::not_found("there is nothing at this path")),
        Owner::Unknown => Err(unknown(at, &host.kind)),
    }
}

fn unknown(path: &str, host: &HostKind) -> Refusal {
    let shown: String = path.chars().take(200).collect();
    let refusal = Refusal::not_found(format!("there is nothing at {shown}"));
    match host {
        HostKind::Sandbox(id) => refusal.hint(format!(
            "this host is sandbox {id}'s own and has its paths alone; call the server by its own name for the others"
        )),
        _ => refusal.hint(
            "a sandbox's API is at /v1 and /sandbox/{name}/v1, sandboxes at /api/v1/sandbox and /api/v2/sandboxes; GET /v1/docs shows all",
        ),
    }
}

/// `/sandbox/{name}` is a folder: relative links of its page need the slash.
fn with_slash(path: &Path, parts: &Parts) -> Option<Response<Body>> {
    let name = path.raw.strip_prefix("/sandbox/")?;
    if name.contains('/') || !matches!(parts.method, Method::GET | Method::HEAD) {
        return None;
    }
    let query = parts.uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::PERMANENT_REDIRECT;
    let location = HeaderValue::from_str(&format!("{}/{query}", path.raw)).ok()?;
    answer.headers_mut().insert(LOCATION, location);
    Some(answer)
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
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id, server-timing, retry-after"));
    headers.append(VARY, HeaderValue::from_static("origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_its_owner() {
        for (path, wanted) in [
            ("/", Owner::Console),
            ("/trajectory/sb-1", Owner::Viewer),
            ("/trajectories", Owner::Viewer),
            ("/v1/ping", Owner::Guest),
            ("/v1", Owner::Guest),
            ("/v1x", Owner::Unknown),
            ("/v1/docs", Owner::Docs),
            ("/v1/openapi.json", Owner::OpenApi),
            ("/v1/mcp", Owner::Mcp),
            ("/v1/mcp/servers", Owner::Guest),
            ("/sandbox/a/v1/mcp", Owner::Mcp),
            ("/sandbox/a", Owner::Dashboard),
            ("/sandbox/a/", Owner::Dashboard),
            ("/index.html", Owner::Dashboard),
            ("/steps", Owner::Steps),
            ("/sandbox/a/steps/3/observation", Owner::Steps),
            ("/sandbox/a/stepsx", Owner::Unknown),
            ("/sandbox/a/v1/bash/exec", Owner::Guest),
            ("/sandbox/a/index.html", Owner::Dashboard),
            ("/sandbox/a/internal/hello", Owner::Internal),
            ("/sandbox/a/api/v1/sandbox", Owner::Unknown),
            ("/sandbox/a/sandbox/b/v1/ping", Owner::Unknown),
            ("/sandbox/a/metrics", Owner::Unknown),
            ("/sandbox", Owner::Unknown),
            ("/internal/hello", Owner::Internal),
            ("/internal", Owner::Internal),
            ("/api/v1/sandbox", Owner::AgentSandbox),
            ("/api/v1/sandbox/a", Owner::AgentSandbox),
            ("/api/v1/sandboxes", Owner::AgentFlow),
            ("/api/v1/trajectories/x", Owner::Trajectories),
            ("/api/v1/execute", Owner::AgentFlow),
            ("/execute", Owner::AgentFlow),
            ("/tools/bash:run/schema", Owner::AgentFlow),
            ("/shutdown", Owner::AgentFlow),
            ("/shutdown/x", Owner::Unknown),
            ("/worker/disconnect", Owner::AgentFlow),
            ("/warmup/status", Owner::AgentFlow),
            ("/warmups", Owner::Unknown),
            ("/docs", Owner::AgentFlow),
            ("/openapi.json", Owner::AgentFlow),
            ("/docs/x", Owner::Unknown),
            ("/sandbox/a/docs", Owner::Unknown),
            ("/api/v2/sandboxes", Owner::Api),
            ("/sandboxes", Owner::Missing("E2B's API")),
            ("/healthz", Owner::Health),
            ("/tickets", Owner::Tickets),
            ("/auth", Owner::Auth),
            ("/auth/x", Owner::Unknown),
            ("/login", Owner::SignIn),
            ("/sandbox/a/login", Owner::Unknown),
            ("/terminal", Owner::Terminal),
            ("/sandbox/a/terminal", Owner::Terminal),
            ("/vnc/index.html", Owner::Desktop),
            ("/sandbox/a/vnc/", Owner::Desktop),
            ("/vnc/other", Owner::Unknown),
            ("/sandbox/a/cdp/json/version", Owner::Guest),
            ("/json/list", Owner::Guest),
            ("/sandbox/a/tickets", Owner::Tickets),
            ("/static/sandbox/xterm@5.3.0/lib/xterm.js", Owner::Static),
            ("/static/other", Owner::Unknown),
            ("/llms.txt", Owner::Manual),
            ("/sandbox/a/llms.txt", Owner::Manual),
            ("/metrics", Owner::Metrics),
            ("/nothing", Owner::Unknown),
        ] {
            assert_eq!(owner(path), wanted, "{path}");
        }
        for (path, wanted) in [
            ("/", Owner::Dashboard),
            ("/steps", Owner::Steps),
            ("/v1/ping", Owner::Guest),
            ("/api/v1/sandbox", Owner::Unknown),
            ("/api/v2/sandboxes", Owner::Unknown),
            ("/metrics", Owner::Unknown),
            ("/sandbox/victim/v1/ping", Owner::Unknown),
            ("/internal/hello", Owner::Internal),
        ] {
            assert_eq!(owner_in_sandbox(path), wanted, "{path}");
        }
    }

    #[test]
    fn a_trusted_proxy_is_believed_and_nobody_else() {
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", HeaderValue::from_static("6.6.6.6, 192.0.2.1"));
        headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
        headers.insert("x-forwarded-host", HeaderValue::from_static("box.example"));
        let config = GatewayConfig { trusted_proxies: vec![[10, 0, 0, 1].into()], ..GatewayConfig::default() };
        let caller = Caller::from_headers(&config, [10, 0, 0, 1].into(), &headers);
        assert_eq!(caller.address, IpAddr::from([192, 0, 2, 1]));
        assert_eq!((caller.scheme, caller.host.as_deref()), ("https", Some("box.example")));
        let caller = Caller::from_headers(&config, [10, 0, 0, 2].into(), &headers);
        assert_eq!(caller.address, IpAddr::from([10, 0, 0, 2]));
        assert_eq!((caller.scheme, caller.host), ("http", None));
    }
}
