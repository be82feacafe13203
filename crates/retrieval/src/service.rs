//! HTTP to external services, with the host's certificates.

use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::config::ConfigBuilder;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::typestate::AgentScope;

/// Settings of an agent with a timeout for each whole call. A status such as 404 is an answer, not an error.
pub fn agent(timeout: Duration) -> ConfigBuilder<AgentScope> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).unversioned_rustls_crypto_provider(provider).build();
    Agent::config_builder().http_status_as_error(false).timeout_global(Some(timeout)).tls_config(tls)
}
