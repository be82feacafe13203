//! Which route a request takes.

use std::net::IpAddr;
use std::sync::Arc;

use super::pattern::{Hosts, Source, Target, Wanted};
use super::upstream::Upstream;

/// The most mappings, and the most patterns of each other list.
pub(super) const MAX_RULES: usize = 256;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mapping {
    pub(super) source: Source,
    pub(super) target: Target,
}

/// All rules at one moment. A request keeps the rules with which it started.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    pub(super) mappings: Vec<Mapping>,
    /// Hosts that are reached directly, without the upstream.
    pub(super) excludes: Vec<Hosts>,
    /// If not empty, only these hosts go to the upstream.
    pub(super) includes: Vec<Hosts>,
    pub(super) upstream: Option<Arc<Upstream>>,
}

#[derive(Debug)]
pub(super) enum Route<'a> {
    Mapped(&'a Mapping),
    Upstream(&'a Arc<Upstream>),
    /// A direct connection, with the reason.
    Direct(String),
}

impl Rules {
    /// Whether any rule can apply to a request.
    pub(super) fn is_configured(&self) -> bool {
        !self.mappings.is_empty() || self.upstream.is_some()
    }

    pub(super) fn route(&self, wanted: &Wanted<'_>) -> Route<'_> {
        let mappings = self.mappings.iter().filter(|m| m.source.matches(wanted));
        if let Some(mapping) = mappings.max_by_key(|m| m.source.weight()) {
            return Route::Mapped(mapping);
        }
        let Some(upstream) = &self.upstream else { return Route::Direct("no upstream is set".to_owned()) };
        if is_loopback(wanted.host) {
            return Route::Direct("it is this sandbox itself".to_owned());
        }
        if let Some(exclude) = self.excludes.iter().find(|e| e.contain(wanted.host)) {
            return Route::Direct(format!("excluded by {exclude}"));
        }
        if !self.includes.is_empty() && !self.includes.iter().any(|i| i.contain(wanted.host)) {
            return Route::Direct("not among PROXY_INCLUDE".to_owned());
        }
        Route::Upstream(upstream)
    }
}

pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost") || host.parse::<IpAddr>().is_ok_and(|a| a.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Scheme;

    fn mapping(source: &str, target: &str) -> Mapping {
        Mapping { source: Source::read(source).unwrap(), target: Target::read(target).unwrap() }
    }

    fn way(rules: &Rules, host: &str, path: &str) -> String {
        match rules.route(&Wanted { scheme: Scheme::Http, host, port: 80, path: Some(path) }) {
            Route::Mapped(mapping) => mapping.target.text.clone(),
            Route::Upstream(_) => "up".to_owned(),
            Route::Direct(_) => "direct".to_owned(),
        }
    }

    #[test]
    fn the_most_particular_mapping_wins_and_excludes_pass_the_upstream_by() {
        let mut rules = Rules {
            mappings: vec![
                mapping("*", "1"),
                mapping("*.a.com", "2"),
                mapping("x.a.com", "3"),
                mapping("x.a.com/v1", "4"),
                mapping("x.a.com/v1/deep", "5"),
            ],
            ..Rules::default()
        };
        for (host, path, wanted) in [
            ("b.org", "/", "1"),
            ("y.a.com", "/", "2"),
            ("x.a.com", "/", "3"),
            ("x.a.com", "/v1/y", "4"),
            ("x.a.com", "/v1/deep/y", "5"),
        ] {
            assert_eq!(way(&rules, host, path), wanted, "{host}{path}");
        }
        rules.mappings.truncate(0);
        assert!(!rules.is_configured());
        assert_eq!(way(&rules, "b.org", "/"), "direct");
        rules.upstream = Some(Arc::new(Upstream::read("up:3128").unwrap()));
        rules.excludes = vec![Hosts::read(".a.com").unwrap()];
        for (host, wanted) in [("b.org", "up"), ("x.a.com", "direct"), ("localhost", "direct"), ("127.0.0.2", "direct")] {
            assert_eq!(way(&rules, host, "/"), wanted, "{host}");
        }
        rules.includes = vec![Hosts::read("*.b.org").unwrap()];
        assert_eq!((way(&rules, "b.org", "/"), way(&rules, "c.b.org", "/")), ("direct".to_owned(), "up".to_owned()));
    }
}
