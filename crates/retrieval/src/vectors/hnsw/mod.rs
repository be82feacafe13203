//! A graph over the vectors of a [`Flat`]: hierarchical navigable small worlds, after Malkov and Yashunin.
//!
//! Each vector is a node of the lowest level with up to twice `degree` neighbours. Each level above has one in `degree` nodes
//! of the level below, with up to `degree` neighbours. A search descends greedily to the lowest level, and there keeps the `ef`
//! best nodes so far until none of their neighbours is better.
//!
//! The file contains, for each node, the offset of its lists of upper levels (n + 1 numbers); the lists of the lowest level;
//! those of the upper levels. Lists have a fixed length, padded with `NONE`. Then the vectors are stored again as
//! [`Precision::I8`], unless they already have that precision: a walk reads vectors from all over memory, and waits for their
//! bytes. Its results are scored again with the vectors themselves.

mod build;
mod walk;

use std::{path::Path, sync::Arc};

pub use build::HnswOptions;

use super::{
    Flat, Metric, Precision, VectorIndex, check, check_base,
    crew::{cores, spread},
    flat::{self, exactly},
    memory::{LANES, Rows, padded},
    ranking::{Best, Ranked},
    scan::Scan,
    sealed::{HEADER, Magic, Sealed},
};
use crate::{Error, Hit, Ordinals, Result};
use walk::{Links, Reach, Walker};

const MAGIC: Magic = *b"arengrph";
const NONE: u32 = u32::MAX;
const MOST_DEGREE: usize = 256;
/// Default number of best candidates to follow. Of the ten best of 200,000 clustered vectors with 384 dimensions, it found
/// 0.999, and 32 found 0.987, in a graph of degree 16 (`tests/retrieval/faiss_peer.py`).
const EF_SEARCH: usize = 64;
/// If a filter leaves fewer than one in this number of vectors, scanning them all is the cheaper search.
const SPARSE: usize = 16;
/// For each requested hit, the number of candidates that are scored again with full vectors; and the minimum.
const AGAIN: (usize, usize) = (4, 32);

/// Searches a [`Flat`] through a graph: not always the best hits, but nearly always, in a fraction of the time.
pub struct Hnsw {
    flat: Arc<Flat>,
    file: Sealed,
    degree: usize,
    entry: u32,
    lists: usize,
    ef: usize,
    threads: usize,
}

impl Hnsw {
    /// Builds the graph over all vectors of `flat` into the file `path`, with a thread per core. `progress` receives the number
    /// of finished vectors and the total, at irregular times and from any thread.
    pub fn build(flat: &Flat, options: HnswOptions, path: &Path, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<()> {
        build::build(flat, options, path, progress)
    }

    /// Reads the whole graph once and checks it, so that a search only checks bounds. A graph of other vectors is an
    /// [`Error::Corrupt`].
    pub fn open(path: &Path, flat: Arc<Flat>) -> Result<Self> {
        let file = Sealed::open(path, &MAGIC, "a graph of vectors")?;
        let (degree, count, entry, lists) =
            (file.field(0) as usize, file.field(8) as usize, file.field(12), file.field(16) as usize);
        if file.fields()[24..56] != *flat.digest() || count != flat.len() {
            return Err(Error::corrupt(path, "it was built for other vectors; build it again"));
        }
        let length = Layout::new(&flat, degree, lists).length();
        if !(2..=MOST_DEGREE).contains(&degree) || length != Some(file.body().len()) {
            return Err(Error::corrupt(path, "its length is not that of the graph it says to be"));
        }
        file.verify()?;
        let hnsw = Self { flat, file, degree, entry, lists, ef: EF_SEARCH, threads: cores() };
        let graph = hnsw.graph();
        let known = |neighbour: &u32| *neighbour == NONE || (*neighbour as usize) < count;
        let ascending =
            graph.starts.is_sorted() && graph.starts.first() == Some(&0) && graph.starts.last() == Some(&(lists as u32));
        if !ascending || !graph.lowest.iter().all(known) || !graph.upper.iter().all(known) {
            return Err(Error::corrupt(path, "it leads to vectors that don't exist"));
        }
        if count > 0 && entry as usize >= count {
            return Err(Error::corrupt(path, "it begins at a vector that doesn't exist"));
        }
        Ok(hnsw)
    }

    /// Sets the number of best candidates to follow: more improve recall, and take longer. A search for more hits than that
    /// follows as many as it needs.
    pub fn with_ef_search(self, ef: usize) -> Self {
        Self { ef: ef.max(1), ..self }
    }

    /// The metric is that of the vectors.
    pub fn metric(&self) -> Metric {
        self.flat.metric()
    }

    fn layout(&self) -> Layout {
        Layout::new(&self.flat, self.degree, self.lists)
    }

    fn graph(&self) -> Graph<'_> {
        let map = self.file.map();
        let part = |(at, count): (usize, usize)| map.slice(HEADER + at, count).unwrap_or_default();
        let [starts, lowest, upper] = self.layout().lists().map(part);
        Graph { degree: self.degree, starts, lowest, upper }
    }

