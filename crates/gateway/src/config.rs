//! Configuration of the gateway.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arenite_mcp::rmcp::model::Tool;
use arenite_retrieval::library::Library;
use arenite_synthesis::config::Workers;
use arenite_trajectory::Archive;
use ipnet::IpNet;
use serde::Serialize;
use tokio_rustls::TlsConnector;
use utoipa::ToSchema;
use utoipa::openapi::OpenApi;

use crate::auth::Authentication;
use crate::connections::ConnectionLimits;
use crate::dialect::agent_sandbox::AgentSandboxVersion;
use crate::nodes::NodeConfig;
use crate::tls::Certificates;
use crate::traces::TraceConfig;

/// Configuration of the gateway.
#[derive(Clone)]
pub struct GatewayConfig {
    pub listen: Vec<SocketAddr>,
    /// All listeners use TLS with it, except [`Self::plain_listen`].
    pub tls: Option<Arc<Certificates>>,
    /// The address of a listener that never uses TLS.
    pub plain_listen: Option<SocketAddr>,
    /// Host names that requests may have besides loopback names and the listening addresses; `*.example.org` for all below one.
    pub allowed_hosts: Vec<String>,
    /// Origins of other sites with pages that may call this server, such as `https://app.example.org`.
    pub allowed_origins: Vec<String>,
    /// The credentials that callers must present.
    pub auth: Authentication,
    /// Domain of the sandboxes' own hosts: `{id}.{domain}`, and `{port}-{id}.{domain}` for their ports; `localhost` always works.
    pub domain: Option<String>,
    /// Peers with a trusted `X-Forwarded-{For,Host,Proto}`.
    pub trusted_proxies: Vec<IpAddr>,
    /// Answers every failure of Agent-Sandbox's API with HTTP 200 and code 500, as the original does.
    pub agent_sandbox_always_200: bool,
    /// The version of Agent-Sandbox's API for clients that name none.
    pub agent_sandbox_version: AgentSandboxVersion,
    /// Time for requests in progress to end at a graceful stop.
    pub drain: Duration,
    /// Limits on the number of connections, and on the time of unauthenticated ones.
    pub connections: ConnectionLimits,
    /// Time for one call to a guest until its answer starts.
    pub call_limit: Duration,
    /// After this time without an answer, a guest is pinged, and has the same time to answer. This repeats.
    pub late: Duration,
    /// Time for the next piece of a request's body to arrive.
    pub next_piece: Duration,
    /// AgentFlow's backends; none: no workers.
    pub workers: Option<Workers>,
    /// Corpora that are served; none: no folder for them.
    pub corpora: Option<Arc<Library>>,
    /// Ranges of addresses that webhooks may reach besides the public internet.
    pub webhook_ranges: Vec<IpNet>,
    /// Ranges of addresses that model routes may reach besides the public internet.
    pub model_ranges: Vec<IpNet>,
    /// Opens TLS connections of webhooks, traces, and model routes; none: they can't use https.
    pub outgoing_tls: Option<TlsConnector>,
    /// None: the server is not a node of a cluster.
    pub node: Option<NodeConfig>,
    /// Object storage for trajectories; none: they stay where they are.
    pub archive: Option<Arc<Archive>>,
    /// None: requests are not traced.
    pub traces: Option<TraceConfig>,
    /// Warnings from the start of the server, for `/api/v2/info`.
    pub warnings: Vec<String>,
    /// The commit that the program was built from, for `/metrics`.
    pub commit: &'static str,
    /// The API and the tools of sandboxes, for the documents about them.
    pub guest: GuestDescription,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            listen: vec![([127, 0, 0, 1], 8080).into()],
            tls: None,
            plain_listen: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            auth: Authentication::default(),
            domain: None,
            trusted_proxies: Vec::new(),
            agent_sandbox_always_200: false,
            agent_sandbox_version: AgentSandboxVersion::default(),
            drain: Duration::from_secs(10),
            connections: ConnectionLimits::default(),
            call_limit: Duration::from_secs(3600),
            late: Duration::from_secs(10),
            next_piece: Duration::from_secs(60),
            workers: None,
            corpora: None,
            webhook_ranges: Vec::new(),
            model_ranges: Vec::new(),
            outgoing_tls: None,
            node: None,
            archive: None,
            traces: None,
            warnings: Vec::new(),
            commit: "unknown",
            guest: GuestDescription::default(),
        }
    }
}

/// What a sandbox's guest can do. The gateway only shows it: it passes every call on. The default describes nothing.
#[derive(Debug, Clone, Copy)]
pub struct GuestDescription {
    /// All operations, with paths below a sandbox's address.
    pub api: fn() -> OpenApi,
    /// The purpose of the operations with a tag; empty for an unknown one.
    pub purpose: fn(&str) -> &'static str,
    /// The MCP tools of a sandbox that has no MCP servers.
    pub tools: fn() -> Vec<Tool>,
}

impl Default for GuestDescription {
    fn default() -> Self {
        Self { api: OpenApi::default, purpose: |_| "", tools: Vec::new }
    }
}

/// An image in a list.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ImageEntry {
    pub name: String,
    pub digest: String,
    pub size_bytes: u64,
    /// RFC 3339.
    pub created_at: String,
    pub layers: usize,
    /// The image of the list that has its lower layers; null if there is none.
    pub base: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// It belongs to all tenants, and not to the caller's alone.
    pub shared: bool,
}
