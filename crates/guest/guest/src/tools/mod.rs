//! The sandbox's tools for agents, as MCP's hub lists and calls them: one description and one function each.
//!
//! A tool translates: its arguments are read into a type with doc comments that are the schema's descriptions, a service does the
//! work, and the answer consists of text, structured content, and images. Names are those of AIO's hub; names that it once had,
//! or has elsewhere, are aliases: callable and not listed.
//!
//! | file | its tools |
//! | --- | --- |
//! | `bash.rs` | `sandbox_execute_bash` |
//! | `code.rs` | `sandbox_execute_code`, `sandbox_get_packages`, `sandbox_get_context` |
//! | `files.rs`, `editor.rs` | `sandbox_file_operations`, `sandbox_str_replace_editor` |
//! | `documents.rs` | `sandbox_convert_to_markdown`, `sandbox_load_skill` |
//! | `screen.rs` | `sandbox_get_browser_info`, `sandbox_browser_screenshot`, `sandbox_browser_execute_action` |
//! | `browser/` | `browser_*` |
//! | `readme.rs` | tools of AIO's README that its hub never listed: `file_*`, `terminal_*` |
//!
//! Each call is one future: if it is dropped, everything that it started stops.

mod answer;
mod bash;
mod bounded;
mod browser;
mod code;
mod documents;
mod editor;
mod files;
mod readme;
mod registry;
mod screen;
mod tool;

pub(crate) use registry::{Group, registry};
pub(crate) use tool::{Caller, Progress, Tool};

/// The descriptions of every sandbox's tools, for clients that list them without a sandbox.
pub fn descriptions() -> Vec<rmcp::model::Tool> {
    registry().list().map(|tool| tool.description.clone()).collect()
}
