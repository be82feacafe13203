//! Finds the sandbox of a request, and the part of the path that belongs to it.
//!
//! Handlers look sandboxes up only here, so that a caller reaches only those of its tenant, and with a bound key only those within
//! its bounds. Others are not found, and are neither resumed nor marked as used.

use std::collections::BTreeMap;
use std::time::Instant;

use arenite_control::nodes::SandboxKey;
use arenite_control::{Control, ControlError, Lease, ListPosition, Sandbox};
use arenite_model::{ErrorCode, SandboxId, SandboxName};
use http::HeaderMap;

use crate::audit;
use crate::gateway::{Context, Gateway};
use crate::guard::HostKind;
use crate::path::Path;
use crate::refusal::Refusal;
use crate::sandbox_filter::SandboxFilter;
use crate::{own_host, preview, routes};

pub(crate) const HEADER: &str = "x-arenite-sandbox";
const PREFIX: &str = "/sandbox/";

/// A reference to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SandboxRef {
    Name(SandboxName),
    Id(SandboxId),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) sandbox_ref: SandboxRef,
    /// The path as the sandbox sees it.
    pub(crate) path: Path,
    /// The prefix that was removed from the path: `/sandbox/{name}`, or nothing.
    pub(crate) prefix: String,
    /// Served on the sandbox's own host, so it shares its origin with no other content.
    pub(crate) own_host: bool,
}

impl Target {
    /// Whether it is a website on a separate host, with its own cookies: VS Code and JupyterLab.
    pub(crate) fn is_website(&self) -> bool {
        self.own_host && own_host::program(&self.path.decoded).is_some()
    }
}

/// The first match applies: the path, the header, the host, `default`.
pub(crate) fn find(path: &Path, headers: &HeaderMap, host: &HostKind) -> Result<Target, Refusal> {
    if let HostKind::Sandbox(id) = host {
        return Ok(Target { sandbox_ref: SandboxRef::Id(id.clone()), path: path.clone(), prefix: String::new(), own_host: true });
    }
    if let Some(rest) = path.decoded.strip_prefix(PREFIX) {
        let name = rest.split('/').next().unwrap_or_default();
        return Ok(Target {
            sandbox_ref: SandboxRef::Name(parse(name)?),
            path: path.after_segments(2),
            prefix: format!("{PREFIX}{name}"),
            own_host: false,
        });
    }
    Ok(Target { sandbox_ref: named(headers)?, path: path.clone(), prefix: String::new(), own_host: false })
}

/// Whether a path of the server's own host leads only into this sandbox, for a request with these headers.
pub(crate) fn is_path_of(sandbox_ref: &SandboxRef, path: &str, headers: &HeaderMap) -> bool {
    if let Ok(Some(preview)) = preview::find(path, headers, &HostKind::Server) {
        return preview.sandbox_ref == *sandbox_ref;
    }
    let Ok(path) = Path::parse(path) else { return false };
    // The terminal's page is the gateway's, and sandboxes may redirect to it: an agent's page starts its program and opens it.
    routes::leads_into_sandbox(&path.decoded)
        && find(&path, headers, &HostKind::Server).is_ok_and(|of| of.sandbox_ref == *sandbox_ref)
}

/// The sandbox that the header names, otherwise `default`.
pub(crate) fn named(headers: &HeaderMap) -> Result<SandboxRef, Refusal> {
    let name = match headers.get(HEADER) {
        Some(value) => {
            let text = value.to_str().map_err(|_| Refusal::bad_request(format!("the header {HEADER} is no text")))?;
            parse(text.trim())?
        }
        None => parse(SandboxName::DEFAULT)?,
    };
    Ok(SandboxRef::Name(name))
}

fn parse(name: &str) -> Result<SandboxName, Refusal> {
    Ok(name.parse()?)
}

impl SandboxRef {
    pub(crate) fn key(&self) -> SandboxKey {
        match self {
            Self::Name(name) => SandboxKey::Name(name.clone()),
            Self::Id(id) => SandboxKey::Id(id.clone()),
        }
    }

    pub(crate) fn is_default(&self) -> bool {
        matches!(self, Self::Name(name) if name.is_default())
    }

    /// The refusal for a sandbox that does not exist.
    fn absent(&self) -> Refusal {
        match self {
            Self::Name(name) => ControlError::NotFound { name: name.clone() }.into(),
            Self::Id(id) => ControlError::NoSuchId { id: id.clone() }.into(),
        }
    }

    /// Whether the bounds cover it if it does not exist.
    fn may_exist_for(&self, context: &Context) -> bool {
        match self {
            Self::Name(name) => context.principal.covers(Some(name), &BTreeMap::new()),
            Self::Id(_) => !context.principal.is_bound(),
        }
    }
}

/// Holds the sandbox for the call. Resumes or creates it if needed.
pub(crate) async fn lease(gateway: &Gateway, context: &Context, sandbox_ref: &SandboxRef) -> Result<Lease, Refusal> {
    let since = Instant::now();
    let leased = take_lease(gateway, context, sandbox_ref).await;
    if let Ok(lease) = &leased {
        tracing::Span::current().record("sandbox", lease.sandbox.id.as_str());
    }
    if let Some(trace) = &context.trace {
        trace.stage("lease", since, leased.as_ref().err().map(|refusal| refusal.message.clone()));
    }
    leased
}

