//! Checks of a tar's entries, which layers and added archives share.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;

/// A sandbox has the ids below this one.
const IDS: u64 = 65_536;

/// The components of a path that stays below the top of `place`, such as "the layer".
pub(crate) fn components(path: &[u8], place: &str, max_depth: usize) -> io::Result<Vec<OsString>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let parts = parts.map(|part| match part {
        b".." => Err(io::Error::other(format!("its name leads out of {place}"))),
        _ if part.contains(&0) => Err(io::Error::other("its name has a NUL byte")),
        _ => Ok(OsString::from_vec(part.to_vec())),
    });
    let parts = parts.collect::<io::Result<Vec<_>>>()?;
    if parts.len() > max_depth {
        return Err(io::Error::other(format!("it is nested more than {max_depth} deep")));
    }
    Ok(parts)
}

/// A user's or a group's id, if sandboxes have it.
pub(crate) fn owner_id(id: u64) -> io::Result<u32> {
    let refused = || io::Error::other(format!("its owner has the id {id}, and a sandbox has the ids 0 to {}", IDS - 1));
    u32::try_from(id).ok().filter(|_| id < IDS).ok_or_else(refused)
}
