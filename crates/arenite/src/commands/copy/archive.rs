//! Packs and unpacks directories as tar archives, while they stream.
//!
//! An archive from a sandbox is hostile: it may not write outside the target directory, and devices, owners and set-user-id
//! bits are dropped.

use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;

use crate::failure::{Attempt, Failure};
use crate::output;

/// Number of pieces between the network and an archive; memory stays limited for any size of the copy.
const PIECES: usize = 16;
/// The size of a piece, in bytes.
const PIECE: usize = 256 << 10;

/// A directory as an archive with the single top entry `member`.
pub(super) fn pack(from: PathBuf, member: String) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let (send, receive) = mpsc::channel::<io::Result<Bytes>>(PIECES);
    tokio::task::spawn_blocking(move || {
        let mut archive = tar::Builder::new(io::BufWriter::with_capacity(PIECE, Pieces(send.clone())));
        archive.follow_symlinks(false);
        let packed = archive.append_dir_all(member, &from).and_then(|()| archive.into_inner()).and_then(|mut sink| sink.flush());
        if let Err(error) = packed {
            // The other side gets a body that breaks off, and so keeps nothing.
            let _ = send.blocking_send(Err(error));
        }
    });
    futures_util::stream::unfold(receive, |mut receive| async move { receive.recv().await.map(|piece| (piece, receive)) })
}

/// The writing end of a stream of pieces.
struct Pieces(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes))).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The reading end of a stream of pieces.
struct Source {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.current = piece?,
                None => return Ok(0),
            }
        }
        let n = buffer.len().min(self.current.len());
        buffer[..n].copy_from_slice(&self.current.split_to(n));
        Ok(n)
    }
}

/// Unpacks an archive into a directory of this host.
pub(super) async fn unpack(mut content: impl Stream<Item = io::Result<Bytes>> + Unpin, into: PathBuf) -> Result<(), Failure> {
    let (send, receive) = mpsc::channel(PIECES);
    let unpacking = tokio::task::spawn_blocking(move || unpack_all(Source { pieces: receive, current: Bytes::new() }, &into));
    while let Some(piece) = content.next().await {
        // The receiver is gone: the reason is in the task's result.
        if send.send(piece).await.is_err() {
            break;
        }
    }
    drop(send);
    match unpacking.await {
        Ok(result) => result.attempt(|| "could not unpack the copy".into()),
        Err(error) => Err(Failure::new(format!("unpacking the copy failed: {error}"))),
    }
}

fn unpack_all(source: impl Read, into: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(source);
    archive.set_preserve_ownerships(false);
    archive.set_unpack_xattrs(false);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let kind = entry.header().entry_type();
        if !(kind.is_file() || kind.is_dir() || kind.is_symlink() || kind.is_hard_link()) {
            let shown = output::harmless(&path.to_string_lossy());
            eprintln!("warning: {shown} is neither a file, a directory nor a link, and was left out");
            continue;
        }
        let inside = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        // unpack_in also refuses to write through a link that leads out of the directory.
        if !inside || !entry.unpack_in(into)? {
            return Err(io::Error::other(format!("the archive names {path:?}, which is outside the target")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tar::EntryType;

    use super::*;

    /// An archive with arbitrary headers.
    fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = tar::Header::new_ustar();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o6755);
            let body = if *kind == EntryType::Regular { content.as_bytes() } else { b"" };
            if *kind == EntryType::Symlink || *kind == EntryType::Link {
                header.set_link_name_literal(content).unwrap();
            }
            header.set_size(body.len() as u64);
            header.set_cksum();
            builder.append(&header, body).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn a_hostile_archive_touches_nothing_outside_the_target() {
        use EntryType::{Link, Regular, Symlink};
        let hostile: [&[(&str, EntryType, &str)]; 5] = [
            &[("../victim", Regular, "x")],
            &[("a/../../victim", Regular, "x")],
            &[("out", Symlink, ".."), ("out/victim", Regular, "x")],
            &[("hard", Link, "../victim"), ("hard", Regular, "x")],
            &[("to", Symlink, "../victim"), ("hard", Link, "to"), ("to", Regular, "x"), ("../victim", Regular, "x")],
        ];
        for entries in hostile {
            let dir = tempfile::tempdir().unwrap();
            let into = dir.path().join("into");
            std::fs::create_dir(&into).unwrap();
            std::fs::write(dir.path().join("victim"), "untouched").unwrap();
            assert!(unpack_all(archive(entries).as_slice(), &into).is_err(), "{entries:?}");
            assert_eq!(std::fs::read(dir.path().join("victim")).unwrap(), b"untouched", "{entries:?}");
        }
    }

    #[test]
    fn devices_and_set_user_id_bits_do_not_arrive() {
        let dir = tempfile::tempdir().unwrap();
        let entries = [("dev", EntryType::Char, ""), ("fifo", EntryType::Fifo, ""), ("tool", EntryType::Regular, "x")];
        unpack_all(archive(&entries).as_slice(), dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let mode = std::fs::metadata(dir.path().join("tool")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7000, 0, "{mode:o}");
        assert_eq!(mode & 0o100, 0o100, "{mode:o}");
    }

    #[tokio::test]
    async fn a_directory_goes_through_an_archive_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        std::fs::create_dir_all(from.join("sub/empty")).unwrap();
        std::fs::write(from.join("sub/big"), vec![7u8; 3 << 20]).unwrap();
        std::os::unix::fs::symlink("big", from.join("sub/link")).unwrap();
        let into = dir.path().join("into");
        std::fs::create_dir(&into).unwrap();
        unpack(Box::pin(pack(from, "made".into())), into.clone()).await.unwrap();
        assert_eq!(std::fs::read(into.join("made/sub/big")).unwrap(), vec![7u8; 3 << 20]);
        assert_eq!(std::fs::read_link(into.join("made/sub/link")).unwrap(), Path::new("big"));
        assert!(into.join("made/sub/empty").is_dir());
    }
}
