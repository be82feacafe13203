//! The checks, most important first.

use super::Check;
use super::host::Host;
use crate::config::values::Size;

/// Runs all checks.
pub(super) fn all(host: &Host) -> Vec<Check> {
    vec![
        kernel(host),
        root(host),
        user_namespaces(host),
        overlay(host),
        cgroups(host),
        seccomp(host),
        landlock(host),
        disk_limits(host),
        firewall(host),
        forwarding(host),
        iproute(host),
        mmdebstrap(host),
        kvm(host),
        tiers(host),
        buckets(host),
        memory(host),
        disk(host),
    ]
}

fn apt(package: &str) -> String {
    format!("apt-get install {package}")
}

fn kernel(host: &Host) -> Check {
    let found = format!("Linux {}", host.release);
    // 5.19: overlayfs over idmapped layers.
    if host.kernel < (5, 19) {
        let detail = format!("{found}; image layers can't be idmapped under an overlay before 5.19");
        return Check::missing("kernel", detail).fix("boot a kernel of 6.7 or newer");
    }
    Check::ok("kernel", found)
}

/// Capabilities of root that the launcher needs, by number.
const CAPABILITIES: [(u32, &str); 10] = [
    (0, "chown"),
    (1, "dac_override"),
    (3, "fowner"),
    (5, "kill"),
    (6, "setgid"),
    (7, "setuid"),
    (8, "setpcap"),
    (12, "net_admin"),
    (18, "sys_chroot"),
    (21, "sys_admin"),
];

fn root(host: &Host) -> Check {
    if !host.root {
        let detail = "this is not root, and sandboxes made of namespaces need the host's root to map ids and make networks";
        return Check::missing("root", detail).fix("run the server, and this check, as root: sudo arenite doctor");
    }
    let lacks = |bit: u32| host.capabilities & (1 << bit) == 0;
    let lacking: Vec<&str> = CAPABILITIES.iter().filter(|(bit, _)| lacks(*bit)).map(|(_, name)| *name).collect();
    if lacking.is_empty() {
        return Check::ok("root", "root, with the capabilities that are needed");
    }
    Check::missing("root", format!("root without the capabilities {}", lacking.join(", ")))
        .fix("in a container, start it privileged or add these capabilities")
}

fn user_namespaces(host: &Host) -> Check {
    let name = "user namespaces";
    let more = "sysctl -w user.max_user_namespaces=100000";
    match host.max_user_namespaces {
        None => Check::missing(name, "the kernel has none").fix("boot a kernel with CONFIG_USER_NS"),
        Some(0) => Check::missing(name, "switched off").fix(more),
        Some(most @ ..2000) => Check::degraded(name, format!("at most {most}, and each sandbox needs one")).fix(more),
        Some(most) => Check::ok(name, format!("at most {most}")),
    }
}

fn overlay(host: &Host) -> Check {
    if !host.file_systems.contains("overlay") {
        return Check::missing("overlayfs", "the kernel doesn't offer it")
            .fix("modprobe overlay, or boot a kernel with CONFIG_OVERLAY_FS");
    }
    Check::ok("overlayfs", "there; in user namespaces and over idmapped layers by the kernel's version")
}

fn cgroups(host: &Host) -> Check {
    match &host.cgroups {
        Ok(version) => Check::ok("cgroups", format!("version {version}, with memory, pids, cpu and freezing")),
        Err(reason) => Check::missing("cgroups", reason.clone())
            .fix("mount cgroup2 with the controllers memory, pids and cpu at /sys/fs/cgroup; in a container, share the host's"),
    }
}

fn seccomp(host: &Host) -> Check {
    let lacks = |action: &str| !host.seccomp_actions.split_whitespace().any(|a| a == action);
    if lacks("errno") || lacks("allow") {
        return Check::missing("seccomp", "the kernel has no filters").fix("boot a kernel with CONFIG_SECCOMP_FILTER");
    }
    Check::ok("seccomp", "filters are there")
}

