//! Files in rclone's cache that the bucket does not have yet.
//!
//! Rclone writes a description beside each cached file, which says whether the file has to be uploaded. Without a process that
//! can be asked, these are read.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// Rclone's directories below `--cache-dir`.
const CACHE: &str = "cache";
const DESCRIPTIONS: &str = "vfsMeta";
/// The most files that are looked at; a cache with more counts as not uploaded.
const MOST_FILES: usize = 100_000;
/// The deepest directories that are looked at.
const MOST_LEVELS: usize = 256;

/// The path for `--cache-dir`, below the volume's directory.
pub(super) fn directory() -> &'static str {
    CACHE
}

/// Whether anything waits for its upload.
pub(super) fn is_any(volume: &Path) -> bool {
    count_to(volume, 1) > 0
}

/// The number of files that wait for their upload.
pub(super) fn count(volume: &Path) -> u64 {
    count_to(volume, MOST_FILES) as u64
}

fn count_to(volume: &Path, most: usize) -> usize {
    let (mut found, mut seen) = (0, 0);
    let mut levels = vec![fs::read_dir(volume.join(CACHE).join(DESCRIPTIONS))];
    while let Some(level) = levels.last_mut() {
        let next = level.as_mut().ok().and_then(|entries| entries.next());
        let Some(Ok(entry)) = next else {
            levels.pop();
            continue;
        };
        seen += 1;
        if seen > MOST_FILES {
            return most;
        }
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && levels.len() < MOST_LEVELS {
            levels.push(fs::read_dir(entry.path()));
        } else if kind.is_file() && is_unsent(entry.path().as_os_str()) {
            found += 1;
            if found >= most {
                return found;
            }
        }
    }
    found
}

fn is_unsent(description: &OsStr) -> bool {
    #[derive(serde::Deserialize)]
    struct Description {
        #[serde(rename = "Dirty")]
        is_dirty: bool,
    }
    let text = fs::read(description).unwrap_or_default();
    serde_json::from_slice::<Description>(&text).is_ok_and(|description| description.is_dirty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_files_are_unsent() {
        let top = tempfile::tempdir().unwrap();
        assert!(!is_any(top.path()));
        let deep = top.path().join("cache/vfsMeta/bucket/agents/v1/deep");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("sent"), r#"{"Size":1,"Rs":[],"Dirty":false}"#).unwrap();
        fs::write(deep.join("cut"), "").unwrap();
        assert!(!is_any(top.path()));
        fs::write(deep.join("one"), r#"{"Size":1,"Dirty":true}"#).unwrap();
        fs::write(deep.parent().unwrap().join("two"), "{\n\t\"Dirty\": true\n}").unwrap();
        assert!(is_any(top.path()) && count(top.path()) == 2);
    }
}
