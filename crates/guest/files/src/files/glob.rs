//! Finds files by a glob, sorted and described.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::path::Path;

use ignore::overrides::OverrideBuilder;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::Failure;
use super::listing::{Pattern, modified_time};
use super::resolve::Root;
use super::walk::{Next, Walked, walk};
use arenite_guest_runtime::http::optional_within;
use arenite_guest_runtime::workers::Work;

/// The most globs in `exclude`.
const MAX_EXCLUDED: usize = 256;

/// Which files to find, by their names.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct FileGlobRequest {
    /// Where the walk began.
    pub path: String,
    /// Such as `**/*.rs`, relative to `path`.
    pub pattern: String,
    /// Globs of what is left out.
    ///
    /// As in a `.gitignore`: a plain name counts at every depth, and of a directory leaves out all that is in it.
    #[serde(default)]
    pub exclude: Option<Vec<String>>,
    /// Also what begins with a dot.
    #[serde(default)]
    #[schema(default = false)]
    pub include_hidden: Option<bool>,
    /// Leave directories out.
    #[serde(default)]
    #[schema(default = true)]
    pub files_only: Option<bool>,
    /// With size and time of each.
    #[serde(default)]
    #[schema(default = true)]
    pub include_metadata: Option<bool>,
    /// The most to show.
    #[serde(default, deserialize_with = "optional_within::<_, 1, 50000>")]
    #[schema(default = 5000, minimum = 1, maximum = 50000)]
    pub max_results: Option<i64>,
    /// `path`, `name`, `size` or `modified`.
    #[serde(default)]
    #[schema(default = "path")]
    pub sort_by: Option<String>,
    /// Reverse the order.
    #[serde(default)]
    #[schema(default = false)]
    pub sort_desc: Option<bool>,
}

/// A file that a glob found.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct GlobFileInfo {
    /// Absolute.
    pub path: String,
    /// The last part of its path.
    pub name: String,
    /// It is a directory.
    pub is_directory: bool,
    /// Bytes.
    pub size: Option<u64>,
    /// When its content changed, in ISO 8601.
    pub modified_time: Option<String>,
}

/// What a glob found.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileGlobResult {
    /// Where the walk began.
    pub path: String,
    /// As it was asked.
    pub pattern: String,
    /// In the order asked for.
    pub files: Vec<GlobFileInfo>,
    /// How many there are, shown or not.
    pub total_count: usize,
    /// There are more than are shown.
    pub truncated: bool,
}

/// A sort key. The path breaks ties.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Path,
    Name(String),
    Size(u64),
    Modified(i64, i64),
}

/// A match with its sort key.
struct Sorted {
    key: Key,
    descending: bool,
    info: GlobFileInfo,
}

impl Ord for Sorted {
    fn cmp(&self, other: &Self) -> Ordering {
        let upwards = (&self.key, &self.info.path).cmp(&(&other.key, &other.info.path));
        if self.descending { upwards.reverse() } else { upwards }
    }
}

impl PartialOrd for Sorted {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Sorted {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Sorted {}

pub(super) fn glob(root: &Root, start: &Path, request: &FileGlobRequest, work: &Work) -> Result<FileGlobResult, Failure> {
    let pattern = Pattern::parse(&request.pattern)?;
    let order = request.sort_by.as_deref().filter(|word| !word.is_empty()).unwrap_or("path");
    if !["path", "name", "size", "modified"].contains(&order) {
        return Err(Failure::invalid(format!("sort_by is {order:?}; it may be path, name, size or modified")));
    }
    let given = request.exclude.as_deref().unwrap_or(&[]);
    if given.len() > MAX_EXCLUDED {
        return Err(Failure::invalid(format!("exclude may have {MAX_EXCLUDED} globs")));
    }
    let mut excluded = OverrideBuilder::new(start);
    for glob in given.iter().filter(|glob| !glob.is_empty()) {
        let malformed = |e| Failure::invalid(format!("exclude {glob:?} is malformed: {e}"));
        excluded.add(&format!("!{glob}")).map_err(malformed)?;
    }
    let excluded = excluded.build().map_err(|e| Failure::invalid(format!("exclude can't be used: {e}")))?;
    let hidden = request.include_hidden.unwrap_or(false) || pattern.hidden;
    let files_only = request.files_only.unwrap_or(true);
    let metadata = request.include_metadata.unwrap_or(true);
    let descending = request.sort_desc.unwrap_or(false);
    let most = request.max_results.and_then(|n| usize::try_from(n).ok()).unwrap_or(5000);
    // A name may contain characters that a glob interprets.
    let literal = Path::new(&request.pattern);
    // The last one is on top and dropped beyond the bound, so memory holds one answer however many files match.
    let mut found: BinaryHeap<Sorted> = BinaryHeap::new();
    let mut total = 0;
    let walked = walk(root, start, work, |entry| {
        let is_dir = entry.is_dir();
        if entry.is_hidden() && !hidden || !given.is_empty() && excluded.matched(start.join(entry.path), is_dir).is_ignore() {
            return Next::Skip;
        }
        if !(files_only && is_dir) && (entry.path == literal || pattern.glob.is_match(entry.path)) {
            total += 1;
            let name = entry.name.to_string_lossy().into_owned();
            let size = u64::try_from(entry.stat.st_size).unwrap_or(0);
            let key = match order {
                "name" => Key::Name(name.clone()),
                "size" => Key::Size(size),
                "modified" => Key::Modified(entry.stat.st_mtime, entry.stat.st_mtime_nsec as i64),
                _ => Key::Path,
            };
            let info = GlobFileInfo {
                path: start.join(entry.path).to_string_lossy().into_owned(),
                name,
                is_directory: is_dir,
                size: metadata.then_some(size),
                modified_time: metadata.then(|| modified_time(&entry.stat)).flatten(),
            };
            found.push(Sorted { key, descending, info });
            if found.len() > most {
                found.pop();
            }
        }
        if entry.depth < pattern.depth { Next::Enter } else { Next::Skip }
    })?;
    let files: Vec<GlobFileInfo> = found.into_sorted_vec().into_iter().map(|sorted| sorted.info).collect();
    Ok(FileGlobResult {
        path: start.to_string_lossy().into_owned(),
        pattern: request.pattern.clone(),
        total_count: total,
        truncated: walked == Walked::Cut || files.len() < total,
        files,
    })
}
