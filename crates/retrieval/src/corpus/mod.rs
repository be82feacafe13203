//! Passages, and the files that they are read from.
//!
//! ```text
//!  JSON lines ──┐                        ┌─► a passage
//!  Parquet ─────┼─► records, one by one ─┤
//!  documents ───┘   (chunk: pieces)      └─► a fault: where it is, and why it is none
//! ```

mod chunk;
mod jsonl;
mod parquet;
mod passage;

pub use chunk::{Chunking, chunks};
pub use jsonl::JsonLines;
pub use parquet::Parquet;
pub use passage::{MAX_PASSAGE_BYTES, Passage};

/// A record that is not a valid passage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// `corpus.jsonl, line 7`.
    pub place: String,
    pub reason: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.reason)
    }
}

/// A record of a source. An `Err` of the crate ends the source; the reader decides whether to skip a fault.
pub type Record = crate::Result<std::result::Result<Passage, Fault>>;
