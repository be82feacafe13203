//! The rules, and the listener that applies them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use super::forward;
use super::outgoing;
use super::pattern::{Hosts, Scheme, Source, Target, Wanted, host_and_port};
use super::rules::{MAX_RULES, Mapping, Route, Rules, is_loopback};
use super::upstream::Upstream;
use arenite_guest_runtime::Runtime;

/// The proxy's port in AIO's images. `PROXY_PORT` in the sandbox's environment names another.
const PORT: u16 = 8118;
/// Time to check whether a target answers.
const REACHED: Duration = Duration::from_secs(5);
/// Refused credentials are renewed at most once in this time.
const RENEWAL: Duration = Duration::from_secs(30);

#[derive(Debug, Error)]
pub enum ProxyError {
    #[error("{what} {text:?} can't be used: {why}")]
    Invalid { what: &'static str, text: String, why: String },
    /// The message leaves out the text: it may hold a password.
    #[error("the upstream can't be used: {0}")]
    Upstream(String),
    #[error("there is no {what} {text:?}")]
    NotFound { what: &'static str, text: String },
    #[error("{MAX_RULES} {0} are set already; remove one")]
    TooMany(&'static str),
    #[error("the proxy can't listen on port {port}: {source}")]
    NoPort { port: u16, source: std::io::Error },
}

#[derive(Debug)]
pub struct ProxyService {
    runtime: Arc<Runtime>,
    port: AtomicU16,
    rules: Mutex<Arc<Rules>>,
    listening: OnceCell<()>,
    renewed: Mutex<Option<Instant>>,
}

/// One mapping, as AIO shows it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ProxyMappingRoute {
    /// `[scheme://]host[:port][/path]`, `*` in the host stands for any text.
    #[schema(example = "api.myapp.com/v1/*")]
    pub source: String,
    /// `[host:]port[/path]`; the host is this sandbox unless named.
    #[schema(example = "127.0.0.1:3000")]
    pub target: String,
    pub source_host: String,
    #[schema(default = "/")]
    pub source_path: String,
    /// The port that the proxy listens on.
    pub internal_port: u16,
}

/// The upstream proxy. Its password is never shown.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ProxyUpstreamInfo {
    /// `host:port`
    #[schema(example = "proxy.example.com:3128")]
    pub addr: String,
    pub username: Option<String>,
    /// Always null.
    pub password: Option<String>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ProxyDiagnoseResult {
    pub url: String,
    pub matched_mapping: Option<ProxyMappingRoute>,
    /// The target of the connection: `host:port`, and the requested path if a mapping changes it.
    pub resolved_target: Option<String>,
    #[schema(default = false)]
    pub target_reachable: bool,
    /// `mapping`, `upstream` or `direct`, with the rule or the reason.
    pub route: String,
}

/// The proxy is one process and one listener; the names are those of the programs that AIO's images use.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ProxyHealthCheck {
    pub healthy: bool,
    pub gost_alive: bool,
    pub nginx_alive: bool,
    pub config_consistent: bool,
    pub inconsistencies: Vec<String>,
}

/// The settings in the sandbox's environment.
#[derive(Debug)]
pub struct ProxySettings {
    port: u16,
    rules: Rules,
}

impl ProxySettings {
    /// Reads the rules from `PROXY_SERVER`, `PROXY_MAP`, `PROXY_EXCLUDE` and `PROXY_INCLUDE`. Logs invalid ones. Removes the
    /// credentials from `PROXY_SERVER`, since commands inherit it.
    pub fn take(env: &mut BTreeMap<String, String>) -> Self {
        let port = env.get("PROXY_PORT").and_then(|p| p.trim().parse().ok()).unwrap_or(PORT);
        let mut rules = Rules::default();
        let refused =
            |variable: &str, why: &dyn std::fmt::Display| tracing::error!(variable, %why, "a proxy setting is not used");
        if let Some(server) = env.get_mut("PROXY_SERVER").filter(|s| !s.trim().is_empty()) {
            match Upstream::read(server) {
                Ok(upstream) => {
                    *server = format!("http://{}", upstream.address());
                    rules.upstream = Some(Arc::new(upstream));
                }
                Err(why) => {
                    refused("PROXY_SERVER", &why);
                    server.clear();
                }
            }
        }
        let list = |name: &str| env.get(name).map(String::as_str).unwrap_or_default();
        let items = |text: &str| -> Vec<String> {
            text.split([',', ';', '\n']).map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
        };
        for (name, into) in [("PROXY_EXCLUDE", &mut rules.excludes), ("PROXY_INCLUDE", &mut rules.includes)] {
            for item in items(list(name)).iter().take(MAX_RULES) {
                match Hosts::read(item) {
                    Ok(hosts) => into.push(hosts),
                    Err(why) => refused(name, &why),
                }
            }
        }
        let map = list("PROXY_MAP");
        let pairs: Vec<(String, String)> = match serde_json::from_str::<BTreeMap<String, String>>(map) {
            Ok(map) => map.into_iter().collect(),
            Err(_) => items(map)
                .into_iter()
                .map(|item| item.split_once('=').map_or((item.clone(), String::new()), |(s, t)| (s.to_owned(), t.to_owned())))
                .collect(),
        };
        for (source, target) in pairs.iter().take(MAX_RULES) {
            match (Source::read(source), Target::read(target)) {
                (Ok(source), Ok(target)) => rules.mappings.push(Mapping { source, target }),
                (Err(why), _) | (_, Err(why)) => refused("PROXY_MAP", &why),
            }
        }
        Self { port, rules }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ProxyService {
    pub fn new(runtime: Arc<Runtime>, settings: ProxySettings) -> Self {
        Self {
            runtime,
            port: settings.port.into(),
            rules: Mutex::new(Arc::new(settings.rules)),
            listening: OnceCell::new(),
            renewed: Mutex::default(),
        }
    }

    /// Replaces port and rules, when a pooled sandbox is assigned.
    pub fn configure(&self, settings: ProxySettings) {
        let mut rules = lock(&self.rules);
        self.port.store(settings.port, Ordering::Relaxed);
        *rules = Arc::new(settings.rules);
        self.announce(&rules);
    }

    fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }

    pub(super) fn rules(&self) -> Arc<Rules> {
        lock(&self.rules).clone()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Rules) -> Result<T, ProxyError>) -> Result<T, ProxyError> {
        let mut rules = lock(&self.rules);
        let mut changed = Rules::clone(&rules);
        let outcome = change(&mut changed)?;
        *rules = Arc::new(changed);
        self.announce(&rules);
        Ok(outcome)
    }

