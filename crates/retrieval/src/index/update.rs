//! An update of an index: added, replaced or removed passages.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dense::{graph_file, vectors_file};
use super::manifest::{Manifest, SegmentFacts, Settings, VERSION, runs};
use super::{CURRENT, Index, bytes_below, current, generation_name, lock, segment};
use crate::embed::{self, Embedder, Role};
use crate::lexical::{self, Lexical, LexicalWriter};
use crate::vectors::{Flat, FlatWriter, Hnsw, HnswOptions, Metric};
use crate::{Error, Passage, Result};

/// Number of texts that are embedded together.
const BATCH: usize = 256;
/// The maximum number of segments in a generation …
const MAX_SEGMENTS: usize = 8;
/// … and the minimum share of passages that are not deleted; otherwise all is rewritten.
const LEAST_ALIVE: f64 = 0.7;

/// The phase of an update, for progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The number of passages that were added.
    Adding(u64),
    /// The lexical index is being committed.
    Merging,
    /// `done` of `of` vectors are in the graph.
    Linking { done: u64, of: u64 },
    /// All is rewritten without deleted passages.
    Compacting,
}

/// The results of an update.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    pub added: u64,
    /// The number of them that replaced another.
    pub replaced: u64,
    pub removed: u64,
    /// Size of the generation, in bytes.
    pub bytes: u64,
}

type Watch = Box<dyn Fn(Phase) + Send + Sync>;

/// An update in progress. Dropped before [`Update::commit`], it leaves nothing behind.
pub struct Update {
    dir: PathBuf,
    /// The directory of the new generation.
    growing: PathBuf,
    number: u32,
    before: Option<Index>,
    settings: Settings,
    embedder: Option<Arc<dyn Embedder>>,
    /// None: it is written.
    segment: Option<segment::Writer>,
    segment_number: u32,
    words: Option<LexicalWriter>,
    meanings: Option<FlatWriter>,
    /// The latest passage with an id in this update.
    ids: HashMap<String, u32>,
    dead: BTreeSet<u32>,
    /// Texts without vectors yet, in the order of their ordinals.
    waiting: Vec<String>,
    report: Report,
    watch: Watch,
    lock: Arc<File>,
}

