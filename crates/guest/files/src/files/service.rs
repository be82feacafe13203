//! Operations on single files and directories, in plain Rust. All other parts of the service build on [`run`].

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::{Failure, FileError, Operation};
use super::glob::{self, FileGlobRequest, FileGlobResult};
use super::grep::{self, FileGrepRequest, FileGrepResult, Meaning, Pattern};
use super::history::History;
use super::listing::{self, FileFindRequest, FileFindResult, FileListRequest, FileListResult};
use super::resolve::{ResolvedPath, Root, absolute};
use super::store::{self, Existing};
use super::text::{self, FileContentEncoding};
use super::watch::Watches;
use crate::confined::Confined;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::users::User;
use arenite_guest_runtime::workers::{Kind, Work};

/// The most matches of one search.
const MAX_MATCHES: usize = 10_000;
/// The most bytes of matching lines of one search.
const MAX_MATCH_BYTES: usize = 4 << 20;
/// The number of locks for writers. Files are spread over them.
const LOCKS: usize = 64;

/// The state of the service.
#[derive(Debug)]
pub struct Files {
    pub runtime: Arc<Runtime>,
    pub confined: Arc<Confined>,
    writers: [Mutex<()>; LOCKS],
    history: Mutex<History>,
    pub(super) watches: Watches,
}

impl Files {
    pub fn new(runtime: Arc<Runtime>, confined: Arc<Confined>) -> Self {
        Self {
            runtime,
            confined,
            writers: [const { Mutex::new(()) }; LOCKS],
            history: Mutex::default(),
            watches: Watches::default(),
        }
    }

