use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tantivy::index::{SegmentId, SegmentMeta};
use tantivy::indexer::{IndexWriterOptions, NoMergePolicy};
use tantivy::query::{BitSetDocSet, ConstScorer, EnableScoring, Explanation, Query, Scorer, Weight};
use tantivy::schema::Document;
use tantivy::schema::document::CompactDocValue;
use tantivy::{BitSet, DocId, IndexWriter, Score, SegmentReader, TantivyDocument, TantivyError};

use super::search::{View, docs_of};
use super::{ORDINAL, Shared, guarded};
use crate::{Error, Ordinals, Result};

/// Maximum size of a text, in bytes; a longer one is refused.
pub const TEXT_BYTES: usize = 8 << 20;

/// Size of postings in memory before tantivy writes a segment, in bytes.
const POSTINGS_BYTES: usize = 96 << 20;
/// Maximum size of texts that wait for the indexing thread, in bytes.
const QUEUED_BYTES: usize = 16 << 20;
/// Segments below this count as this large, so that small ones are merged at every commit.
const SMALL: u64 = 10_000;

/// The current step of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The last additions are indexed and written.
    Writing,
    /// Segments with this number of passages are merged into one.
    Merging { passages: u64 },
}

/// Adds and deletes passages; all changes become visible at once with the commit. Without a commit, they are discarded.
///
/// One thread indexes besides the one that adds: a second would put passages out of order.
pub struct LexicalWriter {
    shared: Arc<Shared>,
    writer: IndexWriter<Queued>,
    waiting: Arc<Waiting>,
    next: u64,
    deleted: Ordinals,
}

impl LexicalWriter {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Self> {
        let options = IndexWriterOptions::builder();
        let options = options.num_worker_threads(1).num_merge_threads(1).memory_budget_per_thread(POSTINGS_BYTES).build();
        let writer = guarded(&shared.dir, || {
            let writer = shared.index.writer_with_options(options)?;
            writer.set_merge_policy(Box::new(NoMergePolicy));
            Ok(writer)
        })?;
        let next = shared.view().next_ordinal();
        Ok(Self { shared, writer, waiting: Arc::default(), next, deleted: Ordinals::default() })
    }

    /// Adds a passage. Ordinals ascend: each is above all that this index was ever given and still knows.
    pub fn add(&mut self, ordinal: u32, text: &str) -> Result<()> {
        if u64::from(ordinal) < self.next {
            return Err(Error::Invalid(format!("passage {ordinal} comes too late: the next is {} or above", self.next)));
        }
        if text.len() > TEXT_BYTES {
            return Err(Error::Invalid(format!("passage {ordinal} has {} bytes; cut it to at most {TEXT_BYTES}", text.len())));
        }
        let mut document = TantivyDocument::new();
        document.add_text(self.shared.fields.text, text);
        document.add_u64(self.shared.fields.ordinal, ordinal.into());
        let queued = Queued { document, reservation: Waiting::enter(&self.waiting, text.len()) };
        self.call(|writer| writer.add_document(queued).map(drop))?;
        self.next = u64::from(ordinal) + 1;
        Ok(())
    }

    /// Deletes a passage, if it exists.
    pub fn delete(&mut self, ordinal: u32) -> Result<()> {
        if u64::from(ordinal) < self.next {
            self.deleted.insert(ordinal);
        }
        Ok(())
    }

    /// Writes all of it, durably, and merges segments that have become small next to the rest. `progress` receives each step as
    /// it starts.
    pub fn commit(mut self, progress: &mut dyn FnMut(Step)) -> Result<()> {
        progress(Step::Writing);
        if !self.deleted.is_empty() {
            let gone = Gone(Arc::new(std::mem::take(&mut self.deleted)));
            self.call(|writer| writer.delete_query(Box::new(gone)).map(drop))?;
        }
        self.call(|writer| writer.commit().map(drop))?;
        for group in self.groups()? {
            progress(Step::Merging { passages: group.iter().map(|segment| u64::from(segment.num_docs())).sum() });
            let ids: Vec<SegmentId> = group.iter().map(SegmentMeta::id).collect();
            self.call(|writer| writer.merge(&ids).wait().map(drop))?;
        }
        let Self { shared, writer, .. } = self;
        guarded(&shared.dir, || {
            writer.garbage_collect_files().wait()?;
            writer.wait_merging_threads()?;
            shared.show(View::open(&shared.index)?);
            Ok(())
        })
    }

