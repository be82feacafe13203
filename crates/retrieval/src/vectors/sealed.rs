//! The common format of this crate's files. It starts with 128 bytes of header: the file's kind, its length, the kind's fields,
//! and a digest of these. Then the body follows, and at the end the body's digest. Opening a file checks the header. The body's
//! digest requires a pass over the body, so it is only checked on request.

use std::{
    fs::{self, File},
    io::{BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use super::memory::Mapped;
use crate::{Error, Result};

pub(crate) const HEADER: usize = 128;
const DIGEST: usize = 32;
const FIELDS: usize = 72;
const VERSION: u32 = 1;

pub(crate) type Magic = [u8; 8];
/// The header fields of a file's kind.
pub(crate) type Fields = [u8; FIELDS];

/// A file that `Writer` wrote. Its body starts at `HEADER`.
pub(crate) struct Sealed {
    path: PathBuf,
    map: Mapped,
    fields: Fields,
}

impl Sealed {
    pub(crate) fn open(path: &Path, magic: &Magic, kind: &str) -> Result<Self> {
        let map = Mapped::open(path)?;
        let Some(header) = map.bytes().first_chunk::<HEADER>() else {
            return Err(Error::corrupt(path, "it ends within its header"));
        };
        if header[..8] != *magic {
            return Err(Error::corrupt(path, format!("it is not a file of {kind}")));
        }
        let version = u32_at(header, 8);
        if header[HEADER - DIGEST..] != *blake3::hash(&header[..HEADER - DIGEST]).as_bytes() {
            return Err(Error::corrupt(path, "its header is damaged"));
        }
        if version != VERSION {
            return Err(Error::corrupt(path, format!("its format has version {version}, and this program reads {VERSION}")));
        }
        let wanted = u64_at(header, 16).checked_add((HEADER + DIGEST) as u64);
        if wanted != Some(map.bytes().len() as u64) {
            let found = map.bytes().len();
            return Err(Error::corrupt(
                path,
                format!("it has {found} bytes, and its header says {}", wanted.unwrap_or(u64::MAX)),
            ));
        }
        let mut fields = [0; FIELDS];
        fields.copy_from_slice(&header[24..24 + FIELDS]);
        Ok(Self { path: path.to_owned(), map, fields })
    }

    pub(crate) fn map(&self) -> &Mapped {
        &self.map
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.map.bytes()[HEADER..self.map.bytes().len() - DIGEST]
    }

    pub(crate) fn field(&self, at: usize) -> u32 {
        u32_at(&self.fields, at)
    }

    pub(crate) fn fields(&self) -> &Fields {
        &self.fields
    }

    /// The body's digest as it was written.
    pub(crate) fn digest(&self) -> &[u8] {
        &self.map.bytes()[self.map.bytes().len() - DIGEST..]
    }

    /// Reads the whole body and compares it with its digest.
    pub(crate) fn verify(&self) -> Result<()> {
        if *self.digest() == *blake3::hash(self.body()).as_bytes() {
            return Ok(());
        }
        Err(Error::corrupt(&self.path, "its content is damaged"))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |four| u32::from_le_bytes(*four))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight))
}

/// A file that is being written, under a temporary name. It gets its final name when it is complete and on the disk, and is
/// removed otherwise.
pub(crate) struct Writer {
    path: PathBuf,
    part: PathBuf,
    file: BufWriter<File>,
    digest: blake3::Hasher,
    written: u64,
}

