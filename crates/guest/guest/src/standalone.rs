//! `arenite guest standalone`: the guest as the entry point of a container, without a server.
//!
//! ```text
//! environment, directory, user ──► configuration, key
//!                                       │ the spawner is forked
//! clients ──► port 8080 ──► from inside, or with the key, or no page ──► services
//! ```
//!
//! `arenite image save --with-guest` makes such images. The container's engine isolates it and sets its limits. It is any user:
//! one without root's rights runs all commands as itself. Routes for a server (`/internal/`) are not served.

use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::http::ApiError;
use arenite_guest_runtime::process::Command;
use arenite_model::protocol::{GuestConfig, INSIDE_PORT};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderName, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use rustix::process::DumpableBehavior;
use subtle::ConstantTimeEq;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tower_service::Service;

use crate::connection::Counted;
use crate::container::{self, Environment};
use crate::server::{self, Start};
use crate::{SharedGuest, api, guard, hooks, log};

/// The argument after `guest` that starts it.
pub(crate) const ARGUMENT: &str = "standalone";
/// The variables with the key of the API, the first before the second, which AIO Sandbox's containers have. Commands get neither.
const KEY_ENV: [&str; 2] = ["ARENITE_GUEST_KEY", "SANDBOX_API_KEY"];
const KEY_HEADERS: [HeaderName; 2] = [HeaderName::from_static("x-aio-api-key"), HeaderName::from_static("x-api-key")];
const KEY_IN_QUERY: &str = "api_key";
/// The path for probes, which needs no key.
const PING: &str = "/v1/ping";
/// The most connections from outside the container. Further ones are closed.
const MAX_CONNECTIONS: usize = 512;
/// Time for a request's head, and of an idle connection.
const HEAD_TIME: Duration = Duration::from_secs(60);
/// The most bytes of a request's head.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Pause after a failed accept, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs the guest in a process with one thread.
pub(crate) fn main() -> io::Result<()> {
    // Commands may have this process's user. They must not read the key in its environment, or trace it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    log::start_on_stderr();
    let mut env = container::environment();
    let key = take_key(&mut env)?;
    if key.is_none() {
        tracing::warn!("{} is not set: anyone who reaches port {INSIDE_PORT} controls this sandbox", KEY_ENV[0]);
    }
    let args = std::env::args().skip(3).collect();
    server::run(Start {
        config: configuration(env, container::ids()),
        host_listener: None,
        pod: None,
        host_connections: None,
        host_proof: None,
        spawner: None,
        work_entrances: Vec::new(),
        inside: None,
        container: Some(Container { key, args }),
        counters: Default::default(),
    })
}

fn take_key(env: &mut Environment) -> io::Result<Option<Key>> {
    let mut key = None;
    for name in KEY_ENV {
        match env.remove(name) {
            // Probably a secret that is missing.
            Some(value) if value.trim().is_empty() => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name} is empty; remove it, or set a key")));
            }
            Some(value) => key = key.or(Some(Key(value))),
            None => {}
        }
    }
    Ok(key)
}

/// The configuration of a container: the image's environment, directory and user, as the engine has applied them.
fn configuration(mut env: Environment, ids: (u32, u32)) -> GuestConfig {
    // Of the shell that started the container.
    for name in ["LOGNAME", "OLDPWD", "PWD", "SHLVL"] {
        env.remove(name);
    }
    let path = env.entry("PATH".to_owned()).or_insert_with(|| DEFAULT_PATH.to_owned());
    path.push_str(":/.arenite");
    let user = container::user(&mut env, ids);
    let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
    GuestConfig {
        sandbox_id: hostname.clone(),
        sandbox_name: hostname,
        env,
        workdir: container::directory(),
        user,
        ..GuestConfig::default()
    }
}

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The key of the API.
struct Key(String);

