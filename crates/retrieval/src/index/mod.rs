//! An index of a corpus, in a directory.
//!
//! ```text
//! current          names the generation that is searched; replaced by a rename
//! lock             held by the process that changes the index
//! gen-000002/      index.json · 000001.passages … 000001.vectors … · 000002.… · lexical/
//! ```
//!
//! A generation never changes once it is current. An update hard-links unchanged files into a new generation, writes new files,
//! and makes it current when all of it is on disk. If it is interrupted at any moment, the old one is still there. Readers with
//! the old one open continue to read it. Replaced or removed passages keep their ordinals until so much is deleted that all is
//! rewritten.

mod dense;
mod manifest;
mod segment;
mod update;

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use crate::lexical::Lexical;
use crate::{Error, Filter, Hit, Ordinals, Passage, Result};
use dense::Dense;
use manifest::Manifest;
use segment::Segment;

pub use manifest::{DenseSettings, Settings};
pub use update::{Phase, Report, Update};

/// The file that names the current generation.
pub(crate) const CURRENT: &str = "current";
/// Number of retries by a reader if the generation that `current` named is gone.
const TRIES: usize = 10;
/// Filters with cached sets of passages.
const FILTERS: usize = 64;

fn generation_name(number: u32) -> String {
    format!("gen-{number:06}")
}

/// Size of all files below a directory, in bytes. Files that two generations share count once in each.
fn bytes_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(facts) if facts.is_dir() => bytes_below(&entry.path()),
            Ok(facts) => facts.len(),
            Err(_) => 0,
        })
        .sum()
}

