//! gVisor's `runsc`, for the tests of the tier `gvisor`: built from its Go module at a pinned version, and kept.

use std::path::PathBuf;

use crate::command::{self, program, target_dir};
use crate::failure::{Attempt, Failure};
use crate::go;

/// The pinned version. Debian 12 has one of 2022, which can't run the guest.
const VERSION: &str = "v0.0.0-20260905035102-160fafc42237";

/// The path of runsc; built if it is missing.
pub(crate) fn runsc() -> Result<PathBuf, Failure> {
    let dir = target_dir().join("tools").join(format!("runsc-{VERSION}"));
    let tool = dir.join("runsc");
    if tool.is_file() {
        return Ok(tool);
    }
    eprintln!("gVisor's runsc {VERSION} is not there yet; building it takes a few minutes, once");
    std::fs::create_dir_all(&dir).attempt(|| format!("could not make {}", dir.display()))?;
    let mut install = program(go::toolchain()?);
    let flags = format!("-ldflags=-s -w -X gvisor.dev/gvisor/runsc/version.version={VERSION}");
    install.args(["install", &flags, &format!("gvisor.dev/gvisor/runsc@{VERSION}")]);
    // Outside this workspace, and static: it runs in a root without libraries.
    install.current_dir("/").env("GOBIN", &dir).env("CGO_ENABLED", "0");
    command::download(&mut install)?;
    Ok(tool)
}
