use std::{cmp::Reverse, collections::BinaryHeap};

use crate::Hit;

/// A score and an ordinal in one number: the greater is the better one. At equal scores, the lower ordinal is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ranked(u64);

impl Ranked {
    pub(crate) fn new(score: f32, ordinal: u32) -> Self {
        // Adding zero makes -0 and 0 one score. The bit flips map the order of floats to that of integers.
        let bits = (score + 0.0).to_bits();
        let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        Self(u64::from(ordered) << 32 | u64::from(!ordinal))
    }

    pub(crate) fn ordinal(self) -> u32 {
        !(self.0 as u32)
    }

    pub(crate) fn score(self) -> f32 {
        let ordered = (self.0 >> 32) as u32;
        f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered })
    }

    pub(crate) fn hit(self) -> Hit {
        Hit { ordinal: self.ordinal(), score: self.score() }
    }
}

/// The best `most` of the candidates.
#[derive(Debug)]
pub(crate) struct Best {
    most: usize,
    heap: BinaryHeap<Reverse<Ranked>>,
    /// The minimum score of a new candidate, once there are `most`.
    bar: f32,
}

impl Best {
    pub(crate) fn new(most: usize) -> Self {
        let bar = if most == 0 { f32::INFINITY } else { f32::NEG_INFINITY };
        Self { most, heap: BinaryHeap::new(), bar }
    }

    /// Adds a candidate. A NaN score (other programs' files may have such rows) is never among the best.
    #[inline]
    pub(crate) fn show(&mut self, score: f32, ordinal: u32) {
        if score >= self.bar {
            self.take(Ranked::new(score, ordinal));
        }
    }

    pub(crate) fn take(&mut self, ranked: Ranked) {
        if self.most == 0 {
            return;
        }
        if self.heap.len() < self.most {
            self.heap.push(Reverse(ranked));
        } else if let Some(mut worst) = self.heap.peek_mut()
            && ranked > worst.0
        {
            *worst = Reverse(ranked);
        }
        if self.heap.len() == self.most
            && let Some(worst) = self.heap.peek()
        {
            self.bar = worst.0.score();
        }
    }

    /// Whether a candidate would be added.
    pub(crate) fn wants(&self, ranked: Ranked) -> bool {
        self.heap.len() < self.most || self.heap.peek().is_some_and(|worst| ranked > worst.0)
    }

    /// Whether the list is full of better ones.
    pub(crate) fn beats(&self, ranked: Ranked) -> bool {
        self.heap.len() >= self.most && self.heap.peek().is_some_and(|worst| ranked < worst.0)
    }

    pub(crate) fn absorb(&mut self, other: Self) {
        other.heap.into_iter().for_each(|Reverse(ranked)| self.take(ranked));
    }

    /// Best first.
    pub(crate) fn into_ranked(self) -> Vec<Ranked> {
        self.heap.into_sorted_vec().into_iter().map(|Reverse(ranked)| ranked).collect()
    }

    pub(crate) fn into_hits(self) -> Vec<Hit> {
        self.into_ranked().into_iter().map(Ranked::hit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_of_equals_the_lower_ordinal() {
        let mut best = Best::new(4);
        let scores = [1.0, f32::NAN, -0.0, 3.5, 0.0, -2.0, 3.5, 1.0];
        (0..).zip(scores).for_each(|(ordinal, score)| best.show(score, ordinal));
        let hits = best.into_hits();
        assert_eq!(hits.iter().map(|hit| hit.ordinal).collect::<Vec<_>>(), [3, 6, 0, 7]);
        assert_eq!(hits[0].score, 3.5);
        assert!(Ranked::new(-0.0, 1) > Ranked::new(0.0, 2));
        assert_eq!(Ranked::new(-7.25, 9).hit(), Hit { ordinal: 9, score: -7.25 });

        let mut none = Best::new(0);
        none.show(f32::INFINITY, 1);
        assert!(none.into_hits().is_empty());
    }
}
