//! The content of documents: PDF, spreadsheets, slides, text documents, notebooks, tables, web pages, images.
//!
//! ```text
//!  bytes ─► Format (by content, then by name or media type) ─► view: some pages, rows or slides, with metadata
//!                                                          └─► markdown: all of it
//! ```
//!
//! Owns the parsing of formats and of a skill's front matter, and the unpacking of archives. Never opens a file or a connection
//! by itself. Every document may be hostile: sizes, counts and depths are limited here, but some of the libraries below panic
//! or allocate without limit on invalid input. Call it in a disposable process with limits on memory and time.

#![forbid(unsafe_code)]

mod archive;
mod error;
mod format;
mod front_matter;
mod image;
mod notebook;
mod office;
mod output;
mod pdf;
mod table;
mod text;
mod view;
mod web;

pub use archive::{UnpackError, unpack};
pub use error::DocumentError;
pub use format::Format;
pub use front_matter::{FrontMatter, front_matter};
pub use view::{Content, Range, Selection, markdown, view};

/// A document's properties, and counts of its parts.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// Maximum size of a document, in bytes.
pub const MAX_DOCUMENT_BYTES: u64 = 64 << 20;
/// Maximum total size of an Office document's or an archive's unpacked parts, in bytes.
pub const MAX_UNPACKED_BYTES: u64 = 256 << 20;
/// Maximum number of entries of an archive, including Office documents.
pub const MAX_ENTRIES: usize = 10_000;
/// Maximum nesting depth of an Office document's elements.
pub(crate) const MAX_XML_DEPTH: usize = 256;
/// Maximum number of elements in memory: of a paragraph, a table or a slide.
pub(crate) const MAX_XML_ELEMENTS: usize = 1_000_000;
/// Maximum size of a view, in bytes.
pub const MAX_VIEW_BYTES: usize = 1 << 20;
/// Maximum size of a conversion to Markdown, in bytes.
pub const MAX_MARKDOWN_BYTES: usize = 2 << 20;
/// Maximum length of a title, author or other property, in characters.
pub(crate) const MAX_PROPERTY_CHARS: usize = 1_000;
