use std::sync::Arc;

use super::{
    VectorIndex, check, check_base,
    ranking::{Best, Ranked},
};
use crate::{Error, Hit, Ordinals, Result};

/// Several indexes as one: each has the vectors from a base ordinal on.
pub struct Vectors {
    dimension: usize,
    segments: Vec<(u32, Arc<dyn VectorIndex>)>,
}

impl Vectors {
    pub fn new(dimension: usize) -> Self {
        Self { dimension, segments: Vec::new() }
    }

    /// Appends a segment. Its ordinals must follow those of existing ones.
    pub fn push(&mut self, base: u32, index: Arc<dyn VectorIndex>) -> Result<()> {
        if index.dimension() != self.dimension {
            return Err(Error::Dimension { wanted: self.dimension, found: index.dimension() });
        }
        check_base(base, index.len())?;
        if let Some((last, segment)) = self.segments.last()
            && (base as usize) < *last as usize + segment.len()
        {
            return Err(Error::Invalid(format!("a segment from ordinal {base} on overlaps the one before")));
        }
        self.segments.push((base, index));
        Ok(())
    }
}

impl VectorIndex for Vectors {
    fn dimension(&self) -> usize {
        self.dimension
    }

    fn len(&self) -> usize {
        self.segments.iter().map(|(_, segment)| segment.len()).sum()
    }

    fn search_from(&self, base: u32, queries: &[&[f32]], k: usize, allowed: Option<&Ordinals>) -> Result<Vec<Vec<Hit>>> {
        check(queries, self.dimension)?;
        let mut best: Vec<Best> = queries.iter().map(|_| Best::new(k.min(self.len()))).collect();
        for (first, segment) in &self.segments {
            check_base(base, *first as usize + segment.len())?;
            for (best, hits) in best.iter_mut().zip(segment.search_from(base + first, queries, k, allowed)?) {
                hits.into_iter().for_each(|hit| best.take(Ranked::new(hit.score, hit.ordinal)));
            }
        }
        Ok(best.into_iter().map(Best::into_hits).collect())
    }
}