    /// The segments to merge. From the last one backwards, each that is at most four times what follows it. So a large segment
    /// is not rewritten for a few passages, and the number of segments grows only with the logarithm of the number of passages.
    /// Only neighbours are merged, which keeps the order. A segment with a fifth of its passages deleted is rewritten too.
    fn groups(&self) -> Result<Vec<Vec<SegmentMeta>>> {
        let segments = guarded(&self.shared.dir, || {
            let metas = self.shared.index.searchable_segment_metas()?;
            let view = View::open(&self.shared.index)?;
            let ids = view.segments().iter().map(|segment| segment.reader().segment_id());
            Ok(ids.filter_map(|id| metas.iter().find(|meta| meta.id() == id).cloned()).collect::<Vec<_>>())
        })?;
        let sizes: Vec<u64> = segments.iter().map(|segment| u64::from(segment.num_docs())).collect();
        let (before, tail) = segments.split_at(tail(&sizes));
        let worn = |segment: &&SegmentMeta| segment.num_deleted_docs() > segment.max_doc() / 5;
        let mut groups: Vec<Vec<SegmentMeta>> = before.iter().filter(worn).map(|segment| vec![segment.clone()]).collect();
        if tail.len() > 1 || tail.iter().any(|segment| worn(&segment)) {
            groups.push(tail.to_vec());
        }
        Ok(groups)
    }

    fn call<T>(&mut self, call: impl FnOnce(&mut IndexWriter<Queued>) -> tantivy::Result<T>) -> Result<T> {
        let writer = &mut self.writer;
        guarded(&self.shared.dir, || call(writer)).map_err(|error| failed(&self.shared.dir, error))
    }
}

/// The first segment of those to merge.
fn tail(sizes: &[u64]) -> usize {
    let mut from = sizes.len().saturating_sub(1);
    let mut after = sizes.last().map_or(0, |last| SMALL.max(*last));
    while from > 0 && sizes[from - 1] <= 4 * after {
        from -= 1;
        after += sizes[from];
    }
    from
}

/// Tantivy reports only that a thread died. Usually the disk is full, and the index is not damaged.
fn failed(dir: &Path, error: Error) -> Error {
    match error {
        Error::Corrupt { reason, .. } => {
            let source = std::io::Error::other(format!("{reason} (is there space left?)"));
            Error::Io { action: "write the index in", path: dir.to_owned(), source }
        }
        other => other,
    }
}

/// Limits the waiting texts by their bytes; tantivy's own queue only counts documents.
#[derive(Default)]
struct Waiting {
    bytes: Mutex<usize>,
    less: Condvar,
}

impl Waiting {
    fn enter(waiting: &Arc<Self>, bytes: usize) -> ByteReservation {
        let held = waiting.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |held: &mut usize| *held > 0 && *held + bytes > QUEUED_BYTES;
        let mut held = waiting.less.wait_while(held, full).unwrap_or_else(PoisonError::into_inner);
        *held += bytes;
        ByteReservation { waiting: Arc::clone(waiting), bytes }
    }
}

/// Released when the document is indexed, or discarded with the queue.
struct ByteReservation {
    waiting: Arc<Waiting>,
    bytes: usize,
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        *self.waiting.bytes.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.waiting.less.notify_one();
    }
}

struct Queued {
    document: TantivyDocument,
    reservation: ByteReservation,
}

impl Document for Queued {
    type Value<'a> = CompactDocValue<'a>;
    type FieldsValuesIter<'a> = <TantivyDocument as Document>::FieldsValuesIter<'a>;

    fn iter_fields_and_values(&self) -> Self::FieldsValuesIter<'_> {
        self.document.iter_fields_and_values()
    }

    fn into_tantivy_document(self) -> TantivyDocument {
        drop(self.reservation);
        self.document
    }
}

/// Matches the passages to delete.
#[derive(Debug, Clone)]
struct Gone(Arc<Ordinals>);

impl Query for Gone {
    fn weight(&self, _scoring: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(self.clone()))
    }
}

impl Weight for Gone {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        let ordinals = reader.fast_fields().u64(ORDINAL)?;
        let mut docs = BitSet::with_max_value(reader.max_doc());
        for doc in docs_of(&*ordinals.values, &self.0) {
            docs.insert(doc);
        }
        Ok(Box::new(ConstScorer::new(BitSetDocSet::from(docs), boost)))
    }

    fn explain(&self, _reader: &SegmentReader, _doc: DocId) -> tantivy::Result<Explanation> {
        Err(TantivyError::InvalidArgument("a deletion has no score".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::tail;

    #[test]
    fn what_is_small_next_to_the_rest_is_merged() {
        assert_eq!(tail(&[]), 0);
        assert_eq!(tail(&[5_000_000, 40_001, 9, 1]), 1);
        assert_eq!(tail(&[5_000_000, 90_000, 9, 1]), 2);
        assert_eq!(tail(&[200_000; 20]), 0);
        assert_eq!(tail(&[900_000, 300_000, 200_000]), 0);
    }
}
