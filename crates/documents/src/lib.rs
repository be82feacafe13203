//! What is in a document: PDF, spreadsheets, slides, text documents, notebooks, tables, web pages, images.
//!
//! ```text
//!  bytes ─► Format (by content, then by name or media type) ─► view: some pages, rows or slides, with metadata
//!                                                          └─► markdown: all of it
//! ```
//!
//! Owns the reading of formats, of a skill's front matter, and the unpacking of archives. Never opens a file or a
//! connection by itself. Every document may be hostile: sizes, counts and depths are bounded here, but some of the libraries
//! below panic or allocate without bound when they are lied to. Call it in a process that may die, with a limit on its
//! memory and time.

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

/// What a document says of itself, and what was counted in it.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// The largest document, in bytes.
pub const MAX_DOCUMENT_BYTES: u64 = 64 << 20;
/// The most bytes that the parts of an Office document unpack to, and that are unpacked of any archive.
pub const MAX_UNPACKED_BYTES: u64 = 256 << 20;
/// The most entries of an archive, Office documents among them.
pub const MAX_ENTRIES: usize = 10_000;
/// How deep the elements of an Office document may be nested.
pub(crate) const MAX_XML_DEPTH: usize = 256;
/// The most elements that are held at once: a paragraph, a table or a slide.
pub(crate) const MAX_XML_ELEMENTS: usize = 1_000_000;
/// The most bytes of a view.
pub const MAX_VIEW_BYTES: usize = 1 << 20;
/// The most bytes of a conversion to Markdown.
pub const MAX_MARKDOWN_BYTES: usize = 2 << 20;
/// The longest title, author or other property that is passed on, in characters.
pub(crate) const MAX_PROPERTY_CHARS: usize = 1_000;
