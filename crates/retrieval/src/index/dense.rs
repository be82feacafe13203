//! The vectors of an index's segments.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::manifest::{DenseSettings, Manifest};
use super::segment;
use crate::vectors::{Flat, Hnsw, VectorIndex, Vectors};
use crate::{Error, Hit, Ordinals, Result};

/// Number of best candidates that a graph search follows.
const FOLLOWED: usize = 256;

pub(super) fn vectors_file(dir: &Path, number: u32) -> PathBuf {
    segment::file(dir, number, "vectors")
}

pub(super) fn graph_file(dir: &Path, number: u32) -> PathBuf {
    segment::file(dir, number, "graph")
}

pub(super) struct Dense {
    vectors: Vectors,
    /// By the first ordinal of each.
    flats: Vec<(u32, Arc<Flat>)>,
}

impl Dense {
    pub(super) fn open(dir: &Path, manifest: &Manifest, settings: &DenseSettings) -> Result<Self> {
        let mut dense = Self { vectors: Vectors::new(settings.dimension), flats: Vec::new() };
        for facts in &manifest.segments {
            let path = vectors_file(dir, facts.number);
            let flat = Arc::new(Flat::open(&path)?);
            if flat.dimension() != settings.dimension || flat.len() != facts.count as usize {
                return Err(Error::corrupt(&path, "it has other vectors than the index says"));
            }
            let index: Arc<dyn VectorIndex> = if facts.graph {
                Arc::new(Hnsw::open(&graph_file(dir, facts.number), flat.clone())?.with_ef_search(FOLLOWED))
            } else {
                flat.clone()
            };
            dense.vectors.push(facts.base, index)?;
            dense.flats.push((facts.base, flat));
        }
        Ok(dense)
    }

    pub(super) fn search(&self, queries: &[&[f32]], top_k: usize, allowed: Option<&Ordinals>) -> Result<Vec<Vec<Hit>>> {
        self.vectors.search_many(queries, top_k, allowed)
    }

    /// The vector of a passage, as precise as it is stored.
    pub(super) fn row(&self, ordinal: u32) -> Result<Vec<f32>> {
        let found = self.flats.iter().rev().find(|(base, _)| *base <= ordinal);
        let row = found.and_then(|(base, flat)| flat.row(ordinal - base));
        row.ok_or_else(|| Error::Invalid(format!("there is no passage {ordinal}")))
    }
}
