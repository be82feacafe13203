//! AIO's `file` service: reads, writes, edits, finds and transfers the sandbox's files.
//!
//! ```text
//!  routes, transfer (HTTP) ─► service, edits, exchange ─► workers: a thread with the user's rights
//!                                                            ├─ resolve: path → descriptors under the root
//!                                                            ├─ text, listing, glob, grep, walk: reading
//!                                                            ├─ store: writing, whole or not at all
//!                                                            └─ document: opened here, read in a confined process
//! ```
//!
//! Owns only the edit history and the locks of files being written. Never derives a file's location from the text of a path.

mod document;
mod editor;
mod edits;
mod error;
mod exchange;
mod glob;
mod grep;
mod history;
mod listing;
mod resolve;
mod routes;
mod service;
mod store;
mod text;
mod transfer;
mod walk;
mod watch;

pub use document::open_document;
pub use editor::{EditorCommand, ReplaceMode, StrReplaceEditorRequest, StrReplaceEditorResult};
pub use edits::edit;
pub use edits::{Manner, edit_so};
pub use error::{Failure, FileError, FileOperationError, Operation};
pub use exchange::{Download, FileUploadResult, Upload, open_download};
pub use glob::{FileGlobRequest, FileGlobResult, GlobFileInfo};
pub use grep::{FileGrepRequest, FileGrepResult, GrepMatch};
pub use listing::{FileFindRequest, FileFindResult, FileInfo, FileListRequest, FileListResult};
pub use routes::{FilesApi, router};
pub use service::{FilePart, read_part};
pub use service::{
    FileReadRequest, FileReadResult, FileReplaceRequest, FileReplaceResult, FileSearchRequest, FileSearchResult,
    FileWriteRequest, FileWriteResult, Files, find, glob, grep, list, read, replace, search, write,
};
pub use text::FileContentEncoding;
pub use watch::{FileEvent, FileEventType, WatchApi};
