//! A corpus in AgentFlow's format: vectors written by Faiss, passages in JSON lines, and optionally the lines' offsets.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::vectors::{Faiss, VectorIndex};
use crate::{Error, Passage, Result};

/// Maximum length of a line, in bytes.
const MAX_LINE_BYTES: u64 = 16 << 20;
/// Number of bytes of an offset file that determine whether it is text.
const LOOKED_AT: usize = 100;

/// Passages of a file of JSON lines, by line index.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    file: File,
    /// The lines' offsets.
    starts: Vec<u64>,
    size: u64,
}

impl Lines {
    /// Opens a file with the offsets from a file next to it, if there is one, otherwise from the file itself.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the offsets are not those of the file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let size = file.metadata().map_err(Error::io("read", path))?.len();
        let without = path.with_extension("");
        let name = |of: &Path, end: &str| PathBuf::from(format!("{}{end}", of.display()));
        let candidates = [name(path, ".offsets"), name(&without, ".offsets"), name(path, ".offset"), name(&without, ".offset")];
        let starts = match candidates.iter().find(|candidate| candidate.is_file()) {
            Some(offsets) => {
                let starts = read_offsets(offsets)?;
                if !starts.is_sorted() || starts.last().is_some_and(|last| *last >= size) {
                    return Err(Error::corrupt(offsets, format!("these are not the offsets of {}", path.display())));
                }
                starts
            }
            None => scan(path, &file)?,
        };
        Ok(Self { path: path.to_owned(), file, starts, size })
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    pub fn passage(&self, number: u32) -> Result<Passage> {
        let at = number as usize;
        let from = *self.starts.get(at).ok_or_else(|| Error::Invalid(format!("the corpus has no passage {number}")))?;
        let to = self.starts.get(at + 1).copied().unwrap_or(self.size);
        if to - from > MAX_LINE_BYTES {
            return Err(Error::corrupt(&self.path, format!("passage {number} is longer than {} MiB", MAX_LINE_BYTES >> 20)));
        }
        let mut line = vec![0; (to - from) as usize];
        self.file.read_exact_at(&mut line, from).map_err(Error::io("read", &self.path))?;
        // Offsets may skip empty lines.
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        serde_json::from_slice(line)
            .map_err(|error| error.to_string())
            .and_then(|record| Passage::from_record(record, Some(number.into())))
            .map_err(|reason| Error::corrupt(&self.path, format!("passage {number}: {reason}")))
    }
}

fn scan(path: &Path, file: &File) -> Result<Vec<u64>> {
    let mut starts = Vec::new();
    let mut input = BufReader::with_capacity(1 << 20, file);
    let mut at = 0;
    loop {
        let within = input.fill_buf().map_err(Error::io("read", path))?;
        let Some(first) = within.first().copied() else { break };
        let length = input.skip_until(b'\n').map_err(Error::io("read", path))? as u64;
        if !(length == 1 && first == b'\n') {
            starts.push(at);
        }
        at += length;
    }
    Ok(starts)
}

/// Little-endian numbers of 64 bits, or text with `offset` or `offset:length` per line.
fn read_offsets(path: &Path) -> Result<Vec<u64>> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(Error::io("read", path))?;
    let printable = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    if bytes.iter().take(LOOKED_AT).all(printable) {
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let read = lines.map(|line| line.split(':').next().unwrap_or_default().trim().parse());
        return read.collect::<std::result::Result<_, _>>().map_err(|_| Error::corrupt(path, "a line is no offset"));
    }
    let numbers = bytes.chunks_exact(8);
    if !numbers.remainder().is_empty() {
        return Err(Error::corrupt(path, "it does not consist of numbers of 64 bits"));
    }
    Ok(numbers.map(|eight| u64::from_le_bytes(std::array::from_fn(|at| eight[at]))).collect())
}

/// Vectors and passages of an index of AgentFlow.
pub struct Imported {
    pub vectors: Faiss,
    pub passages: Lines,
}

impl Imported {
    /// Opens an index and its corpus.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there are fewer passages than vectors, or a file is of another kind.
    pub fn open(index: &Path, corpus: &Path) -> Result<Self> {
        let (vectors, passages) = (Faiss::open(index)?, Lines::open(corpus)?);
        if passages.len() < vectors.len() {
            let reason = format!("it has {} passages, and {} has {} vectors", passages.len(), index.display(), vectors.len());
            return Err(Error::corrupt(corpus, reason));
        }
        Ok(Self { vectors, passages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_with_offsets_and_without() {
        let dir = tempfile::tempdir().unwrap();
        let corpus = dir.path().join("corpus.jsonl");
        std::fs::write(&corpus, "{\"contents\": \"a\"}\n\n{\"text\": \"b\", \"title\": \"B\"}\n{\"text\": \"c\"}").unwrap();
        let check = || {
            let lines = Lines::open(&corpus).unwrap();
            let shown: Vec<String> = (0..3).map(|at| lines.passage(at).unwrap().shown()).collect();
            assert_eq!((shown, lines.len()), (vec!["a".to_owned(), "[B]\nb".to_owned(), "c".to_owned()], 3));
            assert!(lines.passage(3).is_err());
        };
        check();
        let starts = [0u64, 19, 47];
        let binary: Vec<u8> = starts.iter().flat_map(|start| start.to_le_bytes()).collect();
        for (name, content) in [
            ("corpus.jsonl.offsets", binary.as_slice()),
            ("corpus.offsets", b"0:17\n19:27\n47\n"),
            ("corpus.jsonl.offset", b"0\n19\n47"),
        ] {
            std::fs::write(dir.path().join(name), content).unwrap();
            check();
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
        for content in [&b"0\nx"[..], &[0, 0, 255], &binary[..9], b"0\n500", b"18\n0"] {
            std::fs::write(dir.path().join("corpus.offsets"), content).unwrap();
            assert!(Lines::open(&corpus).is_err(), "{content:?}");
        }
    }
}
