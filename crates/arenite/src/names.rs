//! Names of things on a server: the nearest one to a name that doesn't exist, and the command that lists them.

use std::time::Duration;

use arenite_rollout::encoded;
use serde_json::Value;

/// A kind of thing that commands and requests name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    /// The segment of `/api/v2` with its list, and the list's field.
    pub(crate) list: &'static str,
    /// The field with a name.
    pub(crate) name: &'static str,
    /// The command that lists them.
    pub(crate) command: &'static str,
}

const fn kind(list: &'static str, name: &'static str, command: &'static str) -> Kind {
    Kind { list, name, command }
}

pub(crate) const SANDBOX: Kind = kind("sandboxes", "name", "arenite ls");
pub(crate) const IMAGE: Kind = kind("images", "name", "arenite image ls");
pub(crate) const TEMPLATE: Kind = kind("templates", "name", "arenite template ls");
pub(crate) const SNAPSHOT: Kind = kind("snapshots", "name", "arenite snapshot ls");
pub(crate) const GROUP: Kind = kind("groups", "name", "arenite group ls");
pub(crate) const VOLUME: Kind = kind("volumes", "name", "arenite volume ls");
pub(crate) const SECRET: Kind = kind("secrets", "name", "arenite secret ls");
pub(crate) const NODE: Kind = kind("nodes", "name", "arenite node ls");
pub(crate) const TENANT: Kind = kind("tenants", "name", "arenite tenant ls");
pub(crate) const MODEL: Kind = kind("models", "name", "arenite model ls");
pub(crate) const KEY: Kind = kind("keys", "id", "arenite key ls");
pub(crate) const WEBHOOK: Kind = kind("webhooks", "id", "arenite webhook ls");
pub(crate) const QUARANTINED: Kind = kind("quarantine", "id", "arenite quarantine ls");

const KINDS: [Kind; 13] =
    [SANDBOX, IMAGE, TEMPLATE, SNAPSHOT, GROUP, VOLUME, SECRET, NODE, TENANT, MODEL, KEY, WEBHOOK, QUARANTINED];

/// Longest wait for a list of names. A hint is not worth more.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

impl Kind {
    /// The path of the list's first page.
    pub(crate) fn path(self) -> String {
        format!("/api/v2/{}", self.list)
    }

    /// The names in a page of the list.
    pub(crate) fn names(self, page: &Value) -> Vec<String> {
        let entries = page[self.list].as_array().into_iter().flatten();
        entries.filter_map(|entry| entry[self.name].as_str()).map(str::to_owned).collect()
    }
}

/// The names in a request, by its path and its body. Any of them may be the one that doesn't exist.
pub(crate) fn in_request(path: &str, body: Option<&Value>) -> Vec<(Kind, String)> {
    let mut found = Vec::new();
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    if let Some(rest) = path.strip_prefix("/sandbox/") {
        found.push((SANDBOX, rest.split('/').next().unwrap_or_default().to_owned()));
    }
    if let Some((list, rest)) = path.strip_prefix("/api/v2/").and_then(|path| path.split_once('/')) {
        let kind = KINDS.into_iter().find(|kind| kind.list == list);
        // A name of an image may have slashes.
        let name = if list == IMAGE.list { rest } else { rest.split('/').next().unwrap_or_default() };
        found.extend(kind.map(|kind| (kind, name.to_owned())));
    }
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        if name == "tenant" {
            found.push((TENANT, value.to_owned()));
        }
    }
    let Some(body) = body else { return found };
    let fields = [
        ("image", IMAGE),
        ("template", TEMPLATE),
        ("snapshot", SNAPSHOT),
        ("group", GROUP),
        ("sandbox", SANDBOX),
        ("secret", SECRET),
        ("tenant", TENANT),
    ];
    for (field, kind) in fields {
        found.extend(body[field].as_str().map(|name| (kind, name.to_owned())));
    }
    for value in body["env"].as_object().into_iter().flatten().filter_map(|(_, value)| value.as_str()) {
        let placeholders = value.split("{{secret:").skip(1).filter_map(|rest| rest.split_once("}}"));
        found.extend(placeholders.map(|(name, _)| (SECRET, name.trim().to_owned())));
    }
    let secrets = body["secrets"].as_array().into_iter().flatten();
    found.extend(secrets.filter_map(Value::as_str).map(|name| (SECRET, name.to_owned())));
    let volumes = body["volumes"].as_array().into_iter().flatten();
    found.extend(volumes.filter_map(|volume| volume["name"].as_str()).map(|name| (VOLUME, name.to_owned())));
    found
}

