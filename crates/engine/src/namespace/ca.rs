//! Extra certificates for sandboxes, for networks that intercept TLS: a layer over the image's own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use arenite_image::{Image, RootView};
use rustix::io::Errno;

use super::data_dir::{make_shared_dir, write_shared_file};
use super::{Host, at};
use crate::EngineError;

/// The path of trusted certificates in Debian's images and most others.
pub(super) const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";
/// Maximum size of a certificate file, in bytes.
const MOST_BYTES: u64 = 8 << 20;

/// The layer for an image, created once for each image and certificate file.
pub(super) fn layer(host: &Host, image: &Image, extra: &Path) -> Result<PathBuf, EngineError> {
    let stage = |e: io::Error| at("extra certificates", e);
    let changed = fs::metadata(extra).and_then(|m| m.modified()).map_err(stage)?;
    let stamp = changed.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let dir = host.storage.root().join("certificates").join(format!("{}-{stamp:x}", image.digest.replace([':', '/'], "-")));
    if dir.is_dir() {
        return Ok(dir);
    }
    let own = own_bundle(image).map_err(stage)?;
    let added = fs::read(extra).map_err(stage)?;
    // Concurrent creates each create a copy.
    static MADE: AtomicU64 = AtomicU64::new(0);
    let temporary = dir.with_extension(format!("new-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)));
    let file = temporary.join(BUNDLE);
    fs::create_dir_all(dir.parent().expect("it is below the storage's root")).map_err(stage)?;
    // The topmost layer determines the permissions of a directory.
    for directory in ["", "etc", "etc/ssl", "etc/ssl/certs"] {
        make_shared_dir(&temporary.join(directory)).map_err(stage)?;
    }
    write_shared_file(&file, &[own.as_slice(), b"\n", &added].concat()).map_err(stage)?;
    match fs::rename(&temporary, &dir) {
        // Another create was first with the same layer.
        Err(_) if dir.is_dir() => fs::remove_dir_all(&temporary).map_err(stage)?,
        other => other.map_err(stage)?,
    }
    Ok(dir)
}

/// The certificates that the image trusts; empty if it has no such file.
fn own_bundle(image: &Image) -> io::Result<Vec<u8>> {
    let root = RootView::open(image.layers.iter().map(|l| l.dir.as_path()))?;
    match root.read(Path::new(BUNDLE), MOST_BYTES) {
        // Links in a circle, or a file in the place of a directory: nothing in the image can read it either.
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::LOOP | Errno::NOTDIR)) => Ok(Vec::new()),
        other => Ok(other?.unwrap_or_default()),
    }
}
