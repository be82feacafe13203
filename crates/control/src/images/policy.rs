//! What may be pulled: by default nothing, since a create would otherwise make the server call any address that its client names.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use arenite_image::{Reference, RegistryOptions};
use arenite_model::{ImageName, TenantId};

/// When a create pulls its image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PullMode {
    /// If it is not here, and a rule permits its registry.
    #[default]
    Missing,
    Never,
}

impl FromStr for PullMode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "missing" => Ok(Self::Missing),
            "never" => Ok(Self::Never),
            _ => Err(format!("{text:?} is neither missing nor never")),
        }
    }
}

impl fmt::Display for PullMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "missing",
            Self::Never => "never",
        })
    }
}

/// Permits pulls of the images below a prefix: `docker.io/library`, `registry.example:5000`, or `*` for every registry on the
/// public internet; with `TENANT=` before it for one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryRule {
    tenant: Option<TenantId>,
    /// None: all that is public.
    prefix: Option<String>,
}

impl RegistryRule {
    fn permits(&self, tenant: &TenantId, reference: &str) -> bool {
        let is_below = |prefix: &String| reference.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(['/', ':', '@']));
        self.tenant.as_ref().is_none_or(|of| of == tenant) && self.prefix.as_ref().is_none_or(is_below)
    }

    /// Its registries have to be on the public internet: no one chose their addresses.
    pub(crate) fn is_public_only(&self) -> bool {
        self.prefix.is_none()
    }
}

impl FromStr for RegistryRule {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || {
            format!(
                "{text:?} is not a registry: write HOST[:PORT][/PATH], or * for all on the internet, or TENANT= and one of these"
            )
        };
        let (tenant, prefix) = text.split_once('=').map_or((None, text), |(tenant, prefix)| (Some(tenant), prefix));
        let tenant = tenant.map(str::parse).transpose().map_err(|_| refuse())?;
        if prefix == "*" {
            return Ok(Self { tenant, prefix: None });
        }
        let host = prefix.split('/').next().unwrap_or_default();
        let parsed = format!("{prefix}/x").parse::<Reference>();
        if !parsed.is_ok_and(|reference| reference.registry == host) {
            return Err(refuse());
        }
        Ok(Self { tenant, prefix: Some(prefix.to_owned()) })
    }
}

impl fmt::Display for RegistryRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tenant) = &self.tenant {
            write!(f, "{tenant}=")?;
        }
        f.write_str(self.prefix.as_deref().unwrap_or("*"))
    }
}

/// What may be pulled, and how.
#[derive(Debug, Clone)]
pub struct PullPolicy {
    pub mode: PullMode,
    /// Empty: nothing.
    pub rules: Vec<RegistryRule>,
    pub options: RegistryOptions,
    /// The longest wait of a create for a pull.
    pub wait: Duration,
}

impl Default for PullPolicy {
    fn default() -> Self {
        Self { mode: PullMode::default(), rules: Vec::new(), options: RegistryOptions::default(), wait: Duration::from_secs(600) }
    }
}

impl PullPolicy {
    /// The rule that permits a whole reference: one that names its registry before one that names all.
    pub(crate) fn rule(&self, tenant: &TenantId, reference: &str) -> Option<&RegistryRule> {
        let permitting = self.rules.iter().filter(|rule| rule.permits(tenant, reference));
        permitting.min_by_key(|rule| rule.is_public_only()).filter(|_| self.mode == PullMode::Missing)
    }

    pub(crate) fn may_pull(&self, tenant: &TenantId, name: &ImageName) -> bool {
        !self.rules.is_empty()
            && name.as_str().parse::<Reference>().is_ok_and(|reference| self.rule(tenant, &reference.to_string()).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(rules: &[&str]) -> PullPolicy {
        PullPolicy { rules: rules.iter().map(|rule| rule.parse().unwrap()).collect(), ..PullPolicy::default() }
    }

    #[test]
    fn nothing_is_pulled_that_no_rule_names() {
        let one: TenantId = "one".parse().unwrap();
        let may = |policy: &PullPolicy, image: &str| policy.may_pull(&one, &image.parse().unwrap());
        assert!(!may(&policy(&[]), "python:3.12"));
        let hub = policy(&["docker.io/library"]);
        assert!(
            may(&hub, "python:3.12")
                && may(&hub, "docker.io/library/python@sha256:0000000000000000000000000000000000000000000000000000000000000000")
        );
        assert!(!may(&hub, "team/app") && !may(&hub, "docker.io/libraryx/app") && !may(&hub, "r.example/library/app"));
        assert!(!may(&PullPolicy { mode: PullMode::Never, ..hub }, "python"));
        let port = policy(&["r.example:5000"]);
        assert!(may(&port, "r.example:5000/a/b:1") && !may(&port, "r.example/a/b:1") && !may(&port, "r.example:50001/a"));
    }

    #[test]
    fn a_rule_may_be_one_tenants() {
        let (one, two): (TenantId, TenantId) = ("one".parse().unwrap(), "two".parse().unwrap());
        let policy = policy(&["one=r.example/team", "*"]);
        let rule = |tenant: &TenantId, reference: &str| policy.rule(tenant, reference).unwrap().to_string();
        assert_eq!(rule(&one, "r.example/team/app:1"), "one=r.example/team");
        assert_eq!(rule(&two, "r.example/team/app:1"), "*");
        assert!(policy.rules[1].is_public_only() && !policy.rules[0].is_public_only());
    }

    #[test]
    fn rules_are_written_as_they_are_read() {
        for text in ["*", "docker.io", "docker.io/library", "r.example:5000/a/b", "one=*", "one=localhost:5000"] {
            assert_eq!(text.parse::<RegistryRule>().unwrap().to_string(), text);
        }
        for text in ["", "=", "library", "https://a.example", "One=*", "a.example/", "a.example/x:1", "**", "one="] {
            assert!(text.parse::<RegistryRule>().is_err(), "{text:?}");
        }
    }
}
