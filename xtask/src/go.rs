//! Tools which Debian lacks, or has only in old versions, and the Go that builds them.

use std::path::{Path, PathBuf};

use crate::command::{self, program, tools_dir};
use crate::failure::{Attempt, Failure};
use crate::host;

/// The Go of hosts that have none, or an old one.
const TOOLCHAIN: &str = "go1.26.8";

/// A program that is built from its Go module at a pinned version, and kept.
pub(crate) struct GoTool {
    /// The name of its directory.
    name: &'static str,
    /// The path of its package in Go's modules.
    package: &'static str,
    version: &'static str,
    /// The variable of the package that gets the version, if it does not know it.
    version_variable: Option<&'static str>,
}

/// Renders and installs the chart. Golden files have what this version writes.
pub(crate) const HELM: GoTool =
    GoTool { name: "helm", package: "helm.sh/helm/v4/cmd/helm", version: "v4.3.1", version_variable: None };

/// Validates compose files as `docker compose` does: it is the same parser.
pub(crate) const COMPOSE: GoTool = GoTool {
    name: "compose-spec",
    package: "github.com/compose-spec/compose-go/v2/cmd",
    version: "v2.16.2",
    version_variable: None,
};

/// gVisor's program, for the tests of the tier `gvisor`. Debian 12 has one of 2022, which can't run the guest.
pub(crate) const RUNSC: GoTool = GoTool {
    name: "runsc",
    package: "gvisor.dev/gvisor/runsc",
    version: "v0.0.0-20260905035102-160fafc42237",
    version_variable: Some("gvisor.dev/gvisor/runsc/version.version"),
};

/// A server with S3's protocol over a directory, for the tests of volumes in buckets.
pub(crate) const VERSITYGW: GoTool = GoTool {
    name: "versitygw",
    package: "github.com/versity/versitygw/cmd/versitygw",
    version: "v1.8.0",
    version_variable: None,
};

impl GoTool {
    /// Its path; built if it is missing.
    pub(crate) fn ensure(&self) -> Result<PathBuf, Failure> {
        let Self { name, package, version, version_variable } = self;
        let dir = tools_dir().join(format!("{name}-{version}"));
        let tool = dir.join(package.rsplit('/').next().unwrap_or(name));
        if tool.is_file() {
            return Ok(tool);
        }
        eprintln!("{name} {version} is not there yet; building it takes a few minutes, once");
        std::fs::create_dir_all(&dir).attempt(|| format!("could not create {}", dir.display()))?;
        let set_version = version_variable.map(|variable| format!(" -X {variable}={version}")).unwrap_or_default();
        let mut install = program(toolchain()?);
        install.args(["install", &format!("-ldflags=-s -w{set_version}"), &format!("{package}@{version}")]);
        // Outside this workspace, and static: it runs in a root without libraries.
        install.current_dir("/").env("GOBIN", &dir).env("CGO_ENABLED", "0");
        command::download(&mut install)?;
        Ok(tool)
    }
}

/// The installed Go if it is recent, otherwise the toolchain from Go's modules, which Debian's can download.
pub(crate) fn toolchain() -> Result<PathBuf, Failure> {
    let installed = [command::find("go"), Some(PathBuf::from("/usr/local/go/bin/go"))];
    if let Some(go) = installed.into_iter().flatten().find(|go| is_recent(go)) {
        return Ok(go);
    }
    host::prepare(&[host::TO_BUILD_GO])?;
    let modules = tools_dir().join("go");
    let module = format!("golang.org/toolchain@v0.0.1-{TOOLCHAIN}.linux-{}", architecture());
    let mut fetch = program("go");
    fetch.args(["mod", "download", "-modcacherw", &module]).current_dir("/").env("GOMODCACHE", &modules);
    command::download(&mut fetch)?;
    let root = modules.join(module);
    // Files of modules are not executable.
    command::run(program("chmod").args(["-R", "u+x"]).arg(root.join("bin")).arg(root.join("pkg/tool")))?;
    Ok(root.join("bin/go"))
}

/// From 1.21 on, Go downloads the version that a module needs.
fn is_recent(go: &Path) -> bool {
    let minor = |text: &str| text.split_once("go1.")?.1.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    command::output(program(go).arg("version")).is_ok_and(|text| minor(&text).is_some_and(|minor: u32| minor >= 21))
}

/// This host's architecture, as Go, Debian, and images name it.
pub(crate) fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}
