//! Installed Node.js programs.

use std::path::PathBuf;

use super::service::NodeError;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::programs::{self, Versions};
use arenite_guest_runtime::workers::Kind;

/// Major versions that are looked up by their own commands.
const MAJORS: std::ops::RangeInclusive<u32> = 12..=60;

/// An installed Node.js.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeRuntime {
    /// Such as `node24`.
    pub(super) name: String,
    /// The version, such as `24.21.0`.
    pub(super) version: String,
    pub(super) program: PathBuf,
}

/// All installed ones, the default first.
pub(super) async fn installed(runtime: &Runtime, versions: &Versions) -> Result<Vec<NodeRuntime>, NodeError> {
    let env = runtime.environment(&runtime.user, &[]);
    let look = move |_: &_| {
        let names = ["node", "nodejs"].map(str::to_owned).into_iter();
        let versioned = MAJORS.rev().map(|major| format!("node{major}"));
        Ok(programs::find(names.chain(versioned), &programs::search_path(&env)))
    };
    let found = runtime.workers.run(Kind::Scan, &runtime.user, look).await.map_err(NodeError::NotLooked)?;
    let mut runtimes: Vec<NodeRuntime> = Vec::new();
    for program in found {
        let asked = versions.ask(&program.file).await;
        let asked = asked.map_err(|source| NodeError::NoAnswer { program: program.file.display().to_string(), source });
        let Some(version) = asked? else { continue };
        let name = format!("node{}", version.split('.').next().unwrap_or_default());
        if runtimes.iter().all(|known| known.name != name) {
            runtimes.push(NodeRuntime { name, version, program: program.file });
        }
    }
    Ok(runtimes)
}

/// Chooses the requested one: `node24`, `v24` or `24`, also with a longer version.
pub(super) fn choose(installed: Vec<NodeRuntime>, version: Option<&str>) -> Result<NodeRuntime, NodeError> {
    let known = installed.iter().map(|r| r.name.clone()).collect::<Vec<_>>().join(", ");
    let Some(asked) = version.map(str::trim).filter(|v| !v.is_empty()) else {
        return installed.into_iter().next().ok_or(NodeError::NoRuntime);
    };
    let lower = asked.to_ascii_lowercase();
    let number = lower.trim_start_matches("node").trim_start_matches(['v', '@', '-']);
    let name = format!("node{}", number.split('.').next().unwrap_or_default());
    let chosen = installed.into_iter().find(|r| r.name == name);
    chosen.ok_or_else(|| NodeError::NoVersion { asked: asked.chars().take(40).collect(), known })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_in_many_ways() {
        let all = ["24.21.0", "18.20.4"].map(|version| NodeRuntime {
            name: format!("node{}", &version[..2]),
            version: version.to_owned(),
            program: PathBuf::new(),
        });
        for (asked, wanted) in [
            (None, Some("node24")),
            (Some(""), Some("node24")),
            (Some("node18"), Some("node18")),
            (Some("18"), Some("node18")),
            (Some("v24.1"), Some("node24")),
            (Some("node22"), None),
            (Some("nonsense"), None),
        ] {
            assert_eq!(choose(all.to_vec(), asked).ok().map(|r| r.name).as_deref(), wanted, "{asked:?}");
        }
        assert!(matches!(choose(Vec::new(), None), Err(NodeError::NoRuntime)));
    }
}
