//! The hash of a disk's content.
//!
//! It covers the layers of the image, and each path that differs from them: its kind, mode, owner, extended attributes, and content
//! or link target. So two sandboxes of an image have the same hash if their files are the same, however they became so. Times
//! are not part of it; a second hash, for this sandbox alone, has them too.
//!
//! The cost follows the number of files that were written since the image, and the size of those that changed since the last
//! hash. The contents are hostile: see [`super::compare`].

use std::collections::HashMap;
use std::ffi::CStr;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Stat};

use super::compare::{BLOCK, Differences, Entry, Stack, kind_of, walk};
use crate::PathChange;

/// After this time, a disk has no hash.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// The most paths that differ from the image; with more, a disk has no hash.
const MAX_PATHS: usize = 1_000_000;
/// Content in bytes that one hash reads; with more, a disk has no hash.
const MAX_READ: u64 = 4 << 30;
/// Digests that are kept for the next hash of a disk.
const MAX_KEPT: usize = 200_000;
/// Older kernels count times in ticks of up to 10 ms. A file that changed so recently may change again within the same tick.
const RECENT: Duration = Duration::from_millis(50);

type Digest = [u8; 32];

/// Digests of files, by device, inode number, and time of the last change. The device is 0 for the writable layer: a copy of a
/// layer keeps inode numbers and these times, which nothing in a sandbox can set.
#[derive(Default)]
pub(super) struct Digests(HashMap<(u64, u64), ((i64, u64), Digest)>);

/// The hashes of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fingerprint {
    /// Of the content; none: the disk is beyond the limits.
    pub(super) content: Option<String>,
    /// Also of the times.
    pub(super) exact: Option<Digest>,
}

/// Hashes a disk: its layer over those of its image, the lowest first.
pub(super) fn fingerprint(layer: PathBuf, image: &[PathBuf], digests: &mut Digests) -> io::Result<Fingerprint> {
    let below: Vec<PathBuf> = image.iter().rev().cloned().collect();
    let above: Vec<PathBuf> = std::iter::once(layer).chain(below.iter().cloned()).collect();
    let (below, above) = (Stack::open(&below)?, Stack::open(&above)?);
    if digests.0.len() > MAX_KEPT {
        digests.0.clear();
    }
    let mut hashing = Hashing {
        content: blake3::Hasher::new(),
        exact: blake3::Hasher::new(),
        device: above.top_device(),
        digests,
        until: Instant::now() + TIME_LIMIT,
        now: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        paths: 0,
        read: 0,
        is_cut: false,
    };
    for layer in image {
        // Layers are named by their content.
        hashing.content.update(layer.file_name().unwrap_or_default().as_encoded_bytes()).update(b"\0");
    }
    walk(&mut hashing, &below, &above)?;
    if hashing.is_cut {
        return Ok(Fingerprint { content: None, exact: None });
    }
    let content = hashing.content.finalize();
    hashing.exact.update(content.as_bytes());
    Ok(Fingerprint { content: Some(content.to_hex().to_string()), exact: Some(*hashing.exact.finalize().as_bytes()) })
}

struct Hashing<'a> {
    content: blake3::Hasher,
    exact: blake3::Hasher,
    /// That of the writable layer.
    device: Option<u64>,
    digests: &'a mut Digests,
    until: Instant,
    now: Duration,
    paths: usize,
    read: u64,
    is_cut: bool,
}

impl Hashing<'_> {
    /// The digest of a file's content or link target, and its extended attributes.
    fn digest(&mut self, entry: &Entry<'_>, name: &CStr) -> io::Result<Digest> {
        let stat = &entry.stat;
        let device = if Some(stat.st_dev) == self.device { 0 } else { stat.st_dev };
        let key = (device, stat.st_ino);
        let changed = changed_at(stat);
        if let Some((at, digest)) = self.digests.0.get(&key)
            && *at == changed
        {
            return Ok(*digest);
        }
        let mut hasher = blake3::Hasher::new();
        match kind_of(stat) {
            FileType::RegularFile => {
                let mut file = entry.open(name)?;
                let mut block = vec![0u8; BLOCK];
                loop {
                    let read = file.read(&mut block)?;
                    if read == 0 {
                        break;
                    }
                    hasher.update(&block[..read]);
                    self.read += read as u64;
                    if self.is_over() {
                        return Ok(Digest::default());
                    }
                }
            }
            FileType::Symlink => {
                hasher.update(entry.read_link(name)?.to_bytes());
            }
            _ => {}
        }
        for (name, value) in entry.xattrs(name)? {
            for part in [name, value] {
                hasher.update(&(part.len() as u64).to_le_bytes()).update(&part);
            }
        }
        let digest = *hasher.finalize().as_bytes();
        let since = self.now.saturating_sub(Duration::new(u64::try_from(changed.0).unwrap_or_default(), changed.1 as u32));
        if since > RECENT && self.digests.0.len() < MAX_KEPT {
            self.digests.0.insert(key, (changed, digest));
        }
        Ok(digest)
    }
}

