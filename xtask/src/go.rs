//! The Go that builds tools which Debian lacks, or has only in old versions.

use std::path::{Path, PathBuf};

use crate::command::{self, program, target_dir};
use crate::failure::Failure;
use crate::host;

/// The Go of hosts that have none, or an old one.
const TOOLCHAIN: &str = "go1.26.8";

/// The installed Go if it is recent, otherwise the toolchain from Go's modules, which Debian's can download.
pub(crate) fn toolchain() -> Result<PathBuf, Failure> {
    let installed = [command::find("go"), Some(PathBuf::from("/usr/local/go/bin/go"))];
    if let Some(go) = installed.into_iter().flatten().find(|go| is_recent(go)) {
        return Ok(go);
    }
    host::prepare(&[host::TO_BUILD_GO])?;
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

/// This host's architecture, as Go, Debian, and images name it.
pub(crate) fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}
