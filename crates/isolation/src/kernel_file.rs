//! Files that the kernel makes when they are read, such as those in `/proc` and of cgroups.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// What such a file gives at once.
const PAGE: usize = 4096;

/// Reads a file of up to 4096 bytes with a single `read`. `std::fs::read_to_string` grows its buffer from 32 bytes, since these
/// files have no size, and makes five or more calls.
pub fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = vec![0; PAGE];
    let length = File::open(path)?.read(&mut text)?;
    text.truncate(length);
    String::from_utf8(text).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_same_as_reading_to_the_end() {
        for path in ["/proc/self/cgroup", "/proc/sys/kernel/pid_max"] {
            let read = read(path).unwrap();
            assert!(!read.is_empty() && read == std::fs::read_to_string(path).unwrap());
        }
        let memory = read("/proc/meminfo").unwrap();
        assert_eq!(memory.lines().count(), std::fs::read_to_string("/proc/meminfo").unwrap().lines().count());
        assert_eq!(read("/proc/none").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