impl Key {
    /// Takes the same time for each wrong key of a length.
    fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }

    /// Removes the key from a request, since what serves it may be a program of the sandbox. Returns whether it was there.
    fn take_from(&self, request: &mut Request) -> bool {
        let mut found = false;
        let headers = request.headers_mut();
        for name in KEY_HEADERS {
            found |= headers.get_all(&name).iter().any(|given| self.is(given.as_bytes()));
            headers.remove(name);
        }
        let is_bearer = |given: &axum::http::HeaderValue| {
            let (scheme, token) = given.as_bytes().split_at_checked(7).unwrap_or_default();
            scheme.eq_ignore_ascii_case(b"bearer ") && self.is(token.trim_ascii())
        };
        if headers.get_all(AUTHORIZATION).iter().any(is_bearer) {
            found = true;
            headers.remove(AUTHORIZATION);
        }
        if let Some((uri, in_query)) = self.take_from_query(request.uri()) {
            found |= in_query;
            *request.uri_mut() = uri;
        }
        found
    }

    /// The address without its keys, if it has any, and whether one of them is this.
    fn take_from_query(&self, uri: &Uri) -> Option<(Uri, bool)> {
        let query = uri.query()?;
        let is_key = |pair: &&str| pair.split('=').next() == Some(KEY_IN_QUERY);
        let mut keys = query.split('&').filter(is_key).peekable();
        keys.peek()?;
        let value = |pair: &str| percent_decode_str(pair.split_once('=').map_or("", |(_, value)| value)).collect::<Vec<u8>>();
        let found = keys.any(|pair| self.is(&value(pair)));
        let rest = query.split('&').filter(|pair| !is_key(pair)).collect::<Vec<_>>().join("&");
        let path = if rest.is_empty() { uri.path().to_owned() } else { format!("{}?{rest}", uri.path()) };
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(path.parse().ok()?);
        Some((Uri::from_parts(parts).ok()?, found))
    }
}

/// The API's port of a container.
pub struct Container {
    key: Option<Key>,
    /// The main command.
    args: Vec<String>,
}

impl fmt::Debug for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Container").field("has_key", &self.key.is_some()).field("args", &self.args).finish()
    }
}

impl Container {
    /// Serves the API until the container is stopped, then runs the hooks of its end and ends the process.
    pub(crate) async fn serve(self, guest: &SharedGuest, api: Router) -> io::Result<()> {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let listener = container::listen(INSIDE_PORT).await?;
        eprintln!("arenite: the sandbox's API is at port {INSIDE_PORT}");
        if !self.args.is_empty() {
            tokio::spawn(run_main_command(guest.runtime.clone(), self.args));
        }
        let api = api.route("/v1/openapi.json", get(|| std::future::ready(Json(api::description()))));
        let access = Arc::new(Access { key: self.key, api });
        tokio::select! {
            () = accept(listener, access) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if let Some(hooks) = hooks::shutdown(&guest.hooks) {
            // A hook that panicked has ended too.
            drop(hooks.await);
        }
        std::process::exit(0)
    }
}

async fn accept(listener: TcpListener, access: Arc<Access>) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let is_inside = is_inside(peer);
        // Clients outside must not keep the container's own processes away.
        let permit = match is_inside {
            true => None,
            false => match Arc::clone(&permits).try_acquire_owned() {
                Ok(permit) => Some(permit),
                Err(_) => continue,
            },
        };
        tokio::spawn(serve_connection(Counted::new(stream, permit), is_inside, Arc::clone(&access)));
    }
}

