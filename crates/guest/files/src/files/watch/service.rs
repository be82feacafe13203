//! Watchers, in plain Rust.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rustix::io::Errno;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use super::super::error::{Failure, FileError, Operation};
use super::super::service::run;
use super::feed::{Feed, FileEventType, Page};
use super::selection::Selection;
use super::tree::Tree;
use super::watcher::Watcher;
use crate::files::Files;
use arenite_guest_runtime::http::within;
use arenite_guest_runtime::workers::Kind;

/// The most watchers.
const MAX_WATCHERS: usize = 32;
/// The most concurrent calls of `wait`.
const MAX_WAITS: usize = 64;

/// All watchers.
#[derive(Debug)]
pub(in super::super) struct Watches {
    watchers: Mutex<BTreeMap<String, Entry>>,
    pub(super) waits: Arc<Semaphore>,
}

impl Default for Watches {
    fn default() -> Self {
        Self { watchers: Mutex::default(), waits: Arc::new(Semaphore::new(MAX_WAITS)) }
    }
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Entry {
    info: Info,
    feed: Arc<Feed>,
    stop: CancellationToken,
}

/// The settings of a watcher.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Info {
    pub(super) watcher_id: String,
    pub(super) path: String,
    pub(super) recursive: bool,
    pub(super) exclude: Vec<String>,
    pub(super) include_patterns: Vec<String>,
    /// Milliseconds.
    pub(super) debounce: i64,
    pub(super) created_at: Timestamp,
    /// Directories watched at the start.
    pub(super) directories: usize,
}

/// The settings of a watcher and its progress.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Listed {
    #[serde(flatten)]
    pub(super) info: Info,
    pub(super) cursor: u64,
    pub(super) closed: bool,
}

fn yes() -> bool {
    true
}

fn default_exclude() -> Vec<String> {
    let usual = [".git", "node_modules", "__pycache__", ".venv", "*.pyc", "*.pyo", ".DS_Store", "*.swp", "*.swo"];
    usual.map(str::to_owned).into()
}