/// The hint for a name that doesn't exist. None: it exists, so something else is missing.
pub(crate) fn hint(wanted: &str, names: &[String], command: &str, otherwise: Option<&str>) -> Option<String> {
    if names.iter().any(|name| name == wanted || encoded(name) == wanted) {
        return None;
    }
    let see = format!("see what there is with: {command}");
    Some(match (nearest(wanted, names.iter().map(String::as_str)), otherwise) {
        (Some(name), _) => format!("did you mean \"{name}\"? {see}"),
        (None, Some(hint)) if hint.contains(command) => hint.to_owned(),
        (None, Some(hint)) => format!("{hint}; {see}"),
        (None, None) => see,
    })
}

/// The name that a person most likely meant.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = wanted.to_lowercase();
    let length = wanted.chars().count();
    // One mistake for each three characters.
    let most = (length / 3).min(4);
    let distance = |name: &str| {
        let name = name.to_lowercase();
        if length >= 2 && (name.starts_with(&wanted) || name.ends_with(&wanted)) {
            return Some(most);
        }
        // Comparing costs the product of the lengths.
        if name.chars().count().abs_diff(length) > most {
            return None;
        }
        Some(strsim::damerau_levenshtein(&wanted, &name)).filter(|distance| *distance <= most)
    };
    let near = names.filter_map(|name| Some((distance(name)?, name)));
    near.min_by_key(|(distance, name)| (*distance, name.len())).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_nearest_name_is_what_was_meant() {
        let names = ["demo", "default", "worker-1", "worker-12", "python:3.12-slim"];
        for (wanted, meant) in [
            ("dmeo", Some("demo")),
            ("DEMO", Some("demo")),
            ("defualt", Some("default")),
            ("worker", Some("worker-1")),
            ("worker-2", Some("worker-1")),
            ("python:3.12", Some("python:3.12-slim")),
            ("x", None),
            ("", None),
            ("something-else", None),
        ] {
            assert_eq!(nearest(wanted, names.into_iter()), meant, "{wanted}");
        }
    }

    #[test]
    fn names_are_found_in_requests() {
        let create = json!({"name": "new", "image": "bsae", "group": "g", "volumes": [{"name": "data"}], "env": {"A": "x {{secret:s}}"}, "secrets": ["t"]});
        let found = in_request("/api/v2/sandboxes", Some(&create));
        let expected = [(IMAGE, "bsae"), (GROUP, "g"), (SECRET, "s"), (SECRET, "t"), (VOLUME, "data")]
            .map(|(kind, name)| (kind, name.to_owned()));
        assert_eq!(found, expected);
        for (path, kind, name) in [
            ("/sandbox/dmeo/v1/bash/exec", SANDBOX, "dmeo"),
            ("/api/v2/sandboxes/dmeo/history?limit=2", SANDBOX, "dmeo"),
            ("/api/v2/images/a/b:1", IMAGE, "a/b:1"),
            ("/api/v2/keys?tenant=acem", TENANT, "acem"),
            ("/api/v2/nodes/red/drain", NODE, "red"),
        ] {
            assert_eq!(in_request(path, None), [(kind, name.to_owned())], "{path}");
        }
    }

    #[test]
    fn a_hint_is_only_for_names_that_are_missing() {
        let names = ["demo".to_owned()];
        assert_eq!(hint("demo", &names, "arenite ls", None), None);
        assert_eq!(
            hint("dmeo", &names, "arenite ls", None).unwrap(),
            "did you mean \"demo\"? see what there is with: arenite ls"
        );
        assert_eq!(hint("x", &names, "arenite ls", Some("create it")).unwrap(), "create it; see what there is with: arenite ls");
        assert_eq!(hint("x", &names, "arenite ls", Some("use arenite ls")).unwrap(), "use arenite ls");
    }
}
