//! The host's resolvers.

use std::fs::{self, File};
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

const PATH: &str = "/etc/resolv.conf";
const PORT: u16 = 53;
/// Maximum number of resolvers, as in libc.
const MOST: usize = 3;
const MAX_FILE: u64 = 64 << 10;

/// The configured resolvers, or those of the host's file, which is read again when it changes.
#[derive(Debug)]
pub struct Resolvers {
    fixed: Option<Arc<[SocketAddr]>>,
    path: PathBuf,
    read: Mutex<Option<(Version, Arc<[SocketAddr]>)>>,
}

/// Identifies a state of a file: device, inode, size, time of change.
type Version = (u64, u64, u64, i64, i64);

impl Resolvers {
    pub fn new(fixed: Option<Vec<SocketAddr>>) -> Self {
        Self { fixed: fixed.map(Into::into), path: PATH.into(), read: Mutex::new(None) }
    }

    /// The current resolvers. Costs one `stat` if the file is unchanged.
    pub fn current(&self) -> Arc<[SocketAddr]> {
        if let Some(fixed) = &self.fixed {
            return fixed.clone();
        }
        let Some(version) = version(&self.path) else {
            return Arc::default();
        };
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        match &*read {
            Some((known, list)) if *known == version => list.clone(),
            _ => {
                let list: Arc<[SocketAddr]> = parse(&text(&self.path)).into();
                *read = Some((version, list.clone()));
                list
            }
        }
    }
}

fn version(path: &Path) -> Option<Version> {
    let m = fs::metadata(path).ok()?;
    Some((m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec()))
}

fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|f| f.take(MAX_FILE).read_to_end(&mut bytes));
    if let Err(error) = read {
        tracing::warn!(%error, path = %path.display(), "the host's resolvers could not be read");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Addresses with a zone (`fe80::1%eth0`) are skipped.
fn parse(text: &str) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            (words.next() == Some("nameserver")).then(|| words.next()).flatten()?.parse::<IpAddr>().ok()
        })
        .map(|address| SocketAddr::new(address, PORT))
        .take(MOST)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_again_when_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let mut resolvers = Resolvers::new(None);
        resolvers.path = dir.path().join("resolv.conf");
        assert!(resolvers.current().is_empty(), "no file");
        fs::write(
            &resolvers.path,
            "# comment\nsearch example.org\nnameserver 192.0.2.1\nnameserver fe80::1%eth0\n nameserver\t2001:db8::1 \nnameserver nonsense\n",
        )
        .unwrap();
        assert_eq!(*resolvers.current(), ["192.0.2.1:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()]);
        // As tools do it: a new file in place of the old one.
        let new = dir.path().join("new");
        fs::write(&new, "nameserver 192.0.2.9\n".repeat(9)).unwrap();
        fs::rename(&new, &resolvers.path).unwrap();
        assert_eq!(resolvers.current().len(), MOST);
        assert_eq!(resolvers.current()[0], "192.0.2.9:53".parse().unwrap());
    }
}
