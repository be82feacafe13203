//! Served corpora: opened at the first request, shared by all callers, and reopened after a change.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::batch::{BatchStats, Batcher, Knobs};
use crate::rerank::Reranker;
use crate::{Corpus, Error, Found, Index, Query, Result};

/// Maximum length of a corpus's name.
const MAX_NAME: usize = 64;

/// Checks a corpus's name: letters, digits, `.`, `_` and `-`, starting with a letter or a digit.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_name(name: &str) -> Result<()> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let first = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if first && name.len() <= MAX_NAME && name.bytes().all(sound) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{name:?} is no name of a corpus: letters, digits, `.`, `_` and `-`, at most {MAX_NAME}, the first a letter or a digit"
    )))
}

/// A corpus that is shared by callers.
pub struct Served {
    current: Arc<Current>,
    batcher: Batcher,
}

struct Current {
    corpus: Mutex<Arc<Corpus>>,
    /// The directory to reopen it from. None: it never changes.
    dir: Option<PathBuf>,
    reranker: Option<Reranker>,
}

impl Current {
    fn lock(&self) -> MutexGuard<'_, Arc<Corpus>> {
        self.corpus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> Arc<Corpus> {
        let now = self.lock().clone();
        let Some(dir) = &self.dir else { return now };
        if !now.index().is_some_and(Index::is_stale) {
            return now;
        }
        match open(dir, self.reranker.clone()) {
            Ok(fresh) => {
                let fresh = Arc::new(fresh);
                *self.lock() = fresh.clone();
                fresh
            }
            // The previous version still answers.
            Err(error) => {
                tracing::warn!(dir = %dir.display(), "the corpus has changed and can't be opened: {error}");
                now
            }
        }
    }
}

fn open(dir: &Path, reranker: Option<Reranker>) -> Result<Corpus> {
    Ok(Corpus::of_index(Index::open(dir)?)?.reranked_by(reranker))
}

impl Served {
    /// A corpus that never changes.
    pub fn fixed(corpus: Corpus, knobs: Knobs) -> Self {
        Self::new(corpus, None, None, knobs)
    }

    /// The current generation of the index in a directory.
    ///
    /// # Errors
    /// As [`Index::open`] and [`Corpus::of_index`].
    pub fn of_directory(dir: &Path, reranker: Option<Reranker>, knobs: Knobs) -> Result<Self> {
        Ok(Self::new(open(dir, reranker.clone())?, Some(dir.to_owned()), reranker, knobs))
    }

    fn new(corpus: Corpus, dir: Option<PathBuf>, reranker: Option<Reranker>, knobs: Knobs) -> Self {
        let current = Arc::new(Current { corpus: Mutex::new(Arc::new(corpus)), dir, reranker });
        let asked = current.clone();
        Self { current, batcher: Batcher::new(knobs, move |queries| asked.get().search_many(queries)) }
    }

    /// Answers a query.
    ///
    /// # Errors
    /// Those of the search.
    pub async fn search(&self, query: Query) -> Result<Vec<Found>> {
        query.check()?;
        self.batcher.search(query).await
    }

    pub fn corpus(&self) -> Arc<Corpus> {
        self.current.get()
    }

    pub fn batches(&self) -> BatchStats {
        self.batcher.stats()
    }
}

/// A directory with a folder for each corpus.
pub struct Library {
    root: PathBuf,
    open: Mutex<HashMap<String, Arc<Served>>>,
}

impl Library {
    pub fn new(root: PathBuf) -> Self {
        Self { root, open: Mutex::default() }
    }

    /// The library in a server's data directory.
    pub fn of_data(data_dir: &Path) -> Self {
        Self::new(data_dir.join("retrieval"))
    }

    pub fn has(&self, name: &str) -> bool {
        self.dir(name).is_ok_and(|dir| dir.join(crate::index::CURRENT).is_file())
    }

    fn opened(&self) -> MutexGuard<'_, HashMap<String, Arc<Served>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory of a corpus with this name, whether or not it exists.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name is invalid.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        check_name(name).map(|()| self.root.join(name))
    }

    /// The names of all corpora, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter(|entry| entry.path().join(crate::index::CURRENT).is_file())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    /// Opens a corpus; none if it doesn't exist. Reads files: don't call it on a runtime's threads.
    ///
    /// # Errors
    /// If it exists and can't be opened.
    pub fn get(&self, name: &str) -> Result<Option<Arc<Served>>> {
        let dir = self.dir(name)?;
        if !self.has(name) {
            self.opened().remove(name);
            return Ok(None);
        }
        if let Some(served) = self.opened().get(name) {
            return Ok(Some(served.clone()));
        }
        let served = Arc::new(Served::of_directory(&dir, None, Knobs::default())?);
        Ok(Some(self.opened().entry(name.to_owned()).or_insert(served).clone()))
    }

    /// Removes a corpus; returns whether it existed.
    ///
    /// # Errors
    /// [`Error::Invalid`] while another process updates it; errors of the disk.
    pub fn remove(&self, name: &str) -> Result<bool> {
        let dir = self.dir(name)?;
        if !self.has(name) {
            return Ok(false);
        }
        crate::index::remove(&dir)?;
        self.opened().remove(name);
        Ok(true)
    }
}