async fn take_lease(gateway: &Gateway, context: &Context, sandbox_ref: &SandboxRef) -> Result<Lease, Refusal> {
    let (control, tenant) = (&gateway.control, context.tenant());
    let is_audited = sandbox_ref.is_default() && control.tenants().is_some();
    let mut is_first = false;
    if is_audited || context.principal.is_bound() {
        match look_up(control, context, sandbox_ref).await {
            Err(refusal) if refusal.code == ErrorCode::NotFound => {
                // The first call creates it.
                is_first = sandbox_ref.is_default() && sandbox_ref.may_exist_for(context);
                if !is_first {
                    return Err(refusal);
                }
            }
            Err(refusal) if !sandbox_ref.may_exist_for(context) => return Err(refusal),
            _ => {}
        }
    }
    let leased = match sandbox_ref {
        SandboxRef::Name(name) => control.lease(tenant, name).await,
        SandboxRef::Id(id) => control.lease_by_id(tenant, id).await,
    };
    let leased = leased.map_err(Refusal::from);
    let lease = match is_first {
        true => audit::record_result(gateway, context, "sandbox.create", SandboxName::DEFAULT, leased).await?,
        false => leased?,
    };
    // Another sandbox may have got its name since.
    if context.principal.sees(&lease.sandbox) { Ok(lease) } else { Err(sandbox_ref.absent()) }
}

/// The sandbox in its current state: neither resumed nor created.
pub(crate) async fn look_up(control: &Control, context: &Context, sandbox_ref: &SandboxRef) -> Result<Sandbox, Refusal> {
    let found = match sandbox_ref {
        SandboxRef::Name(name) => control.get(context.tenant(), name).await,
        SandboxRef::Id(id) => control.get_by_id(context.tenant(), id).await,
    };
    match found {
        Ok(sandbox) if context.principal.sees(&sandbox) => Ok(sandbox),
        // Also for one in quarantine.
        Ok(_) => Err(sandbox_ref.absent()),
        Err(ControlError::NotFound { .. } | ControlError::NoSuchId { .. })
            if let Some(sandbox) = control.get_of_other(context.tenant(), sandbox_ref.key()).await? =>
        {
            if context.principal.sees(&sandbox) { Ok(sandbox) } else { Err(sandbox_ref.absent()) }
        }
        Err(_) if !sandbox_ref.may_exist_for(context) => Err(sandbox_ref.absent()),
        Err(error) => Err(error.into()),
    }
}

/// The caller's sandboxes, the oldest first.
pub(crate) async fn list(control: &Control, context: &Context) -> Result<Vec<Sandbox>, Refusal> {
    let mut all = control.list(context.tenant()).await?;
    let others = control.sandboxes_of_others(context.tenant()).await?;
    if !others.is_empty() {
        all.extend(others);
        all.sort_by_key(Sandbox::position);
    }
    all.retain(|sandbox| context.principal.sees(sandbox));
    Ok(all)
}

/// A page of the caller's sandboxes that a filter selects, and whether there are more.
pub(crate) async fn page(
    control: &Control,
    context: &Context,
    filter: &SandboxFilter,
    after: Option<&ListPosition>,
    limit: usize,
) -> Result<(Vec<Sandbox>, bool), Refusal> {
    let others = control.sandboxes_of_others(context.tenant()).await?;
    let own_node = control.own_node();
    let selects = |sandbox: &Sandbox| context.principal.sees(sandbox) && filter.selects(sandbox, own_node.as_ref());
    Ok(control.select(context.tenant(), others, filter.order, after, limit, selects))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arenite_model::ErrorCode;

    #[test]
    fn the_first_match_wins() {
        let header = |name: &str| HeaderMap::from_iter([(http::HeaderName::from_static(HEADER), name.parse().unwrap())]);
        let own = HostKind::Sandbox("sabcdefghijk".parse().unwrap());
        for (path, headers, host, wanted) in [
            ("/v1/ping", HeaderMap::new(), &HostKind::Server, Ok(("default", "/v1/ping", "", false))),
            ("/v1/ping", header("b"), &HostKind::Server, Ok(("b", "/v1/ping", "", false))),
            ("/sandbox/a/v1/ping", header("b"), &HostKind::Server, Ok(("a", "/v1/ping", "/sandbox/a", false))),
            ("/sandbox/a", HeaderMap::new(), &HostKind::Server, Ok(("a", "/", "/sandbox/a", false))),
            ("/sandbox/%61/v1/a%20b", HeaderMap::new(), &HostKind::Server, Ok(("a", "/v1/a%20b", "/sandbox/a", false))),
            ("/sandbox/b/v1/ping", HeaderMap::new(), &own, Ok(("sabcdefghijk", "/sandbox/b/v1/ping", "", true))),
            ("/v1/ping", header("b"), &own, Ok(("sabcdefghijk", "/v1/ping", "", true))),
            ("/v1/ping", header("No"), &HostKind::Server, Err(ErrorCode::InvalidRequest)),
            ("/sandbox/No/x", HeaderMap::new(), &HostKind::Server, Err(ErrorCode::InvalidRequest)),
        ] {
            let got = find(&Path::parse(path).unwrap(), &headers, host);
            let got = got.as_ref().map_err(|refusal| refusal.code).map(|target| {
                let sandbox_ref = match &target.sandbox_ref {
                    SandboxRef::Name(name) => name.as_str(),
                    SandboxRef::Id(id) => id.as_str(),
                };
                (sandbox_ref, target.path.raw.as_str(), target.prefix.as_str(), target.own_host)
            });
            assert_eq!(got, wanted, "{path}");
        }
    }
}