fn changed_at(stat: &Stat) -> (i64, u64) {
    (stat.st_ctime, stat.st_ctime_nsec)
}

impl Differences for Hashing<'_> {
    fn is_over(&mut self) -> bool {
        self.is_cut |= self.paths > MAX_PATHS || self.read > MAX_READ || Instant::now() > self.until;
        self.is_cut
    }

    fn cut(&mut self) {
        self.is_cut = true;
    }

    fn visit(&mut self, path: &[u8], after: &Entry<'_>) {
        let stat = &after.stat;
        self.exact.update(path).update(b"\0");
        self.exact.update(&stat.st_mtime.to_le_bytes()).update(&stat.st_mtime_nsec.to_le_bytes());
    }

    fn note(&mut self, path: &[u8], change: PathChange, entry: &Entry<'_>, name: &CStr) -> io::Result<()> {
        self.paths += 1;
        // No path has a NUL.
        self.content.update(path).update(b"\0");
        if change == PathChange::Removed {
            self.content.update(b"-");
            return Ok(());
        }
        let digest = self.digest(entry, name)?;
        let stat = &entry.stat;
        self.content.update(b"+");
        for number in [stat.st_mode, stat.st_uid, stat.st_gid] {
            self.content.update(&number.to_le_bytes());
        }
        self.content.update(&stat.st_rdev.to_le_bytes()).update(&digest);
        Ok(())
    }

    fn is_same_content(&mut self, before: &Entry<'_>, after: &Entry<'_>, name: &CStr) -> io::Result<bool> {
        Ok(self.digest(before, name)? == self.digest(after, name)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::*;

    fn hash(layer: &Path, image: &Path) -> Fingerprint {
        fingerprint(layer.to_owned(), &[image.to_owned()], &mut Digests::default()).unwrap()
    }

    #[test]
    fn content_counts_and_its_way_does_not() {
        let top = tempfile::tempdir().unwrap();
        let [image, a, b] = ["image", "a", "b"].map(|name| top.path().join(name));
        for dir in [&image, &a, &b] {
            fs::create_dir_all(dir.join("d")).unwrap();
        }
        fs::write(image.join("d/kept"), "1").unwrap();
        fs::write(a.join("d/new"), "x").unwrap();
        symlink("new", a.join("d/link")).unwrap();
        // Copied up, and not changed.
        fs::write(b.join("d/kept"), "1").unwrap();
        symlink("new", b.join("d/link")).unwrap();
        fs::write(b.join("d/new"), "x").unwrap();
        let (first, second) = (hash(&a, &image), hash(&b, &image));
        assert!(first.content.is_some());
        assert_eq!(first.content, second.content);
        assert_ne!(first.exact, second.exact);
        assert_eq!(first, hash(&a, &image));

        let changes: [&dyn Fn(); 5] = [
            &|| fs::write(b.join("d/new"), "y").unwrap(),
            &|| fs::set_permissions(b.join("d/new"), fs::Permissions::from_mode(0o600)).unwrap(),
            &|| fs::remove_file(b.join("d/link")).unwrap(),
            &|| symlink("old", b.join("d/link")).unwrap(),
            &|| fs::write(b.join("d/kept"), "2").unwrap(),
        ];
        let mut seen = vec![second.content];
        let mut digests = Digests::default();
        for change in changes {
            change();
            let after = fingerprint(b.clone(), std::slice::from_ref(&image), &mut digests).unwrap().content;
            assert!(!seen.contains(&after));
            seen.push(after);
        }
    }
}
