//! Checks that dependencies between the workspace's crates point the way that ARCHITECTURE.md shows. Cargo refuses circles; this
//! refuses the other arrows that are not in its table.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::command::{self, cargo};
use crate::failure::{Attempt, Failure, Outcome};

/// The crates that each crate may use, without the prefix `arenite-`.
const ALLOWED: [(&str, &[&str]); 28] = [
    ("model", &[]),
    ("documents", &[]),
    ("mcp", &[]),
    ("retrieval", &[]),
    ("rollout", &[]),
    ("ssh", &[]),
    ("isolation", &["model"]),
    ("image", &["model"]),
    ("egress", &["model"]),
    ("engine", &["model", "isolation", "image", "egress"]),
    ("control", &["model", "image", "engine", "ssh"]),
    ("channel", &[]),
    ("kubernetes", &["model", "channel", "engine"]),
    ("trajectory", &["model"]),
    ("objects", &["model", "trajectory"]),
    ("synthesis", &["model", "trajectory", "retrieval"]),
    ("gateway", &["model", "channel", "engine", "control", "trajectory", "retrieval", "mcp", "synthesis", "ssh"]),
    ("guest-cdp", &[]),
    ("guest-runtime", &["model", "isolation"]),
    ("guest-shell", &["model", "isolation", "guest-runtime"]),
    ("guest-proxy", &["model", "guest-runtime"]),
    ("guest-files", &["model", "isolation", "documents", "guest-runtime"]),
    ("guest-code", &["isolation", "guest-runtime", "guest-files"]),
    ("guest-desktop", &["isolation", "guest-runtime", "guest-files"]),
    ("guest-browser", &["model", "isolation", "guest-runtime", "guest-files", "guest-desktop", "guest-cdp"]),
    (
        "guest",
        &[
            "model",
            "channel",
            "isolation",
            "mcp",
            "guest-runtime",
            "guest-shell",
            "guest-files",
            "guest-proxy",
            "guest-code",
            "guest-desktop",
            "guest-browser",
        ],
    ),
    (
        "arenite",
        &[
            "model",
            "channel",
            "isolation",
            "image",
            "engine",
            "kubernetes",
            "objects",
            "guest",
            "control",
            "trajectory",
            "retrieval",
            "gateway",
            "synthesis",
            "rollout",
        ],
    ),
    ("xtask", &[]),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev`, `build`, or none.
    kind: Option<String>,
    /// The folder of a crate of the workspace.
    path: Option<String>,
}

pub(crate) fn check() -> Outcome {
    let text = command::output(cargo().args(["metadata", "--no-deps", "--offline", "--locked", "--format-version", "1"]))?;
    let metadata: Metadata = serde_json::from_str(&text).attempt(|| "could not read cargo's metadata".to_owned())?;
    let wrong = wrong(&metadata, &ALLOWED.into_iter().collect());
    if wrong.is_empty() { Ok(()) } else { Err(Failure::new(format!("{} (xtask/src/arrows.rs)", wrong.join("; ")))) }
}

/// The dependencies that are not allowed, and the crates that the table does not have.
fn wrong(metadata: &Metadata, allowed: &BTreeMap<&str, &[&str]>) -> Vec<String> {
    let short = |name: &str| name.strip_prefix("arenite-").unwrap_or(name).to_owned();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let name = short(&package.name);
        let Some(may) = allowed.get(name.as_str()) else {
            wrong.push(format!("{name} has no line in the table of allowed dependencies"));
            continue;
        };
        // Tests may use more, and use their own crate.
        let local = package.dependencies.iter().filter(|one| one.path.is_some() && one.kind.as_deref() != Some("dev"));
        let used: BTreeSet<String> = local.map(|one| short(&one.name)).collect();
        wrong.extend(
            used.iter().filter(|used| !may.contains(&used.as_str())).map(|used| format!("{name} must not depend on {used}")),
        );
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_that_are_not_in_the_table_are_refused() {
        let metadata = r#"{"packages": [
            {"name": "arenite-a", "dependencies": [
                {"name": "arenite-b", "kind": null, "path": "/b"}, {"name": "arenite-c", "kind": "dev", "path": "/c"},
                {"name": "serde", "kind": null, "path": null}
            ]},
            {"name": "arenite-b", "dependencies": [{"name": "arenite-a", "kind": null, "path": "/a"}]},
            {"name": "arenite-c", "dependencies": []}
        ]}"#;
        let metadata: Metadata = serde_json::from_str(metadata).unwrap();
        let allowed = BTreeMap::from([("a", &["b"][..]), ("b", &[])]);
        assert_eq!(wrong(&metadata, &allowed), ["b must not depend on a", "c has no line in the table of allowed dependencies"]);
    }
}
