//! HTTP to external services, with the host's certificates.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ureq::Agent;
use ureq::config::ConfigBuilder;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::AgentScope;

/// Where hosts keep trusted certificates. `SSL_CERT_FILE` comes before them.
const CERTIFICATES: [&str; 3] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The certificates of the first readable file. Without one, no https address is trusted.
static TRUSTED: LazyLock<RootCerts> = LazyLock::new(|| {
    let named = std::env::var("SSL_CERT_FILE").ok();
    let mut places = named.iter().map(String::as_str).chain(CERTIFICATES);
    let pem = places.find_map(|path| std::fs::read(path).ok()).unwrap_or_default();
    let certificates: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    RootCerts::new_with_certs(&certificates)
});

/// Settings of an agent with a timeout for each whole call. A status such as 404 is an answer, not an error.
pub fn agent(timeout: Duration) -> ConfigBuilder<AgentScope> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = TlsConfig::builder().root_certs(TRUSTED.clone()).unversioned_rustls_crypto_provider(provider).build();
    Agent::config_builder().http_status_as_error(false).timeout_global(Some(timeout)).tls_config(tls)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_https_address_that_closes_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let closing = std::thread::spawn(move || drop(listener.accept().unwrap()));
        assert!(agent(Duration::from_secs(5)).build().new_agent().get(&url).call().is_err());
        closing.join().unwrap();
    }
}
