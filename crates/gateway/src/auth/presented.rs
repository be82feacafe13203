//! The credentials in a request: finds them, checks them, and removes them before the request goes on.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use arenite_control::tenants::{Denied, Principal};
use arenite_model::ErrorCode;
use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Uri};
use serde::{Deserialize, Serialize};

use crate::agent_calls::FromInside;
use crate::exchange::Exchange;
use crate::gateway::Gateway;
use crate::guard::Host;
use crate::path::query_pairs;
use crate::refusal::Refusal;

/// The cookie of a browser that signed in.
pub(crate) const COOKIE_NAME: &str = "arenite_session";
const KEY_HEADERS: [HeaderName; 2] = [HeaderName::from_static("x-aio-api-key"), HeaderName::from_static("x-api-key")];
const KEY_IN_QUERY: &str = "api_key";
const TICKET_IN_QUERY: &str = "ticket";
/// Further ones in a request are ignored.
const MAX_TRIED: usize = 8;

/// An identified caller.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) principal: Arc<Principal>,
    /// When the presented credential expires; none: never.
    pub(crate) until: Option<Instant>,
    pub(crate) shown: Credential,
    /// A ticket is among the credentials that it was derived from.
    pub(crate) by_ticket: bool,
}

/// How a caller is identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Credential {
    /// Without a credential, on a route that needs none.
    Nothing,
    /// Without a credential, on a server that requires none.
    Open,
    /// A key or a token in a header. Many clients send it again when they follow a redirect, whatever the host.
    Header,
    /// A key or a token in the query, or in the body of a sign-in.
    Key,
    Ticket,
    /// A secret of [`Gateway::handovers`], in an address that a browser opens.
    Handover,
    Session,
}

impl Identity {
    /// For public routes.
    pub(crate) fn nobody() -> Self {
        static NOBODY: LazyLock<Arc<Principal>> = LazyLock::new(|| Arc::new(Principal::nobody()));
        Self { principal: Arc::clone(&NOBODY), until: None, shown: Credential::Nothing, by_ticket: false }
    }

    /// For callers of a server without a key.
    pub(crate) fn open() -> Self {
        Self { principal: operator(), shown: Credential::Open, ..Self::nobody() }
    }

    /// None: the key behind the grant has ended.
    pub(super) fn granted(gateway: &Gateway, grant: super::Grant, shown: Credential) -> Option<Self> {
        // An agent's rights are for connections out of its sandbox alone.
        let is_accepted = grant.principal.inside.is_none()
            && gateway.control.tenants().is_none_or(|tenants| tenants.is_accepted(&grant.principal));
        let identity = Self { principal: grant.principal, until: Some(grant.until), shown, by_ticket: grant.by_ticket };
        is_accepted.then_some(identity)
    }

    /// Whether it is more than a ticket. Only then may it create tickets and stop the server.
    pub(crate) fn is_lasting(&self) -> bool {
        matches!(self.shown, Credential::Open | Credential::Header | Credential::Key | Credential::Session)
    }

    /// The expiry of something that is created with it and lasts at most this long.
    pub(super) fn end_of(&self, most: Duration) -> Instant {
        let end = Instant::now() + most;
        self.until.map_or(end, |until| until.min(end))
    }
}

/// The caller with the configured key, and every caller of a server that requires none.
pub(super) fn operator() -> Arc<Principal> {
    static OPERATOR: LazyLock<Arc<Principal>> = LazyLock::new(|| Arc::new(Principal::operator()));
    Arc::clone(&OPERATOR)
}

/// The answer to an unauthorized caller. It gives no details.
pub(crate) fn unauthorized() -> Refusal {
    Refusal::new(ErrorCode::Unauthorized, "Unauthorized")
        .hint("send the server's API key as X-AIO-API-Key, x-api-key or Authorization: Bearer, or a ticket as ?ticket=")
}

/// Identifies the caller. None: not authorized.
pub(crate) fn identify(exchange: &Exchange) -> Option<Identity> {
    let Exchange { gateway, host, parts, .. } = exchange;
    if let Some(FromInside(id)) = parts.extensions.get() {
        let principal = keys_in(&parts.headers).find_map(|given| gateway.control.authenticate_agent(id, given))?;
        return Some(Identity { principal, shown: Credential::Header, ..Identity::nobody() });
    }
    if !gateway.needs_credentials() {
        return Some(Identity::open());
    }
    let session = |word| Identity::granted(gateway, gateway.sessions.find(word, host)?, Credential::Session);
    of_headers(gateway, &parts.headers)
        .or_else(|| of_query(gateway, host, parts.uri.query()))
        .or_else(|| of_handover(exchange, parts.uri.query()))
        .or_else(|| sessions(&parts.headers).find_map(session))
}

fn of_headers(gateway: &Gateway, headers: &HeaderMap) -> Option<Identity> {
    keys_in(headers).find_map(|given| super::check(gateway, given, Credential::Header))
}

/// Keys and tokens in headers.
fn keys_in(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let keys = KEY_HEADERS.into_iter().flat_map(|name| headers.get_all(name)).filter_map(|value| value.to_str().ok());
    keys.chain(headers.get_all(AUTHORIZATION).iter().filter_map(bearer)).take(MAX_TRIED)
}

