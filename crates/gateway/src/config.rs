//! How the gateway is set up.

use std::net::SocketAddr;
use std::time::Duration;

/// How the gateway is set up.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    pub listen: Vec<SocketAddr>,
    /// Host names that requests may carry besides loopback names and the addresses listened on; `*.example.org` for all below one.
    pub allowed_hosts: Vec<String>,
    /// Where sandboxes' own hosts are: `{id}.{domain}`; `localhost` always works.
    pub domain: Option<String>,
    /// Agent-Sandbox's original answers every failure with HTTP 200 and code 500.
    pub agent_sandbox_always_200: bool,
    /// How long requests under way may take to end at a graceful stop.
    pub drain: Duration,
    /// The most connections at once.
    pub max_connections: usize,
    /// The engine's name and what it said at the start, for `/api/v2/info`.
    pub warnings: Vec<String>,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            listen: vec![([127, 0, 0, 1], 8080).into()],
            allowed_hosts: Vec::new(),
            domain: None,
            agent_sandbox_always_200: false,
            drain: Duration::from_secs(10),
            max_connections: 8192,
            warnings: Vec::new(),
        }
    }
}