    /// Whether a host and port are this proxy itself.
    pub(super) fn is_here(&self, host: &str, port: u16) -> bool {
        port == self.port() && is_loopback(host)
    }

    /// Sets the address that commands and the browser use: none without rules or while the proxy does not listen, as in an image's
    /// build.
    fn announce(&self, rules: &Rules) {
        let is_used = self.listening.initialized() && rules.is_configured();
        self.runtime.set_proxy_address(is_used.then(|| format!("127.0.0.1:{}", self.port())));
    }

    /// Listens if the environment has rules.
    pub async fn begin(self: &Arc<Self>) {
        if self.rules().is_configured()
            && let Err(error) = self.listen().await
        {
            tracing::error!(%error, "commands that use the proxy will fail");
        }
    }

    async fn listen(self: &Arc<Self>) -> Result<(), ProxyError> {
        let begin = async || {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()));
            let listener = TcpListener::bind(address).await;
            let listener = listener.map_err(|source| ProxyError::NoPort { port: self.port(), source })?;
            tokio::spawn(forward::serve(listener, self.clone()));
            Ok(())
        };
        self.listening.get_or_try_init(begin).await?;
        self.announce(&lock(&self.rules));
        Ok(())
    }

    fn show(&self, mapping: &Mapping) -> ProxyMappingRoute {
        ProxyMappingRoute {
            source: mapping.source.text.clone(),
            target: mapping.target.text.clone(),
            source_host: mapping.source.host.clone(),
            source_path: mapping.source.path.clone(),
            internal_port: self.port(),
        }
    }

    pub fn mappings(&self) -> Vec<ProxyMappingRoute> {
        self.rules().mappings.iter().map(|m| self.show(m)).collect()
    }

    /// Adds a mapping, or changes the target of the one with this source.
    pub async fn map(self: &Arc<Self>, source: &str, target: &str) -> Result<ProxyMappingRoute, ProxyError> {
        let invalid = |what, text: &str| {
            let text = text.chars().take(200).collect();
            move |why| ProxyError::Invalid { what, text, why }
        };
        let mapping = Mapping {
            source: Source::read(source).map_err(invalid("source", source))?,
            target: Target::read(target).map_err(invalid("target", target))?,
        };
        if self.is_here(&mapping.target.host, mapping.target.port) {
            return Err(invalid("target", target)("that is the proxy itself".to_owned()));
        }
        self.listen().await?;
        let shown = self.show(&mapping);
        self.change(|rules| {
            rules.mappings.retain(|m| m.source != mapping.source);
            if rules.mappings.len() >= MAX_RULES {
                return Err(ProxyError::TooMany("mappings"));
            }
            rules.mappings.push(mapping);
            Ok(shown)
        })
    }

    pub fn unmap(&self, source: &str) -> Result<(), ProxyError> {
        let unknown = || ProxyError::NotFound { what: "mapping of", text: source.chars().take(200).collect() };
        // In a path, `https://` may have lost one of its slashes.
        let scheme = source.split_once(":/").filter(|(scheme, rest)| !rest.starts_with('/') && !scheme.contains('/'));
        let mended = scheme.map(|(scheme, rest)| format!("{scheme}://{rest}"));
        let wanted = Source::read(mended.as_deref().unwrap_or(source)).map_err(|_| unknown())?;
        self.change(|rules| {
            let before = rules.mappings.len();
            rules.mappings.retain(|m| m.source != wanted);
            if rules.mappings.len() == before { Err(unknown()) } else { Ok(()) }
        })
    }

    pub fn excludes(&self) -> Vec<String> {
        self.rules().excludes.iter().map(Hosts::to_string).collect()
    }

    /// Adds an exclude. May be repeated.
    pub fn exclude(&self, pattern: &str) -> Result<(), ProxyError> {
        let hosts = Hosts::read(pattern);
        let text = || pattern.chars().take(200).collect();
        let hosts = hosts.map_err(|why| ProxyError::Invalid { what: "pattern", text: text(), why })?;
        self.change(|rules| {
            if !rules.excludes.contains(&hosts) {
                if rules.excludes.len() >= MAX_RULES {
                    return Err(ProxyError::TooMany("patterns"));
                }
                rules.excludes.push(hosts);
            }
            Ok(())
        })
    }

    pub fn include_again(&self, pattern: &str) -> Result<(), ProxyError> {
        let unknown = || ProxyError::NotFound { what: "pattern", text: pattern.chars().take(200).collect() };
        let hosts = Hosts::read(pattern).map_err(|_| unknown())?;
        self.change(|rules| {
            let before = rules.excludes.len();
            rules.excludes.retain(|h| *h != hosts);
            if rules.excludes.len() == before { Err(unknown()) } else { Ok(()) }
        })
    }

    pub fn upstream(&self) -> Option<ProxyUpstreamInfo> {
        self.rules().upstream.as_deref().map(shown)
    }

    pub async fn set_upstream(self: &Arc<Self>, server: &str, command: Option<String>) -> Result<ProxyUpstreamInfo, ProxyError> {
        let upstream = Upstream::read(server).and_then(|u| u.with_command(command)).map_err(ProxyError::Upstream)?;
        if self.is_here(&upstream.host, upstream.port) {
            return Err(ProxyError::Upstream("that is the proxy itself".to_owned()));
        }
        let upstream = upstream.renewed(&self.runtime).await.map_err(ProxyError::Upstream)?;
        self.listen().await?;
        let shown = shown(&upstream);
        self.change(|rules| {
            rules.upstream = Some(Arc::new(upstream));
            Ok(shown)
        })
    }

    /// Removes the upstream proxy. May be repeated.
    pub fn remove_upstream(&self) {
        // The change itself can't fail.
        let _ = self.change(|rules| {
            rules.upstream = None;
            Ok(())
        });
    }

    /// Renews credentials that the upstream refused, for later connections.
    pub(super) async fn renew(self: &Arc<Self>, refused: &Arc<Upstream>) {
        if refused.command.is_none() {
            return;
        }
        {
            let mut renewed = lock(&self.renewed);
            if renewed.is_some_and(|when| when.elapsed() < RENEWAL) {
                return;
            }
            *renewed = Some(Instant::now());
        }
        match refused.renewed(&self.runtime).await {
            Ok(upstream) => {
                let _ = self.change(|rules| {
                    // Another upstream may have been set meanwhile.
                    if rules.upstream.as_ref().is_some_and(|current| Arc::ptr_eq(current, refused)) {
                        rules.upstream = Some(Arc::new(upstream));
                    }
                    Ok(())
                });
            }
            Err(why) => tracing::warn!(why, "the upstream proxy refuses the credentials, and new ones could not be had"),
        }
    }

    /// The route of a URL, and whether its target answers.
    pub async fn diagnose(self: &Arc<Self>, url: &str) -> Result<ProxyDiagnoseResult, ProxyError> {
        let invalid = |why: &str| ProxyError::Invalid {
            what: "URL",
            text: without_credentials(url).chars().take(200).collect(),
            why: why.to_owned(),
        };
        let text = url.trim();
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let scheme = match &*scheme.to_ascii_lowercase() {
            "http" | "ws" => Scheme::Http,
            "https" | "wss" => Scheme::Https,
            _ => return Err(invalid("its scheme is none of http, https, ws, wss")),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let authority = rest[..end].rsplit('@').next().unwrap_or_default();
        let path = rest[end..].split(['?', '#']).next().unwrap_or_default();
        let path = if path.is_empty() { "/" } else { path };
        let (host, port) = host_and_port(authority).map_err(|why| invalid(&why))?;
        if host.is_empty() {
            return Err(invalid("it names no host"));
        }
        let port = port.unwrap_or(scheme.port());
        let visible = (scheme == Scheme::Http).then_some(path);
        let wanted = Wanted { scheme, host: &host, port, path: visible };
        let rules = self.rules();
        let direct = format!("{host}:{port}");
        let (matched, target, route, reached) = match rules.route(&wanted) {
            Route::Mapped(mapping) => {
                let Target { host, port, .. } = &mapping.target;
                let path = visible.map(|path| mapping.target.path(&mapping.source, path)).unwrap_or_default();
                let reached = reached(host, *port).await;
                (Some(self.show(mapping)), format!("{host}:{port}{path}"), format!("mapping {}", mapping.source.text), reached)
            }
            Route::Direct(why) => {
                let reached = reached(&host, port).await;
                (None, direct, format!("direct: {why}"), reached)
            }
            Route::Upstream(upstream) => {
                let reached = match scheme {
                    // Only a tunnel can be checked without a request.
                    Scheme::Https => {
                        let tunnel = outgoing::through(self, upstream, &host, port);
                        matches!(timeout(REACHED, tunnel).await, Ok(Ok(_)))
                    }
                    Scheme::Http => reached(&upstream.host, upstream.port).await,
                };
                (None, direct, format!("upstream {}", upstream.address()), reached)
            }
        };
        Ok(ProxyDiagnoseResult {
            url: without_credentials(url),
            matched_mapping: matched,
            resolved_target: Some(target),
            target_reachable: reached,
            route,
        })
    }

    /// Whether the proxy accepts connections. Starts it to check.
    pub async fn health(self: &Arc<Self>) -> ProxyHealthCheck {
        let problem = match self.listen().await {
            Err(error) => Some(error.to_string()),
            Ok(()) => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()));
                match timeout(REACHED, TcpStream::connect(address)).await {
                    Ok(Ok(_)) => None,
                    Ok(Err(error)) => Some(format!("port {} does not answer: {error}", self.port())),
                    Err(_) => Some(format!("port {} did not answer within {} s", self.port(), REACHED.as_secs())),
                }
            }
        };
        let healthy = problem.is_none();
        ProxyHealthCheck {
            healthy,
            gost_alive: healthy,
            nginx_alive: healthy,
            config_consistent: healthy,
            inconsistencies: problem.into_iter().collect(),
        }
    }
}

