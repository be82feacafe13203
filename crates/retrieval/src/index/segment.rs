//! The passages of one addition to an index, on disk. Written once and never changed, so that generations share them.
//!
//! ```text
//! 000001.passages   JSON lines           000001.offsets   u64 little-endian: where each begins, and where the last ends
//! 000001.ids        (hash of the id: u64, ordinal within: u64) little-endian, sorted
//! ```

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::corpus::Passage;
use crate::{Error, Result};

/// Maximum number of passages of a segment.
pub(super) const MAX_PASSAGES: u32 = u32::MAX / 2;
/// Maximum length of a passage's line, in bytes: the maximum passage, written with escapes.
const MAX_LINE_BYTES: u64 = 16 << 20;
/// Bytes of an entry of `ids`.
const ENTRY: u64 = 16;

/// The lookup key of an id.
fn hash(id: &str) -> u64 {
    let hash = blake3::hash(id.as_bytes());
    u64::from_le_bytes(std::array::from_fn(|at| hash.as_bytes()[at]))
}

pub(super) fn file(dir: &Path, number: u32, kind: &str) -> PathBuf {
    dir.join(format!("{number:06}.{kind}"))
}

/// Files of a segment's passages, besides its vectors.
pub(super) const KINDS: [&str; 3] = ["passages", "offsets", "ids"];

pub(super) struct Writer {
    dir: PathBuf,
    number: u32,
    passages: BufWriter<File>,
    offsets: BufWriter<File>,
    ids: Vec<(u64, u64)>,
    at: u64,
}

impl Writer {
    pub(super) fn create(dir: &Path, number: u32) -> Result<Self> {
        let make = |kind: &str| {
            let path = file(dir, number, kind);
            File::create_new(&path).map(BufWriter::new).map_err(Error::io("create", &path))
        };
        let (passages, mut offsets) = (make("passages")?, make("offsets")?);
        offsets.write_all(&0u64.to_le_bytes()).map_err(Error::io("write", dir))?;
        Ok(Self { dir: dir.to_owned(), number, passages, offsets, ids: Vec::new(), at: 0 })
    }

    /// Adds a passage and returns its ordinal in the segment.
    pub(super) fn add(&mut self, passage: &Passage) -> Result<u32> {
        let within = u32::try_from(self.ids.len()).ok().filter(|at| *at < MAX_PASSAGES);
        let within = within.ok_or_else(|| Error::Invalid(format!("more than {MAX_PASSAGES} passages in one addition")))?;
        let mut line = serde_json::to_vec(passage).map_err(|error| Error::Invalid(error.to_string()))?;
        line.push(b'\n');
        self.at += line.len() as u64;
        let failed = |source| Error::io("write", &self.dir)(source);
        self.passages.write_all(&line).map_err(failed)?;
        self.offsets.write_all(&self.at.to_le_bytes()).map_err(failed)?;
        self.ids.push((hash(&passage.id), u64::from(within)));
        Ok(within)
    }

    pub(super) fn len(&self) -> u32 {
        self.ids.len() as u32
    }

    /// Makes it durable.
    pub(super) fn finish(mut self) -> Result<()> {
        self.ids.sort_unstable();
        let path = file(&self.dir, self.number, "ids");
        let failed = |source| Error::io("write", &self.dir)(source);
        let mut ids = BufWriter::new(File::create_new(&path).map_err(Error::io("create", &path))?);
        for (hash, within) in &self.ids {
            ids.write_all(&hash.to_le_bytes()).and_then(|()| ids.write_all(&within.to_le_bytes())).map_err(failed)?;
        }
        for output in [self.passages, self.offsets, ids] {
            let file = output.into_inner().map_err(|error| failed(error.into_error()))?;
            file.sync_all().map_err(failed)?;
        }
        Ok(())
    }
}

/// A readable segment. The files stay open: its generation may be removed.
#[derive(Debug)]
pub(super) struct Segment {
    dir: PathBuf,
    number: u32,
    passages: File,
    offsets: File,
    ids: File,
    count: u32,
    bytes: u64,
}

impl Segment {
    pub(super) fn open(dir: &Path, number: u32, count: u32) -> Result<Self> {
        let open = |kind: &str, wanted: Option<u64>| {
            let path = file(dir, number, kind);
            let opened = File::open(&path).map_err(Error::io("open", &path))?;
            let size = opened.metadata().map_err(Error::io("read", &path))?.len();
            match wanted {
                Some(wanted) if wanted != size => {
                    Err(Error::corrupt(&path, format!("it has {size} bytes and should have {wanted}")))
                }
                _ => Ok((opened, size)),
            }
        };
        let (offsets, _) = open("offsets", Some((u64::from(count) + 1) * 8))?;
        let (ids, _) = open("ids", Some(u64::from(count) * ENTRY))?;
        let (passages, bytes) = open("passages", None)?;
        let segment = Self { dir: dir.to_owned(), number, passages, offsets, ids, count, bytes };
        let end = segment.offset(u64::from(count))?;
        if end != bytes {
            let path = file(dir, number, "passages");
            return Err(Error::corrupt(&path, format!("it has {bytes} bytes and should have {end}")));
        }
        Ok(segment)
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    fn read<const N: usize>(&self, from: &File, kind: &str, at: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        from.read_exact_at(&mut bytes, at).map_err(|source| Error::io("read", &file(&self.dir, self.number, kind))(source))?;
        Ok(bytes)
    }

    fn offset(&self, at: u64) -> Result<u64> {
        self.read(&self.offsets, "offsets", at * 8).map(u64::from_le_bytes)
    }

    /// The passage at an index within the segment.
    pub(super) fn passage(&self, within: u32) -> Result<Passage> {
        let both: [u8; 16] = self.read(&self.offsets, "offsets", u64::from(within) * 8)?;
        let number = |from: usize| u64::from_le_bytes(std::array::from_fn(|at| both[from + at]));
        let (from, to) = (number(0), number(8));
        let path = || file(&self.dir, self.number, "passages");
        if from > to || to > self.bytes || to - from > MAX_LINE_BYTES {
            return Err(Error::corrupt(&path(), format!("passage {within} would stand at bytes {from} to {to}")));
        }
        let mut line = vec![0; (to - from) as usize];
        self.passages.read_exact_at(&mut line, from).map_err(|source| Error::io("read", &path())(source))?;
        serde_json::from_slice(&line).map_err(|error| Error::corrupt(&path(), format!("passage {within}: {error}")))
    }

    /// The ordinals of passages with this id, oldest first.
    pub(super) fn find(&self, id: &str) -> Result<Vec<u32>> {
        let wanted = hash(id);
        let entry = |at: u64| -> Result<(u64, u64)> {
            let bytes: [u8; 16] = self.read(&self.ids, "ids", at * ENTRY)?;
            let number = |from: usize| u64::from_le_bytes(std::array::from_fn(|at| bytes[from + at]));
            Ok((number(0), number(8)))
        };
        let (mut low, mut high) = (0, u64::from(self.count));
        while low < high {
            let middle = (low + high) / 2;
            if entry(middle)?.0 < wanted { low = middle + 1 } else { high = middle }
        }
        let mut found = Vec::new();
        while low < u64::from(self.count) {
            let (hash, within) = entry(low)?;
            if hash != wanted {
                break;
            }
            let within = u32::try_from(within).ok().filter(|within| *within < self.count);
            let path = || file(&self.dir, self.number, "ids");
            let within = within.ok_or_else(|| Error::corrupt(&path(), "it names a passage that is not there"))?;
            if self.passage(within)?.id == id {
                found.push(within);
            }
            low += 1;
        }
        Ok(found)
    }
}
