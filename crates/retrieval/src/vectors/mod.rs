//! Vector search: vectors in files, searched exactly or through a graph.
//!
//! [`Flat`] is a file of vectors with an exact search: it scans them all. [`Hnsw`] is a graph over such a file, for more than
//! some hundred thousand vectors. [`Faiss`] reads what `faiss` wrote. [`Vectors`] concatenates several of these.

mod crew;
mod faiss;
mod flat;
mod hnsw;
mod memory;
mod precision;
mod ranking;
mod scan;
mod sealed;
mod segments;
#[cfg(test)]
mod testing;

pub use faiss::Faiss;
pub use flat::{Flat, FlatWriter};
pub use hnsw::{Hnsw, HnswOptions};
pub use precision::Precision;
pub use segments::Vectors;

use crate::{Error, Hit, Ordinals, Result};

/// The similarity of two vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// For vectors of length one, which the writer ensures. The score is the product.
    InnerProduct,
    /// The squared distance. The score is its negative, so that higher is better here too.
    L2,
}

impl Metric {
    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::InnerProduct => 0,
            Self::L2 => 1,
        }
    }

    pub(crate) fn from_code(code: u32) -> Option<Self> {
        [Self::InnerProduct, Self::L2].into_iter().find(|one| one.code() == code)
    }
}

/// A searchable index of vectors.
pub trait VectorIndex: Send + Sync {
    fn dimension(&self) -> usize;

    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `search_many` for an index with a first vector of ordinal `base`: hits and `allowed` are counted with it.
    fn search_from(&self, base: u32, queries: &[&[f32]], k: usize, allowed: Option<&Ordinals>) -> Result<Vec<Vec<Hit>>>;

    /// The best `k` for each query, best first, at equal scores the lower ordinal first; fewer if there are fewer. A query of
    /// another dimension is an [`Error::Dimension`], one with a number that is not finite an [`Error::Invalid`].
    fn search_many(&self, queries: &[&[f32]], k: usize, allowed: Option<&Ordinals>) -> Result<Vec<Vec<Hit>>> {
        self.search_from(0, queries, k, allowed)
    }

    fn search(&self, query: &[f32], k: usize, allowed: Option<&Ordinals>) -> Result<Vec<Hit>> {
        Ok(self.search_many(&[query], k, allowed)?.pop().unwrap_or_default())
    }
}

/// Checks that the queries fit an index of that dimension.
pub(crate) fn check(queries: &[&[f32]], dimension: usize) -> Result<()> {
    for query in queries {
        if query.len() != dimension {
            return Err(Error::Dimension { wanted: dimension, found: query.len() });
        }
        if let Some(at) = query.iter().position(|number| !number.is_finite()) {
            return Err(Error::Invalid(format!("the query's number {at} is {}, which can't be compared", query[at])));
        }
    }
    Ok(())
}

/// Checks that the last of `count` vectors from `base` on still has an ordinal.
pub(crate) fn check_base(base: u32, count: usize) -> Result<()> {
    if count as u64 + u64::from(base) > u64::from(u32::MAX) {
        return Err(Error::Invalid(format!("{count} vectors from ordinal {base} on are more than an index can number")));
    }
    Ok(())
}
