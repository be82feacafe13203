//! What the fuzz targets share: a folder with a decoy beside it, and tars that a fuzzer can get right.

pub mod script;
pub mod seeds;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A folder for one target, beside a folder that nothing may change.
pub struct Scratch {
    dir: PathBuf,
    decoy: PathBuf,
    before: Vec<Attributes>,
}

/// Device, inode, mode, links, owner, group, size, and the time of the last change, which covers all of them.
type Attributes = (PathBuf, [i64; 9]);

impl Scratch {
    /// In memory: inputs are small, and a disk would be the slowest part.
    pub fn new(target: &str) -> Self {
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let top = place.join(format!("arenite-fuzz-{target}-{}", std::process::id()));
        let (dir, decoy) = (top.join("work"), top.join("decoy"));
        for dir in [&dir, &decoy] {
            fs::create_dir_all(dir).expect("the folder is writable");
        }
        fs::write(decoy.join("canary"), "alive").expect("the folder is writable");
        std::os::unix::fs::symlink("canary", decoy.join("link")).expect("the folder is writable");
        let mut scratch = Self { dir, decoy, before: Vec::new() };
        scratch.before = scratch.look();
        scratch
    }

    /// Where the target writes.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What hostile inputs aim at.
    pub fn decoy(&self) -> &Path {
        &self.decoy
    }

    /// Panics if something outside the target's folder changed.
    pub fn check(&self) {
        let now = self.look();
        assert!(now == self.before, "the decoy changed: {:?} is now {now:?}", self.before);
        let canary = fs::read(self.decoy.join("canary")).expect("the canary is there");
        assert!(canary == b"alive", "the canary was written to");
    }

    fn look(&self) -> Vec<Attributes> {
        let top = self.decoy.parent().expect("it has a folder");
        let mut paths = vec![self.decoy.clone()];
        for dir in [top, &self.decoy] {
            paths.extend(fs::read_dir(dir).expect("the folder is readable").map(|entry| entry.expect("it is readable").path()));
        }
        paths.sort();
        let attributes = |path: PathBuf| {
            let at = fs::symlink_metadata(&path).expect("it is there");
            // The target's own folder changes: it is here only by its name.
            let numbers = if path == self.dir {
                [0; 9]
            } else {
                let ids =
                    [at.dev() as i64, at.ino() as i64, at.mode().into(), at.nlink() as i64, at.uid().into(), at.gid().into()];
                [ids[0], ids[1], ids[2], ids[3], ids[4], ids[5], at.size() as i64, at.ctime(), at.ctime_nsec()]
            };
            (path, numbers)
        };
        paths.into_iter().map(attributes).collect()
    }
}

/// Fills in the check sums of a tar's headers, which no mutation gets right.
pub fn repair(tar: &mut [u8]) {
    let mut at = 0;
    while let Some(block) = tar.get_mut(at..at + 512) {
        let sum: u32 =
            block.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) }).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let size = tar::Header::from_byte_slice(block).entry_size().unwrap_or(0);
        let has_content = !matches!(block[156], b'1'..=b'6');
        let Ok(size) = usize::try_from(if has_content { size } else { 0 }) else { return };
        let Some(next) = size.checked_next_multiple_of(512).and_then(|size| (at + 512).checked_add(size)) else { return };
        at = next;
    }
}
