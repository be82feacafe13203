//! The tier `gvisor`: where its program is, and what it gets to run.
//!
//! It runs in the namespaces of a sandbox (`isolation/src/keeper.rs`), so its files, network, limits, and life are those of any
//! sandbox. Only what serves the system calls of programs inside is another: gVisor's kernel, the sentry, and not the host's.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use arenite_image::Image;
use arenite_isolation::Bind;
use arenite_isolation::keeper::{self, Container};
use arenite_model::{SandboxSpec, Tier};
use serde_json::json;

use super::kvm::has_vm;
use crate::EngineError;

const PROGRAM: &str = "runsc";
/// Where the guest's program is in the sandbox. At the path of `aio`, it would be that command: its path is also its name.
const GUEST: &str = "/run/.arenite-guest";
const INSTALL: &str = "install gVisor's runsc in PATH, or name it with the setting runsc; arenite doctor says what was found";

/// Flags of runsc.
///
/// - Sockets are the host's, in the sandbox's own network namespace: gVisor's network stack needs a packet socket, for which the
///   namespace would have to belong to the sandbox. Its address and the rules of the host apply either way.
/// - Limits are those of the cgroups that it is started in.
/// - Writes go to the writable layer, and not to a file that gVisor makes for them: its limit, snapshots, and restarts apply.
/// - No sockets and pipes of the file system lead out, which is gVisor's default, too.
/// - `sudo` and the like work as in other sandboxes.
const FLAGS: [&str; 11] = [
    "--platform=systrap",
    "--network=host",
    "--gofer-network-namespace=new",
    "--ignore-cgroups",
    "--overlay2=none",
    "--host-uds=none",
    "--host-fifo=none",
    "--character-device-policy=emulated-only",
    "--host-settings=ignore",
    "--allow-suid",
    "--net-raw=false",
];

/// Capabilities inside, where they apply to gVisor's kernel alone. Source: those of other sandboxes, without NET_RAW.
const CAPABILITIES: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_MKNOD",
    "CAP_AUDIT_WRITE",
    "CAP_SETFCAP",
];

/// gVisor's program: the configured one, or the first in `PATH`. An error says why it can't be used.
pub fn find_runsc(configured: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = configured {
        return match is_program(path) {
            true => Ok(path.to_owned()),
            false => Err(format!("runsc is set to {}, which is no program", path.display())),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(PROGRAM)).find(|file| is_program(file));
    found.ok_or_else(|| "runsc is not in PATH, and the setting runsc names none".to_owned())
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

/// Whether the tier is available here.
pub(super) fn check(runsc: Option<&Path>) -> Result<(), EngineError> {
    let refuse = |reason| EngineError::NoTier { tier: Tier::Gvisor, reason, hint: INSTALL };
    find_runsc(runsc).map(drop).map_err(refuse)
}

/// The tier of a sandbox of this image. None: the image isn't here. `check` refuses gVisor where it is not available.
pub(crate) fn tier_of(
    requested: Option<Tier>,
    default: Tier,
    image: Option<&Image>,
    check: impl FnOnce() -> Result<(), EngineError>,
) -> Result<Tier, EngineError> {
    let has_vm = image.map(has_vm);
    let refuse = |tier, reason: &str, hint| Err(EngineError::NoTier { tier, reason: reason.to_owned(), hint });
    match (requested.unwrap_or(default), has_vm) {
        (Tier::Gvisor, Some(true)) if requested.is_some() => {
            refuse(Tier::Gvisor, "the image has a VM, and QEMU does not run under gVisor", "choose another image")
        }
        (_, Some(true)) => Ok(Tier::Machine),
        (Tier::Machine, Some(false)) => refuse(Tier::Machine, "the image has no VM", "choose an image with a VM: see docs/VM.md"),
        (Tier::Gvisor, _) => check().map(|()| Tier::Gvisor),
        (tier, _) => Ok(tier),
    }
}

/// What a sandbox of this tier has in addition to its namespaces.
pub(crate) fn isolation(tier: Tier) -> Option<&'static str> {
    match tier {
        Tier::Namespace => None,
        Tier::Gvisor => Some("gVisor (systrap)"),
        Tier::Machine => Some("QEMU for its VM"),
    }
}

/// The configuration of gVisor for a sandbox.
pub(super) fn container(
    hostname: &str,
    spec: &SandboxSpec,
    command: Option<&str>,
    binds: &[(Bind, bool)],
    open_files: u64,
    restore: bool,
) -> Container {
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}),
        json!({
            "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
            "options": ["nosuid", "nodev", "noexec", "mode=1777", format!("size={}", spec.resources.shm_bytes)],
        }),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro", "nosuid", "nodev", "noexec"]}),
    ];
    mounts.extend([Some(GUEST), command].into_iter().flatten().map(|place| {
        json!({
            "destination": place, "type": "bind", "source": keeper::PROGRAM,
            "options": ["bind", "ro", "nosuid", "nodev"],
        })
    }));
    mounts.extend(binds.iter().enumerate().map(|(number, (bind, read_only))| {
        let access = if *read_only { "ro" } else { "rw" };
        json!({
            "destination": bind.target, "type": "bind", "source": keeper::volume_place(number),
            "options": ["bind", access, "nosuid", "nodev"],
        })
    }));
    let capabilities = json!({"bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES});
    let config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0},
            "args": [GUEST, "guest"],
            "env": keeper::environment(),
            "cwd": "/",
            "capabilities": capabilities,
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "hard": open_files, "soft": open_files},
                {"type": "RLIMIT_CORE", "hard": 0, "soft": 0},
            ],
            "noNewPrivileges": false,
        },
        "root": {"path": keeper::ROOT, "readonly": false},
        "hostname": hostname,
        "mounts": mounts,
        "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}]},
    });
    Container { config: config.to_string(), flags: FLAGS.map(str::to_owned).into(), restore }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("runsc");
        assert!(find_runsc(Some(&file)).unwrap_err().contains("runsc is set to"));
        std::fs::write(&file, "").unwrap();
        assert!(find_runsc(Some(&file)).is_err(), "not executable");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_runsc(Some(&file)), Ok(file.clone()));
        for (requested, default, wanted) in [
            (None, Tier::Namespace, Some(Tier::Namespace)),
            (None, Tier::Gvisor, Some(Tier::Gvisor)),
            (Some(Tier::Namespace), Tier::Gvisor, Some(Tier::Namespace)),
            (Some(Tier::Machine), Tier::Namespace, Some(Tier::Machine)),
        ] {
            // Without the image, only the host can refuse.
            assert_eq!(tier_of(requested, default, None, || check(Some(&file))).ok(), wanted);
        }
        let refused = tier_of(Some(Tier::Gvisor), Tier::Namespace, None, || check(Some(dir.path()))).unwrap_err();
        assert!(refused.to_string().starts_with("the tier gvisor is not available: runsc is set to"), "{refused}");
        assert!(refused.hint().is_some());
    }
}