fn default_debounce() -> i64 {
    300
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(super) struct CreateWatchRequest {
    /// A file or directory.
    pub(super) path: String,
    /// Also what lies in its directories, at any depth.
    #[serde(default = "yes")]
    #[schema(default = yes)]
    pub(super) recursive: bool,
    /// What is not watched: names of directories, or globs.
    ///
    /// Replaces the default.
    #[serde(default = "default_exclude")]
    #[schema(default = default_exclude)]
    pub(super) exclude: Vec<String>,
    /// Milliseconds to wait for more before events are reported; what cancels out in them is left out.
    #[serde(default = "default_debounce", deserialize_with = "within::<_, 50, 5000>")]
    #[schema(default = default_debounce, minimum = 50, maximum = 5000)]
    pub(super) debounce: i64,
    /// Globs of what is reported; empty: everything.
    #[serde(default)]
    #[schema(default = json!([]))]
    pub(super) include_patterns: Vec<String>,
}

fn default_limit() -> i64 {
    100
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(super) struct PollRequest {
    /// The `cursor` of the call before: later events are answered.
    #[serde(default, deserialize_with = "within::<_, 0, { i64::MAX }>")]
    #[schema(default = 0, minimum = 0)]
    pub(super) cursor: i64,
    /// The same, as older clients call it.
    #[serde(default, deserialize_with = "arenite_guest_runtime::http::optional_within::<_, 0, { i64::MAX }>")]
    #[schema(ignore)]
    pub(super) since: Option<i64>,
    /// The most events of one answer.
    #[serde(default = "default_limit", deserialize_with = "within::<_, 1, 1000>")]
    #[schema(default = default_limit, minimum = 1, maximum = 1000)]
    pub(super) limit: i64,
    /// Seconds to wait when there is none yet.
    #[serde(default, deserialize_with = "within::<_, 0, 60>")]
    #[schema(default = 0, minimum = 0, maximum = 60)]
    pub(super) timeout: i64,
}

fn default_wait() -> i64 {
    30
}

fn all_types() -> Vec<FileEventType> {
    use FileEventType::{Chmod, Create, Remove, Rename, Write};
    vec![Create, Write, Remove, Rename, Chmod]
}

/// An empty list would wait for nothing, so it means all types.
fn some_types<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<FileEventType>, D::Error> {
    let types = Vec::deserialize(deserializer)?;
    Ok(if types.is_empty() { all_types() } else { types })
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = FileWatchWaitRequest)]
pub(super) struct WaitRequest {
    /// The file, which need not be there yet.
    pub(super) path: String,
    /// Seconds to wait.
    #[serde(default = "default_wait", deserialize_with = "within::<_, 1, 300>")]
    #[schema(default = default_wait, minimum = 1, maximum = 300)]
    pub(super) timeout: i64,
    /// What to wait for.
    #[serde(default = "all_types", deserialize_with = "some_types")]
    #[schema(default = all_types)]
    pub(super) event_types: Vec<FileEventType>,
}

/// Why a watch call failed.
#[derive(Debug)]
pub(super) enum WatchError {
    TooMany,
    NotFound(String),
    File(FileError),
}

impl From<FileError> for WatchError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

fn too_many(files: &Arc<Files>) -> Result<(), WatchError> {
    if files.watches.lock().len() < MAX_WATCHERS { Ok(()) } else { Err(WatchError::TooMany) }
}

/// Starts a watcher.
pub(super) async fn create(files: &Arc<Files>, request: CreateWatchRequest) -> Result<Info, WatchError> {
    too_many(files)?;
    let CreateWatchRequest { path, recursive, exclude, debounce, include_patterns } = request;
    let (excluded, included) = (exclude.clone(), include_patterns.clone());
    let opened = run(files, Operation::Watch, Kind::Brief, &files.runtime.user, &path, move |_, root, target, _| {
        let shown = std::path::Path::new(&target.shown);
        let select = |dir: &std::path::Path| Selection::new(dir, &excluded, &included);
        Tree::open(root, shown, recursive, select).map(|(tree, selection)| (tree, selection, target.shown))
    });
    let (tree, selection, path) = opened.await?;
    let unnamed = |_| FileError { operation: Operation::Watch, path: path.clone(), failure: Failure::os(Errno::IO, &*path) };
    let watcher_id = format!("w-{:016x}", getrandom::u64().map_err(unnamed)?);
    let (feed, stop) = (Arc::new(Feed::default()), CancellationToken::new());
    let directories = tree.directories();
    let info =
        Info { watcher_id, path, recursive, exclude, include_patterns, debounce, created_at: Timestamp::now(), directories };
    {
        let mut watchers = files.watches.lock();
        // Other watchers may have been created during the walk.
        if watchers.len() >= MAX_WATCHERS {
            return Err(WatchError::TooMany);
        }
        let entry = Entry { info: info.clone(), feed: feed.clone(), stop: stop.clone() };
        watchers.insert(info.watcher_id.clone(), entry);
    }
    let debounce = Duration::from_millis(debounce.unsigned_abs());
    tokio::spawn(Watcher { tree, selection, feed, debounce, stop }.run(files.clone()));
    Ok(info)
}

pub(super) fn list(files: &Arc<Files>) -> Vec<Listed> {
    let watchers = files.watches.lock();
    let listed = |entry: &Entry| Listed { info: entry.info.clone(), cursor: entry.feed.cursor(), closed: entry.feed.is_closed() };
    watchers.values().map(listed).collect()
}

/// A watcher's events and settings.
pub(super) fn feed(files: &Arc<Files>, id: &str) -> Result<(Info, Arc<Feed>), WatchError> {
    let watchers = files.watches.lock();
    let entry = watchers.get(id).ok_or_else(|| WatchError::NotFound(id.to_owned()))?;
    Ok((entry.info.clone(), entry.feed.clone()))
}

/// Events after a cursor. Waits for some if requested.
pub(super) async fn poll(files: &Arc<Files>, id: &str, request: PollRequest) -> Result<Page, WatchError> {
    let (_, feed) = feed(files, id)?;
    let cursor = request.since.unwrap_or(0).max(request.cursor).unsigned_abs();
    let limit = usize::try_from(request.limit).unwrap_or(1);
    if request.timeout == 0 {
        return Ok(feed.after(cursor, limit));
    }
    let until = tokio::time::Instant::now() + Duration::from_secs(request.timeout.unsigned_abs());
    Ok(feed.wait(cursor, limit, Some(until)).await)
}

/// Stops a watcher and forgets its events.
pub(super) fn stop(files: &Arc<Files>, id: &str) -> Result<Info, WatchError> {
    let entry = files.watches.lock().remove(id).ok_or_else(|| WatchError::NotFound(id.to_owned()))?;
    entry.stop.cancel();
    entry.feed.close();
    Ok(entry.info)
}
