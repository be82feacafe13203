//! The context of a build that a client sends as a tar: files on disk for as long as the build runs.
//!
//! The tar is hostile, like a layer's: see [`super::unpack`]. The files are in a directory of `building/`, so a sweep removes what
//! a killed server leaves.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use arenite_model::ErrorCode;

use super::compression::plain;
use super::install::Bounded;
use super::unpack::{Kind, unpack_as};
use crate::error::ImageError;
use crate::ignore::{IgnoreFile, MAX_BYTES as MAX_IGNORE_BYTES};
use crate::imagefile::{Imagefile, MAX_FILE_BYTES};
use crate::root::RootView;
use crate::store::{ImageStore, OpenLayer};

/// The bounds of a context.
#[derive(Debug, Clone, Copy)]
pub struct ContextLimits {
    /// Files, directories and links.
    pub entries: u64,
    /// All files without compression, in bytes.
    pub bytes: u64,
}

/// An unpacked context. Its files are removed when it is dropped, which blocks on the disk.
#[derive(Debug)]
pub struct BuildContext {
    store: ImageStore,
    layer: OpenLayer,
}

impl Drop for BuildContext {
    fn drop(&mut self) {
        self.store.abandon(&self.layer);
    }
}

impl BuildContext {
    /// Unpacks a tar, plain or compressed with gzip or zstd, as it is read. Blocks on the disk and on the tar.
    ///
    /// # Errors
    /// [`ImageError::Context`] if it is not a tar, has names that lead out of it, or is larger than permitted. Nothing of it
    /// stays.
    pub fn unpack(store: &ImageStore, tar: impl Read, limits: ContextLimits) -> Result<Self, ImageError> {
        let context = Self { store: store.clone(), layer: store.new_layer()? };
        context.fill(tar, limits).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                ImageError::io("could not unpack the context into", context.dir())(error)
            }
            io::ErrorKind::FileTooLarge => ImageError::Context { reason: error.to_string(), code: ErrorCode::TooLarge },
            _ => ImageError::Context { reason: error.to_string(), code: ErrorCode::InvalidRequest },
        })?;
        Ok(context)
    }

    fn fill(&self, tar: impl Read, limits: ContextLimits) -> io::Result<()> {
        // Headers and padding come on top of the files: two blocks for each, and long names.
        let most = limits.bytes.saturating_add(limits.entries.saturating_mul(4 * super::BLOCK));
        let mut tar = Bounded::new(plain(tar)?, most);
        let kind = Kind::Context { entries: limits.entries, bytes: limits.bytes };
        unpack_as(kind, &mut tar, &[], &self.dir())?;
        // The end of a tar is padded.
        io::copy(&mut tar, &mut io::sink())?;
        Ok(())
    }

    /// The directory of COPY's sources.
    pub fn dir(&self) -> PathBuf {
        self.layer.files()
    }

    /// Reads a file. Its links are resolved inside the context.
    fn read(&self, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ImageError> {
        let dir = self.dir();
        RootView::open([dir.as_path()])
            .and_then(|view| view.read(path, limit))
            .map_err(|error| ImageError::Context { reason: format!("{path:?}: {error}"), code: ErrorCode::InvalidRequest })
    }

    /// The Dockerfile, and what the build does not see of the context. Without a path, it is `Imagefile` or `Dockerfile`.
    pub fn file(&self, path: Option<&Path>) -> Result<(Imagefile, IgnoreFile), ImageError> {
        let candidates = path.map_or_else(|| vec![Path::new("Imagefile"), Path::new("Dockerfile")], |path| vec![path]);
        for path in &candidates {
            let Some(bytes) = self.read(path, MAX_FILE_BYTES as u64)? else { continue };
            let mut own = path.as_os_str().to_owned();
            own.push(".dockerignore");
            return Ok((Imagefile::parse(&bytes)?, self.ignore(&[Path::new(&own), Path::new(".dockerignore")])?));
        }
        let names: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        let reason = format!("it has no file {}", names.join(" or "));
        Err(ImageError::Context { reason, code: ErrorCode::InvalidRequest })
    }

    fn ignore(&self, paths: &[&Path]) -> Result<IgnoreFile, ImageError> {
        for path in paths {
            let Some(bytes) = self.read(path, MAX_IGNORE_BYTES)? else { continue };
            let parsed = IgnoreFile::parse(&String::from_utf8_lossy(&bytes));
            return parsed.map_err(|reason| ImageError::Ignore { path: path.to_path_buf(), reason });
        }
        Ok(IgnoreFile::default())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use tar::{Builder, EntryType, Header};

    use super::*;

    const LIMITS: ContextLimits = ContextLimits { entries: 20, bytes: 1 << 20 };

    fn store() -> (tempfile::TempDir, ImageStore) {
        let scratch = tempfile::tempdir().unwrap();
        let store = ImageStore::open(scratch.path().join("images")).unwrap();
        (scratch, store)
    }

    /// An entry with any name, which the library refuses to write otherwise.
    fn add(tar: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, link: &str, content: &[u8]) {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o640);
        header.set_uid(70_000);
        header.set_gid(7);
        header.set_size(content.len() as u64);
        header.set_cksum();
        tar.append(&header, content).unwrap();
    }

    fn tar(entries: &[(EntryType, &str, &str, &[u8])]) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        entries.iter().for_each(|(kind, name, link, content)| add(&mut tar, *kind, name, link, content));
        tar.into_inner().unwrap()
    }

    #[test]
    fn a_context_is_on_disk_until_it_is_dropped() {
        let (_scratch, store) = store();
        let bytes = tar(&[
            (EntryType::Regular, "/sub/file", "", b"content"),
            (EntryType::Link, "again", "sub/file", b""),
            (EntryType::Symlink, "out", "/etc", b""),
            (EntryType::Regular, ".wh.kept", "", b"not a whiteout"),
            (EntryType::Regular, "Dockerfile", "", b"FROM scratch\nCOPY . /\n"),
            (EntryType::Regular, ".dockerignore", "", b"sub\n"),
        ]);
        let context = BuildContext::unpack(&store, &bytes[..], LIMITS).unwrap();
        let dir = context.dir();
        assert_eq!(fs::read(dir.join("again")).unwrap(), b"content");
        assert_eq!(fs::metadata(dir.join("sub/file")).unwrap().uid(), 0);
        assert!(dir.join(".wh.kept").is_file());
        let (file, ignore) = context.file(None).unwrap();
        assert_eq!(file.stages.len(), 1);
        assert!(!ignore.is_empty());
        // A link out of it leads nowhere on the host.
        assert!(context.file(Some(Path::new("out/hostname"))).is_err());
        assert!(context.file(Some(Path::new("../../etc/hostname"))).is_err());
        drop(context);
        assert!(!dir.exists());
    }

    #[test]
    fn what_leads_out_or_is_too_much_is_refused_and_leaves_nothing() {
        let (_scratch, store) = store();
        let many: Vec<String> = (0..21).map(|number| number.to_string()).collect();
        let many: Vec<_> = many.iter().map(|name| (EntryType::Regular, name.as_str(), "", &b""[..])).collect();
        let large = vec![0; 1 << 20];
        for (said, bytes) in [
            ("leads out", tar(&[(EntryType::Regular, "../x", "", b"")])),
            ("leads out", tar(&[(EntryType::Link, "x", "../../etc/passwd", b"")])),
            ("is not in the context", tar(&[(EntryType::Link, "x", "/etc/passwd", b"")])),
            ("device", tar(&[(EntryType::Char, "dev/null", "", b"")])),
            ("FIFO", tar(&[(EntryType::Fifo, "x", "", b"")])),
            ("more than 20 files", tar(&many)),
            ("more than 1048576 bytes", tar(&[(EntryType::Regular, "a", "", &large), (EntryType::Regular, "b", "", b"1")])),
            ("not a tar", vec![b'x'; 1024]),
        ] {
            let error = BuildContext::unpack(&store, &bytes[..], LIMITS).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
            assert_eq!(fs::read_dir(store.dir().join("building")).unwrap().count(), 0, "{said}");
        }
        // A link of the tar leads to no directory of the host.
        let through = tar(&[(EntryType::Symlink, "dir", "/etc", b""), (EntryType::Regular, "dir/arenite-escaped", "", b"x")]);
        let context = BuildContext::unpack(&store, &through[..], LIMITS).unwrap();
        assert!(context.dir().join("etc/arenite-escaped").is_file() && !Path::new("/etc/arenite-escaped").exists());
    }
}
