//! Nested cgroups of one sandbox, on hosts with version 1 controllers, with version 2, and with both.
//!
//! ```text
//! <prefix>/<id>/         the sandbox's limits; frozen as a whole
//! <prefix>/<id>/guest    PID 1, which must always be able to answer and kill
//! <prefix>/<id>/work     everything else: a little less memory and fewer tasks, so that a hog loses its command and not the sandbox
//! ```
//!
//! Plain file reads and writes. Nothing here needs `unsafe`; it is in this crate because it is part of the kernel's isolation.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use arenite_model::{Resources, SandboxId};
use thiserror::Error;

use crate::kernel_file;

/// A cgroup file could not be read or written.
#[derive(Debug, Error)]
#[error("cgroup {what} at {path}: {source}", path = path.display())]
pub struct CgroupError {
    pub what: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    move |source| CgroupError { what, path: path.to_owned(), source }
}

/// The location of the host's controllers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// The one hierarchy of version 2, with memory, pids and cpu.
    V2 { root: PathBuf },
    /// A hierarchy for each controller; some may be the same one.
    V1 { memory: PathBuf, pids: PathBuf, cpu: PathBuf, cpuacct: PathBuf, freezer: PathBuf },
}

impl Layout {
    /// Reads the layout of this host.
    pub fn of_host() -> Result<Self, CgroupError> {
        let mounts = Path::new("/proc/self/mounts");
        Self::parse(&fs::read_to_string(mounts).map_err(failed("mounts", mounts))?)
    }

    fn parse(mounts: &str) -> Result<Self, CgroupError> {
        let lines = || mounts.lines().map(|l| l.split_ascii_whitespace().collect::<Vec<_>>()).filter(|f| f.len() >= 4);
        let v1 = |controller: &str| {
            lines().find(|f| f[2] == "cgroup" && f[3].split(',').any(|o| o == controller)).map(|f| PathBuf::from(f[1]))
        };
        if let (Some(memory), Some(pids), Some(cpu), Some(cpuacct), Some(freezer)) =
            (v1("memory"), v1("pids"), v1("cpu"), v1("cpuacct"), v1("freezer"))
        {
            return Ok(Self::V1 { memory, pids, cpu, cpuacct, freezer });
        }
        let root = lines().find(|f| f[2] == "cgroup2").map(|f| PathBuf::from(f[1]));
        let complete = |root: &PathBuf| {
            let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            ["memory", "pids", "cpu"].iter().all(|c| controllers.split_ascii_whitespace().any(|have| have == *c))
        };
        root.filter(complete).map(|root| Self::V2 { root }).ok_or_else(|| CgroupError {
            what: "controllers",
            path: "/sys/fs/cgroup".into(),
            source: io::Error::new(io::ErrorKind::NotFound, "memory, pids, cpu and freezer are not all there, in version 1 or 2"),
        })
    }

    /// 1 or 2.
    pub fn version(&self) -> u8 {
        match self {
            Self::V1 { .. } => 1,
            Self::V2 { .. } => 2,
        }
    }
}

/// Moves this process to the roots of the hierarchies in which sandboxes have no cgroups, and with it those that it forks. On
/// hosts with version 1, the end of the server's container would end all processes in any of the container's cgroups. With
/// version 2, a sandbox's cgroup is its only one.
pub(crate) fn leave_other_hierarchies() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    if let Ok(layout @ Layout::V1 { .. }) = Layout::parse(&mounts) {
        for root in other_hierarchies(&layout, &mounts) {
            // Best effort: one that is read-only here, or of another kind, keeps the process.
            let _ = fs::write(root.join("cgroup.procs"), "0");
        }
    }
}

