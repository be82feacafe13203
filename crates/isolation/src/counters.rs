//! Counters of a sandbox's own cgroups, readable inside.
//!
//! A sandbox has no cgroup file system: a directory of it would lead to those of others. It gets the single files that count
//! its usage, opened for reading by the host, and keeps them for its life.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arenite_model::SandboxId;

use crate::cgroup::{Cgroups, Layout};

/// Maximum size of such a file, in bytes.
const MAX_BYTES: usize = 16 << 10;

/// One of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    MemoryUsed,
    MemoryLimit,
    MemoryStat,
    MemoryEvents,
    CpuStat,
    /// Only on version 1, where `CpuStat` lacks it.
    CpuUsage,
}

use Counter::{CpuStat, CpuUsage, MemoryEvents, MemoryLimit, MemoryStat, MemoryUsed};

const ALL: [Counter; 6] = [MemoryUsed, MemoryLimit, MemoryStat, MemoryEvents, CpuStat, CpuUsage];

impl Counter {
    /// The name of its descriptor among those that a first process gets.
    pub fn name(self) -> &'static str {
        match self {
            MemoryUsed => "memory used",
            MemoryLimit => "memory limit",
            MemoryStat => "memory stat",
            MemoryEvents => "memory events",
            CpuStat => "cpu stat",
            CpuUsage => "cpu usage",
        }
    }

    /// Its controller on version 1, and its path in the sandbox's directory.
    fn path(self, version: u8) -> Option<(&'static str, &'static str)> {
        Some(match (version, self) {
            (2, MemoryUsed) => ("memory", "memory.current"),
            (2, MemoryLimit) => ("memory", "memory.max"),
            (2, MemoryEvents) => ("memory", "memory.events"),
            (2, CpuUsage) => return None,
            (_, MemoryUsed) => ("memory", "memory.usage_in_bytes"),
            (_, MemoryLimit) => ("memory", "memory.limit_in_bytes"),
            (_, MemoryStat) => ("memory", "memory.stat"),
            // Kills are counted in the cgroup of the killed processes.
            (_, MemoryEvents) => ("memory", "work/memory.oom_control"),
            (_, CpuStat) => ("cpu", "cpu.stat"),
            (_, CpuUsage) => ("cpuacct", "cpuacct.usage"),
        })
    }
}

impl Cgroups {
    /// Opens the files of a sandbox, for its guest to inherit. Files that this kernel lacks are left out.
    pub fn counters(&self, id: &SandboxId) -> Vec<(Counter, File)> {
        let version = match self.layout() {
            Layout::V1 { .. } => 1,
            Layout::V2 { .. } => 2,
        };
        let paths = ALL.into_iter().filter_map(|counter| {
            let (controller, file) = counter.path(version)?;
            Some((counter, self.dir(controller, id).join(file)))
        });
        paths.filter_map(|(counter, path): (_, PathBuf)| Some((counter, File::open(path).ok()?))).collect()
    }
}

/// The values of the files. None: this kernel does not report it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    pub memory_bytes: u64,
    /// None: no limit.
    pub memory_limit_bytes: Option<u64>,
    pub anon_bytes: Option<u64>,
    pub file_bytes: Option<u64>,
    pub shmem_bytes: Option<u64>,
    pub slab_bytes: Option<u64>,
    /// Number of times that memory ran out.
    pub oom: Option<u64>,
    /// Number of processes killed for that.
    pub oom_kill: Option<u64>,
    pub cpu_microseconds: u64,
    pub cpu_periods: Option<u64>,
    pub cpu_throttled_periods: Option<u64>,
    pub cpu_throttled_microseconds: Option<u64>,
}

/// The files of this process's sandbox. A copy has the same ones.
#[derive(Debug, Clone, Default)]
pub struct Counters(Arc<Mutex<Vec<(Counter, File)>>>);

impl Counters {
    /// Takes the files from a first process's descriptors.
    pub fn take(named: &mut BTreeMap<String, OwnedFd>) -> Self {
        let counters = Self::default();
        counters.replace(named);
        counters
    }

    fn files(&self) -> MutexGuard<'_, Vec<(Counter, File)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the files, and takes others from these descriptors.
    pub fn replace(&self, named: &mut BTreeMap<String, OwnedFd>) {
        let files = ALL.iter().filter_map(|counter| Some((*counter, File::from(named.remove(counter.name())?))));
        *self.files() = files.collect();
    }

    fn text(&self, wanted: Counter) -> Option<String> {
        let files = self.files();
        let (_, file) = files.iter().find(|(counter, _)| *counter == wanted)?;
        let mut bytes = vec![0; MAX_BYTES];
        // From the start of the file: each read queries the kernel.
        let read = file.read_at(&mut bytes, 0).ok()?;
        bytes.truncate(read);
        String::from_utf8(bytes).ok()
    }