    /// Locks a file against other writers, whatever path they use. Never held across two files.
    fn lock(&self, resolved: &ResolvedPath) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        resolved.canonical.hash(&mut hasher);
        self.writers[hasher.finish() as usize % LOCKS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct FileReadRequest {
    pub file: String,
    /// First line, from 0.
    #[serde(default)]
    pub start_line: Option<u64>,
    /// The line before which to end.
    #[serde(default)]
    pub end_line: Option<u64>,
    #[serde(default)]
    #[schema(default = false)]
    pub sudo: Option<bool>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileReadResult {
    pub content: String,
    pub file: String,
    /// Lines in `content`.
    pub line_count: usize,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct FileWriteRequest {
    pub file: String,
    pub content: String,
    #[serde(default)]
    #[schema(default = "utf-8")]
    pub encoding: Option<FileContentEncoding>,
    #[serde(default)]
    #[schema(default = false)]
    pub append: Option<bool>,
    /// For utf-8: a line end before the content.
    #[serde(default)]
    #[schema(default = false)]
    pub leading_newline: Option<bool>,
    /// For utf-8: a line end after the content.
    #[serde(default)]
    #[schema(default = false)]
    pub trailing_newline: Option<bool>,
    #[serde(default)]
    #[schema(default = false)]
    pub sudo: Option<bool>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileWriteResult {
    pub file: String,
    pub bytes_written: Option<usize>,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct FileReplaceRequest {
    pub file: String,
    pub old_str: String,
    pub new_str: String,
    #[serde(default)]
    #[schema(default = false)]
    pub sudo: Option<bool>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileReplaceResult {
    pub file: String,
    pub replaced_count: usize,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct FileSearchRequest {
    pub file: String,
    pub regex: String,
    #[serde(default)]
    #[schema(default = false)]
    pub sudo: Option<bool>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileSearchResult {
    pub file: String,
    /// The lines that match.
    pub matches: Vec<String>,
    /// Their numbers, from 0.
    pub line_numbers: Vec<u64>,
    /// There are more matches than fit into one answer.
    pub truncated: bool,
}

/// A request's path, made absolute.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) path: PathBuf,
    /// The path without a trailing slash.
    pub(super) shown: String,
}

fn target(files: &Arc<Files>, path: &str) -> Result<Target, Failure> {
    let path = absolute(path, &files.runtime.default_dir(), &files.runtime.user.home)?;
    let shown = path.components().collect::<PathBuf>().to_string_lossy().into_owned();
    Ok(Target { path, shown })
}

fn user(files: &Arc<Files>, sudo: Option<bool>) -> &User {
    if sudo.unwrap_or(false) { &files.runtime.root_user } else { &files.runtime.user }
}

/// Runs one operation on one path with a user's rights.
pub(super) async fn run<T: Send + 'static>(
    files: &Arc<Files>,
    operation: Operation,
    kind: Kind,
    user: &User,
    path: &str,
    work: impl FnOnce(&Files, &Root, Target, &Work) -> Result<T, Failure> + Send + 'static,
) -> Result<T, FileError> {
    let result = async {
        let target = target(files, path)?;
        let shared = files.clone();
        files.runtime.workers.run(kind, user, move |running| work(&shared, &Root::open()?, target, running)).await
    };
    result.await.map_err(|failure| FileError { operation, path: path.to_owned(), failure })
}

/// Reads text: all of a file, or a range of its lines.
pub async fn read(files: &Arc<Files>, request: FileReadRequest) -> Result<FileReadResult, FileError> {
    let FileReadRequest { file, start_line, end_line, sudo } = request;
    let ranged = start_line.is_some() || end_line.is_some();
    let kind = if ranged { Kind::Scan } else { Kind::Brief };
    run(files, Operation::Read, kind, user(files, sudo), &file, move |_, root, target, work| {
        let (file, _) = root.open_file(&target.path)?;
        let content = if ranged {
            text::read_lines(&file, start_line.unwrap_or(0), end_line, work, &target.shown)?
        } else {
            text::read_all(&file, &target.shown)?
        };
        Ok(FileReadResult { line_count: content.lines().count(), content, file: target.shown })
    })
    .await
}

/// The part of a file that fits into a bound.
#[derive(Debug, Clone, Serialize)]
pub struct FilePart {
    pub content: String,
    pub file: String,
    /// Lines in `content`.
    pub line_count: u64,
    /// The first of them, from 0.
    pub start_line: u64,
    /// The line before which it ends.
    pub end_line: u64,
    /// Lines of the whole file.
    pub total_lines: u64,
    /// The requested range did not fit.
    pub truncated: bool,
    /// Its only line is cut.
    #[serde(skip)]
    pub is_line_cut: bool,
}

/// Reads a range of lines, or all lines, of a text of any size: as many as fit into `most` characters.
pub async fn read_part(files: &Arc<Files>, request: FileReadRequest, most: usize) -> Result<FilePart, FileError> {
    let FileReadRequest { file, start_line, end_line, sudo } = request;
    run(files, Operation::Read, Kind::Scan, user(files, sudo), &file, move |_, root, target, work| {
        let (file, _) = root.open_file(&target.path)?;
        let start = start_line.unwrap_or(0);
        let part = text::read_part_of(&file, start, end_line, most, work, &target.shown)?;
        let start_line = start.min(part.end);
        Ok(FilePart {
            content: part.content,
            file: target.shown,
            line_count: part.end - start_line,
            start_line,
            end_line: part.end,
            total_lines: part.total,
            truncated: part.is_line_cut
                || start < part.total && part.end < end_line.map_or(part.total, |end| end.min(part.total)),
            is_line_cut: part.is_line_cut,
        })
    })
    .await
}

/// Writes or appends to a file. Creates missing directories.
pub async fn write(files: &Arc<Files>, request: FileWriteRequest) -> Result<FileWriteResult, FileError> {
    let FileWriteRequest { file, content, encoding, append, leading_newline, trailing_newline, sudo } = request;
    let encoding = encoding.unwrap_or_default();
    let is_text = encoding == FileContentEncoding::Utf8;
    let (leading, trailing) = (leading_newline.unwrap_or(false), trailing_newline.unwrap_or(false));
    run(files, Operation::Write, Kind::Brief, user(files, sudo), &file, move |files, root, target, _| {
        let mut bytes = text::decode(content, encoding)?;
        if is_text && leading {
            bytes.insert(0, b'\n');
        }
        if is_text && trailing {
            bytes.push(b'\n');
        }
        with_resolved(files, root, &target, |resolved| {
            if append.unwrap_or(false) {
                store::append(resolved, &bytes)
            } else {
                store::store(resolved, &bytes, Existing::Replace)
            }
        })?;
        Ok(FileWriteResult { file: target.shown, bytes_written: Some(bytes.len()) })
    })
    .await
}

/// Replaces every occurrence of a text. No occurrence is no failure: the count reports it.
pub async fn replace(files: &Arc<Files>, request: FileReplaceRequest) -> Result<FileReplaceResult, FileError> {
    let FileReplaceRequest { file, old_str, new_str, sudo } = request;
    run(files, Operation::Replace, Kind::Brief, user(files, sudo), &file, move |files, root, target, _| {
        if old_str.is_empty() {
            return Err(Failure::invalid("old_str is empty; give the text to replace"));
        }
        root.open_file(&target.path)?;
        let replaced_count = with_resolved(files, root, &target, |resolved| {
            let (file, _) = root.open_file(&target.path)?;
            let text = text::read_all(&file, &target.shown)?;
            let count = text.matches(&old_str).count();
            if count > 0 {
                store::store(resolved, text.replace(&old_str, &new_str).as_bytes(), Existing::Replace)?;
            }
            Ok(count)
        })?;
        Ok(FileReplaceResult { file: target.shown, replaced_count })
    })
    .await
}

/// Resolves the path of a file to write and locks it against other writers. Removes created directories if the write fails.
pub(super) fn with_resolved<T>(
    files: &Files,
    root: &Root,
    target: &Target,
    work: impl FnOnce(&mut ResolvedPath) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut resolved = root.locate(&target.path)?;
    let guard = files.lock(&resolved);
    // The file may have changed during the wait.
    resolved.refresh().map_err(|e| Failure::os(e, &*target.shown))?;
    let result = work(&mut resolved);
    drop(guard);
    if result.is_err() {
        resolved.abandon();
    }
    result
}

/// Finds the lines that match a pattern.
pub async fn search(files: &Arc<Files>, request: FileSearchRequest) -> Result<FileSearchResult, FileError> {
    let FileSearchRequest { file, regex, sudo } = request;
    run(files, Operation::Search, Kind::Scan, user(files, sudo), &file, move |_, root, target, work| {
        let pattern = Pattern::parse(&regex, Meaning::default())?;
        let (file, _) = root.open_file(&target.path)?;
        let mut result =
            FileSearchResult { file: target.shown.clone(), matches: Vec::new(), line_numbers: Vec::new(), truncated: false };
        let mut bytes = 0;
        let mut failed = None;
        text::for_each_line(&file, work, &target.shown, |number, line| {
            match pattern.matches_line(line) {
                Ok(true) => {}
                Ok(false) => return true,
                Err(error) => {
                    failed = Some(error);
                    return false;
                }
            }
            bytes += line.len();
            if result.matches.len() >= MAX_MATCHES || bytes > MAX_MATCH_BYTES {
                result.truncated = true;
                return false;
            }
            result.matches.push(String::from_utf8_lossy(line).into_owned());
            result.line_numbers.push(number);
            true
        })?;
        failed.map_or(Ok(result), Err)
    })
    .await
}

/// Finds files by a name or glob.
pub async fn find(files: &Arc<Files>, request: FileFindRequest) -> Result<FileFindResult, FileError> {
    let path = request.path.clone();
    run(files, Operation::Find, Kind::Scan, &files.runtime.user, &path, move |_, root, target, work| {
        listing::find(root, Path::new(&target.shown), &request, work)
    })
    .await
}

/// Searches the content of files.
pub async fn grep(files: &Arc<Files>, request: FileGrepRequest) -> Result<FileGrepResult, FileError> {
    let path = request.path.clone();
    run(files, Operation::Grep, Kind::Scan, &files.runtime.user, &path, move |_, root, target, work| {
        grep::grep(root, Path::new(&target.shown), &request, work)
    })
    .await
}

/// Finds files by a glob, with their metadata.
pub async fn glob(files: &Arc<Files>, request: FileGlobRequest) -> Result<FileGlobResult, FileError> {
    let path = request.path.clone();
    run(files, Operation::Glob, Kind::Scan, &files.runtime.user, &path, move |_, root, target, work| {
        glob::glob(root, Path::new(&target.shown), &request, work)
    })
    .await
}

/// Lists a directory.
pub async fn list(files: &Arc<Files>, request: FileListRequest) -> Result<FileListResult, FileError> {
    let path = request.path.clone();
    run(files, Operation::List, Kind::Scan, &files.runtime.user, &path, move |_, root, target, work| {
        listing::list(root, Path::new(&target.shown), &request, work)
    })
    .await
}
