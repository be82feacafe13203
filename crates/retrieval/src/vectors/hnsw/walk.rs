use std::collections::BinaryHeap;

use crate::vectors::{
    Metric,
    memory::Rows,
    ranking::{Best, Ranked},
};

/// A graph, complete or being built.
pub(super) trait Links {
    fn each(&self, node: u32, level: usize, visit: impl FnMut(u32));
}

/// Limits of a walk.
#[derive(Clone, Copy)]
pub(super) struct Reach {
    /// Number of best candidates to follow.
    pub(super) ef: usize,
    /// Total number of nodes to follow before the walk is given up.
    pub(super) patience: usize,
}

impl Reach {
    pub(super) fn best(ef: usize) -> Self {
        Self { ef, patience: usize::MAX }
    }
}

/// A node and its score.
pub(super) type ScoredNode = Ranked;

/// A thread's state for walks; reused from one walk to the next.
pub(super) struct Walker<'a> {
    pub(super) rows: Rows<'a>,
    pub(super) metric: Metric,
    seen: Vec<u64>,
    touched: Vec<u32>,
    candidates: BinaryHeap<ScoredNode>,
    fresh: Vec<u32>,
    scores: Vec<f32>,
}

impl<'a> Walker<'a> {
    pub(super) fn new(rows: Rows<'a>, metric: Metric) -> Self {
        let seen = vec![0; rows.len().div_ceil(64)];
        let (touched, candidates, fresh, scores) = Default::default();
        Self { rows, metric, seen, touched, candidates, fresh, scores }
    }

    pub(super) fn at(&mut self, query: &[f32], node: u32) -> ScoredNode {
        let mut score = [0.0];
        self.rows.score(self.metric, &[query], &[node], &mut score);
        ScoredNode::new(comparable(score[0]), node)
    }

    pub(super) fn places(&mut self, query: &[f32], nodes: &[u32]) -> Vec<ScoredNode> {
        self.fresh.clear();
        self.fresh.extend_from_slice(nodes);
        self.score(query);
        self.fresh_places()
    }

    /// The nodes that were scored last.
    fn fresh_places(&self) -> Vec<ScoredNode> {
        self.fresh.iter().zip(&self.scores).map(|(node, score)| ScoredNode::new(*score, *node)).collect()
    }

    /// Moves to the best neighbour until none is better.
    pub(super) fn descend(&mut self, graph: &impl Links, query: &[f32], from: ScoredNode, level: usize) -> ScoredNode {
        let mut best = from;
        loop {
            let here = best;
            self.fresh.clear();
            graph.each(here.ordinal(), level, |node| self.fresh.push(node));
            self.score(query);
            for (node, score) in self.fresh.iter().zip(&self.scores) {
                best = best.max(ScoredNode::new(*score, *node));
            }
            if best == here {
                return best;
            }
        }
    }

    /// Follows the `ef` best that `keep` accepts, starting from `entries`. None if the patience ended first, which happens if
    /// `keep` accepts few.
    pub(super) fn widen(
        &mut self,
        graph: &impl Links,
        query: &[f32],
        entries: &[ScoredNode],
        Reach { ef, patience }: Reach,
        level: usize,
        keep: impl Fn(u32) -> bool,
    ) -> Option<Best> {
        self.forget();
        let mut best = Best::new(ef);
        for entry in entries {
            if self.first_seen(entry.ordinal()) {
                self.candidates.push(*entry);
                if keep(entry.ordinal()) {
                    best.take(*entry);
                }
            }
        }
        let mut followed = 0;
        while let Some(here) = self.candidates.pop() {
            if best.beats(here) {
                break;
            }
            followed += 1;
            if followed > patience {
                return None;
            }
            self.fresh.clear();
            graph.each(here.ordinal(), level, |node| {
                let (word, bit) = (node as usize / 64, 1 << (node % 64));
                if self.seen[word] & bit == 0 {
                    self.seen[word] |= bit;
                    self.touched.push(node);
                    self.fresh.push(node);
                    self.rows.prefetch(node);
                }
            });
            self.score(query);
            for (node, score) in self.fresh.iter().zip(&self.scores) {
                let place = ScoredNode::new(*score, *node);
                if best.wants(place) {
                    self.candidates.push(place);
                    if keep(*node) {
                        best.take(place);
                    }
                }
            }
        }
        Some(best)
    }

    /// The same nodes with scores of other rows, best first.
    pub(super) fn scored(&mut self, rows: Rows<'_>, query: &[f32], places: &[ScoredNode]) -> Vec<ScoredNode> {
        self.fresh.clear();
        for place in places {
            self.fresh.push(place.ordinal());
            rows.prefetch(place.ordinal());
        }
        self.score_by(rows, query);
        let mut places = self.fresh_places();
        places.sort_unstable_by(|one, other| other.cmp(one));
        places
    }

    fn score(&mut self, query: &[f32]) {
        self.score_by(self.rows, query);
    }

    fn score_by(&mut self, rows: Rows<'_>, query: &[f32]) {
        self.scores.resize(self.fresh.len(), 0.0);
        rows.score(self.metric, &[query], &self.fresh, &mut self.scores);
        self.scores.iter_mut().for_each(|score| *score = comparable(*score));
    }

    fn first_seen(&mut self, node: u32) -> bool {
        let (word, bit) = (node as usize / 64, 1 << (node % 64));
        let first = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        self.touched.push(node);
        first
    }

    fn forget(&mut self) {
        self.candidates.clear();
        for node in self.touched.drain(..) {
            self.seen[node as usize / 64] = 0;
        }
    }
}

/// A damaged file of vectors may contain NaN, which is then the worst score.
fn comparable(score: f32) -> f32 {
    if score.is_nan() { f32::NEG_INFINITY } else { score }
}