impl Writer {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let part = beside(path)?;
        let file = File::create_new(&part).map_err(Error::io("create", &part))?;
        let mut file = BufWriter::with_capacity(1 << 18, file);
        let begun = file.write_all(&[0; HEADER]).map_err(Error::io("write to", &part));
        let writer = Self { path: path.to_owned(), part, file, digest: blake3::Hasher::new(), written: 0 };
        begun.map(|()| writer)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.digest.update(bytes);
        self.written += bytes.len() as u64;
        self.file.write_all(bytes).map_err(Error::io("write to", &self.part))
    }

    /// Pads with zeros to the next multiple of 64 bytes.
    pub(crate) fn align(&mut self) -> Result<()> {
        let over = (self.written % 64) as usize;
        if over > 0 { self.write(&[0; 64][over..]) } else { Ok(()) }
    }

    pub(crate) fn finish(mut self, magic: &Magic, fields: &Fields) -> Result<()> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(magic);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[16..24].copy_from_slice(&self.written.to_le_bytes());
        header[24..24 + FIELDS].copy_from_slice(fields);
        let digest = blake3::hash(&header[..HEADER - DIGEST]);
        header[HEADER - DIGEST..].copy_from_slice(digest.as_bytes());

        let file = &mut self.file;
        file.write_all(self.digest.finalize().as_bytes())
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| file.write_all(&header))
            .and_then(|()| file.flush())
            .and_then(|()| file.get_ref().sync_all())
            .map_err(Error::io("write to", &self.part))?;
        fs::rename(&self.part, &self.path).map_err(Error::io("put in place", &self.path))?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::io("sync", folder))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After `finish`, no file has that name.
        let _ = fs::remove_file(&self.part);
    }
}

/// An unused name in the same folder.
pub(crate) fn beside(path: &Path) -> Result<PathBuf> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let Some(name) = path.file_name() else {
        return Err(Error::Invalid(format!("{} is not a name for a file", path.display())));
    };
    let mut part = std::ffi::OsString::from(".");
    part.push(name);
    part.push(format!(".{}.{}.part", process::id(), MADE.fetch_add(1, Ordering::Relaxed)));
    Ok(path.with_file_name(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::{
        Flat, FlatWriter, Hnsw, HnswOptions, Metric, Precision, VectorIndex,
        testing::{Numbers, write as written},
    };

    /// Each of the header's bytes changed, and the file cut at relevant lengths.
    fn damages(whole: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
        let garbled = (0..HEADER).map(|at| {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 0x41;
            bytes
        });
        let lengths = [0, 1, 7, 8, HEADER - 1, HEADER, HEADER + 1, whole.len() / 2, whole.len() - DIGEST, whole.len() - 1];
        garbled.chain(lengths.into_iter().map(|length| whole[..length].to_vec())).chain([[whole, &[0]].concat()])
    }

    #[test]
    fn damaged_files_are_told_from_whole_ones() {
        let folder = tempfile::tempdir().unwrap();
        let (good, graph, bad) = (folder.path().join("good"), folder.path().join("graph"), folder.path().join("bad"));
        let vectors = Numbers::new(3).clustered(300, 12);
        let flat = std::sync::Arc::new(written(&good, &vectors, Precision::I8, Metric::InnerProduct));
        flat.verify().unwrap();
        Hnsw::build(&flat, HnswOptions { degree: 4, ef_construction: 16 }, &graph, &|_, _| ()).unwrap();

        for bytes in damages(&fs::read(&good).unwrap()) {
            fs::write(&bad, bytes).unwrap();
            assert!(matches!(Flat::open(&bad), Err(Error::Corrupt { .. })));
        }
        for bytes in damages(&fs::read(&graph).unwrap()) {
            fs::write(&bad, bytes).unwrap();
            assert!(matches!(Hnsw::open(&bad, flat.clone()), Err(Error::Corrupt { .. })));
        }
        for (at, file) in [(HEADER + 70, &good), (HEADER + 1500, &graph)] {
            let mut bytes = fs::read(file).unwrap();
            bytes[at] ^= 1;
            fs::write(&bad, bytes).unwrap();
            let error =
                if file == &good { Flat::open(&bad).unwrap().verify().err() } else { Hnsw::open(&bad, flat.clone()).err() };
            assert!(error.unwrap().to_string().contains("damaged"));
        }
        assert!(Flat::open(&graph).is_err_and(|error| error.to_string().contains("not a file of vectors")));
        let others = written(&bad, &vectors[1..], Precision::I8, Metric::InnerProduct);
        assert!(Hnsw::open(&graph, others.into()).is_err_and(|error| error.to_string().contains("other vectors")));
    }

    #[test]
    fn a_file_that_is_not_finished_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vectors");
        let mut writer = FlatWriter::create(&path, 2, Precision::I8, Metric::L2).unwrap();
        writer.push(&[1.0, 2.0]).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        drop(writer);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        FlatWriter::create(&path, 2, Precision::I8, Metric::L2).unwrap().finish().unwrap();
        assert!(Flat::open(&path).unwrap().is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
