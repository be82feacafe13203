//! What sandboxes may reach: networks in requests, and `/api/v2/sandboxes/{name}/network`.

use arenite_control::DefaultNetwork;
use arenite_engine::{EgressEvent, NetworkLog, suggest_rules};
use arenite_model::{NetworkMode, NetworkPolicy, NetworkRule, PolicyMode};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::find;
use crate::exchange::{Answered, Exchange};
use crate::refusal::{Refusal, json_response};

/// A network in a request: a mode, or a mode with rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum NetworkRequest {
    Mode(RequestedMode),
    Rules(NetworkRules),
}

/// What a sandbox may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RequestedMode {
    /// Loopback only.
    None,
    /// What the rules allow.
    Allowlist,
    /// Public addresses over TCP, recorded, so that an allowlist can be made from it.
    Observe,
    /// Public addresses.
    Open,
}

/// A mode with rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkRules {
    mode: RequestedMode,
    /// Only with `allowlist`.
    #[serde(default)]
    allow: Vec<NetworkRule>,
    /// With `allowlist` and `observe`.
    #[serde(default)]
    deny: Vec<NetworkRule>,
}

impl NetworkRequest {
    /// The network of a spec, and its policy.
    pub(crate) fn read(self) -> Result<(NetworkMode, Option<NetworkPolicy>), Refusal> {
        let NetworkRules { mode, allow, deny } = match self {
            Self::Mode(mode) => NetworkRules { mode, allow: Vec::new(), deny: Vec::new() },
            Self::Rules(rules) => rules,
        };
        let policy = |mode| NetworkPolicy { mode, allow: allow.clone(), deny: deny.clone() };
        let refuse = |what: &str| Err(Refusal::bad_request(format!("network has {what}, which its mode does not apply")));
        match mode {
            RequestedMode::None | RequestedMode::Open if !deny.is_empty() => return refuse("deny rules"),
            RequestedMode::None | RequestedMode::Open | RequestedMode::Observe if !allow.is_empty() => {
                return refuse("allow rules");
            }
            _ => {}
        }
        Ok(match mode {
            RequestedMode::None => (NetworkMode::None, None),
            RequestedMode::Open => (NetworkMode::Open, None),
            RequestedMode::Allowlist => (NetworkMode::Open, Some(policy(PolicyMode::Allowlist))),
            RequestedMode::Observe => (NetworkMode::Open, Some(policy(PolicyMode::Observe))),
        })
    }
}

impl NetworkRules {
    pub(crate) fn new(mode: NetworkMode, policy: Option<NetworkPolicy>) -> Self {
        let (mode, policy) = match (mode, policy) {
            (NetworkMode::Open, Some(policy)) if policy.mode == PolicyMode::Observe => (RequestedMode::Observe, policy),
            (NetworkMode::Open, Some(policy)) => (RequestedMode::Allowlist, policy),
            (NetworkMode::Open, None) => (RequestedMode::Open, NetworkPolicy::default()),
            _ => (RequestedMode::None, NetworkPolicy::default()),
        };
        Self { mode, allow: policy.allow, deny: policy.deny }
    }

    pub(crate) fn of_floor(floor: Option<NetworkPolicy>) -> Option<Self> {
        floor.map(|floor| Self::new(NetworkMode::Open, Some(floor)))
    }
}

/// The network of a sandbox, and what it reached.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NetworkInfo {
    mode: RequestedMode,
    allow: Vec<NetworkRule>,
    deny: Vec<NetworkRule>,
    /// What the sandboxes of its tenant may reach at most. Null: all that their policies allow.
    floor: Option<NetworkRules>,
    /// Decisions since the server started: connections, requests of HTTP, and names.
    allowed: u64,
    refused: u64,
    /// The newest 1,000 decisions, and ends of connections, the oldest first. Without a policy and a
    /// floor, nothing is recorded.
    #[schema(value_type = Vec<Object>)]
    events: Vec<EgressEvent>,
    /// The smallest allowlist of what was allowed in these events.
    suggested: Vec<NetworkRule>,
}

pub(crate) async fn show(exchange: &mut Exchange) -> Answered {
    let sandbox = find(exchange).await?;
    let log = exchange.gateway.control.network_log(&sandbox);
    let NetworkRules { mode, allow, deny } = NetworkRules::new(sandbox.spec.network, sandbox.spec.network_policy.clone());
    let floor = NetworkRules::of_floor(exchange.gateway.control.network_floor(&sandbox.tenant));
    let suggested = suggest_rules(&log.events);
    let NetworkLog { events, allowed, refused } = log;
    Ok(json_response(StatusCode::OK, &NetworkInfo { mode, allow, deny, floor, allowed, refused, events, suggested }))
}

/// A network for all sandboxes of a tenant that name none.
pub(crate) fn default_network(request: NetworkRequest) -> Result<DefaultNetwork, Refusal> {
    let (mode, policy) = request.read()?;
    Ok(DefaultNetwork { mode, policy })
}

/// A floor of a tenant.
pub(crate) fn floor(request: NetworkRequest) -> Result<NetworkPolicy, Refusal> {
    let (_, policy) = request.read()?;
    policy.ok_or_else(|| Refusal::bad_request("a floor has the mode allowlist or observe").hint("null removes a floor"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(request: Value) -> Option<(NetworkMode, Option<PolicyMode>)> {
        let request: NetworkRequest = serde_json::from_value(request).ok()?;
        let (mode, policy) = request.read().ok()?;
        Some((mode, policy.map(|policy| policy.mode)))
    }

    #[test]
    fn networks_are_modes_or_modes_with_rules() {
        let (open, allowlist) = (NetworkMode::Open, Some(PolicyMode::Allowlist));
        for (request, wanted) in [
            (json!("none"), Some((NetworkMode::None, None))),
            (json!("open"), Some((open, None))),
            (json!("allowlist"), Some((open, allowlist))),
            (json!("observe"), Some((open, Some(PolicyMode::Observe)))),
            (json!({ "mode": "allowlist", "allow": ["pypi.org"], "deny": ["*.a.example"] }), Some((open, allowlist))),
            (json!({ "mode": "observe", "deny": ["a.example"] }), Some((open, Some(PolicyMode::Observe)))),
            (json!({ "mode": "observe", "allow": ["a.example"] }), None),
            (json!({ "mode": "open", "deny": ["a.example"] }), None),
            (json!({ "mode": "none", "allow": ["a.example"] }), None),
            (json!({ "allow": ["a.example"] }), None),
            (json!({ "mode": "allowlist", "other": 1 }), None),
            (json!("host"), None),
        ] {
            assert_eq!(read(request.clone()), wanted, "{request}");
        }
    }
}