impl Update {
    pub(super) fn begin(dir: &Path, settings: Option<Settings>) -> Result<Self> {
        if settings.is_some() {
            std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        } else if current(dir)?.is_none() {
            return Err(Error::Invalid(format!("there is no index in {}", dir.display())));
        }
        let lock = Arc::new(lock(dir)?);
        let number = current(dir)?;
        let before = number.map(|_| Index::open(dir)).transpose()?;
        let settings = match (settings, &before) {
            (Some(wanted), Some(before)) if wanted != *before.settings() => {
                return Err(Error::Invalid(
                    "the index was made with other settings; remove and rebuild it to change them".to_owned(),
                ));
            }
            (Some(settings), _) => settings,
            (None, Some(before)) => before.settings().clone(),
            (None, None) => return Err(Error::Invalid(format!("there is no index in {}", dir.display()))),
        };
        // Left by an interrupted update.
        for entry in std::fs::read_dir(dir).map_err(Error::io("read", dir))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("gen-") && Some(name.as_str()) != number.map(generation_name).as_deref() {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        let embedder = settings.dense.as_ref().map(|dense| embed::open(&dense.embedder)).transpose()?;
        Self::over(dir, lock, number.map_or(1, |number| number + 1), before, settings, embedder)
    }

    fn over(
        dir: &Path,
        lock: Arc<File>,
        number: u32,
        before: Option<Index>,
        settings: Settings,
        embedder: Option<Arc<dyn Embedder>>,
    ) -> Result<Self> {
        let growing = dir.join(format!("{}.new", generation_name(number)));
        std::fs::create_dir(&growing).map_err(Error::io("create", &growing))?;
        let segment_number =
            before.as_ref().and_then(|before| before.manifest.segments.last()).map_or(1, |segment| segment.number + 1);
        if let Some(before) = &before {
            let old = dir.join(generation_name(before.number));
            for facts in &before.manifest.segments {
                let more = [("vectors", settings.dense.is_some()), ("graph", facts.graph)];
                let more = more.into_iter().filter_map(|(kind, there)| there.then_some(kind));
                for kind in segment::KINDS.into_iter().chain(more) {
                    let (from, to) = (segment::file(&old, facts.number, kind), segment::file(&growing, facts.number, kind));
                    std::fs::hard_link(&from, &to).map_err(Error::io("link", &from))?;
                }
            }
        }
        let words = match (&settings.lexical, &before) {
            (None, _) => None,
            (Some(_), Some(before)) => {
                lexical::copy_links(&dir.join(generation_name(before.number)).join("lexical"), &growing.join("lexical"))?;
                Some(Lexical::open(&growing.join("lexical"))?.writer()?)
            }
            (Some(lexical), None) => Some(Lexical::create(&growing.join("lexical"), *lexical)?.writer()?),
        };
        let dense = settings.dense.as_ref();
        let meanings = dense.map(|dense| {
            let path = vectors_file(&growing, segment_number);
            FlatWriter::create(&path, dense.dimension, dense.precision, Metric::InnerProduct)
        });
        let dead = before.iter().flat_map(|before| &before.manifest.dead).flat_map(|(from, count)| *from..from + count);
        Ok(Self {
            dir: dir.to_owned(),
            number,
            segment: Some(segment::Writer::create(&growing, segment_number)?),
            segment_number,
            words,
            meanings: meanings.transpose()?,
            ids: HashMap::new(),
            dead: dead.collect(),
            waiting: Vec::new(),
            report: Report::default(),
            watch: Box::new(|_| ()),
            growing,
            before,
            settings,
            embedder,
            lock,
        })
    }

    /// Sets a receiver of progress.
    pub fn watch(&mut self, watch: impl Fn(Phase) + Send + Sync + 'static) {
        self.watch = Box::new(watch);
    }

    fn base(&self) -> u32 {
        self.before.as_ref().map_or(0, |before| before.manifest.total())
    }

    /// Adds a passage; it replaces one with the same id.
    ///
    /// # Errors
    /// [`Error::Invalid`] for one that can't be indexed; errors of the embedder or the disk.
    pub fn add(&mut self, passage: &Passage) -> Result<()> {
        passage.check().map_err(|reason| Error::Invalid(format!("passage {}: {reason}", passage.id)))?;
        let replaced = self.take_out(&passage.id)?;
        let base = self.base();
        let segment = self.segment.as_mut().ok_or_else(|| Error::Invalid("the change is over".to_owned()))?;
        let ordinal = base.checked_add(segment.add(passage)?);
        let ordinal = ordinal.ok_or_else(|| Error::Invalid("the index has as many passages as it can have".to_owned()))?;
        self.ids.insert(passage.id.clone(), ordinal);
        self.report.added += 1;
        self.report.replaced += u64::from(replaced);
        let searched = passage.searched();
        if let Some(words) = &mut self.words {
            words.add(ordinal, &searched)?;
        }
        if self.embedder.is_some() {
            self.waiting.push(searched);
            if self.waiting.len() >= BATCH {
                self.embed()?;
            }
        }
        if self.report.added.is_multiple_of(BATCH as u64) {
            (self.watch)(Phase::Adding(self.report.added));
        }
        Ok(())
    }

    /// Removes the passage with this id; returns whether it existed.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn remove(&mut self, id: &str) -> Result<bool> {
        let removed = self.take_out(id)?;
        self.report.removed += u64::from(removed);
        Ok(removed)
    }

    fn take_out(&mut self, id: &str) -> Result<bool> {
        let old = match (self.ids.remove(id), &self.before) {
            (Some(ordinal), _) => Some(ordinal),
            (None, Some(before)) => before.find(id)?.filter(|ordinal| !self.dead.contains(ordinal)),
            (None, None) => None,
        };
        let Some(ordinal) = old else { return Ok(false) };
        self.dead.insert(ordinal);
        if let Some(words) = &mut self.words {
            words.delete(ordinal)?;
        }
        Ok(true)
    }

    fn embed(&mut self) -> Result<()> {
        let (Some(embedder), Some(meanings)) = (&self.embedder, &mut self.meanings) else { return Ok(()) };
        let texts: Vec<&str> = self.waiting.iter().map(String::as_str).collect();
        for vector in embedder.embed(&texts, Role::Passage)? {
            meanings.push(&vector)?;
        }
        self.waiting.clear();
        Ok(())
    }

