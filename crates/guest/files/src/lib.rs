//! Files in a sandbox, and what is read from them.
//!
//! Owns file operations, watches, skills, conversion to Markdown, and the disposable processes that read untrusted input. Never
//! derives a file's location from the text of a path, and never parses a document in its own process.

#![forbid(unsafe_code)]

pub mod confined;
pub mod files;
pub mod skills;
pub mod util;
