//! Limits of the whole host that its sandboxes share, without a quota per user or cgroup.
//!
//! What they count is charged elsewhere too: descriptors and terminals to a sandbox's memory, threads to its number of
//! processes. So a low limit protects nothing, and a few sandboxes could exhaust it for all others. They are raised, as systemd
//! does for most of them at boot, and never lowered.

use std::fs;
use std::io;
use std::path::Path;

/// Files below `/proc/sys`, and their minimum values.
const CEILINGS: [(&str, i64); 4] =
    [("fs/file-max", i64::MAX), ("kernel/pid_max", 4_194_304), ("kernel/threads-max", 4_194_304), ("kernel/pty/max", 1 << 20)];

/// Raises lower limits of this host. One that can't be raised, as in a container, stays, and is logged.
pub(super) fn raise() {
    raise_below(Path::new("/proc/sys"));
}

fn raise_below(root: &Path) {
    for (name, wanted) in CEILINGS {
        let path = root.join(name);
        let raised = || -> io::Result<Option<String>> {
            let now = fs::read_to_string(&path)?.trim().to_owned();
            if now.parse::<i64>().is_ok_and(|now| now >= wanted) {
                return Ok(None);
            }
            fs::write(&path, wanted.to_string()).map(|()| Some(now))
        };
        match raised() {
            Ok(None) => {}
            Ok(Some(before)) => tracing::info!("raised {} from {before} to {wanted}", path.display()),
            Err(error) => tracing::warn!(%error, "{} is shared by all sandboxes and could not be raised", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_raised_and_never_lowered() {
        let root = tempfile::tempdir().unwrap();
        for dir in ["fs", "kernel/pty"] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        let before = [("fs/file-max", "100"), ("kernel/pid_max", "32768"), ("kernel/pty/max", "2000000")];
        for (name, value) in before {
            fs::write(root.path().join(name), format!("{value}\n")).unwrap();
        }
        raise_below(root.path());
        let after = |name: &str| fs::read_to_string(root.path().join(name)).unwrap().trim().to_owned();
        assert_eq!(after("fs/file-max"), i64::MAX.to_string());
        assert_eq!(after("kernel/pid_max"), "4194304");
        assert_eq!(after("kernel/pty/max"), "2000000", "higher already");
        assert!(!root.path().join("kernel/threads-max").exists(), "not made where the kernel has none");
    }
}