fn landlock(host: &Host) -> Check {
    match &host.security_modules {
        Some(modules) if modules.split(',').any(|m| m.trim() == "landlock") => Check::ok("Landlock", "active"),
        Some(_) => Check::degraded("Landlock", "not active: one of several layers of defence can't be used")
            .fix("add landlock to the kernel's lsm= list"),
        None => Check::degraded("Landlock", "it can't be told, since securityfs is not mounted")
            .fix("mount -t securityfs none /sys/kernel/security"),
    }
}

fn disk_limits(host: &Host) -> Check {
    let name = "disk limits";
    let lesser = |why: &str| Check::degraded(name, format!("{why}: a sandbox's disk limit can't be enforced"));
    if !host.file_systems.contains("btrfs") {
        return lesser("the kernel has no btrfs").fix("modprobe btrfs, or boot a kernel with CONFIG_BTRFS_FS");
    }
    if !host.data_on_btrfs && !host.loop_control {
        return lesser("there are no loop devices").fix("modprobe loop, or keep the data directory on btrfs");
    }
    if !host.data_on_btrfs && !host.programs.contains("mkfs.btrfs") {
        return lesser("mkfs.btrfs is not installed").fix(apt("btrfs-progs"));
    }
    let place = if host.data_on_btrfs { "the host's own btrfs" } else { "btrfs in a file" };
    // 6.7: simple quotas.
    if host.kernel < (6, 7) {
        let detail = format!("{place}, with classic quota groups: snapshots and deletions are slow");
        return Check::degraded(name, detail).fix("boot a kernel of 6.7 or newer");
    }
    Check::ok(name, format!("{place}, with simple quotas"))
}

fn firewall(host: &Host) -> Check {
    if host.programs.contains("nft") {
        return Check::ok("nft", "installed");
    }
    Check::missing("nft", "not installed: sandboxes can't be kept from private addresses").fix(apt("nftables"))
}

fn forwarding(host: &Host) -> Check {
    let name = "forwarding";
    match host.ip_forward {
        Some(true) => Check::ok(name, "on"),
        Some(false) => Check::ok(name, "off; the server switches it on when it starts"),
        None => Check::missing(name, "the kernel has no IPv4").fix("boot a kernel with CONFIG_INET"),
    }
}

fn iproute(host: &Host) -> Check {
    if host.programs.contains("ip") {
        return Check::ok("iproute2", "installed");
    }
    let detail = "not installed: the server doesn't need it, but people who look into a sandbox's network do";
    Check::degraded("iproute2", detail).fix(apt("iproute2"))
}

fn mmdebstrap(host: &Host) -> Check {
    if host.programs.contains("mmdebstrap") {
        return Check::ok("mmdebstrap", "installed");
    }
    let detail = "not installed: images that begin with FROM debootstrap, such as base, can't be built";
    Check::degraded("mmdebstrap", detail).fix(apt("mmdebstrap"))
}

fn kvm(host: &Host) -> Check {
    let detail = match host.kvm {
        Some(true) => "opens; VMs use it where one has booted with it (arenite vm probe)",
        Some(false) => "there, but not usable by this user: VMs run without",
        None => "not there: VMs run without",
    };
    Check::ok("KVM", detail)
}

/// Tiers that are not available don't make a host worse: a create that needs one is refused.
fn tiers(host: &Host) -> Check {
    let detail = match &host.gvisor {
        Ok((path, version)) => format!("namespace, gvisor ({} {version}), machine", path.display()),
        Err(reason) => format!("namespace, machine; no gvisor: {reason}"),
    };
    Check::ok("tiers", detail)
}

/// Without them, only creates of volumes in buckets are refused.
fn buckets(host: &Host) -> Check {
    let detail = match &host.rclone {
        Ok((path, version)) => format!("volumes can be in buckets ({} {version})", path.display()),
        Err(reason) => format!("no volumes in buckets: {reason}"),
    };
    Check::ok("buckets", detail)
}

fn memory(host: &Host) -> Check {
    let found = format!("{} available", Size(host.memory_available).short());
    match host.memory_available >> 20 {
        0..256 => Check::missing("memory", found).fix("free some: creates are refused below the reserve"),
        256..1024 => Check::degraded("memory", format!("{found}; few sandboxes fit")),
        _ => Check::ok("memory", found),
    }
}