/// The number of the current generation. None if there is no index.
fn current(dir: &Path) -> Result<Option<u32>> {
    let path = dir.join(CURRENT);
    match std::fs::read_to_string(&path) {
        Ok(name) => {
            let number = name.trim().strip_prefix("gen-").and_then(|number| number.parse().ok());
            number.map(Some).ok_or_else(|| Error::corrupt(&path, "it names no generation"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", &path)(error)),
    }
}

/// One generation of an index, to search. It stays unchanged after it was opened.
pub struct Index {
    dir: PathBuf,
    number: u32,
    manifest: Manifest,
    segments: Vec<Segment>,
    lexical: Option<Lexical>,
    dense: Option<Dense>,
    /// None: no passage was deleted.
    alive: Option<Arc<Ordinals>>,
    filtered: Mutex<HashMap<String, Arc<Ordinals>>>,
    bytes: u64,
}

/// Statistics of an index.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IndexStats {
    pub passages: u32,
    pub generation: u32,
    pub segments: usize,
    /// Deleted passages that still use space.
    pub dead: u32,
    pub bytes: u64,
    pub made_at: String,
    pub settings: Settings,
}

impl Index {
    /// Opens the current generation.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none; [`Error::Corrupt`] if its files are damaged.
    pub fn open(dir: &Path) -> Result<Self> {
        let mut last = None;
        for _ in 0..TRIES {
            let Some(number) = current(dir)? else {
                return Err(Error::Invalid(format!("there is no index in {}", dir.display())));
            };
            match Self::open_generation(dir, number) {
                Ok(index) => return Ok(index),
                // Another generation has replaced it since.
                Err(Error::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound && last.replace(number) != Some(number) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Invalid(format!("the index in {} changes faster than it can be opened", dir.display())))
    }

    fn open_generation(dir: &Path, number: u32) -> Result<Self> {
        let within = dir.join(generation_name(number));
        let manifest = Manifest::read(&within)?;
        let segments = manifest.segments.iter();
        let segments = segments.map(|facts| Segment::open(&within, facts.number, facts.count)).collect::<Result<Vec<_>>>()?;
        let lexical = manifest.settings.lexical.as_ref().map(|_| Lexical::open(&within.join("lexical"))).transpose()?;
        let dense = manifest.settings.dense.as_ref().map(|dense| Dense::open(&within, &manifest, dense)).transpose()?;
        let alive = (!manifest.dead.is_empty()).then(|| {
            let mut alive = Ordinals::all(manifest.total());
            manifest.dead.iter().flat_map(|(from, count)| *from..from + count).for_each(|ordinal| alive.remove(ordinal));
            Arc::new(alive)
        });
        let bytes = bytes_below(&within);
        let filtered = Mutex::default();
        Ok(Self { dir: dir.to_owned(), number, manifest, segments, lexical, dense, alive, filtered, bytes })
    }

    /// Whether a later generation has replaced this one.
    pub fn is_stale(&self) -> bool {
        current(&self.dir).is_ok_and(|number| number != Some(self.number))
    }

    /// Starts an update of the index in a directory. Creates the index if `settings` are given and there is none.
    ///
    /// # Errors
    /// [`Error::Invalid`] if another process updates it, if there is none to update, or if its settings differ.
    pub fn update(dir: &Path, settings: Option<Settings>) -> Result<Update> {
        Update::begin(dir, settings)
    }

    pub fn settings(&self) -> &Settings {
        &self.manifest.settings
    }

    /// The number of searchable passages.
    pub fn len(&self) -> u32 {
        self.manifest.total() - self.manifest.dead_count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn stats(&self) -> IndexStats {
        IndexStats {
            passages: self.len(),
            generation: self.number,
            segments: self.segments.len(),
            dead: self.manifest.dead_count(),
            bytes: self.bytes,
            made_at: self.manifest.made_at.clone(),
            settings: self.manifest.settings.clone(),
        }
    }

    pub fn passage(&self, ordinal: u32) -> Result<Passage> {
        let facts = self.manifest.segments.iter().zip(&self.segments);
        let found = facts.rev().find(|(facts, _)| facts.base <= ordinal);
        match found {
            Some((facts, segment)) if ordinal - facts.base < facts.count => segment.passage(ordinal - facts.base),
            _ => Err(Error::Invalid(format!("there is no passage {ordinal}"))),
        }
    }

    fn is_alive(&self, ordinal: u32) -> bool {
        self.alive.as_ref().is_none_or(|alive| alive.contains(ordinal))
    }

    /// The ordinal of the passage with this id.
    pub fn find(&self, id: &str) -> Result<Option<u32>> {
        for (facts, segment) in self.manifest.segments.iter().zip(&self.segments).rev() {
            let found = segment.find(id)?.into_iter().map(|within| facts.base + within);
            if let Some(ordinal) = found.rev().find(|ordinal| self.is_alive(*ordinal)) {
                return Ok(Some(ordinal));
            }
        }
        Ok(None)
    }

    /// All passages, each with its ordinal.
    pub(crate) fn passages(&self) -> impl Iterator<Item = Result<(u32, Passage)>> + '_ {
        let segments = self.manifest.segments.iter().zip(&self.segments);
        segments.flat_map(move |(facts, segment)| {
            let alive = (0..segment.count()).filter(|within| self.is_alive(facts.base + within));
            alive.map(|within| segment.passage(within).map(|passage| (facts.base + within, passage)))
        })
    }

    /// The passages that may be found. None: all.
    fn admitted(&self, filter: Option<&Filter>) -> Result<Option<Arc<Ordinals>>> {
        let Some(filter) = filter else {
            return Ok(self.alive.clone());
        };
        let known = || self.filtered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known().get(filter.key()) {
            return Ok(Some(known.clone()));
        }
        let mut admitted = Ordinals::default();
        for passage in self.passages() {
            let (ordinal, passage) = passage?;
            if filter.admits(&passage) {
                admitted.insert(ordinal);
            }
        }
        let admitted = Arc::new(admitted);
        let mut known = known();
        if known.len() >= FILTERS {
            known.clear();
        }
        known.insert(filter.key().to_owned(), admitted.clone());
        Ok(Some(admitted))
    }

    /// Keyword search. Best first.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the index was created without it.
    pub fn by_words(&self, query: &str, top_k: usize, filter: Option<&Filter>) -> Result<Vec<Hit>> {
        let lexical = self.lexical.as_ref().ok_or_else(|| Error::Invalid("the index was made without BM25".to_owned()))?;
        // The lexical index excludes deleted passages itself.
        let admitted = filter.map(|filter| self.admitted(Some(filter))).transpose()?.flatten();
        lexical.search(query, top_k, admitted.as_deref())
    }

    /// Vector search, for several queries with the same filter. Best first.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the index was created without vectors; [`Error::Dimension`].
    pub fn by_meaning(&self, queries: &[&[f32]], top_k: usize, filter: Option<&Filter>) -> Result<Vec<Vec<Hit>>> {
        let dense = self.dense.as_ref().ok_or_else(|| Error::Invalid("the index was made without vectors".to_owned()))?;
        dense.search(queries, top_k, self.admitted(filter)?.as_deref())
    }
}

/// Removes an index with its directory. After an interruption, nothing of it is found any more.
pub(crate) fn remove(dir: &Path) -> Result<()> {
    let _lock = lock(dir)?;
    let path = dir.join(CURRENT);
    std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
    std::fs::remove_dir_all(dir).map_err(Error::io("remove", dir))
}

/// Locks the index in a directory for updates. The lock is released when the file is closed.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let file = File::create(&path).map_err(Error::io("create", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(Error::Invalid(format!("the index in {} is being changed by another process", dir.display())))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(Error::io("lock", &path)(error)),
    }
}

#[cfg(test)]
mod tests;
