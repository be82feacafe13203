//! The command `aio`: this program, on the `PATH` of a sandbox's commands.
//!
//! Its path in the writable layer is prepared in advance, and at create the program is mounted there: nothing is copied, and
//! every sandbox and the server share its pages. Files of the image are neither hidden nor changed.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use arenite_image::Image;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2};

use super::data_dir::write_shared_file;

const DIRECTORIES: [&str; 3] = ["usr", "usr/local", "usr/local/bin"];
pub(super) const PLACE: &str = "usr/local/bin/aio";
/// Mode of the prepared directories, which belong to root; most images have the same.
const MODE: u32 = 0o755;

/// Where the program is mounted in a sandbox; none if the image has another file there.
pub(super) fn place(upper: &Path, image: &Image) -> io::Result<Option<String>> {
    let free = fit_in(upper, image.layers.iter().rev().map(|layer| layer.dir.clone()))?;
    Ok(free.then(|| format!("/{PLACE}")))
}

/// Creates the path in a new writable layer.
pub(super) fn make_place(upper: &Path) -> io::Result<()> {
    for directory in DIRECTORIES {
        let directory = upper.join(directory);
        DirBuilder::new().mode(MODE).create(&directory)?;
        fs::set_permissions(&directory, Permissions::from_mode(MODE))?;
    }
    write_shared_file(&upper.join(PLACE), b"")
}

/// Gives the directories of the path the owner and mode that they have in the image. `layers` are topmost first. False: the
/// image has the path, and it is no longer ours.
fn fit_in(upper: &Path, layers: impl Iterator<Item = PathBuf> + Clone) -> io::Result<bool> {
    let of_image = |path: &str| layers.clone().find_map(|layer| about(&layer, path));
    for directory in DIRECTORIES {
        let ours = upper.join(directory);
        match of_image(directory) {
            Some(theirs) if FileType::from_raw_mode(theirs.st_mode).is_dir() => {
                if (theirs.st_uid, theirs.st_gid) != (0, 0) {
                    chown(&ours, Some(theirs.st_uid), Some(theirs.st_gid))?;
                }
                let mode = theirs.st_mode & 0o7777;
                if mode != MODE {
                    fs::set_permissions(&ours, Permissions::from_mode(mode))?;
                }
            }
            Some(_) => {
                fs::remove_dir_all(&ours)?;
                return Ok(false);
            }
            // So it has nothing below, either.
            None => return Ok(true),
        }
    }
    let taken = of_image(PLACE).is_some();
    if taken {
        fs::remove_file(upper.join(PLACE))?;
    }
    Ok(!taken)
}

/// What a layer has at a path. Links of the layer are not followed: they could lead to files of the host.
fn about(layer: &Path, path: &str) -> Option<Stat> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let layer = open(layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let file = openat2(&layer, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS).ok()?;
    fstat(&file).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("arenite-command-{name}-{}", std::process::id()));
            fs::create_dir(&dir).unwrap();
            for part in ["upper", "low", "high"] {
                fs::create_dir(dir.join(part)).unwrap();
            }
            make_place(&dir.join("upper")).unwrap();
            Self(dir)
        }

        fn fit_in(&self) -> bool {
            fit_in(&self.0.join("upper"), [self.0.join("high"), self.0.join("low")].into_iter()).unwrap()
        }

        fn mode(&self, path: &str) -> u32 {
            fs::metadata(self.0.join(path)).unwrap().mode() & 0o7777
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn directories_look_as_the_images_topmost_do() {
        let scratch = Scratch::new("modes");
        assert!(scratch.fit_in(), "an image without any of it");
        fs::create_dir_all(scratch.0.join("low/usr/local/bin")).unwrap();
        fs::create_dir_all(scratch.0.join("high/usr/local")).unwrap();
        for (path, mode) in [("low/usr/local/bin", 0o2775), ("low/usr/local", 0o700), ("high/usr/local", 0o711)] {
            fs::set_permissions(scratch.0.join(path), Permissions::from_mode(mode)).unwrap();
        }
        assert!(scratch.fit_in());
        let modes = ["upper/usr", "upper/usr/local", "upper/usr/local/bin"].map(|path| scratch.mode(path));
        assert_eq!(modes, [0o755, 0o711, 0o2775]);
        assert!(scratch.0.join("upper").join(PLACE).exists());
    }

    #[test]
    fn what_the_image_has_there_stays_the_images() {
        let scratch = Scratch::new("taken");
        fs::create_dir_all(scratch.0.join("low/usr/local/bin")).unwrap();
        fs::write(scratch.0.join("low").join(PLACE), "#!/bin/sh\n").unwrap();
        assert!(!scratch.fit_in());
        assert!(!scratch.0.join("upper").join(PLACE).exists());
        let scratch = Scratch::new("link");
        fs::create_dir_all(scratch.0.join("high/usr")).unwrap();
        std::os::unix::fs::symlink("../opt", scratch.0.join("high/usr/local")).unwrap();
        assert!(!scratch.fit_in());
        assert!(!scratch.0.join("upper/usr/local").exists());
    }

    #[test]
    fn a_link_below_does_not_lead_to_the_host() {
        let scratch = Scratch::new("host");
        let host = scratch.0.join("host");
        fs::create_dir_all(host.join("local/bin")).unwrap();
        fs::set_permissions(host.join("local"), Permissions::from_mode(0o700)).unwrap();
        fs::create_dir_all(scratch.0.join("high/usr")).unwrap();
        std::os::unix::fs::symlink(&host, scratch.0.join("low/usr")).unwrap();
        assert!(scratch.fit_in());
        assert_eq!(scratch.mode("upper/usr/local"), MODE);
    }
}