fn shown(upstream: &Upstream) -> ProxyUpstreamInfo {
    ProxyUpstreamInfo { addr: upstream.address(), username: upstream.username(), password: None }
}

async fn reached(host: &str, port: u16) -> bool {
    matches!(timeout(REACHED, arenite_guest_runtime::dial::dial(host, port)).await, Ok(Ok(_)))
}

/// A URL without `user:password@`.
fn without_credentials(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    match url[start..end].rfind('@') {
        Some(at) => format!("{}{}", &url[..start], &url[start + at + 1..]),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use arenite_model::protocol::GuestConfig;

    use super::*;
    use arenite_guest_runtime::process::Processes;

    /// A service of a sandbox that starts no processes, and what keeps it from starting any.
    fn configured(env: &mut BTreeMap<String, String>) -> (ProxyService, UnixStream) {
        let settings = ProxySettings::take(env);
        let (spawner, peer) = UnixStream::pair().unwrap();
        let processes = Processes::start(spawner.into(), Vec::new()).unwrap();
        (ProxyService::new(Arc::new(Runtime::new(GuestConfig::default(), processes)), settings), peer)
    }

    /// The variables by which commands find the proxy.
    fn environment(proxy: &ProxyService) -> Vec<(String, String)> {
        let mut env = proxy.runtime.environment(&proxy.runtime.root_user, &[]);
        env.retain(|(name, _)| name.to_lowercase().ends_with("_proxy"));
        env
    }

    #[tokio::test]
    async fn the_environment_configures_and_keeps_no_password() {
        let mut env: BTreeMap<String, String> = [
            ("PROXY_SERVER", "http://me:sekrit@proxy.example:3128"),
            ("PROXY_EXCLUDE", "*.internal, 10.0.0.0/8,nonsense here"),
            ("PROXY_INCLUDE", ".example.com"),
            ("PROXY_MAP", "a.com=:3000, b.com/v1/*=127.0.0.1:81/,broken"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
        let (proxy, _peer) = configured(&mut env);
        assert_eq!(env["PROXY_SERVER"], "http://proxy.example:3128");
        assert_eq!(proxy.excludes(), ["*.internal", "10.0.0.0/8"]);
        assert_eq!(proxy.mappings().len(), 2);
        let upstream = proxy.upstream().unwrap();
        assert_eq!((upstream.username.as_deref(), upstream.password), (Some("me"), None));
        assert!(environment(&proxy).is_empty());
        proxy.listening.set(()).unwrap();
        proxy.announce(&proxy.rules());
        assert!(environment(&proxy).iter().any(|(n, v)| n == "HTTPS_PROXY" && v == "http://127.0.0.1:8118"));
        assert!(!format!("{proxy:?}").contains("sekrit"));

        let mut env: BTreeMap<String, String> = [("PROXY_MAP", r#"{"a.com": ":1"}"#), ("PROXY_SERVER", "u:sekrit@")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        assert_eq!(configured(&mut env).0.mappings().len(), 1);
        assert_eq!(env["PROXY_SERVER"], "");
        assert!(environment(&configured(&mut BTreeMap::new()).0).is_empty());
    }

    #[test]
    fn urls_lose_their_credentials() {
        for (url, wanted) in [
            ("http://a:b@c.d/e@f", "http://c.d/e@f"),
            ("a:b@c.d", "c.d"),
            ("http://c.d/?x=a@b", "http://c.d/?x=a@b"),
            ("http://c.d", "http://c.d"),
        ] {
            assert_eq!(without_credentials(url), wanted);
        }
    }
}