/// The mounts of hierarchies that are not among the layout's.
fn other_hierarchies(layout: &Layout, mounts: &str) -> Vec<PathBuf> {
    let cgroups = Cgroups::existing(layout.clone(), "");
    let fields = mounts.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let all = fields.filter(|fields| matches!(fields.get(2), Some(&("cgroup" | "cgroup2"))));
    let roots = all.filter_map(|fields| fields.get(1).map(PathBuf::from));
    roots.filter(|root| !cgroups.roots().iter().any(|ours| ours.starts_with(root))).collect()
}

/// All cgroups of one installation: those below `prefix`.
#[derive(Debug, Clone)]
pub struct Cgroups {
    layout: Layout,
    prefix: String,
}

/// Descriptors of `cgroup.procs`: writing `0` to each moves the writer there, with any rights, since the host's root opened
/// them.
#[derive(Debug)]
pub struct Entrances {
    pub guest: Vec<File>,
    pub work: Vec<File>,
}

/// The usage counts of a sandbox's cgroups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub memory_bytes: u64,
    pub cpu_nanoseconds: u64,
    pub pids: u64,
    pub oom_kills: Option<u64>,
}

impl Cgroups {
    /// Prepares the installation's cgroups.
    pub fn open(layout: Layout, prefix: &str) -> Result<Self, CgroupError> {
        let cgroups = Self { layout, prefix: prefix.to_owned() };
        cgroups.prepare()?;
        Ok(cgroups)
    }

    /// The same for those that [`Cgroups::existing`] found or not.
    pub fn prepare(&self) -> Result<(), CgroupError> {
        if let Layout::V2 { root } = &self.layout {
            for dir in [root.clone(), root.join(&self.prefix)] {
                make_dir(&dir)?;
                write(&dir, "cgroup.subtree_control", "+memory +pids +cpu")?;
            }
        }
        Ok(())
    }

    /// Those of an installation that may be gone. Makes nothing ready.
    pub fn existing(layout: Layout, prefix: &str) -> Self {
        Self { layout, prefix: prefix.to_owned() }
    }

