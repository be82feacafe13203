//! gVisor's `runsc`, for the tests of the tier `gvisor`: built from its Go module at a pinned version, and kept.

use std::path::{Path, PathBuf};

use crate::command::{self, program, target_dir};
use crate::failure::{Attempt, Failure};
use crate::host;

/// The pinned version. Debian 12 has one of 2022, which can't run the guest.
const VERSION: &str = "v0.0.0-20260905035102-160fafc42237";
/// The Go that builds it where the host has none, or an old one.
const TOOLCHAIN: &str = "go1.26.8";

/// The path of runsc; built if it is missing.
pub(crate) fn runsc() -> Result<PathBuf, Failure> {
    let dir = target_dir().join("tools").join(format!("runsc-{VERSION}"));
    let tool = dir.join("runsc");
    if tool.is_file() {
        return Ok(tool);
    }
    eprintln!("gVisor's runsc {VERSION} is not there yet; building it takes a few minutes, once");
    std::fs::create_dir_all(&dir).attempt(|| format!("could not make {}", dir.display()))?;
    let mut install = program(go()?);
    let flags = format!("-ldflags=-s -w -X gvisor.dev/gvisor/runsc/version.version={VERSION}");
    install.args(["install", &flags, &format!("gvisor.dev/gvisor/runsc@{VERSION}")]);
    // Outside this workspace, and static: it runs in a root without libraries.
    install.current_dir("/").env("GOBIN", &dir).env("CGO_ENABLED", "0");
    command::download(&mut install)?;
    Ok(tool)
}

/// A Go that builds it: the installed one if it is recent, otherwise the toolchain from Go's modules, which Debian's can download.
fn go() -> Result<PathBuf, Failure> {
    let installed = [command::find("go"), Some(PathBuf::from("/usr/local/go/bin/go"))];
    if let Some(go) = installed.into_iter().flatten().find(|go| is_recent(go)) {
        return Ok(go);
    }
    host::prepare(&[host::TO_BUILD_GVISOR])?;
    let modules = target_dir().join("tools/go");
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

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}