    /// None where nothing was inherited.
    pub fn read(&self) -> Option<Figures> {
        let has_files = !self.files().is_empty();
        has_files.then(|| Figures::parse(|counter| self.text(counter)))
    }
}

impl Figures {
    fn parse(text: impl Fn(Counter) -> Option<String>) -> Self {
        let number = |counter| text(counter).and_then(|t| t.trim().parse::<u64>().ok());
        let (memory, cpu, events) = (text(MemoryStat), text(CpuStat), text(MemoryEvents));
        let field = |text: &Option<String>, names: &[&str]| {
            let text = text.as_deref()?;
            names.iter().find_map(|name| {
                let mut values = text.lines().filter_map(|line| line.split_once(' '));
                values.find(|(key, _)| key == name).and_then(|(_, value)| value.trim().parse::<u64>().ok())
            })
        };
        // Version 1 reports "none" as the largest possible number of pages.
        const NO_LIMIT: u64 = 1 << 60;
        Self {
            memory_bytes: number(MemoryUsed).unwrap_or(0),
            memory_limit_bytes: number(MemoryLimit).filter(|limit| *limit < NO_LIMIT),
            anon_bytes: field(&memory, &["anon", "total_rss"]),
            file_bytes: field(&memory, &["file", "total_cache"]),
            shmem_bytes: field(&memory, &["shmem", "total_shmem"]),
            slab_bytes: field(&memory, &["slab"]),
            oom: field(&events, &["oom"]),
            oom_kill: field(&events, &["oom_kill"]),
            cpu_microseconds: field(&cpu, &["usage_usec"]).or(number(CpuUsage).map(|ns| ns / 1000)).unwrap_or(0),
            cpu_periods: field(&cpu, &["nr_periods"]),
            cpu_throttled_periods: field(&cpu, &["nr_throttled"]),
            cpu_throttled_microseconds: field(&cpu, &["throttled_usec"]).or(field(&cpu, &["throttled_time"]).map(|ns| ns / 1000)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        let two = Figures::parse(|counter| {
            Some(
                match counter {
                    MemoryUsed => "4096\n",
                    MemoryLimit => "max\n",
                    MemoryStat => "anon 1\nfile 2\nkernel 9\nshmem 3\nslab 4\n",
                    MemoryEvents => "low 0\noom 5\noom_kill 6\n",
                    CpuStat => "usage_usec 7\nnr_periods 8\nnr_throttled 9\nthrottled_usec 10\n",
                    CpuUsage => return None,
                }
                .to_owned(),
            )
        });
        assert_eq!((two.memory_bytes, two.memory_limit_bytes, two.anon_bytes, two.slab_bytes), (4096, None, Some(1), Some(4)));
        assert_eq!(
            (two.oom, two.oom_kill, two.cpu_microseconds, two.cpu_throttled_microseconds),
            (Some(5), Some(6), 7, Some(10))
        );
        let one = Figures::parse(|counter| {
            Some(
                match counter {
                    MemoryUsed => "8192\n",
                    MemoryLimit => "2147483648\n",
                    MemoryStat => "cache 1\nrss 2\ntotal_cache 3\ntotal_rss 4\ntotal_shmem 5\n",
                    MemoryEvents => "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
                    CpuStat => "nr_periods 1\nnr_throttled 2\nthrottled_time 3000\n",
                    CpuUsage => "5000000\n",
                }
                .to_owned(),
            )
        });
        assert_eq!(
            (one.memory_limit_bytes, one.anon_bytes, one.file_bytes, one.slab_bytes),
            (Some(2 << 30), Some(4), Some(3), None)
        );
        assert_eq!((one.oom, one.oom_kill, one.cpu_microseconds, one.cpu_throttled_microseconds), (None, Some(1), 5000, Some(3)));
        assert_eq!(Counters::default().read(), None);
    }

    /// The real controllers of this host: needs root.
    #[test]
    fn a_sandboxs_files_tell_of_it() {
        let name = format!("arenite-counters-{}", std::process::id());
        let cgroups = Cgroups::open(Layout::of_host().unwrap(), &name).unwrap();
        let id = SandboxId::random();
        drop(cgroups.create(&id, &arenite_model::Resources::default()).unwrap());
        let counters = Counters(Arc::new(Mutex::new(cgroups.counters(&id))));
        let figures = counters.read().unwrap();
        assert_eq!(figures.memory_limit_bytes, Some(arenite_model::Resources::default().memory_bytes));
        assert!(figures.oom_kill.is_some() && figures.anon_bytes.is_some() && figures.cpu_periods.is_some(), "{figures:?}");
        cgroups.remove(&id).unwrap();
        cgroups.close();
    }
}
