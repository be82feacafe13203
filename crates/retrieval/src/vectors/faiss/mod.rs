//! Indexes that `faiss` wrote, read in place. Supported kinds: IndexFlatIP and IndexFlatL2, IndexIVFFlat over one of these, and
//! IndexIDMap and IndexIDMap2 around any of them.

mod parse;

use std::path::Path;

use super::{
    Metric, Precision, VectorIndex, check, check_base,
    crew::{cores, spread},
    flat::{exactly, united},
    memory::{Mapped, Rows, padded},
    ranking::Best,
    scan::{Scan, Scratch},
};
use crate::{Hit, Ordinals, Result};

/// An index that `faiss` wrote. An ordinal is the id there: the one given to `IndexIDMap` or `add_with_ids`, else the position.
pub struct Faiss {
    map: Mapped,
    dimension: usize,
    metric: Metric,
    count: usize,
    kind: Kind,
    /// One more than the largest id.
    end: usize,
    threads: usize,
}

enum Kind {
    Flat { rows: Block, ids: Option<Vec<u32>> },
    Ivf { probes: usize, centres: Block, nearest: Metric, lists: Vec<List>, ids: Vec<u32> },
}

/// Vectors of four-byte floats, stored contiguously from an offset in the file.
#[derive(Debug, Clone, Copy)]
struct Block {
    at: usize,
    count: usize,
}

/// An inverted list, and the offset of its ids.
struct List {
    rows: Block,
    ids: usize,
}

impl Faiss {
    /// Maps a file, checks its structure, and reads the ids. Other kinds are an [`crate::Error::Corrupt`] that lists the
    /// supported ones.
    pub fn open(path: &Path) -> Result<Self> {
        let map = Mapped::open(path)?;
        let parse::Parsed { dimension, metric, count, kind } = parse::index(map.bytes(), path)?;
        let largest = |ids: &[u32]| ids.iter().max().map_or(0, |id| *id as usize + 1);
        let end = match &kind {
            Kind::Flat { ids: None, .. } => count,
            Kind::Flat { ids: Some(ids), .. } | Kind::Ivf { ids, .. } => largest(ids),
        };
        Ok(Self { map, dimension, metric, count, kind, end, threads: cores() })
    }

    /// Sets the number of inverted lists to search; the default is the file's. No effect without lists.
    pub fn with_probes(mut self, wanted: usize) -> Self {
        if let Kind::Ivf { probes, .. } = &mut self.kind {
            *probes = wanted.max(1);
        }
        self
    }

    pub fn metric(&self) -> Metric {
        self.metric
    }

    fn rows(&self, block: Block) -> Rows<'_> {
        let bytes = self.map.bytes().get(block.at..).unwrap_or_default();
        Rows::new(bytes, block.count, self.dimension * 4, self.dimension, Precision::F32, &[])
            .expect("the blocks were checked when the file was opened")
    }
}

impl VectorIndex for Faiss {
    fn dimension(&self) -> usize {
        self.dimension
    }

    fn len(&self) -> usize {
        self.count
    }

    fn search_from(&self, base: u32, queries: &[&[f32]], k: usize, allowed: Option<&Ordinals>) -> Result<Vec<Vec<Hit>>> {
        check(queries, self.dimension)?;
        check_base(base, self.end)?;
        let scan = |block, metric, ids, allowed| Scan { rows: self.rows(block), metric, ids, base, allowed };
        let (probes, centres, nearest, lists, ids) = match &self.kind {
            Kind::Flat { rows, ids } => {
                return Ok(exactly(&scan(*rows, self.metric, ids.as_deref(), allowed), queries, k, self.threads));
            }
            Kind::Ivf { probes, centres, nearest, lists, ids } => (*probes, *centres, *nearest, lists, ids),
        };
        let k = k.min(self.count);
        if k == 0 {
            return Ok(vec![Vec::new(); queries.len()]);
        }
        // A list that several queries search is fetched once for all of them.
        let coarse = Scan { rows: self.rows(centres), metric: nearest, ids: None, base: 0, allowed: None };
        let mut visits: Vec<(u32, usize)> = exactly(&coarse, queries, probes, self.threads)
            .iter()
            .enumerate()
            .flat_map(|(query, near)| near.iter().map(move |hit| (hit.ordinal, query)))
            .collect();
        visits.sort_unstable();
        let visits: Vec<&[(u32, usize)]> = visits.chunk_by(|one, next| one.0 == next.0).collect();
        let bytes: usize = visits.iter().map(|visit| lists[visit[0].0 as usize].rows.count * self.dimension * 4).sum();
        let threads = self.threads.min(1 + (bytes >> 21));
        let queries: Vec<Vec<f32>> = queries.iter().map(|query| padded(query)).collect();
        let begin = || (queries.iter().map(|_| Best::new(k)).collect::<Vec<_>>(), Scratch::default());
        let found = spread(threads, visits.len(), begin, |(best, scratch), number| {
            let visit = visits[number];
            let list = &lists[visit[0].0 as usize];
            let those: Vec<&[f32]> = visit.iter().map(|(_, query)| queries[*query].as_slice()).collect();
            let mut theirs: Vec<Best> =
                visit.iter().map(|(_, query)| std::mem::replace(&mut best[*query], Best::new(0))).collect();
            let ids = &ids[list.ids..list.ids + list.rows.count];
            scan(list.rows, self.metric, Some(ids), allowed).range(0..list.rows.count as u32, &those, &mut theirs, scratch);
            visit.iter().zip(theirs).for_each(|((_, query), found)| best[*query] = found);
        });
        Ok(united(found.into_iter().map(|(best, _)| best)).into_iter().map(Best::into_hits).collect())
    }
}

#[cfg(test)]
mod tests;
