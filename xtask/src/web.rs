//! `cargo xtask web`: builds the console, the dashboard and the viewer from `web/`, for the server's build to embed.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{self, program, repository};
use crate::failure::{Attempt, Failure, Outcome};

/// The sources of the build: these, and all below `src`. The types of the API are generated from its document.
const SOURCES: [&str; 7] = [
    "build.mjs",
    "types.mjs",
    "vite.config.mjs",
    "package.json",
    "package-lock.json",
    "src",
    "../crates/gateway/golden/server-openapi.json",
];
const BUILT: [&str; 6] = ["console.js", "console.css", "dashboard.js", "dashboard.css", "viewer.js", "viewer.css"];

/// Builds them if a source changed since the last build.
pub(crate) fn build() -> Outcome {
    let web = repository().join("web");
    let mark = web.join("dist/.built-from");
    let sources = fingerprint(&web, &SOURCES)?;
    let is_there = BUILT.iter().all(|name| web.join("dist").join(name).is_file());
    if is_there && std::fs::read_to_string(&mark).is_ok_and(|of| of == sources) {
        return Ok(());
    }
    install(&web)?;
    command::run(npm(&web).args(["run", "--silent", "build"]))?;
    std::fs::write(&mark, sources).attempt(|| format!("could not write {}", mark.display()))
}

/// Builds them, checks their types, which the build doesn't, and runs the tests of their components.
pub(crate) fn check() -> Outcome {
    build()?;
    let web = repository().join("web");
    install(&web)?;
    command::run(npm(&web).args(["run", "--silent", "check"]))?;
    command::run(npm(&web).args(["run", "--silent", "test"]))
}

/// Installs exactly what a folder's lock file names; again only if the lock file changes.
pub(crate) fn install(web: &Path) -> Outcome {
    let lock = web.join("package-lock.json");
    let lock = std::fs::read_to_string(&lock).attempt(|| format!("could not read {}", lock.display()))?;
    let mark = web.join("node_modules/.installed-from");
    if std::fs::read_to_string(&mark).is_ok_and(|of| of == lock) {
        return Ok(());
    }
    command::download(npm(web).args(["ci", "--no-progress"]))?;
    std::fs::write(&mark, lock).attempt(|| format!("could not write {}", mark.display()))
}

fn npm(web: &Path) -> Command {
    let mut npm = program("npm");
    npm.current_dir(web);
    npm
}

/// Identifies a state of the sources: files, and all below folders.
pub(crate) fn fingerprint(root: &Path, sources: &[&str]) -> Result<String, Failure> {
    let mut files = BTreeMap::new();
    let mut left: Vec<PathBuf> = sources.iter().map(|name| root.join(name)).collect();
    while let Some(path) = left.pop() {
        let failed = || format!("could not read {}", path.display());
        if path.is_dir() {
            for entry in std::fs::read_dir(&path).attempt(failed)? {
                left.push(entry.attempt(failed)?.path());
            }
        } else {
            files.insert(path.clone(), std::fs::read(&path).attempt(failed)?);
        }
    }
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}
