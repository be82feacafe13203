//! The file operations, in plain Rust.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use utoipa::ToSchema;

use super::editor::{self, EditorCommand, StrReplaceEditorRequest, StrReplaceEditorResult};
use super::error::{Failure, FileError, Operation};
use super::history::{Before, History};
use super::listing::{self, FileFindRequest, FileFindResult, FileListRequest, FileListResult};
use super::resolve::{Place, Root, absolute, is_dir};
use super::store::{self, Draft, Existing};
use super::text::{self, FileContentEncoding};
use super::walk::{Next, Walked, walk};
use super::worker::{Kind, Work, Workers};
use crate::Guest;
use crate::users::User;

/// The most matches that one search returns.
const MAX_MATCHES: usize = 10_000;
/// The most bytes of matching lines that one search returns.
const MAX_MATCH_BYTES: usize = 4 << 20;
/// The most memory that a compiled pattern takes, in bytes.
const MAX_REGEX_BYTES: usize = 4 << 20;
/// The most entries that a view of a directory shows.
const MAX_VIEW_ENTRIES: usize = 2_000;
/// Locks that writers of the same file share; files are spread over them.
const LOCKS: usize = 64;
/// The longest name of a file, in bytes. The kernel's own bound.
const MAX_NAME: usize = 255;

/// The state of the service.
#[derive(Debug)]
pub struct Files {
    pub(crate) workers: Workers,
    writers: [Mutex<()>; LOCKS],
    history: Mutex<History>,
}

impl Default for Files {
    fn default() -> Self {
        Self { workers: Workers::default(), writers: [const { Mutex::new(()) }; LOCKS], history: Mutex::default() }
    }
}

