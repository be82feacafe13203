//! How the gateway is set up.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arenite_retrieval::library::Library;
use arenite_synthesis::config::Workers;
use serde::Serialize;

use crate::auth::Authentication;
use crate::connections::ConnectionLimits;

/// How the gateway is set up.
#[derive(Clone)]
pub struct GatewayConfig {
    pub listen: Vec<SocketAddr>,
    /// Host names that requests may carry besides loopback names and the addresses listened on; `*.example.org` for all below one.
    pub allowed_hosts: Vec<String>,
    /// Origins of other sites with pages that may call this server, such as `https://app.example.org`.
    pub allowed_origins: Vec<String>,
    /// What callers have to show.
    pub auth: Authentication,
    /// Where sandboxes' own hosts are: `{id}.{domain}`, and their ports' `{port}-{id}.{domain}`; `localhost` always works.
    pub domain: Option<String>,
    /// Peers with a trusted `X-Forwarded-{For,Host,Proto}`.
    pub trusted_proxies: Vec<IpAddr>,
    /// Agent-Sandbox's original answers every failure with HTTP 200 and code 500.
    pub agent_sandbox_always_200: bool,
    /// How long requests under way may take to end at a graceful stop.
    pub drain: Duration,
    /// How many connections there may be, and how long those of nobody in particular.
    pub connections: ConnectionLimits,
    /// How long one call to a guest may take until its answer begins.
    pub call_limit: Duration,
    /// After this time without an answer a guest is asked whether it lives, and has as long to show it; and so on.
    pub late: Duration,
    /// How long the next piece of a request's body may take to come.
    pub next_piece: Duration,
    /// AgentFlow's backends; none: no workers.
    pub workers: Option<Workers>,
    /// What images there are, to be listed.
    pub images: Option<Arc<dyn ImageCatalog>>,
    /// Corpora that are served; none: there is nowhere to look for them.
    pub corpora: Option<Arc<Library>>,
    /// The engine's name and what it said at the start, for `/api/v2/info`.
    pub warnings: Vec<String>,
    /// The commit that the program was built from, for `/metrics`.
    pub commit: &'static str,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            listen: vec![([127, 0, 0, 1], 8080).into()],
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            auth: Authentication::default(),
            domain: None,
            trusted_proxies: Vec::new(),
            agent_sandbox_always_200: false,
            drain: Duration::from_secs(10),
            connections: ConnectionLimits::default(),
            call_limit: Duration::from_secs(3600),
            late: Duration::from_secs(10),
            next_piece: Duration::from_secs(60),
            workers: None,
            images: None,
            corpora: None,
            warnings: Vec::new(),
            commit: "unknown",
        }
    }
}

/// Lists images. The gateway does not know where they are kept.
pub trait ImageCatalog: Send + Sync {
    /// All images; may read files. The error is for the log and the caller.
    fn list(&self) -> Result<Vec<ImageEntry>, String>;
}

/// An image, as it is listed.
#[derive(Debug, Clone, Serialize)]
pub struct ImageEntry {
    pub name: String,
    pub digest: String,
    pub size_bytes: u64,
    /// RFC 3339.
    pub created_at: String,
    pub layers: usize,
    pub labels: BTreeMap<String, String>,
}
