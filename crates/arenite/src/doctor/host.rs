//! The input of the checks: files of the kernel and programs. Held as values, so that tests can describe other hosts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use arenite_engine::namespace::{find_rclone, find_runsc};
use arenite_isolation::cgroup::Layout;

use crate::config::Settings;

/// The programs to search for.
const PROGRAMS: [&str; 4] = ["nft", "ip", "mkfs.btrfs", "mmdebstrap"];
/// The file system type of btrfs in statfs.
const BTRFS_MAGIC: u64 = 0x9123_683e;

/// Facts about a host.
#[derive(Debug, Clone)]
pub(super) struct Host {
    /// Major and minor version.
    pub(super) kernel: (u32, u32),
    pub(super) release: String,
    pub(super) root: bool,
    /// Effective capabilities, one bit each.
    pub(super) capabilities: u64,
    /// None if the kernel has no user namespaces.
    pub(super) max_user_namespaces: Option<u64>,
    pub(super) file_systems: BTreeSet<String>,
    /// The version of the hierarchy, or its fault.
    pub(super) cgroups: Result<u8, String>,
    pub(super) seccomp_actions: String,
    /// None if unknown.
    pub(super) security_modules: Option<String>,
    pub(super) loop_control: bool,
    pub(super) data_dir: PathBuf,
    /// Whether the data directory is already on btrfs.
    pub(super) data_on_btrfs: bool,
    pub(super) programs: BTreeSet<&'static str>,
    /// None if the kernel has no IPv4.
    pub(super) ip_forward: Option<bool>,
    /// Whether the device can be opened; none if it doesn't exist.
    pub(super) kvm: Option<bool>,
    /// gVisor's program with its version, or why there is none.
    pub(super) gvisor: Result<(PathBuf, String), String>,
    /// The program that mounts buckets with its version, or why none can be mounted.
    pub(super) rclone: Result<(PathBuf, String), String>,
    /// In bytes.
    pub(super) memory_available: u64,
    /// In bytes, on the file system of the data directory.
    pub(super) disk_available: u64,
}

impl Host {
    /// This host, with its server's data in `data_dir`.
    pub(super) fn here(data_dir: &Path) -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| text.lines().find_map(|l| l.strip_prefix(name).map(|v| v.trim().to_owned()));
        let release = text("/proc/sys/kernel/osrelease").trim().to_owned();
        let status = text("/proc/self/status");
        let available = field(&text("/proc/meminfo"), "MemAvailable:");
        let kib = available.and_then(|v| v.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()));
        // The data directory may not exist yet: what counts is the file system that it would be on.
        let whole = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        let existing = whole.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
        let disk = rustix::fs::statvfs(existing).ok();
        let magic = rustix::fs::statfs(existing).ok().map(|s| s.f_type as u64 & 0xffff_ffff);
        let kvm = Path::new("/dev/kvm");
        Self {
            kernel: version(&release),
            release,
            root: rustix::process::geteuid().is_root(),
            capabilities: field(&status, "CapEff:").and_then(|hex| u64::from_str_radix(&hex, 16).ok()).unwrap_or(0),
            max_user_namespaces: text("/proc/sys/user/max_user_namespaces")
                .trim()
                .parse()
                .ok()
                .filter(|_| Path::new("/proc/self/ns/user").exists()),
            file_systems: text("/proc/filesystems")
                .lines()
                .filter_map(|l| l.split_whitespace().last().map(str::to_owned))
                .collect(),
            cgroups: Layout::of_host().map(|layout| layout.version()).map_err(|error| error.to_string()),
            seccomp_actions: text("/proc/sys/kernel/seccomp/actions_avail"),
            security_modules: std::fs::read_to_string("/sys/kernel/security/lsm").ok(),
            loop_control: Path::new("/dev/loop-control").exists(),
            data_on_btrfs: magic == Some(BTRFS_MAGIC),
            data_dir: whole,
            gvisor: gvisor(),
            rclone: find_rclone(Settings::rclone_here().as_deref()),
            programs: PROGRAMS.into_iter().filter(|program| on_path(program)).collect(),
            ip_forward: text("/proc/sys/net/ipv4/ip_forward").trim().parse::<u8>().ok().map(|n| n == 1),
            kvm: kvm.exists().then(|| std::fs::File::options().read(true).write(true).open(kvm).is_ok()),
            memory_available: kib.map_or(0, |kib| kib << 10),
            disk_available: disk.map_or(0, |d| d.f_bavail.saturating_mul(d.f_frsize)),
        }
    }
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Searches `PATH` and root's directories of programs, which not every user's `PATH` has.
fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).any(|dir| dir.join(program).is_file())
}

/// The program that the setting names, or the one in `PATH`, and the version that it prints.
fn gvisor() -> Result<(PathBuf, String), String> {
    let path = find_runsc(Settings::runsc_here().as_deref())?;
    let output = Command::new(&path).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{} does not start: {error}", path.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().next().and_then(|line| line.strip_prefix("runsc version ")) {
        Some(version) if output.status.success() => Ok((path, version.to_owned())),
        _ => Err(format!("{} is not gVisor's runsc: it prints no version", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_all_shapes_give_their_version() {
        assert_eq!(version("6.18.44-fc-v669"), (6, 18));
        assert_eq!(version("5.19.0"), (5, 19));
        assert_eq!(version("6.1"), (6, 1));
        assert_eq!(version(""), (0, 0));
    }

    #[test]
    fn this_host_is_described() {
        let host = Host::here(Path::new("/does/not/exist"));
        assert!(host.kernel > (4, 0) && host.memory_available > 0 && host.disk_available > 0);
        assert!(host.file_systems.contains("proc"));
    }
}
