use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use tantivy::columnar::ColumnValues;
use tantivy::query::{BooleanQuery, BoostQuery, EnableScoring, Occur, Query, TermQuery, Weight};
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::tokenizer::{TextAnalyzer, TokenStream as _};
use tantivy::{DocId, Index, ReloadPolicy, Searcher, SegmentReader, Term};

use super::ORDINAL;
use crate::{Hit, Ordinals};

/// Maximum number of different words of a query; later ones are ignored.
pub const QUERY_TERMS: usize = 256;
/// Maximum number of words of a query, including repeated ones.
pub const QUERY_TOKENS: usize = 16_384;

/// A set at most this small a part of the passages is looked up passage by passage, without a scan of all matches.
const FEW: usize = 64;

/// With more terms than this, skipping postings that can't be among the best costs more than it saves: measured on 200,000
/// passages, where 256 terms take 40 ms this way and 860 ms the other.
const MANY: usize = 48;

/// The state of one commit.
pub(super) struct View {
    searcher: Searcher,
    /// Ascending by ordinal.
    segments: Vec<Segment>,
}

pub(super) struct Segment {
    reader: SegmentReader,
    /// Ascending, one for each passage, deleted or not.
    ordinals: Arc<dyn ColumnValues<u64>>,
}

impl View {
    pub(super) fn open(index: &Index) -> tantivy::Result<Self> {
        let searcher = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()?.searcher();
        let mut segments = searcher.segment_readers().iter().map(Segment::open).collect::<tantivy::Result<Vec<_>>>()?;
        segments.sort_by_key(|segment| segment.ordinals.min_value());
        Ok(Self { searcher, segments })
    }

    pub(super) fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.reader.num_docs() as usize).sum()
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The next unused ordinal.
    pub(super) fn next_ordinal(&self) -> u64 {
        self.segments.last().map_or(0, |segment| segment.ordinals.max_value() + 1)
    }

    pub(super) fn search(&self, terms: &[(Term, u32)], top_k: usize, allowed: Option<&Ordinals>) -> tantivy::Result<Vec<Hit>> {
        let mut best = Best { wanted: top_k, heap: BinaryHeap::new() };
        if terms.is_empty() || top_k == 0 {
            return Ok(Vec::new());
        }
        let few = allowed.filter(|allowed| allowed.len() * FEW <= self.searcher.num_docs() as usize);
        let scoring = EnableScoring::enabled_from_searcher(&self.searcher);
        if let Some(few) = few {
            let weights = terms.iter().map(|one| weighed(one).weight(scoring)).collect::<tantivy::Result<Vec<_>>>()?;
            for segment in &self.segments {
                segment.look_up(&weights, few, &mut best)?;
            }
        } else if let [(term, times)] = terms {
            // Tantivy skips blocks only for a bare term, so the factor is applied afterwards.
            let weight = term_query(term).weight(scoring)?;
            self.walk(&*weight, false, allowed, &mut best)?;
            return Ok(best.sorted(*times as f32));
        } else {
            let clauses = terms.iter().map(|one| (Occur::Should, weighed(one))).collect();
            let weight = BooleanQuery::new(clauses).weight(scoring)?;
            self.walk(&*weight, terms.len() > MANY, allowed, &mut best)?;
        }
        Ok(best.sorted(1.0))
    }

    /// Tantivy skips blocks of postings that can't reach the threshold that `consider` returns. With many terms that costs more
    /// than it saves, and every passage with any of them is scored.
    fn walk(&self, weight: &dyn Weight, many: bool, allowed: Option<&Ordinals>, best: &mut Best) -> tantivy::Result<()> {
        for Segment { reader, ordinals } in &self.segments {
            let alive = reader.alive_bitset();
            let mut threshold = best.threshold();
            let mut consider = |doc, score| {
                let ordinal = ordinals.get_val(doc) as u32;
                if alive.is_none_or(|alive| alive.is_alive(doc)) && allowed.is_none_or(|allowed| allowed.contains(ordinal)) {
                    best.offer(Hit { ordinal, score });
                }
                best.threshold()
            };
            if many {
                weight.for_each(reader, &mut |doc, score| {
                    if score > threshold {
                        threshold = consider(doc, score);
                    }
                })?;
            } else {
                weight.for_each_pruning(threshold, reader, &mut consider)?;
            }
        }
        Ok(())
    }
}

