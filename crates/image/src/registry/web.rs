//! Which addresses of the web are called, for registries and for ADD: names are resolved and checked right before they are
//! dialled, so that a server on the internet leads to none of the host's network.

use std::net::IpAddr;

use arenite_model::is_public_address;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Proxy};

use super::RegistryOptions;
use super::client::{config, roots};

/// An agent that calls one address, by the environment's proxy and the host's certificates. It follows no redirect.
pub(crate) fn agent(uri: &Uri, is_public_only: bool) -> Agent {
    let host = uri.host().unwrap_or_default();
    let proxy = Proxy::try_from_env().filter(|_| !is_loopback(host.trim_matches(['[', ']'])));
    let resolver = Guarded::new(proxy.as_ref(), is_public_only);
    Agent::with_parts(config(&RegistryOptions::default(), proxy, roots(host)), DefaultConnector::default(), resolver)
}

/// Whether an address names a host that is not on the public internet. A name may still lead to one: [`Guarded`] looks.
pub(crate) fn is_closed(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
    is_loopback(&host) || host.parse().is_ok_and(|address| !is_public_address(address))
}

/// Whether a call ended because [`Guarded`] refused the address.
pub(crate) fn is_not_public(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Other(inner) if inner.is::<NotPublic>())
}

pub(super) fn is_loopback(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A name of a server that is not trusted resolved to an address that is not public.
#[derive(Debug, thiserror::Error)]
#[error("not a public address")]
struct NotPublic;

/// Resolves names, and refuses those that are not on the internet. The proxy itself may be anywhere.
#[derive(Debug)]
pub(super) struct Guarded {
    inner: DefaultResolver,
    is_public_only: bool,
    proxy: Option<String>,
}

impl Guarded {
    pub(super) fn new(proxy: Option<&Proxy>, is_public_only: bool) -> Self {
        let proxy = proxy.map(|proxy| proxy.host().to_owned());
        Self { inner: DefaultResolver::default(), is_public_only, proxy }
    }
}

impl Resolver for Guarded {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.inner.resolve(uri, config, timeout)?;
        let is_proxy = self.proxy.as_deref().is_some_and(|proxy| uri.host() == Some(proxy));
        if !self.is_public_only || is_proxy || found.iter().all(|address| is_public_address(address.ip())) {
            return Ok(found);
        }
        Err(ureq::Error::Other(Box::new(NotPublic)))
    }
}

/// The target of a redirect.
pub(crate) fn join(base: &Uri, location: &str) -> Option<String> {
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    if location.contains("://") && !location.starts_with('/') {
        return Some(location.to_owned());
    }
    if let Some(rest) = location.strip_prefix("//") {
        return Some(format!("{scheme}://{rest}"));
    }
    location.starts_with('/').then(|| format!("{scheme}://{authority}{location}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_may_be_relative() {
        let base: Uri = "https://a.example:1/x/y".parse().unwrap();
        assert_eq!(join(&base, "/z?q=http://b").as_deref(), Some("https://a.example:1/z?q=http://b"));
        assert_eq!(join(&base, "//b.example/z").as_deref(), Some("https://b.example/z"));
        assert_eq!(join(&base, "https://b.example/z").as_deref(), Some("https://b.example/z"));
        assert_eq!(join(&base, "z"), None);
    }
}