    /// The vectors that a walk uses.
    fn short(&self) -> Rows<'_> {
        let layout = self.layout();
        if layout.stride == 0 {
            return self.flat.rows();
        }
        let [codes, scales] = layout.codes();
        let scales = self.file.map().slice(HEADER + scales, layout.count).unwrap_or_default();
        let width = self.flat.dimension().next_multiple_of(LANES);
        Rows::new(&self.file.body()[codes..], layout.count, layout.stride, width, Precision::I8, scales)
            .expect("the length was checked when the file was opened")
    }

    /// None if the walk was given up.
    fn find(&self, graph: &Graph<'_>, walker: &mut Walker<'_>, query: &[f32], k: usize, filter: Filter<'_>) -> Option<Vec<Hit>> {
        let mut place = walker.at(query, self.entry);
        for level in (1..=graph.level(self.entry)).rev() {
            place = walker.descend(graph, query, place, level);
        }
        let ef = self.ef.max(k);
        let found: Best = match filter.allowed {
            None => walker.widen(graph, query, &[place], Reach::best(ef), 0, |_| true)?,
            Some(allowed) => {
                let keep = |node: u32| allowed.contains(filter.base + node);
                walker.widen(graph, query, &[place], Reach { ef, patience: self.flat.len() / 4 }, 0, keep)?
            }
        };
        let mut found = found.into_ranked();
        if self.layout().stride > 0 {
            found.truncate((k * AGAIN.0).max(AGAIN.1));
            found = walker.scored(self.flat.rows(), query, &found);
        }
        let hit = |ranked: Ranked| Hit { ordinal: ranked.ordinal() + filter.base, score: ranked.score() };
        Some(found.into_iter().take(k).map(hit).collect())
    }
}

#[derive(Clone, Copy)]
struct Filter<'a> {
    base: u32,
    allowed: Option<&'a Ordinals>,
}

impl VectorIndex for Hnsw {
    fn dimension(&self) -> usize {
        self.flat.dimension()
    }

    fn len(&self) -> usize {
        self.flat.len()
    }

    fn search_from(&self, base: u32, queries: &[&[f32]], k: usize, allowed: Option<&Ordinals>) -> Result<Vec<Vec<Hit>>> {
        check(queries, self.dimension())?;
        check_base(base, self.len())?;
        let k = k.min(self.len());
        let few = allowed.is_some_and(|allowed| allowed.len() < (self.len() / SPARSE).max(self.ef));
        if few || k >= self.len() / 2 {
            return self.flat.search_from(base, queries, k, allowed);
        }
        if k == 0 {
            return Ok(vec![Vec::new(); queries.len()]);
        }
        let graph = self.graph();
        let short = self.short();
        let filter = Filter { base, allowed };
        let begin = || (Walker::new(short, self.flat.metric()), Vec::new());
        let threads = if queries.len() == 1 { 1 } else { self.threads };
        let found = spread(threads, queries.len(), begin, |(walker, found), at| {
            found.push((at, self.find(&graph, walker, &padded(queries[at]), k, filter)));
        });
        let mut hits = vec![Vec::new(); queries.len()];
        for (at, found) in found.into_iter().flat_map(|(_, found)| found) {
            hits[at] = match found {
                Some(found) => found,
                None => {
                    let scan = Scan { rows: self.flat.rows(), metric: self.flat.metric(), ids: None, base, allowed };
                    exactly(&scan, &queries[at..=at], k, self.threads).pop().unwrap_or_default()
                }
            };
        }
        Ok(hits)
    }
}

/// Offsets in the body. Parts start at multiples of 64 bytes.
#[derive(Clone, Copy)]
struct Layout {
    count: usize,
    degree: usize,
    /// Total number of lists of upper levels.
    lists: usize,
    /// Bytes from one short vector to the next; 0 if there are none.
    stride: usize,
}

impl Layout {
    fn new(flat: &Flat, degree: usize, lists: usize) -> Self {
        let stride = match flat.precision() {
            Precision::I8 => 0,
            _ => flat::stride(flat.dimension(), Precision::I8),
        };
        Self { count: flat.len(), degree, lists, stride }
    }

    /// Offset and length in numbers of the starts, the lowest level and the upper ones.
    fn lists(self) -> [(usize, usize); 3] {
        let lowest = ((self.count + 1) * 4).next_multiple_of(64);
        let upper = (lowest + self.count * self.degree * 8).next_multiple_of(64);
        [(0, self.count + 1), (lowest, self.count * self.degree * 2), (upper, self.lists * self.degree)]
    }

    /// Offsets of the short vectors and of their scales.
    fn codes(self) -> [usize; 2] {
        let [.., (upper, numbers)] = self.lists();
        let codes = (upper + numbers * 4).next_multiple_of(64);
        [codes, codes + self.count * self.stride]
    }

    fn length(self) -> Option<usize> {
        if self.degree > MOST_DEGREE || self.count >= u32::MAX as usize {
            return None;
        }
        let [.., (upper, numbers)] = self.lists();
        Some(if self.stride > 0 { self.codes()[1] + self.count * 4 } else { upper + numbers * 4 })
    }
}

/// The graph in the file.
struct Graph<'a> {
    degree: usize,
    starts: &'a [u32],
    lowest: &'a [u32],
    upper: &'a [u32],
}

impl Graph<'_> {
    fn level(&self, node: u32) -> usize {
        match self.starts.get(node as usize..node as usize + 2) {
            Some([start, end]) => (end - start) as usize,
            _ => 0,
        }
    }

    fn list(&self, node: u32, level: usize) -> &[u32] {
        if level == 0 {
            let length = self.degree * 2;
            return &self.lowest[node as usize * length..][..length];
        }
        if level > self.level(node) {
            return &[];
        }
        &self.upper[(self.starts[node as usize] as usize + level - 1) * self.degree..][..self.degree]
    }
}

impl Links for Graph<'_> {
    #[inline]
    fn each(&self, node: u32, level: usize, mut visit: impl FnMut(u32)) {
        self.list(node, level).iter().take_while(|neighbour| **neighbour != NONE).for_each(|neighbour| visit(*neighbour));
    }
}

#[cfg(test)]
mod tests;