/// The owner of a presented key that is no longer accepted, for the audit log.
pub(crate) fn ended_key(gateway: &Gateway, parts: &Parts) -> Option<Arc<Principal>> {
    let tenants = gateway.control.tenants()?;
    let ended = |given: &str| match tenants.authenticate(given) {
        Err(Denied::Ended(principal)) => Some(principal),
        _ => None,
    };
    let in_query = || {
        let pairs = query_pairs(parts.uri.query()?).filter(|(name, _)| name == KEY_IN_QUERY).take(MAX_TRIED);
        pairs.map(|(_, value)| value).find_map(|given| ended(&given))
    };
    keys_in(&parts.headers).find_map(ended).or_else(in_query)
}

/// Identifies by a query, which may be another address's.
pub(super) fn of_query(gateway: &Gateway, host: &Host, query: Option<&str>) -> Option<Identity> {
    query_pairs(query?).filter(|(name, _)| is_ours(name)).take(MAX_TRIED).find_map(|(name, value)| {
        if name == KEY_IN_QUERY {
            return super::check(gateway, &value, Credential::Key);
        }
        Identity::granted(gateway, gateway.tickets.find(&value, host)?, Credential::Ticket)
    })
}

/// Identifies by the secret with which this server redirected a browser here from another of its hosts. It only signs in; it
/// can't make calls.
pub(super) fn of_handover(exchange: &Exchange, query: Option<&str>) -> Option<Identity> {
    if !exchange.is_opened {
        return None;
    }
    let words = query_pairs(query?).filter(|(name, _)| name == TICKET_IN_QUERY).take(MAX_TRIED);
    words.map(|(_, word)| word).find_map(|word| {
        let grant = exchange.gateway.handovers.find(&word, &exchange.host)?;
        let until = grant.maker_until;
        Some(Identity { until, ..Identity::granted(&exchange.gateway, grant, Credential::Handover)? })
    })
}

fn is_ours(name: &str) -> bool {
    name == KEY_IN_QUERY || name == TICKET_IN_QUERY
}

fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, given) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(given.trim())
}

/// The values of all Arenite cookies.
pub(super) fn sessions(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let pairs = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(';'));
    let ours = pairs.filter_map(|pair| pair.trim().split_once('=')).filter(|(name, _)| *name == COOKIE_NAME);
    ours.map(|(_, word)| word).take(MAX_TRIED)
}

/// Removes credentials from a request. `foreign`: the target has its own callers and credentials, so only credentials that are
/// valid here are removed. Otherwise, everything that could be a credential is removed.
pub(crate) fn take_off(gateway: &Gateway, host: &Host, parts: &mut Parts, foreign: bool) {
    let is_valid_key = |given: &str| gateway.needs_credentials() && super::check(gateway, given, Credential::Key).is_some();
    if let Some(query) = parts.uri.query() {
        let goes = |pair: &str| {
            let Some((name, value)) = query_pairs(pair).next() else { return false };
            let is_valid = || match name.as_str() {
                KEY_IN_QUERY => is_valid_key(&value),
                _ => gateway.tickets.find(&value, host).or_else(|| gateway.handovers.find(&value, host)).is_some(),
            };
            is_ours(&name) && (!foreign || is_valid())
        };
        if query.split('&').any(goes) {
            let kept = query.split('&').filter(|pair| !goes(pair)).collect::<Vec<_>>().join("&");
            set_query(&mut parts.uri, &kept);
        }
    }
    let headers = &mut parts.headers;
    if !foreign {
        // Nothing else is passed on to a guest anyway.
        return;
    }
    for name in KEY_HEADERS.into_iter().chain([AUTHORIZATION]) {
        let is_credential = |value: &HeaderValue| {
            let given = if name == AUTHORIZATION { bearer(value) } else { value.to_str().ok() };
            given.is_some_and(is_valid_key)
        };
        if headers.get_all(&name).iter().any(is_credential) {
            headers.remove(&name);
        }
    }
    without_session(headers);
}

/// Removes Arenite's session cookies, and keeps others.
fn without_session(headers: &mut HeaderMap) {
    if sessions(headers).next().is_none() {
        return;
    }
    let others: Vec<&str> = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .map(str::trim)
        .filter(|pair| !pair.is_empty() && pair.split('=').next() != Some(COOKIE_NAME))
        .collect();
    let others = HeaderValue::from_str(&others.join("; ")).ok().filter(|value| !value.is_empty());
    headers.remove(COOKIE);
    if let Some(others) = others {
        headers.insert(COOKIE, others);
    }
}

fn set_query(uri: &mut Uri, query: &str) {
    let text = if query.is_empty() { uri.path().to_owned() } else { format!("{}?{query}", uri.path()) };
    let mut parts = uri.clone().into_parts();
    // A part of a valid path is valid.
    if let Ok(kept) = PathAndQuery::try_from(text) {
        parts.path_and_query = Some(kept);
        if let Ok(without) = Uri::from_parts(parts) {
            *uri = without;
        }
    }
}