    /// The installation's host directories, by controller. On version 2 there is one.
    fn roots(&self) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = match &self.layout {
            Layout::V2 { root } => vec![root.clone()],
            Layout::V1 { memory, pids, cpu, cpuacct, freezer } => {
                vec![memory.clone(), pids.clone(), cpu.clone(), cpuacct.clone(), freezer.clone()]
            }
        };
        dirs.dedup();
        dirs.into_iter().map(|d| d.join(&self.prefix)).collect()
    }

    /// The host directories of one sandbox, by controller.
    fn dirs(&self, id: &SandboxId) -> Vec<PathBuf> {
        self.roots().into_iter().map(|d| d.join(id.as_str())).collect()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The host directory of one sandbox for a controller.
    pub(crate) fn dir(&self, controller: &str, id: &SandboxId) -> PathBuf {
        let root = match &self.layout {
            Layout::V2 { root } => root,
            Layout::V1 { memory, pids, cpu, cpuacct, freezer } => match controller {
                "memory" => memory,
                "pids" => pids,
                "cpu" => cpu,
                "cpuacct" => cpuacct,
                _ => freezer,
            },
        };
        root.join(&self.prefix).join(id.as_str())
    }

    /// Creates a sandbox's cgroups with their limits.
    pub fn create(&self, id: &SandboxId, limits: &Resources) -> Result<Entrances, CgroupError> {
        let mut entrances = Entrances { guest: Vec::new(), work: Vec::new() };
        for dir in self.dirs(id) {
            make_dir(&dir)?;
            if self.layout.version() == 2 {
                write(&dir, "cgroup.subtree_control", "+memory +pids +cpu")?;
            }
            for (name, list) in [("guest", &mut entrances.guest), ("work", &mut entrances.work)] {
                let dir = dir.join(name);
                make_dir(&dir)?;
                let procs = dir.join("cgroup.procs");
                list.push(OpenOptions::new().write(true).open(&procs).map_err(failed("entrance", &procs))?);
            }
        }
        self.set_limits(id, limits)?;
        Ok(entrances)
    }

    /// Sets the limits of a sandbox with existing cgroups.
    pub fn set_limits(&self, id: &SandboxId, limits: &Resources) -> Result<(), CgroupError> {
        let total = limits.memory_bytes.to_string();
        let work = limits.memory_bytes.saturating_sub(Resources::GUEST_RESERVE_BYTES).to_string();
        let work_pids = limits.pids.saturating_sub(Resources::GUEST_RESERVE_PIDS).to_string();
        // CPU time in each tenth of a second, in microseconds.
        let time = (u64::from(limits.cpu_millis) * 100).to_string();
        let (memory, pids, cpu) = (self.dir("memory", id), self.dir("pids", id), self.dir("cpu", id));
        // After idle time, as much again may be used once: a start is such a burst. Kernels before 5.14 lack it; the others
        // accept no limit below it.
        let burst = match self.layout {
            Layout::V2 { .. } => "cpu.max.burst",
            Layout::V1 { .. } => "cpu.cfs_burst_us",
        };
        write_if_there(&cpu, burst, "0")?;
        match self.layout {
            Layout::V2 { .. } => {
                write(&memory, "memory.max", &total)?;
                write(&memory.join("work"), "memory.max", &work)?;
                write_if_there(&memory, "memory.swap.max", "0")?;
                write(&cpu, "cpu.max", &format!("{time} 100000"))?;
                write(&cpu.join("guest"), "cpu.weight", "400")?;
                write_if_there(&memory, "cgroup.max.descendants", "2")?;
            }
            Layout::V1 { .. } => {
                // The limit of memory and swap together must not be below that of memory at any moment: lift, lower, lower.
                write_if_there(&memory, "memory.memsw.limit_in_bytes", "-1")?;
                write(&memory, "memory.limit_in_bytes", &total)?;
                write_if_there(&memory, "memory.memsw.limit_in_bytes", &total)?;
                write(&memory.join("work"), "memory.limit_in_bytes", &work)?;
                write_if_there(&memory, "memory.swappiness", "0")?;
                // Version 1 counts buffers of TCP and received UDP packets separately; version 2 counts them as memory. A
                // cgroup without a limit is not counted, so each gets one.
                let sockets = socket_buffers(limits.memory_bytes).to_string();
                for dir in [&memory, &memory.join("guest"), &memory.join("work")] {
                    write_if_there(dir, "memory.kmem.tcp.limit_in_bytes", &sockets)?;
                }
                write(&cpu, "cpu.cfs_period_us", "100000")?;
                write(&cpu, "cpu.cfs_quota_us", &time)?;
                write(&cpu.join("guest"), "cpu.shares", "4096")?;
            }
        }
        write_if_there(&cpu, burst, &time)?;
        write(&pids, "pids.max", &limits.pids.to_string())?;
        write(&pids.join("work"), "pids.max", &work_pids)
    }

    /// Freezes or thaws all processes of a sandbox. Returns before they have stopped: see [`Cgroups::is_frozen`].
    pub fn set_frozen(&self, id: &SandboxId, frozen: bool) -> Result<(), CgroupError> {
        let dir = self.dir("freezer", id);
        match self.layout {
            Layout::V2 { .. } => write(&dir, "cgroup.freeze", if frozen { "1" } else { "0" }),
            Layout::V1 { .. } => write(&dir, "freezer.state", if frozen { "FROZEN" } else { "THAWED" }),
        }
    }

    /// Whether all processes of a sandbox are frozen.
    pub fn is_frozen(&self, id: &SandboxId) -> Result<bool, CgroupError> {
        let dir = self.dir("freezer", id);
        match self.layout {
            Layout::V2 { .. } => Ok(read(&dir, "cgroup.events")?.lines().any(|l| l == "frozen 1")),
            Layout::V1 { .. } => Ok(read(&dir, "freezer.state")?.trim() == "FROZEN"),
        }
    }

    /// The current usage.
    pub fn counts(&self, id: &SandboxId) -> Result<Counts, CgroupError> {
        let (memory, pids) = (self.dir("memory", id), self.dir("pids", id));
        let number = |text: String| text.trim().parse().unwrap_or(0);
        let field = |text: String, name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok());
        Ok(match self.layout {
            Layout::V2 { .. } => Counts {
                memory_bytes: number(read(&memory, "memory.current")?),
                cpu_nanoseconds: field(read(&memory, "cpu.stat")?, "usage_usec ").unwrap_or(0) * 1000,
                pids: number(read(&pids, "pids.current")?),
                oom_kills: field(read(&memory, "memory.events")?, "oom_kill "),
            },
            Layout::V1 { .. } => Counts {
                memory_bytes: number(read(&memory, "memory.usage_in_bytes")?),
                cpu_nanoseconds: number(read(&self.dir("cpuacct", id), "cpuacct.usage")?),
                pids: number(read(&pids, "pids.current")?),
                oom_kills: field(read(&memory.join("work"), "memory.oom_control")?, "oom_kill "),
            },
        })
    }

    /// The processor time of all that is not the guest, in nanoseconds. None if it can't be read.
    pub fn workload_cpu_nanoseconds(&self, id: &SandboxId) -> Option<u64> {
        match self.layout {
            Layout::V2 { .. } => {
                let text = read(&self.dir("memory", id).join("work"), "cpu.stat").ok()?;
                let microseconds: u64 = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok())?;
                Some(microseconds * 1000)
            }
            Layout::V1 { .. } => read(&self.dir("cpuacct", id).join("work"), "cpuacct.usage").ok()?.trim().parse().ok(),
        }
    }

    /// How many more processes and threads a sandbox's workload may have.
    pub fn spare_pids(&self, id: &SandboxId) -> Result<u64, CgroupError> {
        let work = self.dir("pids", id).join("work");
        let number = |text: String| text.trim().parse().unwrap_or(u64::MAX);
        Ok(number(read(&work, "pids.max")?).saturating_sub(number(read(&work, "pids.current")?)))
    }

    /// How often the kernel killed a sandbox's guest for want of memory. None if it can't be read.
    pub fn guest_oom_kills(&self, id: &SandboxId) -> Option<u64> {
        let guest = self.dir("memory", id).join("guest");
        let text = match self.layout {
            Layout::V2 { .. } => read(&guest, "memory.events"),
            Layout::V1 { .. } => read(&guest, "memory.oom_control"),
        };
        text.ok()?.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }

    /// The host's pids of the processes in a sandbox's cgroups.
    pub fn processes(&self, id: &SandboxId) -> Vec<i32> {
        let dirs = self.dirs(id);
        let mut pids: Vec<i32> = dirs
            .iter()
            .flat_map(|d| [d.clone(), d.join("guest"), d.join("work")])
            .filter_map(|d| fs::read_to_string(d.join("cgroup.procs")).ok())
            .flat_map(|text| text.lines().filter_map(|l| l.parse().ok()).collect::<Vec<_>>())
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The same for a decision that depends on it: unreadable files are an error. A sandbox without cgroups has none.
    pub fn try_processes(&self, id: &SandboxId) -> Result<Vec<i32>, CgroupError> {
        let mut pids = Vec::new();
        for dir in self.dirs(id).iter().flat_map(|d| [d.clone(), d.join("guest"), d.join("work")]) {
            let path = dir.join("cgroup.procs");
            match fs::read_to_string(&path) {
                Ok(text) => pids.extend(text.lines().filter_map(|l| l.parse::<i32>().ok())),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(failed("cgroup.procs", &path)(error)),
            }
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// The sandboxes that have cgroups.
    pub fn list(&self) -> Result<Vec<SandboxId>, CgroupError> {
        let mut ids = Vec::new();
        for dir in self.roots() {
            let entries = match fs::read_dir(&dir) {
                Err(error) if is_gone(&error) => continue,
                other => other.map_err(failed("list", &dir))?,
            };
            for entry in entries {
                let entry = entry.map_err(failed("list", &dir))?;
                if entry.path().is_dir() {
                    ids.extend(entry.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok()));
                }
            }
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Removes a sandbox's cgroups, if they exist; they must have no processes.
    pub fn remove(&self, id: &SandboxId) -> Result<(), CgroupError> {
        for dir in self.dirs(id) {
            for dir in [dir.join("guest"), dir.join("work"), dir] {
                match fs::remove_dir(&dir) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(failed("removal", &dir)(error));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Removes the installation's own directories, if they have no sandbox.
    pub fn close(&self) {
        for dir in self.roots() {
            // Best effort: a directory that is still in use stays, and serves the next start.
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Maximum number of bytes in a sandbox's socket buffers, in addition to its memory.
fn socket_buffers(memory: u64) -> u64 {
    (memory / 8).max(16 << 20)
}

/// The file doesn't exist, or was removed between open and read.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

fn make_dir(dir: &Path) -> Result<(), CgroupError> {
    fs::create_dir_all(dir).map_err(failed("directory", dir))
}

fn write(dir: &Path, file: &'static str, value: &str) -> Result<(), CgroupError> {
    let path = dir.join(file);
    OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut f| io::Write::write_all(&mut f, value.as_bytes()))
        .map_err(failed(file, &path))
}

fn write_if_there(dir: &Path, file: &'static str, value: &str) -> Result<(), CgroupError> {
    if dir.join(file).exists() { write(dir, file, value) } else { Ok(()) }
}

fn read(dir: &Path, file: &'static str) -> Result<String, CgroupError> {
    let path = dir.join(file);
    kernel_file::read(&path).map_err(failed(file, &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> SandboxId {
        format!("s{number:0>11}").parse().unwrap()
    }

    #[test]
    fn layouts_are_told_apart() {
        let v1 = "cgroup /c/cpu cgroup rw,cpu 0 0\ncgroup /c/acct cgroup rw,cpuacct 0 0\ncgroup /c/m cgroup rw,memory 0 0\n\
                  cgroup /c/f cgroup rw,freezer 0 0\ncgroup /c/p cgroup rw,pids 0 0\ncgroup2 /c/unified cgroup2 rw 0 0\n";
        let layout = Layout::parse(v1).unwrap();
        assert_eq!(layout.version(), 1);
        let others = format!("cgroup /c/devices cgroup rw,devices 0 0\ntmpfs /c tmpfs rw 0 0\n{v1}");
        assert_eq!(other_hierarchies(&layout, &others), [Path::new("/c/devices"), Path::new("/c/unified")]);
        let dir = std::env::temp_dir().join(format!("arenite-cgroup-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let v2 = format!("cgroup2 {} cgroup2 rw 0 0\n", dir.display());
        fs::write(dir.join("cgroup.controllers"), "hugetlb\n").unwrap();
        assert!(Layout::parse(&v2).is_err(), "a hybrid host's version 2 has no controllers");
        fs::write(dir.join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        assert_eq!(Layout::parse(&v2).unwrap(), Layout::V2 { root: dir.clone() });
        fs::remove_dir_all(&dir).unwrap();
    }

    /// A fake: plain files in place of version 2's, for hosts with controllers of version 1. It shows what is written where,
    /// not that a kernel accepts it.
    #[test]
    fn version_2_gets_its_limits() {
        let root = tempfile::tempdir().unwrap();
        let sandbox = root.path().join("arenite").join(id(1).as_str());
        let files = [
            (
                "",
                "cgroup.subtree_control cgroup.freeze cgroup.events cgroup.procs memory.max memory.swap.max memory.current \
              memory.events cpu.max cpu.max.burst cpu.stat pids.max pids.current cgroup.max.descendants",
            ),
            ("guest", "cgroup.procs cpu.weight"),
            ("work", "cgroup.procs memory.max pids.max"),
        ];
        for (dir, names) in files {
            fs::create_dir_all(sandbox.join(dir)).unwrap();
            names.split_ascii_whitespace().for_each(|name| fs::write(sandbox.join(dir).join(name), "").unwrap());
        }
        for dir in [root.path(), &root.path().join("arenite")] {
            fs::write(dir.join("cgroup.subtree_control"), "").unwrap();
        }
        let content = |name: &str| fs::read_to_string(sandbox.join(name)).unwrap();

        let cgroups = Cgroups::open(Layout::V2 { root: root.path().to_owned() }, "arenite").unwrap();
        let limits = Resources { memory_bytes: 256 << 20, cpu_millis: 1500, pids: 200, ..Resources::default() };
        let entrances = cgroups.create(&id(1), &limits).unwrap();
        assert_eq!((entrances.guest.len(), entrances.work.len()), (1, 1));
        assert_eq!(content("cgroup.subtree_control"), "+memory +pids +cpu");
        assert_eq!((content("memory.max"), content("work/memory.max")), ((256 << 20).to_string(), (208 << 20).to_string()));
        assert_eq!((content("memory.swap.max"), content("cpu.max")), ("0".to_owned(), "150000 100000".to_owned()));
        assert_eq!(content("cpu.max.burst"), "150000");
        assert_eq!((content("pids.max"), content("work/pids.max")), ("200".to_owned(), "168".to_owned()));
        assert_eq!((content("guest/cpu.weight"), content("cgroup.max.descendants")), ("400".to_owned(), "2".to_owned()));

        cgroups.set_frozen(&id(1), true).unwrap();
        assert_eq!(content("cgroup.freeze"), "1");
        assert!(!cgroups.is_frozen(&id(1)).unwrap());
        fs::write(sandbox.join("cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        assert!(cgroups.is_frozen(&id(1)).unwrap());
        for (name, text) in [
            ("memory.current", "4096\n"),
            ("cpu.stat", "usage_usec 7\nuser_usec 3\n"),
            ("pids.current", "3\n"),
            ("memory.events", "low 0\noom 2\noom_kill 1\n"),
        ] {
            fs::write(sandbox.join(name), text).unwrap();
        }
        let counts = Counts { memory_bytes: 4096, cpu_nanoseconds: 7000, pids: 3, oom_kills: Some(1) };
        assert_eq!(cgroups.counts(&id(1)).unwrap(), counts);
    }

    /// The real controllers of this host: needs root.
    #[test]
    fn limits_freezing_and_removal_work_on_this_host() {
        let cgroups = Cgroups::open(Layout::of_host().unwrap(), &format!("arenite-test-{}", std::process::id())).unwrap();
        let entrances = cgroups.create(&id(1), &Resources::default()).unwrap();
        assert!(!entrances.guest.is_empty() && entrances.guest.len() == entrances.work.len());
        // A limit below the accumulated burst is accepted too.
        cgroups
            .set_limits(&id(1), &Resources { memory_bytes: 200 << 20, pids: 100, cpu_millis: 500, ..Resources::default() })
            .unwrap();
        assert_eq!(cgroups.list().unwrap(), [id(1)]);
        assert!(cgroups.try_processes(&id(1)).unwrap().is_empty() && cgroups.try_processes(&id(2)).unwrap().is_empty());
        assert_eq!(cgroups.counts(&id(1)).unwrap().pids, 0);
        cgroups.set_frozen(&id(1), true).unwrap();
        assert!(cgroups.is_frozen(&id(1)).unwrap());
        cgroups.set_frozen(&id(1), false).unwrap();
        drop(entrances);
        cgroups.remove(&id(1)).unwrap();
        cgroups.remove(&id(1)).unwrap();
        assert!(cgroups.list().unwrap().is_empty());
        cgroups.close();
    }
}