impl Segment {
    fn open(reader: &SegmentReader) -> tantivy::Result<Self> {
        let ordinals = reader.fast_fields().u64(ORDINAL)?;
        if ordinals.values.num_vals() != reader.max_doc() {
            return Err(tantivy::TantivyError::InternalError("a segment has not one ordinal for each passage".into()));
        }
        Ok(Self { reader: reader.clone(), ordinals: Arc::clone(&ordinals.values) })
    }

    pub(super) fn reader(&self) -> &SegmentReader {
        &self.reader
    }

    /// Sums the scores of the few allowed passages; seeks each term's postings to them.
    fn look_up(&self, weights: &[Box<dyn Weight>], allowed: &Ordinals, best: &mut Best) -> tantivy::Result<()> {
        let mut docs = docs_of(&*self.ordinals, allowed);
        docs.retain(|doc| self.reader.alive_bitset().is_none_or(|alive| alive.is_alive(*doc)));
        let mut scores = vec![f32::MIN; docs.len()];
        for weight in weights {
            let mut scorer = weight.scorer(&self.reader, 1.0)?;
            for (doc, sum) in docs.iter().zip(&mut scores) {
                let mut at = scorer.doc();
                if at < *doc {
                    at = scorer.seek(*doc);
                }
                if at == *doc {
                    *sum = sum.max(0.0) + scorer.score();
                }
            }
        }
        for (doc, score) in docs.into_iter().zip(scores) {
            if score > best.threshold() {
                best.offer(Hit { ordinal: self.ordinals.get_val(doc) as u32, score });
            }
        }
        Ok(())
    }
}

/// The documents with these ordinals: ascending, like the ordinals.
pub(super) fn docs_of(ordinals: &dyn ColumnValues<u64>, wanted: &Ordinals) -> Vec<DocId> {
    let end = ordinals.num_vals();
    let mut docs = Vec::new();
    let mut from = 0;
    for ordinal in wanted.iter().map(u64::from) {
        if from == end || ordinal > ordinals.max_value() {
            break;
        }
        let (mut low, mut high) = (from, end);
        // Ordinals have few gaps, so the guess by distance is mostly right.
        let guess = u64::from(from) + ordinal.saturating_sub(ordinals.get_val(from));
        if guess < u64::from(end) && ordinals.get_val(guess as u32) == ordinal {
            (low, high) = (guess as u32, guess as u32);
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if ordinals.get_val(middle) < ordinal { low = middle + 1 } else { high = middle }
        }
        if low < end && ordinals.get_val(low) == ordinal {
            docs.push(low);
            low += 1;
        }
        from = low;
    }
    docs
}

/// The query's different words, with their counts.
pub(super) fn terms(analyzer: &mut TextAnalyzer, text: Field, query: &str) -> Vec<(Term, u32)> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut terms: Vec<(Term, u32)> = Vec::new();
    let mut stream = analyzer.token_stream(query);
    for _ in 0..QUERY_TOKENS {
        if !stream.advance() {
            break;
        }
        let word = &stream.token().text;
        if let Some(place) = places.get(word) {
            terms[*place].1 += 1;
        } else if terms.len() < QUERY_TERMS {
            places.insert(word.clone(), terms.len());
            terms.push((Term::from_field_text(text, word), 1));
        }
    }
    terms
}

fn term_query(term: &Term) -> TermQuery {
    TermQuery::new(term.clone(), IndexRecordOption::WithFreqs)
}

fn weighed((term, times): &(Term, u32)) -> Box<dyn Query> {
    let query = Box::new(term_query(term));
    if *times == 1 { query } else { Box::new(BoostQuery::new(query, *times as f32)) }
}

/// The best hits so far, the worst of them on top.
struct Best {
    wanted: usize,
    heap: BinaryHeap<Reverse<Ranked>>,
}

impl Best {
    /// The score that a passage must exceed. Passages come by ascending ordinal, so that the later one always loses a tie.
    fn threshold(&self) -> f32 {
        match self.heap.peek() {
            Some(Reverse(worst)) if self.heap.len() == self.wanted => worst.0.score,
            _ => f32::MIN,
        }
    }

    fn offer(&mut self, hit: Hit) {
        if self.heap.len() == self.wanted {
            self.heap.pop();
        }
        self.heap.push(Reverse(Ranked(hit)));
    }

    fn sorted(self, factor: f32) -> Vec<Hit> {
        let hits = self.heap.into_sorted_vec().into_iter();
        hits.map(|Reverse(Ranked(hit))| Hit { score: hit.score * factor, ..hit }).collect()
    }
}

#[derive(PartialEq)]
struct Ranked(Hit);

impl Eq for Ranked {}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.score.total_cmp(&other.0.score).then(other.0.ordinal.cmp(&self.0.ordinal))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
