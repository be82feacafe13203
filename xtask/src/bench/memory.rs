//! The host memory of sandboxes.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::http::Connection;
use crate::failure::{Attempt, Failure};

/// Number of host ids of one sandbox.
const IDS: u32 = 65_536;

/// The PSS of all processes with an owner in a sandbox's range of ids, in bytes. Pages that sandboxes share (mostly the guest's
/// code) count in parts, which is why it is measured over many at once.
pub(super) fn of_owners(first_id: u32) -> Result<u64, Failure> {
    of_programs(first_id, |_| true)
}

/// The same for processes that run a program with such a name.
pub(super) fn of_programs(first_id: u32, counts: impl Fn(&str) -> bool) -> Result<u64, Failure> {
    let mut total = 0;
    for entry in fs::read_dir("/proc").attempt(|| "could not read /proc".into())? {
        let Ok(entry) = entry else { continue };
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Processes end during the scan.
        let Ok(owner) = fs::metadata(entry.path()).map(|data| data.uid()) else { continue };
        let name = || fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if (first_id..first_id.saturating_add(IDS)).contains(&owner) && counts(name().trim_end()) {
            total += of_process(process).unwrap_or(0);
        }
    }
    if total == 0 {
        return Err(Failure::new(format!("no process on this host has an owner from {first_id} on")));
    }
    Ok(total)
}

/// The PSS of one process, in bytes; none if it has ended.
pub(super) fn of_process(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    let pss = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    pss.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// The first of a sandbox's host ids.
pub(super) fn first_id(api: &mut Connection, sandbox: &str) -> Result<u32, Failure> {
    let map = api.bash(sandbox, "head -1 /proc/self/uid_map")?;
    let first = map.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    first.ok_or_else(|| Failure::new(format!("the uid_map of {sandbox} reads {map:?}")))
}
