//! Queries of a corpus: keyword search, vector search, or both, and the order of the results.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::embed::{Embedder, Role};
use crate::import::Imported;
use crate::rerank::Reranker;
use crate::vectors::VectorIndex;
use crate::{Error, Filter, Hit, Index, Passage, Result, fusion};

/// Maximum number of passages in an answer.
pub const MAX_TOP_K: usize = 1000;
/// Maximum length of a query, in bytes.
pub const MAX_QUERY_BYTES: usize = 1 << 20;
/// Candidates of each list that are fused, or judged by a reranker, for each requested hit …
const CANDIDATES: usize = 5;
/// … and at least this many.
const LEAST_CANDIDATES: usize = 100;
/// Maximum number of passages for a reranker.
const MAX_RERANKED: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Keyword search.
    Bm25,
    /// Vector search.
    Dense,
    /// Both, with rank fusion.
    Hybrid,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Bm25, Self::Dense, Self::Hybrid];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bm25 => "bm25",
            Self::Dense => "dense",
            Self::Hybrid => "hybrid",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    pub text: String,
    pub top_k: usize,
    /// None: the best that the corpus supports.
    pub mode: Option<Mode>,
    pub filter: Option<Filter>,
}

impl Query {
    /// Checks the query.
    ///
    /// # Errors
    /// Why it is invalid.
    pub fn check(&self) -> Result<()> {
        if self.text.trim().is_empty() {
            return Err(Error::Invalid("the query is empty".to_owned()));
        }
        if self.text.len() > MAX_QUERY_BYTES {
            return Err(Error::Invalid(format!("the query is larger than {} KiB", MAX_QUERY_BYTES >> 10)));
        }
        if self.top_k == 0 || self.top_k > MAX_TOP_K {
            return Err(Error::Invalid(format!("top_k has to be 1 to {MAX_TOP_K}")));
        }
        Ok(())
    }
}

/// A found passage with its score.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    #[serde(flatten)]
    pub passage: Passage,
    /// Higher is better: BM25's score, the inner product, the sum of the ranks' shares, or the reranker's score, depending on
    /// the query.
    pub score: f32,
}

enum Store {
    Index(Box<Index>),
    Imported(Box<Imported>),
}

/// A corpus that answers concurrent queries.
pub struct Corpus {
    store: Store,
    embedder: Option<Arc<dyn Embedder>>,
    reranker: Option<Reranker>,
}

impl Corpus {
    /// A corpus over an index.
    ///
    /// # Errors
    /// If its embedder can't be loaded, or makes vectors of another dimension.
    pub fn of_index(index: Index) -> Result<Self> {
        let dense = index.settings().dense.as_ref();
        let embedder = dense.map(|dense| crate::embed::open(&dense.embedder)).transpose()?;
        Self::with(Store::Index(Box::new(index)), embedder)
    }

    /// A corpus over an import from AgentFlow.
    ///
    /// # Errors
    /// As [`Corpus::of_index`].
    pub fn of_import(imported: Imported, embedder: Arc<dyn Embedder>) -> Result<Self> {
        Self::with(Store::Imported(Box::new(imported)), Some(embedder))
    }

    fn with(store: Store, embedder: Option<Arc<dyn Embedder>>) -> Result<Self> {
        let wanted = match &store {
            Store::Index(index) => index.settings().dense.as_ref().map(|dense| dense.dimension),
            Store::Imported(imported) => Some(imported.vectors.dimension()),
        };
        match (&embedder, wanted) {
            (Some(embedder), Some(wanted)) if embedder.dimension() != wanted => {
                Err(Error::Dimension { wanted, found: embedder.dimension() })
            }
            _ => Ok(Self { store, embedder, reranker: None }),
        }
    }

    #[must_use]
    pub fn reranked_by(mut self, reranker: Option<Reranker>) -> Self {
        self.reranker = reranker;
        self
    }

