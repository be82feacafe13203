//! Helm, which renders and installs the chart: built from its Go module at a pinned version, and kept.

use std::path::PathBuf;

use crate::command::{self, program, target_dir};
use crate::failure::{Attempt, Failure};
use crate::go;

/// The pinned version: golden files have what it writes.
const VERSION: &str = "v4.3.1";

/// The path of helm; built if it is missing.
pub(crate) fn helm() -> Result<PathBuf, Failure> {
    let dir = target_dir().join("tools").join(format!("helm-{VERSION}"));
    let tool = dir.join("helm");
    if tool.is_file() {
        return Ok(tool);
    }
    eprintln!("Helm {VERSION} is not there yet; building it takes a few minutes, once");
    std::fs::create_dir_all(&dir).attempt(|| format!("could not create {}", dir.display()))?;
    let mut install = program(go::toolchain()?);
    install.args(["install", "-ldflags=-s -w", &format!("helm.sh/helm/v4/cmd/helm@{VERSION}")]);
    install.current_dir("/").env("GOBIN", &dir).env("CGO_ENABLED", "0");
    command::download(&mut install)?;
    Ok(tool)
}
