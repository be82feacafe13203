//! The server's file descriptors, and how many of them it keeps free.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The most that a create holds: layers, cgroup descriptors, its network, sockets. Afterwards a sandbox holds one, and a pooled one two.
const OF_A_CREATE: u64 = 48;

/// The number of descriptors that this process has open, and its limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DescriptorCount {
    pub open: u64,
    pub limit: u64,
}

impl DescriptorCount {
    /// None if the kernel doesn't say. On Linux 6.2 and later, it costs no descriptor and takes about a microsecond.
    pub fn now() -> Option<Self> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let open = match fs::metadata("/proc/self/fd").ok()?.len() {
            // Older kernels don't count; the listing itself holds one.
            0 => (fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1),
            open => open,
        };
        Some(Self { open, limit })
    }

    pub fn available(self) -> u64 {
        self.limit.saturating_sub(self.open)
    }

    /// The number that stays free for health checks and deletes.
    pub fn reserve(self) -> u64 {
        (self.limit / 16).clamp(8, 64)
    }

    /// The descriptors that have to be free for this number of concurrent creates: calls to existing sandboxes need some too.
    pub fn needed_for(self, creates: u64) -> u64 {
        2 * self.reserve() + OF_A_CREATE.saturating_mul(creates)
    }
}

/// Raises this process's limit of descriptors to the hard limit.
pub fn raise_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(());
    }
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?)
}

/// Whether the error means that this process, or the host, has no descriptor left.
pub fn ran_out(error: &io::Error) -> bool {
    let of_kernel = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    error.raw_os_error().is_some_and(|number| of_kernel.iter().any(|errno| errno.raw_os_error() == number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_descriptors_are_counted() {
        let before = DescriptorCount::now().unwrap();
        // Other tests open and close some in the meantime.
        let files: Vec<fs::File> = (0..200).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let after = DescriptorCount::now().unwrap();
        assert!(after.open >= before.open + 150 && after.available() < before.available(), "{before:?} {after:?}");
        drop(files);
    }

    #[test]
    fn the_reserve_grows_with_the_limit_within_bounds() {
        let reserve = [100, 256, 100_000].map(|limit| DescriptorCount { open: 0, limit }.reserve());
        assert_eq!(reserve, [8, 16, 64]);
        assert_eq!(DescriptorCount { open: 0, limit: 256 }.needed_for(2), 128);
    }

    #[test]
    fn running_out_is_told_from_other_errors() {
        assert!(ran_out(&rustix::io::Errno::MFILE.into()) && !ran_out(&io::ErrorKind::NotFound.into()));
    }
}
