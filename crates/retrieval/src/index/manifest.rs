//! The manifest of an index's generation: `index.json`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::embed::EmbedderSpec;
use crate::lexical::LexicalSettings;
use crate::vectors::Precision;
use crate::{Error, Result};

pub(super) const FILE: &str = "index.json";
/// Below this number of vectors, an exact scan is fast enough, and misses none.
const GRAPH_FROM: u32 = 100_000;
/// Version of the layout of an index's files.
pub(super) const VERSION: u32 = 1;
/// Maximum size of a manifest, in bytes: if every other passage of a corpus is deleted, their list is long.
const MAX_BYTES: u64 = 64 << 20;

/// An index's search settings, fixed when it is created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// None: no keyword search.
    pub lexical: Option<LexicalSettings>,
    /// None: no vector search.
    pub dense: Option<DenseSettings>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenseSettings {
    pub embedder: EmbedderSpec,
    pub dimension: usize,
    pub precision: Precision,
    /// Number of passages in one addition from which a graph (HNSW) over their vectors is built and searched.
    pub graph_from: u32,
}

impl DenseSettings {
    pub fn new(embedder: EmbedderSpec, dimension: usize) -> Self {
        let graph_from = match embedder {
            // With hashed words, a passage is nearly as far from its nearest as from any other, and a graph is useless: it
            // found two of the ten best of 200,000, Faiss's no more, while an exact scan takes 12 ms.
            EmbedderSpec::Hashing { .. } => u32::MAX,
            _ => GRAPH_FROM,
        };
        Self { embedder, dimension, precision: Precision::F32, graph_from }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SegmentFacts {
    pub(super) number: u32,
    /// The ordinal of its first passage.
    pub(super) base: u32,
    pub(super) count: u32,
    pub(super) graph: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) version: u32,
    pub(super) settings: Settings,
    pub(super) segments: Vec<SegmentFacts>,
    /// Deleted ordinals, in ascending order, as runs: the first ordinal and the length.
    pub(super) dead: Vec<(u32, u32)>,
    pub(super) made_at: String,
}

impl Manifest {
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let size = std::fs::metadata(&path).map_err(Error::io("read", &path))?.len();
        if size > MAX_BYTES {
            return Err(Error::corrupt(&path, format!("it has {size} bytes")));
        }
        let text = std::fs::read(&path).map_err(Error::io("read", &path))?;
        let manifest: Self = serde_json::from_slice(&text).map_err(|error| Error::corrupt(&path, error.to_string()))?;
        if manifest.version != VERSION {
            return Err(Error::corrupt(&path, format!("its layout is of version {}, not {VERSION}", manifest.version)));
        }
        let mut next = 0u32;
        for segment in &manifest.segments {
            if segment.base != next || segment.count > super::segment::MAX_PASSAGES {
                return Err(Error::corrupt(&path, "its segments do not follow one another"));
            }
            next = next.checked_add(segment.count).ok_or_else(|| Error::corrupt(&path, "it has too many passages"))?;
        }
        if manifest.dead.iter().any(|(from, count)| from.checked_add(*count).is_none_or(|end| end > next)) {
            return Err(Error::corrupt(&path, "passages are gone that never were there"));
        }
        Ok(manifest)
    }

    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let text = serde_json::to_vec_pretty(self).map_err(|error| Error::Invalid(error.to_string()))?;
        std::fs::write(&path, text).map_err(Error::io("write", &path))
    }

    /// The number of all ordinals ever assigned.
    pub(super) fn total(&self) -> u32 {
        self.segments.last().map_or(0, |segment| segment.base + segment.count)
    }

    pub(super) fn dead_count(&self) -> u32 {
        self.dead.iter().map(|(_, count)| count).sum()
    }
}

/// Ordinals as runs, in the format of the manifest.
pub(super) fn runs(ordinals: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for ordinal in ordinals {
        match runs.last_mut() {
            Some((from, count)) if *from + *count == ordinal => *count += 1,
            _ => runs.push((ordinal, 1)),
        }
    }
    runs
}
