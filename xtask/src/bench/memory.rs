//! What a sandbox costs the host in memory.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::failure::{Attempt, Failure};

/// Host ids of one sandbox.
const IDS: u32 = 65_536;

/// The PSS of all processes whose owner is in a sandbox's range of ids, in bytes. Pages that sandboxes share (the guest's
/// code, above all) count in parts, which is why it is measured over many at once.
pub(super) fn proportional_set_size(first_id: u32) -> Result<u64, Failure> {
    let mut total = 0;
    for entry in fs::read_dir("/proc").attempt(|| "could not read /proc".into())? {
        let Ok(entry) = entry else { continue };
        let is_process = entry.file_name().to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()));
        // Processes end while one looks at them.
        let Some(owner) = fs::metadata(entry.path()).ok().filter(|_| is_process).map(|data| data.uid()) else { continue };
        if !(first_id..first_id.saturating_add(IDS)).contains(&owner) {
            continue;
        }
        let Ok(text) = fs::read_to_string(entry.path().join("smaps_rollup")) else { continue };
        let pss = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kilobytes = pss.and_then(|rest| rest.split_whitespace().next()).and_then(|word| word.parse::<u64>().ok());
        total += kilobytes.unwrap_or(0) * 1024;
    }
    if total == 0 {
        return Err(Failure::new(format!("no process on this host has an owner from {first_id} on")));
    }
    Ok(total)
}