    pub fn index(&self) -> Option<&Index> {
        match &self.store {
            Store::Index(index) => Some(index),
            Store::Imported(_) => None,
        }
    }

    pub fn embedder(&self) -> Option<&Arc<dyn Embedder>> {
        self.embedder.as_ref()
    }

    /// The number of searchable passages.
    pub fn len(&self) -> usize {
        match &self.store {
            Store::Index(index) => index.len() as usize,
            Store::Imported(imported) => imported.passages.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of searchable vectors.
    pub fn vectors(&self) -> usize {
        match &self.store {
            Store::Index(index) if index.settings().dense.is_none() => 0,
            Store::Index(index) => index.len() as usize,
            Store::Imported(imported) => imported.vectors.len(),
        }
    }

    pub fn has_words(&self) -> bool {
        self.index().is_some_and(|index| index.settings().lexical.is_some())
    }

    /// The mode of queries without one. A hashing embedder knows no meanings: keyword search alone is better.
    pub fn best_mode(&self) -> Mode {
        match (self.has_words(), &self.embedder) {
            (true, Some(embedder)) if embedder.is_semantic() => Mode::Hybrid,
            (true, _) => Mode::Bm25,
            (false, _) => Mode::Dense,
        }
    }

    fn passage(&self, ordinal: u32) -> Result<Passage> {
        match &self.store {
            Store::Index(index) => index.passage(ordinal),
            Store::Imported(imported) => imported.passages.passage(ordinal),
        }
    }

    fn by_meaning(&self, queries: &[&[f32]], top_k: usize, filter: Option<&Filter>) -> Result<Vec<Vec<Hit>>> {
        match &self.store {
            Store::Index(index) => index.by_meaning(queries, top_k, filter),
            Store::Imported(_) if filter.is_some() => {
                Err(Error::Invalid("this corpus can't be filtered; index it by `arenite rag index`".to_owned()))
            }
            Store::Imported(imported) => imported.vectors.search_many(queries, top_k, None),
        }
    }

    fn by_words(&self, query: &Query, top_k: usize) -> Result<Vec<Hit>> {
        match &self.store {
            Store::Index(index) => index.by_words(&query.text, top_k, query.filter.as_ref()),
            Store::Imported(_) => Err(Error::Invalid("this corpus has vectors alone".to_owned())),
        }
    }

    /// Answers one query.
    ///
    /// # Errors
    /// As [`Corpus::search_many`] for one query.
    pub fn search(&self, query: Query) -> Result<Vec<Found>> {
        self.search_many(&[query]).pop().unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Answers each query separately, in order. Texts are embedded together, and vectors read once for all.
    pub fn search_many(&self, queries: &[Query]) -> Vec<Result<Vec<Found>>> {
        let ranked = self.rank_many(queries);
        let answered = queries.iter().zip(ranked).map(|(query, ranked)| {
            let found = ranked?.into_iter().map(|hit| {
                let passage = self.passage(hit.ordinal)?;
                Ok(Found { passage, score: hit.score })
            });
            let found: Vec<Found> = found.collect::<Result<_>>()?;
            match &self.reranker {
                Some(reranker) => reranker.rerank(&query.text, found, query.top_k),
                None => Ok(found),
            }
        });
        answered.collect()
    }

    fn rank_many(&self, queries: &[Query]) -> Vec<Result<Vec<Hit>>> {
        let modes: Vec<Mode> = queries.iter().map(|query| query.mode.unwrap_or_else(|| self.best_mode())).collect();
        // The number of candidates from each list.
        let depth = |at: usize| {
            let (query, mode) = (&queries[at], modes[at]);
            let candidates = (query.top_k * CANDIDATES).max(LEAST_CANDIDATES);
            match (&self.reranker, mode) {
                (Some(_), _) => query.top_k.max(MAX_RERANKED.min(candidates)),
                (None, Mode::Hybrid) => candidates,
                (None, _) => query.top_k,
            }
        };
        let mut results: Vec<Result<Vec<Hit>>> = queries.iter().map(|query| query.check().map(|()| Vec::new())).collect();
        let sound: Vec<usize> = (0..queries.len()).filter(|at| results[*at].is_ok()).collect();
        let with = |wanted: &[Mode]| sound.iter().copied().filter(|at| wanted.contains(&modes[*at])).collect::<Vec<_>>();
        let meanings = self.meanings(queries, &with(&[Mode::Dense, Mode::Hybrid]), &depth);
        let words = self.words(queries, &with(&[Mode::Bm25, Mode::Hybrid]), &depth);
        let mut lists: Vec<Vec<Vec<Hit>>> = vec![Vec::new(); queries.len()];
        for (at, list) in words.into_iter().chain(meanings) {
            match (list, &mut results[at]) {
                (Ok(list), _) => lists[at].push(list),
                (Err(error), result) => *result = Err(error),
            }
        }
        for at in sound {
            if let Ok(ranked) = &mut results[at] {
                let lists: Vec<&[Hit]> = lists[at].iter().map(Vec::as_slice).collect();
                let keep = if self.reranker.is_some() { depth(at) } else { queries[at].top_k };
                *ranked = match lists[..] {
                    [one] => one[..one.len().min(keep)].to_vec(),
                    _ => fusion::fuse(&lists, keep, fusion::RANK_CONSTANT),
                };
            }
        }
        results
    }

    /// Vector search for the queries at these positions.
    fn meanings(&self, queries: &[Query], at: &[usize], depth: &dyn Fn(usize) -> usize) -> Vec<(usize, Result<Vec<Hit>>)> {
        if at.is_empty() {
            return Vec::new();
        }
        let failed = |reason: String| at.iter().map(|at| (*at, Err(Error::Invalid(reason.clone())))).collect();
        let Some(embedder) = &self.embedder else {
            return failed("this corpus was made without vectors; ask it with mode bm25".to_owned());
        };
        let texts: Vec<&str> = at.iter().map(|at| queries[*at].text.as_str()).collect();
        let vectors = match embedder.embed(&texts, Role::Query) {
            Ok(vectors) => vectors,
            Err(error) => return failed(error.to_string()),
        };
        let mut lists = Vec::new();
        let mut left: Vec<usize> = (0..at.len()).collect();
        // Queries with the same filter are searched together.
        while let Some(first) = left.first() {
            let filter = queries[at[*first]].filter.as_ref();
            let (same, others): (Vec<usize>, Vec<usize>) =
                left.iter().partition(|one| queries[at[**one]].filter.as_ref() == filter);
            let most = same.iter().map(|one| depth(at[*one])).max().unwrap_or(0);
            let asked: Vec<&[f32]> = same.iter().map(|one| vectors[*one].as_slice()).collect();
            match self.by_meaning(&asked, most, filter) {
                Ok(found) => lists.extend(same.iter().zip(found).map(|(one, mut found)| {
                    found.truncate(depth(at[*one]));
                    (at[*one], Ok(found))
                })),
                Err(error) => {
                    let reason = error.to_string();
                    lists.extend(same.iter().map(|one| (at[*one], Err(Error::Invalid(reason.clone())))));
                }
            }
            left = others;
        }
        lists
    }

    fn words(&self, queries: &[Query], at: &[usize], depth: &(dyn Fn(usize) -> usize + Sync)) -> Vec<(usize, Result<Vec<Hit>>)> {
        let one = |at: usize| (at, self.by_words(&queries[at], depth(at)));
        let threads = thread::available_parallelism().map_or(1, usize::from).min(at.len());
        if threads < 2 {
            return at.iter().map(|at| one(*at)).collect();
        }
        let (next, done) = (Mutex::new(at.iter().copied()), Mutex::new(Vec::new()));
        let taken = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(at) = taken() {
                        let list = one(at);
                        done.lock().unwrap_or_else(PoisonError::into_inner).push(list);
                    }
                });
            }
        });
        done.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
