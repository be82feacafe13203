//! Finds passages of a corpus: by words (BM25), by meaning (dense vectors), and by both.
//!
//! A passage is known inside an index by its ordinal: its place in the order in which passages were added. Parts of an index know
//! ordinals alone; what an ordinal stands for is the corpus's to say.

#![deny(unsafe_code)]

pub mod batch;
pub mod corpus;
pub mod embed;
mod error;
pub mod eval;
mod filter;
pub mod fusion;
mod hit;
pub mod import;
mod index;
pub mod lexical;
pub mod library;
pub mod rerank;
pub mod search;
pub mod vectors;

pub use corpus::Passage;
pub use error::Error;
pub use filter::Filter;
pub use hit::{Hit, Ordinals};
pub use index::{DenseSettings, Index, IndexStats, Phase, Report, Settings, Update};
pub use search::{Corpus, Found, Mode, Query};

pub type Result<T> = std::result::Result<T, Error>;