    /// Makes the update visible to searches.
    ///
    /// # Errors
    /// Errors of the embedder or the disk; the index is then unchanged.
    pub fn commit(mut self) -> Result<Report> {
        self.embed()?;
        let (mut segments, base) = (self.before.as_ref().map_or_else(Vec::new, |b| b.manifest.segments.clone()), self.base());
        let segment = self.segment.take().ok_or_else(|| Error::Invalid("the change is over".to_owned()))?;
        let count = segment.len();
        segment.finish()?;
        if let Some(words) = self.words.take() {
            (self.watch)(Phase::Merging);
            words.commit(&mut |_| ())?;
        }
        let mut graph = false;
        if let Some(meanings) = self.meanings.take() {
            meanings.finish()?;
            graph = self.settings.dense.as_ref().is_some_and(|dense| count >= dense.graph_from);
            if graph {
                let flat = Flat::open(&vectors_file(&self.growing, self.segment_number))?;
                let (watch, path) = (&self.watch, graph_file(&self.growing, self.segment_number));
                Hnsw::build(&flat, HnswOptions::default(), &path, &|done, of| {
                    watch(Phase::Linking { done: done as u64, of: of as u64 });
                })?;
            }
        }
        segments.push(SegmentFacts { number: self.segment_number, base, count, graph });
        let manifest = Manifest {
            version: VERSION,
            settings: self.settings.clone(),
            segments,
            dead: runs(self.dead.iter().copied()),
            made_at: jiff::Timestamp::now().to_string(),
        };
        manifest.write(&self.growing)?;
        self.make_current()?;
        let total = manifest.total();
        let wasteful =
            manifest.segments.len() > MAX_SEGMENTS || f64::from(total - manifest.dead_count()) < f64::from(total) * LEAST_ALIVE;
        let mut report = self.report;
        report.bytes =
            if wasteful && total > 0 { self.compact()? } else { bytes_below(&self.dir.join(generation_name(self.number))) };
        Ok(report)
    }

    /// Makes the generation current, once everything is on disk.
    fn make_current(&self) -> Result<()> {
        let name = generation_name(self.number);
        let failed = |source| Error::io("write", &self.dir)(source);
        let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all());
        for dir in [self.growing.join("lexical"), self.growing.clone()] {
            let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
            for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())) {
                sync(&entry.path()).map_err(failed)?;
            }
        }
        std::fs::rename(&self.growing, self.dir.join(&name)).map_err(failed)?;
        sync(&self.dir).map_err(failed)?;
        let fresh = self.dir.join("current.new");
        let mut file = File::create(&fresh).map_err(failed)?;
        file.write_all(name.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        std::fs::rename(&fresh, self.dir.join(CURRENT)).and_then(|()| sync(&self.dir)).map_err(failed)?;
        if let Some(before) = &self.before {
            // Readers that have it open keep it open.
            let _ = std::fs::remove_dir_all(self.dir.join(generation_name(before.number)));
        }
        Ok(())
    }

    /// Rewrites everything without deleted passages. Vectors are copied, not recomputed.
    fn compact(mut self) -> Result<u64> {
        (self.watch)(Phase::Compacting);
        let old = Index::open(&self.dir)?;
        let mut fresh = Self::over(&self.dir, self.lock.clone(), self.number + 1, None, self.settings.clone(), None)?;
        for found in old.passages() {
            let (ordinal, passage) = found?;
            fresh.add(&passage)?;
            if let (Some(meanings), Some(dense)) = (&mut fresh.meanings, &old.dense) {
                meanings.push(&dense.row(ordinal)?)?;
            }
        }
        let number = old.number;
        let dir = self.dir.clone();
        std::mem::swap(&mut self.watch, &mut fresh.watch);
        let report = fresh.commit()?;
        let _ = std::fs::remove_dir_all(dir.join(generation_name(number)));
        Ok(report.bytes)
    }
}

impl Drop for Update {
    fn drop(&mut self) {
        // The indexing thread writes to the folder until it ends.
        self.words = None;
        // After a commit, it was renamed.
        let _ = std::fs::remove_dir_all(&self.growing);
    }
}