impl Files {
    /// One writer at a time for each file, however it is named. Never held across two files.
    fn lock(&self, place: &Place) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        place.canonical.hash(&mut hasher);
        self.writers[hasher.finish() as usize % LOCKS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn history(&self) -> MutexGuard<'_, History> {
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
    pub encoding: Option<FileContentEncoding>,
    #[serde(default)]
    pub append: Option<bool>,
    /// For utf-8: a line end before the content.
    #[serde(default)]
    pub leading_newline: Option<bool>,
    /// For utf-8: a line end after the content.
    #[serde(default)]
    pub trailing_newline: Option<bool>,
    #[serde(default)]
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

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileUploadResult {
    pub file_path: String,
    pub file_size: u64,
    pub success: bool,
}

/// A path of a request, made absolute.
#[derive(Debug, Clone)]
struct Target {
    path: PathBuf,
    /// Without a closing slash.
    shown: String,
}

fn target(guest: &Guest, path: &str) -> Result<Target, Failure> {
    let path = absolute(path, &guest.default_dir(), &guest.user.home)?;
    let shown = path.components().collect::<PathBuf>().to_string_lossy().into_owned();
    Ok(Target { path, shown })
}

fn user(guest: &Guest, sudo: Option<bool>) -> &User {
    if sudo.unwrap_or(false) { &guest.root_user } else { &guest.user }
}

/// Runs one operation on one path with a user's rights.
async fn run<T: Send + 'static>(
    guest: &Guest,
    operation: Operation,
    kind: Kind,
    user: &User,
    path: &str,
    work: impl FnOnce(&Files, &Root, Target, &Work) -> Result<T, Failure> + Send + 'static,
) -> Result<T, FileError> {
    let result = async {
        let target = target(guest, path)?;
        let files = guest.files.clone();
        guest.files.workers.run(kind, user, move |running| work(&files, &Root::open()?, target, running)).await
    };
    result.await.map_err(|failure| FileError { operation, path: path.to_owned(), failure })
}

/// Reads text: all of a file, or a range of its lines.
pub async fn read(guest: &Guest, request: FileReadRequest) -> Result<FileReadResult, FileError> {
    let FileReadRequest { file, start_line, end_line, sudo } = request;
    let ranged = start_line.is_some() || end_line.is_some();
    let kind = if ranged { Kind::Scan } else { Kind::Brief };
    run(guest, Operation::Read, kind, user(guest, sudo), &file, move |_, root, target, work| {
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

/// Writes or appends; makes missing directories.
pub async fn write(guest: &Guest, request: FileWriteRequest) -> Result<FileWriteResult, FileError> {
    let FileWriteRequest { file, content, encoding, append, leading_newline, trailing_newline, sudo } = request;
    let encoding = encoding.unwrap_or_default();
    let is_text = encoding == FileContentEncoding::Utf8;
    let (leading, trailing) = (leading_newline.unwrap_or(false), trailing_newline.unwrap_or(false));
    run(guest, Operation::Write, Kind::Brief, user(guest, sudo), &file, move |files, root, target, _| {
        let mut bytes = text::decode(content, encoding)?;
        if is_text && leading {
            bytes.insert(0, b'\n');
        }
        if is_text && trailing {
            bytes.push(b'\n');
        }
        with_place(files, root, &target, |place| {
            if append.unwrap_or(false) {
                store::append(place, &bytes)
            } else {
                store::store(place, &bytes, Existing::Replace)
            }
        })?;
        Ok(FileWriteResult { file: target.shown, bytes_written: Some(bytes.len()) })
    })
    .await
}

/// Replaces every occurrence of a text. None is no failure: the count says so.
pub async fn replace(guest: &Guest, request: FileReplaceRequest) -> Result<FileReplaceResult, FileError> {
    let FileReplaceRequest { file, old_str, new_str, sudo } = request;
    run(guest, Operation::Replace, Kind::Brief, user(guest, sudo), &file, move |files, root, target, _| {
        if old_str.is_empty() {
            return Err(Failure::invalid("old_str is empty; give the text to replace"));
        }
        root.open_file(&target.path)?;
        let replaced_count = with_place(files, root, &target, |place| {
            let (file, _) = root.open_file(&target.path)?;
            let text = text::read_all(&file, &target.shown)?;
            let count = text.matches(&old_str).count();
            if count > 0 {
                store::store(place, text.replace(&old_str, &new_str).as_bytes(), Existing::Replace)?;
            }
            Ok(count)
        })?;
        Ok(FileReplaceResult { file: target.shown, replaced_count })
    })
    .await
}

/// Finds the place of a file to write, keeps other writers from it, and takes back made directories when that fails.
fn with_place<T>(
    files: &Files,
    root: &Root,
    target: &Target,
    work: impl FnOnce(&mut Place) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut place = root.locate(&target.path)?;
    let guard = files.lock(&place);
    // What stands there may have changed while we waited.
    place.refresh().map_err(|e| Failure::os(e, &*target.shown))?;
    let result = work(&mut place);
    drop(guard);
    if result.is_err() {
        place.abandon();
    }
    result
}

/// Finds the lines that match a pattern.
pub async fn search(guest: &Guest, request: FileSearchRequest) -> Result<FileSearchResult, FileError> {
    let FileSearchRequest { file, regex, sudo } = request;
    run(guest, Operation::Search, Kind::Scan, user(guest, sudo), &file, move |_, root, target, work| {
        let mut builder = regex::bytes::RegexBuilder::new(&regex);
        builder.size_limit(MAX_REGEX_BYTES).dfa_size_limit(MAX_REGEX_BYTES);
        let pattern = builder.build().map_err(|error| Failure::Invalid {
            message: format!("the regular expression can't be used: {error}"),
            hint: Some("look-around and back-references are not supported, since their time has no bound".to_owned()),
        })?;
        let (file, _) = root.open_file(&target.path)?;
        let mut result =
            FileSearchResult { file: target.shown.clone(), matches: Vec::new(), line_numbers: Vec::new(), truncated: false };
        let mut bytes = 0;
        text::for_each_line(&file, work, &target.shown, |number, line| {
            if !pattern.is_match(line) {
                return true;
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
        Ok(result)
    })
    .await
}

/// Finds files by a name or glob.
pub async fn find(guest: &Guest, request: FileFindRequest) -> Result<FileFindResult, FileError> {
    let path = request.path.clone();
    run(guest, Operation::Find, Kind::Scan, &guest.user, &path, move |_, root, target, work| {
        listing::find(root, Path::new(&target.shown), &request, work)
    })
    .await
}

/// Lists a directory.
pub async fn list(guest: &Guest, request: FileListRequest) -> Result<FileListResult, FileError> {
    let path = request.path.clone();
    run(guest, Operation::List, Kind::Scan, &guest.user, &path, move |_, root, target, work| {
        listing::list(root, Path::new(&target.shown), &request, work)
    })
    .await
}

/// The `str_replace_editor` tool.
pub async fn edit(guest: &Guest, request: StrReplaceEditorRequest) -> Result<StrReplaceEditorResult, FileError> {
    let operation = if request.command == EditorCommand::View { Operation::View } else { Operation::Edit };
    let path = request.path.clone();
    run(guest, operation, Kind::Brief, &guest.user, &path, move |files, root, target, work| match request.command {
        EditorCommand::View => view(root, &target, &request, work),
        EditorCommand::Create => create(files, root, &target, request),
        EditorCommand::StrReplace => {
            let old = editor::required(request.old_str, "old_str", "str_replace")?;
            let new = request.new_str.unwrap_or_default();
            change(files, root, &target, |text| {
                editor::str_replace(&target.shown, text, &old, &new, request.replace_mode)
            })
        }
        EditorCommand::Insert => {
            let line = editor::required(request.insert_line, "insert_line", "insert")?;
            let new = editor::required(request.new_str, "new_str", "insert")?;
            change(files, root, &target, |text| editor::insert(&target.shown, text, line, &new))
        }
        EditorCommand::UndoEdit => undo(files, root, &target),
    })
    .await
}

fn echo(text: &str) -> Option<String> {
    (text.len() <= editor::MAX_ECHO_BYTES).then(|| text.to_owned())
}

fn edited(target: &Target, output: String, old: Option<&str>, new: Option<&str>) -> StrReplaceEditorResult {
    StrReplaceEditorResult {
        output,
        error: None,
        path: target.shown.clone(),
        prev_exist: old.is_some(),
        old_content: old.and_then(echo),
        new_content: new.and_then(echo),
        metadata: None,
    }
}

fn view(root: &Root, target: &Target, request: &StrReplaceEditorRequest, work: &Work) -> Result<StrReplaceEditorResult, Failure> {
    let range = request.view_range.as_deref().unwrap_or_default();
    let output = if is_dir(&root.inspect(&target.path)?.1) {
        if !range.is_empty() {
            return Err(Failure::invalid(format!("'{}' is a directory: view_range is for files", target.shown)));
        }
        let (mut shown, mut hidden) = (Vec::new(), 0);
        let start = Path::new(&target.shown);
        let walked = walk(root, start, work, |entry| {
            if entry.is_hidden() {
                hidden += 1;
                return Next::Skip;
            }
            if shown.len() >= MAX_VIEW_ENTRIES {
                return Next::Stop;
            }
            let slash = if entry.is_dir() { "/" } else { "" };
            shown.push(format!("{}{slash}", start.join(entry.path).display()));
            if entry.depth < 2 { Next::Enter } else { Next::Skip }
        })?;
        editor::view_directory(&target.shown, shown, hidden, walked == Walked::Cut)
    } else {
        editor::require_text_view(request)?;
        let (file, _) = root.open_file(&target.path)?;
        editor::view(&target.shown, &text::read_all(&file, &target.shown)?, range)?
    };
    Ok(StrReplaceEditorResult { prev_exist: true, ..edited(target, output, None, None) })
}

fn create(files: &Files, root: &Root, target: &Target, request: StrReplaceEditorRequest) -> Result<StrReplaceEditorResult, Failure> {
    let text = editor::required(request.file_text, "file_text", "create")?;
    with_place(files, root, target, |place| {
        let stored = store::store(place, text.as_bytes(), Existing::Refuse);
        stored.map_err(|failure| match failure.errno() {
            Some(Errno::EXIST) => Failure::Os {
                errno: Errno::EXIST,
                path: target.shown.clone(),
                note: "create makes new files only; change it with str_replace or insert, or overwrite it with /v1/file/write"
                    .to_owned(),
            },
            _ => failure,
        })?;
        files.history().push(place.canonical.clone(), Before::Nothing);
        Ok(())
    })?;
    Ok(edited(target, format!("The file {} has been created.", target.shown), None, Some(&text)))
}

fn change(
    files: &Files,
    root: &Root,
    target: &Target,
    apply: impl FnOnce(&str) -> Result<editor::Edited, Failure>,
) -> Result<StrReplaceEditorResult, Failure> {
    // A missing file is said before any directory is made for it.
    root.open_file(&target.path)?;
    with_place(files, root, target, |place| {
        let (file, _) = root.open_file(&target.path)?;
        let old = text::read_all(&file, &target.shown)?;
        let new = apply(&old)?;
        store::store(place, new.text.as_bytes(), Existing::Replace)?;
        let result = edited(target, new.output, Some(&old), Some(&new.text));
        files.history().push(place.canonical.clone(), Before::Content(old));
        Ok(result)
    })
}

fn undo(files: &Files, root: &Root, target: &Target) -> Result<StrReplaceEditorResult, Failure> {
    let no_history = || Failure::NoHistory { path: target.shown.clone() };
    with_place(files, root, target, |place| {
        let before = files.history().pop(&place.canonical).ok_or_else(no_history)?;
        let current = match root.open_file(&target.path) {
            Ok((file, _)) => text::read_all(&file, &target.shown).ok(),
            Err(_) => None,
        };
        let done = match &before {
            Before::Content(text) => store::store(place, text.as_bytes(), Existing::Replace),
            Before::Nothing => match rustix::fs::unlinkat(&place.dir, &place.name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(e) => Err(Failure::os(e, &*target.shown)),
            },
        };
        if let Err(failure) = done {
            files.history().push(place.canonical.clone(), before);
            return Err(failure);
        }
        let shown = &target.shown;
        Ok(match &before {
            Before::Content(text) => {
                let body = editor::view(shown, text, &[])?;
                let output = format!("The last edit of {shown} has been undone. {body}");
                StrReplaceEditorResult { prev_exist: true, ..edited(target, output, current.as_deref(), Some(text)) }
            }
            Before::Nothing => {
                let output = format!("The creation of {shown} has been undone: the file is deleted.");
                StrReplaceEditorResult { prev_exist: true, ..edited(target, output, current.as_deref(), None) }
            }
        })
    })
}

/// A file on its way in. Dropped before [`Upload::finish`], nothing of it is left.
#[derive(Debug)]
pub struct Upload {
    /// The request's path; none: a file of its own name in the default directory.
    path: Option<String>,
    name: Option<String>,
    draft: Draft,
    writer: tokio::fs::File,
    size: u64,
}

fn upload_error(path: Option<&str>, failure: Failure) -> FileError {
    FileError { operation: Operation::Upload, path: path.unwrap_or_default().to_owned(), failure }
}

/// The last part of a name that a client gave for its file.
fn file_name(name: &str) -> Result<&str, Failure> {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    if last.is_empty() || last == "." || last == ".." || last.contains('\0') || last.len() > MAX_NAME {
        let note = "the uploaded file has no usable name; give path with the file's name".to_owned();
        return Err(Failure::Os { errno: Errno::INVAL, path: name.replace('\0', "\\0"), note });
    }
    Ok(last)
}

/// Where an upload goes: `path`, or `name` in it when it is a directory.
fn upload_target(root: &Root, target: Target, name: Option<&str>) -> Result<Target, Failure> {
    let directory = target.path.as_os_str().as_encoded_bytes().ends_with(b"/")
        || root.inspect(&target.path).is_ok_and(|(_, stat)| is_dir(&stat));
    if !directory {
        return Ok(target);
    }
    let path = Path::new(&target.shown).join(file_name(name.unwrap_or_default())?);
    Ok(Target { shown: path.to_string_lossy().into_owned(), path })
}

fn begin_draft(dir: &OwnedFd, path: &Path) -> Result<Draft, Failure> {
    Draft::begin(dir).map_err(|e| Failure::os(e, path.to_string_lossy()))
}

impl Upload {
    /// Starts one. `path` may come later, with [`Upload::finish`].
    pub async fn begin(guest: &Guest, path: Option<String>, name: Option<String>) -> Result<Self, FileError> {
        let given = path.clone().unwrap_or_else(|| ".".to_owned());
        let (known, own_name) = (path.is_some(), name.clone());
        let home = guest.default_dir();
        let begun = run(guest, Operation::Upload, Kind::Brief, &guest.user, &given, move |_, root, target, _| {
            let mut first = None;
            if known {
                let target = upload_target(root, target, own_name.as_deref())?;
                let exists = root.inspect(&target.path).is_ok();
                if exists {
                    store::check_writable(&root.locate(&target.path)?)?;
                }
                let above: PathBuf = target.path.parent().unwrap_or(Path::new("/")).components().collect();
                match root.nearest_dir(&above).and_then(|dir| begin_draft(&dir, &above)) {
                    Ok(draft) => return Ok(draft),
                    Err(failure) if !exists => return Err(failure),
                    // The directory is closed, but the file is open to writing.
                    Err(failure) => first = Some(failure),
                }
            }
            for dir in [home.as_path(), Path::new("/tmp"), Path::new("/var/tmp")] {
                match root.nearest_dir(dir).and_then(|fd| begin_draft(&fd, dir)) {
                    Ok(draft) => return Ok(draft),
                    Err(failure) => first = first.or(Some(failure)),
                }
            }
            Err(first.unwrap_or_else(|| Failure::os(Errno::NOENT, home.to_string_lossy())))
        });
        let draft = begun.await?;
        let writer = draft.file().try_clone().map_err(|e| upload_error(path.as_deref(), Failure::io(e, &given)))?;
        Ok(Self { path, name, draft, writer: tokio::fs::File::from_std(writer), size: 0 })
    }

    /// Adds bytes. They go to disk as they come.
    pub async fn write(&mut self, bytes: &Bytes) -> Result<(), FileError> {
        let written = self.writer.write_all(bytes).await;
        self.size += bytes.len() as u64;
        written.map_err(|e| self.error(e))
    }

    fn error(&self, error: std::io::Error) -> FileError {
        let path = self.path.as_deref().or(self.name.as_deref());
        upload_error(path, Failure::io(error, path.unwrap_or_default()))
    }

    /// Puts the file in its place. `path` is for when it was not known at the beginning.
    pub async fn finish(mut self, guest: &Guest, path: Option<String>) -> Result<FileUploadResult, FileError> {
        if let Err(e) = self.writer.flush().await {
            return Err(self.error(e));
        }
        let Self { path: early, name, draft, writer, size } = self;
        drop(writer.into_std().await);
        let given = early.or(path).unwrap_or_else(|| "./".to_owned());
        run(guest, Operation::Upload, Kind::Brief, &guest.user, &given, move |files, root, target, _| {
            let target = upload_target(root, target, name.as_deref())?;
            with_place(files, root, &target, |place| {
                store::check_writable(place)?;
                draft.publish(place, Existing::Replace)
            })?;
            Ok(FileUploadResult { file_path: target.shown, file_size: size, success: true })
        })
        .await
    }
}

/// A file on its way out.
#[derive(Debug)]
pub struct Download {
    pub file: std::fs::File,
    pub stat: Stat,
    pub name: String,
    /// Absolute, for looking whether another file has taken its place.
    pub path: PathBuf,
}

/// Opens a file for download.
pub async fn open_download(guest: &Guest, path: &str) -> Result<Download, FileError> {
    run(guest, Operation::Download, Kind::Brief, &guest.user, path, move |_, root, target, _| {
        let (file, stat) = root.open_file(&target.path)?;
        let name = target.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Download { file, stat, name, path: target.path })
    })
    .await
}

/// Whether a download's file is still what it was: same content as far as its times tell, and still at its path.
pub(super) fn unchanged(download: &Download) -> bool {
    let same = |s: &Stat| {
        let was = &download.stat;
        (s.st_dev, s.st_ino, s.st_size, s.st_mtime, s.st_mtime_nsec)
            == (was.st_dev, was.st_ino, was.st_size, was.st_mtime, was.st_mtime_nsec)
    };
    let here = rustix::fs::fstat(&download.file).is_ok_and(|s| same(&s));
    here && Root::open().and_then(|root| root.inspect(&download.path)).is_ok_and(|(_, s)| same(&s))
}
