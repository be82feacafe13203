//! Release of memory that an idle process does not need.

use std::io;

use rustix::mm::Advice;

/// Returns memory of an idle process to the kernel: its free heap, and the pages of its program, which stay in the page cache
/// once for all processes that run it. The next use of 64 KiB of the program costs a fault.
///
/// # Errors
/// `/proc/self/smaps` can't be read, or the kernel refuses.
pub fn give_back() -> io::Result<()> {
    for (start, length) in untouched(&std::fs::read_to_string("/proc/self/smaps")?) {
        // SAFETY: no page of this mapping was ever written to, and none can be: an access brings the file's bytes back.
        unsafe { rustix::mm::madvise(std::ptr::with_exposed_provenance_mut(start), length, Advice::LinuxDontNeed) }?;
    }
    // SAFETY: it only touches what the allocator holds, under the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
    Ok(())
}

/// The addresses and lengths of file mappings that can't be written and never were. Pages written while the program was loaded
/// are read-only now, too, but are no longer the file's.
fn untouched(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut candidate = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("Anonymous:"), Some(kilobytes)) => found.extend(candidate.take().filter(|_| kilobytes == "0")),
            (Some(field), _) if field.ends_with(':') => {}
            (Some(range), Some(rights)) => {
                let is_file = words.nth(2).is_some_and(|inode| inode != "0");
                candidate = span(range).filter(|_| is_file && !rights.contains('w'));
            }
            _ => {}
        }
    }
    found
}

fn span(range: &str) -> Option<(usize, usize)> {
    let (start, end) = range.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    Some((start, usize::from_str_radix(end, 16).ok()?.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_the_files_own_is_given_back() {
        let smaps = "\
00400000-00401000 r--p 00000000 fe:00 12 /bin/program
Rss:                   4 kB
Anonymous:             0 kB
00401000-00403000 r-xp 00001000 fe:00 12 /bin/program
Anonymous:             0 kB
00403000-00404000 r--p 00003000 fe:00 12 /bin/program
Anonymous:             4 kB
00404000-00405000 rw-p 00004000 fe:00 12 /bin/program
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 00:00 0 [vvar]
Anonymous:             0 kB
";
        assert_eq!(untouched(smaps), [(0x40_0000, 0x1000), (0x40_1000, 0x2000)]);
    }

    #[test]
    fn a_process_goes_on_without_its_pages() {
        let kept: Vec<u64> = (0..100_000).collect();
        give_back().unwrap();
        assert_eq!(kept.iter().sum::<u64>(), 4_999_950_000);
    }
}