fn disk(host: &Host) -> Check {
    let found = format!("{} free for {}", Size(host.disk_available).short(), host.data_dir.display());
    match host.disk_available >> 30 {
        0..3 => Check::missing("disk", found)
            .fix("free some, or use another --data-dir: an image takes about 1 GiB, and creates leave a reserve free"),
        3..10 => Check::degraded("disk", format!("{found}; it fills soon")),
        _ => Check::ok("disk", found),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    /// A host without problems.
    fn good() -> Host {
        Host {
            kernel: (6, 18),
            release: "6.18.0".into(),
            root: true,
            capabilities: u64::MAX,
            max_user_namespaces: Some(100_000),
            file_systems: ["overlay", "btrfs"].map(str::to_owned).into(),
            cgroups: Ok(2),
            seccomp_actions: "kill_process errno allow".into(),
            security_modules: Some("capability,landlock".into()),
            loop_control: true,
            data_dir: "/var/lib/arenite".into(),
            data_on_btrfs: false,
            programs: ["nft", "ip", "mkfs.btrfs", "mmdebstrap"].into(),
            ip_forward: Some(true),
            kvm: None,
            gvisor: Err("runsc is not in PATH".into()),
            rclone: Err("rclone is not in PATH".into()),
            memory_available: 8 << 30,
            disk_available: 50 << 30,
        }
    }

    #[test]
    fn tiers_are_listed_with_the_reason_for_a_missing_one() {
        let mut host = good();
        assert_eq!(tiers(&host).detail, "namespace, machine; no gvisor: runsc is not in PATH");
        host.gvisor = Ok(("/opt/runsc".into(), "release-20260817.0".into()));
        assert_eq!(tiers(&host).detail, "namespace, gvisor (/opt/runsc release-20260817.0), machine");
    }

    fn not_ok(host: &Host) -> Vec<Check> {
        all(host).into_iter().filter(|c| c.status != Status::Ok).collect()
    }

    #[test]
    fn a_good_host_has_nothing_to_fix() {
        assert_eq!(not_ok(&good()), []);
    }

    #[test]
    fn each_lack_is_found_and_says_how_to_mend_it() {
        type Lack = fn(&mut Host);
        fn without(program: &str, host: &mut Host) {
            host.programs.retain(|p| *p != program);
        }
        let lacks: [(&str, Status, Lack); 13] = [
            ("kernel", Status::Missing, |h| h.kernel = (5, 18)),
            ("disk limits", Status::Degraded, |h| h.kernel = (6, 1)),
            ("root", Status::Missing, |h| h.root = false),
            ("root", Status::Missing, |h| h.capabilities &= !(1 << 21)),
            ("user namespaces", Status::Missing, |h| h.max_user_namespaces = Some(0)),
            ("overlayfs", Status::Missing, |h| h.file_systems.retain(|f| f != "overlay")),
            ("cgroups", Status::Missing, |h| h.cgroups = Err("none".into())),
            ("seccomp", Status::Missing, |h| h.seccomp_actions.clear()),
            ("Landlock", Status::Degraded, |h| h.security_modules = Some("capability".into())),
            ("disk limits", Status::Degraded, |h| without("mkfs.btrfs", h)),
            ("nft", Status::Missing, |h| without("nft", h)),
            ("mmdebstrap", Status::Degraded, |h| without("mmdebstrap", h)),
            ("disk", Status::Missing, |h| h.disk_available = 1 << 30),
        ];
        for (name, status, lack) in lacks {
            let mut host = good();
            lack(&mut host);
            let bad: Vec<Check> = not_ok(&host).into_iter().filter(|c| name != "kernel" || c.name == "kernel").collect();
            let found = matches!(&bad[..], [check] if check.name == name && check.status == status && check.fix.is_some());
            assert!(found, "{name}: {bad:?}");
        }
    }

    #[test]
    fn btrfs_under_the_data_directory_needs_no_tool_and_no_loop_device() {
        let mut host = good();
        host.data_on_btrfs = true;
        host.loop_control = false;
        host.programs.remove("mkfs.btrfs");
        assert_eq!(not_ok(&host), []);
    }
}
