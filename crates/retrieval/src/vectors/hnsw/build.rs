use std::{
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
};

use super::{
    Flat, Layout, MAGIC, MOST_DEGREE, NONE, Precision, VectorIndex, cores, spread, walk::Links, walk::Reach, walk::ScoredNode,
    walk::Walker,
};
use crate::{Error, Result, vectors::sealed};

/// Locks of nodes; two nodes may share one.
const LOCKS: usize = 1 << 12;
const MOST_LEVEL: usize = 30;

/// How a graph is built.
#[derive(Debug, Clone, Copy)]
pub struct HnswOptions {
    /// Neighbours of a node at each level, 2 to 256; twice as many at the lowest one. More improve recall and use more space.
    pub degree: usize,
    /// Number of best candidates that an insertion follows, at least `degree`. More make a better graph, in more time.
    pub ef_construction: usize,
}

impl Default for HnswOptions {
    fn default() -> Self {
        Self { degree: 16, ef_construction: 200 }
    }
}

pub(super) fn build(flat: &Flat, options: HnswOptions, path: &Path, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<()> {
    let HnswOptions { degree, ef_construction } = options;
    if !(2..=MOST_DEGREE).contains(&degree) || ef_construction < degree {
        return Err(Error::Invalid(format!(
            "a graph has a degree of 2 to {MOST_DEGREE} and an ef_construction of at least that, not {degree} and {ef_construction}"
        )));
    }
    let growing = Growing::new(flat.len(), degree);
    // Nodes of high levels first: then the entry point never changes.
    let mut order: Vec<u32> = (0..flat.len() as u32).collect();
    order.sort_by_key(|node| std::cmp::Reverse(growing.level(*node)));
    if let Some(entry) = order.first() {
        let done = AtomicUsize::new(1);
        let begin = || (Walker::new(flat.rows(), flat.metric()), Chooser::default());
        spread(cores(), order.len() - 1, begin, |(walker, chooser), at| {
            growing.put(walker, chooser, order[at + 1], *entry, ef_construction);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(1024) || done == order.len() {
                progress(done, order.len());
            }
        });
    }
    let entry = order.first().copied().unwrap_or_default();
    growing.write(path, flat, entry, ef_construction)
}

/// The graph while it is built. Writers of a list hold its node's lock; readers do not. So a reader may see a list that is half
/// old and half new, but each number in it is a node.
struct Growing {
    degree: usize,
    starts: Vec<u32>,
    lowest: Vec<AtomicU32>,
    upper: Vec<AtomicU32>,
    locks: Vec<Mutex<()>>,
}

impl Growing {
    fn new(count: usize, degree: usize) -> Self {
        let mut starts = Vec::with_capacity(count + 1);
        let mut lists = 0;
        starts.push(0);
        for node in 0..count as u64 {
            lists += drawn_level(node, degree);
            starts.push(lists);
        }
        let empty = |lists: usize, length: usize| (0..lists * length).map(|_| AtomicU32::new(NONE)).collect();
        Self {
            degree,
            starts,
            lowest: empty(count, degree * 2),
            upper: empty(lists as usize, degree),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
        }
    }

    fn level(&self, node: u32) -> usize {
        (self.starts[node as usize + 1] - self.starts[node as usize]) as usize
    }

    fn list(&self, node: u32, level: usize) -> &[AtomicU32] {
        if level == 0 {
            let length = self.degree * 2;
            return &self.lowest[node as usize * length..][..length];
        }
        &self.upper[(self.starts[node as usize] as usize + level - 1) * self.degree..][..self.degree]
    }

    fn put(&self, walker: &mut Walker<'_>, chooser: &mut Chooser, node: u32, entry: u32, ef: usize) {
        let rows = walker.rows;
        let mut scratch = Vec::new();
        let vector = rows.decoded(node, &mut scratch);
        let mut near = vec![walker.at(vector, entry)];
        for level in (0..=self.level(entry)).rev() {
            if level > self.level(node) {
                near = vec![walker.descend(self, vector, near[0], level)];
                continue;
            }
            let Some(found) = walker.widen(self, vector, &near, Reach::best(ef), level, |other| other != node) else { continue };
            near = found.into_ranked();
            let room = self.list(node, level).len();
            let chosen = chooser.choose(walker, &near, room);
            {
                let _held = self.hold(node);
                // Others may have found this node at an upper level already, and added themselves.
                let mut all = self.places(walker, node, level, vector);
                all.retain(|place| !chosen.contains(place));
                all.extend(&chosen);
                self.fit(walker, chooser, node, level, all);
            }
            for place in &chosen {
                self.link(walker, chooser, place.ordinal(), ScoredNode::new(place.score(), node), level);
            }
        }
    }

    /// Makes `newcomer` a neighbour of `node`, and drops another if the list is full.
    fn link(&self, walker: &mut Walker<'_>, chooser: &mut Chooser, node: u32, newcomer: ScoredNode, level: usize) {
        let _held = self.hold(node);
        let list = self.list(node, level);
        for slot in list {
            let other = slot.load(Ordering::Relaxed);
            if other == newcomer.ordinal() {
                return;
            }
            if other == NONE {
                slot.store(newcomer.ordinal(), Ordering::Relaxed);
                return;
            }
        }
        let rows = walker.rows;
        let mut scratch = Vec::new();
        let mut all = self.places(walker, node, level, rows.decoded(node, &mut scratch));
        all.push(newcomer);
        self.fit(walker, chooser, node, level, all);
    }

    /// Writes the list of a node. The caller holds its lock.
    fn fit(&self, walker: &Walker<'_>, chooser: &mut Chooser, node: u32, level: usize, mut all: Vec<ScoredNode>) {
        let list = self.list(node, level);
        if all.len() > list.len() {
            all.sort_unstable_by(|one, other| other.cmp(one));
            all = chooser.choose(walker, &all, list.len());
        }
        let chosen = all.iter().map(|place| place.ordinal()).chain(std::iter::repeat(NONE));
        list.iter().zip(chosen).for_each(|(slot, neighbour)| slot.store(neighbour, Ordering::Relaxed));
    }

    fn places(&self, walker: &mut Walker<'_>, node: u32, level: usize, vector: &[f32]) -> Vec<ScoredNode> {
        let mut others = Vec::with_capacity(self.degree * 2 + 1);
        self.each(node, level, |other| others.push(other));
        walker.places(vector, &others)
    }

    fn hold(&self, node: u32) -> std::sync::MutexGuard<'_, ()> {
        self.locks[node as usize % LOCKS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, path: &Path, flat: &Flat, entry: u32, ef: usize) -> Result<()> {
        let mut file = sealed::Writer::create(path)?;
        for part in [None, Some(&self.lowest), Some(&self.upper)] {
            file.align()?;
            let mut bytes = Vec::with_capacity(1 << 16);
            let mut numbers: Box<dyn Iterator<Item = u32>> = match part {
                None => Box::new(self.starts.iter().copied()),
                Some(lists) => Box::new(lists.iter().map(|slot| slot.load(Ordering::Relaxed))),
            };
            loop {
                bytes.clear();
                bytes.extend(numbers.by_ref().take(1 << 14).flat_map(u32::to_le_bytes));
                if bytes.is_empty() {
                    break;
                }
                file.write(&bytes)?;
            }
        }
        let lists = self.starts.last().copied().unwrap_or_default();
        let stride = Layout::new(flat, self.degree, lists as usize).stride;
        if stride > 0 {
            file.align()?;
            let (rows, mut scratch, mut bytes) = (flat.rows(), Vec::new(), Vec::new());
            let mut scales = Vec::with_capacity(flat.len() * 4);
            for row in 0..flat.len() as u32 {
                bytes.clear();
                let vector = &rows.decoded(row, &mut scratch)[..flat.dimension()];
                scales.extend(Precision::I8.encode(vector, &mut bytes)?.to_le_bytes());
                bytes.resize(stride, 0);
                file.write(&bytes)?;
            }
            file.write(&scales)?;
        }
        let mut fields = [0; 72];
        let values = [self.degree as u32, ef as u32, self.starts.len() as u32 - 1, entry, lists];
        for (at, value) in values.into_iter().enumerate() {
            fields[at * 4..][..4].copy_from_slice(&value.to_le_bytes());
        }
        fields[24..56].copy_from_slice(flat.digest());
        file.finish(&MAGIC, &fields)
    }
}

impl Links for Growing {
    #[inline]
    fn each(&self, node: u32, level: usize, mut visit: impl FnMut(u32)) {
        for slot in self.list(node, level) {
            match slot.load(Ordering::Relaxed) {
                NONE => return,
                neighbour => visit(neighbour),
            }
        }
    }
}

/// Chooses neighbours in different directions: one that is nearer to a chosen one than to the node is reached through that one.
#[derive(Default)]
struct Chooser {
    scores: Vec<f32>,
    scratch: Vec<f32>,
}

impl Chooser {
    /// Up to `most` of `near`, which is sorted from the best.
    fn choose(&mut self, walker: &Walker<'_>, near: &[ScoredNode], most: usize) -> Vec<ScoredNode> {
        let mut chosen: Vec<ScoredNode> = Vec::with_capacity(most);
        let mut nodes: Vec<u32> = Vec::with_capacity(most);
        for place in near {
            if chosen.len() == most {
                break;
            }
            let vector = walker.rows.decoded(place.ordinal(), &mut self.scratch);
            let reached = nodes.chunks(8).any(|some| {
                self.scores.resize(some.len(), 0.0);
                walker.rows.score(walker.metric, &[vector], some, &mut self.scores);
                self.scores.iter().any(|score| *score > place.score())
            });
            if !reached {
                chosen.push(*place);
                nodes.push(place.ordinal());
            }
        }
        chosen
    }
}

/// Level 0 or, with a chance of one in `degree` each, one more: the same in each run.
fn drawn_level(node: u64, degree: usize) -> u32 {
    let mixed = (node ^ 0x5bd1_e995_3c6e_f372).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    let chance = ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64;
    let level = -(chance.max(f64::MIN_POSITIVE)).ln() / (degree as f64).ln();
    (level as usize).min(MOST_LEVEL) as u32
}
