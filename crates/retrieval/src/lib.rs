//! Finds passages of a corpus by keyword search (BM25), by vector search, and by both.
//!
//! Inside an index, a passage is identified by its ordinal: its position in the order of additions. Parts of an index know only
//! ordinals; the corpus maps them to passages.

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
pub mod service;
pub mod vectors;

pub use corpus::Passage;
pub use error::Error;
pub use filter::Filter;
pub use hit::{Hit, Ordinals};
pub use index::{DenseSettings, Index, IndexStats, Phase, Report, Settings, Update};
pub use search::{Corpus, Found, Mode, Query};

pub type Result<T> = std::result::Result<T, Error>;
