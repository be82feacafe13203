use std::ops::Range;

use super::{Metric, memory::Rows, ranking::Best};
use crate::Ordinals;

/// Bytes of rows that all queries are scored against before the next ones are fetched: they stay in a core's cache meanwhile.
const TILE: usize = 64 << 10;

/// Rows to scan.
#[derive(Clone, Copy)]
pub(crate) struct Scan<'a> {
    pub(crate) rows: Rows<'a>,
    pub(crate) metric: Metric,
    /// Ordinals of rows, less `base`; without them, a row's ordinal is its index.
    pub(crate) ids: Option<&'a [u32]>,
    pub(crate) base: u32,
    pub(crate) allowed: Option<&'a Ordinals>,
}

/// A thread's reused buffers.
#[derive(Default)]
pub(crate) struct Scratch {
    chosen: Vec<u32>,
    scores: Vec<f32>,
}

impl Scan<'_> {
    fn ordinal(&self, row: u32) -> u32 {
        self.base + self.ids.map_or(row, |ids| ids[row as usize])
    }

    /// Scores the rows of a range for each query.
    pub(crate) fn range(&self, range: Range<u32>, queries: &[&[f32]], best: &mut [Best], scratch: &mut Scratch) {
        let tile = (TILE / self.rows.stride().max(1)).clamp(12, 1024) / 12 * 12;
        let mut left = range.filter(|row| self.allowed.is_none_or(|allowed| allowed.contains(self.ordinal(*row))));
        loop {
            scratch.chosen.clear();
            scratch.chosen.extend(left.by_ref().take(tile));
            let chosen = scratch.chosen.len();
            if chosen == 0 {
                return;
            }
            scratch.scores.resize(chosen * queries.len(), 0.0);
            self.rows.score(self.metric, queries, &scratch.chosen, &mut scratch.scores);
            for (best, scores) in best.iter_mut().zip(scratch.scores.chunks_exact(chosen)) {
                for (row, score) in scratch.chosen.iter().zip(scores) {
                    best.show(*score, self.ordinal(*row));
                }
            }
        }
    }
}