/// Whether a peer is a process of the container, or of others that share its network.
fn is_inside(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

async fn serve_connection(stream: Counted<TcpStream>, is_inside: bool, access: Arc<Access>) {
    // Small answers must not wait for acknowledgements. If it fails, so do later calls.
    let _ = stream.get_ref().set_nodelay(true);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let access = Arc::clone(&access);
        async move { Ok::<_, Infallible>(access.answer(request.map(Body::new), is_inside).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(MAX_HEAD_BYTES);
    // Errors here concern only the client and its connection.
    let _ = server.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}

/// The API, and who may call it.
struct Access {
    key: Option<Key>,
    api: Router,
}

impl Access {
    async fn answer(&self, mut request: Request, is_inside: bool) -> Response {
        if let Some(refusal) = self.refusal(&mut request, is_inside) {
            return refusal;
        }
        match self.api.clone().call(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }

    /// Why the caller gets no answer. A caller with the key is no page that a browser was tricked into loading.
    fn refusal(&self, request: &mut Request, is_inside: bool) -> Option<Response> {
        let has_key = self.key.as_ref().is_some_and(|key| key.take_from(request));
        if has_key || (request.method() == Method::GET && request.uri().path() == PING) {
            return None;
        }
        if is_inside {
            return guard::refusal(request, |_| false);
        }
        if self.key.is_none() {
            return guard::refusal(request, is_private_name);
        }
        let hint = format!("send the key of {} as X-API-Key or Authorization: Bearer", KEY_ENV[0]);
        Some(ApiError::new(StatusCode::UNAUTHORIZED, "Unauthorized").hint(hint).into_response())
    }
}

/// Whether a host's name is of a private network, such as a service in Docker Compose or Kubernetes. No page on the internet can
/// have such a name, and point it at this container later.
fn is_private_name(name: &str) -> bool {
    let is_alone = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    is_alone || [".svc", ".cluster.local", ".internal"].iter().any(|suffix| name.ends_with(suffix))
}

/// Runs the container's arguments as its main command, with the container's output. The API is served when it has ended, too.
async fn run_main_command(runtime: Arc<Runtime>, argv: Vec<String>) {
    let stdio = || -> io::Result<[OwnedFd; 3]> {
        let (output, errors) = (io::stdout().as_fd().try_clone_to_owned()?, io::stderr().as_fd().try_clone_to_owned()?);
        Ok([File::open("/dev/null")?.into(), output, errors])
    };
    let outcome = async {
        let command = Command {
            argv,
            env: runtime.environment(&runtime.user, &[]),
            cwd: runtime.default_dir().display().to_string(),
            user: &runtime.user,
            stdio: stdio()?,
            controlling_tty: false,
        };
        let mut child = runtime.processes.spawn(command).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(child.wait().await)
    };
    match outcome.await {
        Ok(exit) => eprintln!("arenite: the main command ended: {exit}"),
        Err(error) => eprintln!("arenite: the main command could not run: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, uri: &str, headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    fn access(key: Option<&str>) -> Access {
        Access { key: key.map(|key| Key(key.to_owned())), api: Router::new() }
    }

    fn status(key: Option<&str>, is_inside: bool, uri: &str, headers: &[(&str, &str)]) -> u16 {
        let refusal = access(key).refusal(&mut request("GET", uri, headers), is_inside);
        refusal.map_or(200, |refusal| refusal.status().as_u16())
    }

    #[test]
    fn with_a_key_every_call_from_outside_needs_it() {
        let outside = |uri: &str, headers: &[(&str, &str)]| status(Some("k+1"), false, uri, headers);
        for (uri, headers, wanted) in [
            ("/v1/sandbox", &[][..], 401),
            ("/v1/sandbox", &[("x-api-key", "k+1")], 200),
            ("/v1/sandbox", &[("x-aio-api-key", "k+1"), ("origin", "https://app.example"), ("host", "box.example")], 200),
            ("/v1/sandbox", &[("authorization", "bearer k+1")], 200),
            ("/v1/sandbox?a=1&api_key=k%2B1", &[], 200),
            ("/v1/sandbox?api_key=k+1", &[("x-api-key", "wrong")], 200),
            ("/v1/sandbox?api_key=k%2B", &[], 401),
            ("/v1/sandbox?xapi_key=k+1", &[], 401),
            ("/v1/sandbox", &[("x-api-key", "k+12")], 401),
            ("/v1/sandbox", &[("x-api-key", "")], 401),
            ("/v1/sandbox", &[("authorization", "k+1")], 401),
            ("/v1/sandbox", &[("authorization", "Basic k+1")], 401),
            ("/v1/sandbox?x=/v1/ping", &[], 401),
            ("/v1/ping/x", &[], 401),
            ("/internal/hello", &[], 401),
            ("/v1/ping", &[], 200),
        ] {
            assert_eq!(outside(uri, headers), wanted, "{uri} {headers:?}");
        }
        let here = ("host", "127.0.0.1:8080");
        assert_eq!(status(Some("k"), true, "/v1/sandbox", &[here]), 200, "processes inside have no key");
        assert_eq!(status(Some("k"), true, "/v1/sandbox", &[here, ("origin", "http://evil.example")]), 403);
    }

    #[test]
    fn without_a_key_pages_are_refused() {
        for (host, wanted) in [
            ("127.0.0.1:8080", 200),
            ("10.0.0.7:8080", 200),
            ("sandbox:8080", 200),
            ("box.team.svc.cluster.local:8080", 200),
            ("box.team.svc", 200),
            ("evil.example:8080", 403),
            ("svc.evil.example", 403),
        ] {
            assert_eq!(status(None, false, "/v1/sandbox", &[("host", host)]), wanted, "{host}");
        }
        let page = [("host", "127.0.0.1:8080"), ("origin", "http://evil.example")];
        assert_eq!(status(None, false, "/v1/sandbox", &page), 403);
    }

    #[test]
    fn the_key_goes_no_further() {
        let headers = [("x-api-key", "k"), ("x-aio-api-key", "other"), ("authorization", "Bearer k"), ("accept", "*/*")];
        let mut keyed = request("GET", "/jupyter/x?api_key=k&a=%20b&api_key=z", &headers);
        assert!(access(Some("k")).refusal(&mut keyed, false).is_none());
        assert_eq!(keyed.uri(), "/jupyter/x?a=%20b");
        assert_eq!(keyed.headers().keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
        // Another token is of the program behind.
        let mut other = request("GET", "/jupyter/x", &[("x-api-key", "k"), ("authorization", "token t")]);
        assert!(access(Some("k")).refusal(&mut other, false).is_none());
        assert_eq!(other.headers()[AUTHORIZATION], "token t");
    }

    fn env(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_key_is_taken_from_the_environment() {
        let mut both = env(&[("ARENITE_GUEST_KEY", "a"), ("SANDBOX_API_KEY", "b"), ("X", "y")]);
        assert!(take_key(&mut both).unwrap().unwrap().is(b"a"));
        assert_eq!(both, env(&[("X", "y")]));
        assert!(take_key(&mut env(&[("SANDBOX_API_KEY", "b")])).unwrap().unwrap().is(b"b"));
        assert!(take_key(&mut env(&[])).unwrap().is_none());
        assert!(take_key(&mut env(&[("ARENITE_GUEST_KEY", " ")])).is_err());
    }

    #[test]
    fn the_configuration_is_the_containers() {
        let root = configuration(env(&[("HOME", "/root"), ("USER", "app"), ("PATH", "/bin"), ("A", "b")]), (0, 0));
        assert_eq!(root.user, None);
        assert_eq!(root.env, env(&[("USER", "app"), ("PATH", "/bin:/.arenite"), ("A", "b")]));
        let other = configuration(env(&[("HOME", "/"), ("USER", "root")]), (4321, 7));
        assert_eq!(other.user.as_deref(), Some("4321:7"));
        assert_eq!(other.env, env(&[("HOME", "/tmp"), ("PATH", &format!("{DEFAULT_PATH}:/.arenite"))]));
    }

    #[test]
    fn peers_on_loopback_are_inside() {
        for (peer, wanted) in [
            ("127.0.0.1:5", true),
            ("[::ffff:127.0.0.1]:5", true),
            ("[::1]:5", true),
            ("172.17.0.1:5", false),
            ("[::ffff:172.17.0.1]:5", false),
            ("[fe80::1]:5", false),
        ] {
            assert_eq!(is_inside(peer.parse().unwrap()), wanted, "{peer}");
        }
    }
}
