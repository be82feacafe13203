//! Lists directories and finds files by name.

use std::cmp::Ordering;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use rustix::fs::Stat;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::Failure;
use super::resolve::Root;
use super::walk::{Entry, MAX_DEPTH, Next, Walked, walk};
use arenite_guest_runtime::workers::Work;

/// The most entries of one answer. AIO's daemon has the same bound.
pub(super) const MAX_RESULTS: usize = 10_000;
/// The longest glob, in bytes.
const MAX_GLOB: usize = 4096;

/// Which directory to list, and how.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct FileListRequest {
    /// The directory.
    pub path: String,
    /// Also directories below.
    #[serde(default)]
    #[schema(default = false)]
    pub recursive: Option<bool>,
    /// Also what begins with a dot.
    #[serde(default)]
    #[schema(default = true)]
    pub show_hidden: Option<bool>,
    /// Extensions to show, such as `.py`.
    ///
    /// With or without the dot. Directories are left out then.
    #[serde(default)]
    pub file_types: Option<Vec<String>>,
    /// How deep `recursive` goes.
    ///
    /// 1 is the directory itself; 64 at most.
    #[serde(default)]
    pub max_depth: Option<i64>,
    /// With the size of each.
    #[serde(default)]
    #[schema(default = true)]
    pub include_size: Option<bool>,
    /// With the permissions of each.
    #[serde(default)]
    #[schema(default = false)]
    pub include_permissions: Option<bool>,
    /// `name`, `size`, `modified` or `type`.
    #[serde(default)]
    #[schema(default = "name")]
    pub sort_by: Option<String>,
    /// Reverse the order.
    #[serde(default)]
    #[schema(default = false)]
    pub sort_desc: Option<bool>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileInfo {
    pub name: String,
    pub path: String,
    /// Links count as what they point at.
    pub is_directory: bool,
    pub size: Option<u64>,
    /// RFC 3339, UTC.
    pub modified_time: Option<String>,
    /// Octal, as in `644`.
    pub permissions: Option<String>,
    /// With its dot; empty when there is none.
    pub extension: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_hidden: bool,
    #[serde(skip)]
    modified: (i64, i64),
    #[serde(skip)]
    bytes: u64,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileListResult {
    pub path: String,
    pub files: Vec<FileInfo>,
    pub total_count: usize,
    pub directory_count: usize,
    pub file_count: usize,
    /// There is more than fits into one answer.
    pub truncated: bool,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct FileFindRequest {
    /// Directory to search.
    pub path: String,
    /// A file's name or a pattern, relative to `path`: `*.py` looks in the directory itself, `**/*.py` in all below it too.
    pub glob: String,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileFindResult {
    pub path: String,
    /// Absolute paths, sorted.
    pub files: Vec<String>,
    /// There is more than fits into one answer.
    pub truncated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SortBy {
    Name,
    Size,
    Modified,
    Type,
}

fn sort_by(word: Option<&str>) -> Result<SortBy, Failure> {
    match word.unwrap_or("name") {
        "name" | "path" | "" => Ok(SortBy::Name),
        "size" => Ok(SortBy::Size),
        "modified" | "modified_time" | "mtime" | "time" => Ok(SortBy::Modified),
        "type" | "extension" => Ok(SortBy::Type),
        other => Err(Failure::invalid(format!("sort_by is {other:?}; it may be name, size, modified or type"))),
    }
}

/// The extension with its dot, as Python's `splitext` defines it.
fn extension(name: &str) -> &str {
    let stem = name.trim_start_matches('.');
    stem.rfind('.').map_or("", |at| &stem[at..])
}

pub(super) fn modified_time(stat: &Stat) -> Option<String> {
    let time = jiff::Timestamp::new(stat.st_mtime, i32::try_from(stat.st_mtime_nsec).ok()?).ok()?;
    Some(time.to_string())
}

fn info(entry: &Entry<'_>, start: &Path, request: &FileListRequest) -> FileInfo {
    let name = entry.name.to_string_lossy().into_owned();
    let directory = entry.is_dir();
    let bytes = u64::try_from(entry.stat.st_size).unwrap_or(0);
    FileInfo {
        path: start.join(entry.path).to_string_lossy().into_owned(),
        is_directory: directory,
        size: request.include_size.unwrap_or(true).then_some(bytes),
        modified_time: modified_time(&entry.stat),
        permissions: request.include_permissions.unwrap_or(false).then(|| format!("{:03o}", entry.stat.st_mode & 0o7777)),
        extension: Some(if directory { "" } else { extension(&name) }.to_owned()),
        is_hidden: entry.is_hidden(),
        modified: (entry.stat.st_mtime, entry.stat.st_mtime_nsec as i64),
        bytes,
        name,
    }
}

pub(super) fn list(root: &Root, start: &Path, request: &FileListRequest, work: &Work) -> Result<FileListResult, Failure> {
    let order = sort_by(request.sort_by.as_deref())?;
    let depth = match (request.recursive.unwrap_or(false), request.max_depth) {
        (false, _) => 1,
        (true, None) => MAX_DEPTH,
        (true, Some(depth)) => usize::try_from(depth.max(1)).unwrap_or(MAX_DEPTH).min(MAX_DEPTH),
    };
    let hidden = request.show_hidden.unwrap_or(true);
    let types: Option<Vec<String>> = request.file_types.as_ref().filter(|t| !t.is_empty()).map(|types| {
        types.iter().map(|t| format!(".{}", t.trim_start_matches("*.").trim_start_matches('.')).to_lowercase()).collect()
    });
    let mut files: Vec<FileInfo> = Vec::new();
    let walked = walk(root, start, work, |entry| {
        if entry.is_hidden() && !hidden || entry.depth > depth {
            return Next::Skip;
        }
        let wanted = match &types {
            None => true,
            Some(_) if entry.is_dir() => false,
            Some(types) => types.contains(&extension(&entry.name.to_string_lossy()).to_lowercase()),
        };
        if wanted {
            if files.len() >= MAX_RESULTS {
                return Next::Stop;
            }
            files.push(info(entry, start, request));
        }
        if entry.depth < depth { Next::Enter } else { Next::Skip }
    })?;
    let by_name = |a: &FileInfo, b: &FileInfo| a.path.cmp(&b.path);
    files.sort_by(|a, b| {
        let first = match order {
            SortBy::Name => Ordering::Equal,
            SortBy::Size => a.bytes.cmp(&b.bytes),
            SortBy::Modified => a.modified.cmp(&b.modified),
            SortBy::Type => b.is_directory.cmp(&a.is_directory).then_with(|| a.extension.cmp(&b.extension)),
        };
        first.then_with(|| by_name(a, b))
    });
    if request.sort_desc.unwrap_or(false) {
        files.reverse();
    }
    let directory_count = files.iter().filter(|f| f.is_directory).count();
    Ok(FileListResult {
        path: start.to_string_lossy().into_owned(),
        total_count: files.len(),
        directory_count,
        file_count: files.len() - directory_count,
        files,
        truncated: walked == Walked::Cut,
    })
}

/// A glob over paths relative to the start, with Python's meaning: `*` stays in its directory, a leading `**/` may be empty, and
/// hidden names match only explicitly.
pub(super) struct Pattern {
    pub(super) glob: GlobMatcher,
    /// The greatest depth of a match; unbounded with `**`.
    pub(super) depth: usize,
    pub(super) hidden: bool,
}

impl Pattern {
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        let text = text.strip_prefix("./").unwrap_or(text);
        if text.is_empty() || text.len() > MAX_GLOB {
            return Err(Failure::invalid(format!("glob must have 1 to {MAX_GLOB} bytes")));
        }
        if text.starts_with('/') || text.split('/').any(|part| part == "..") {
            return Err(Failure::Invalid {
                message: format!("glob {text:?} leaves the directory"),
                hint: Some("give the directory as path and a pattern relative to it as glob".to_owned()),
            });
        }
        let glob = GlobBuilder::new(text)
            .literal_separator(true)
            .build()
            .map_err(|e| Failure::invalid(format!("glob {text:?} is malformed: {}", e.kind())))?;
        Ok(Self {
            depth: if text.contains("**") { MAX_DEPTH } else { text.split('/').count().min(MAX_DEPTH) },
            hidden: text.split('/').any(|part| part.starts_with('.')),
            glob: glob.compile_matcher(),
        })
    }
}

pub(super) fn find(root: &Root, start: &Path, request: &FileFindRequest, work: &Work) -> Result<FileFindResult, Failure> {
    let pattern = Pattern::parse(&request.glob)?;
    let mut files = Vec::new();
    if !request.glob.contains(['*', '?', '[', '{', '\\']) {
        root.open_dir(start)?;
        let path = start.join(&request.glob).components().collect::<std::path::PathBuf>();
        if root.inspect(&path).is_ok() {
            files.push(path.to_string_lossy().into_owned());
        }
        return Ok(FileFindResult { path: start.to_string_lossy().into_owned(), files, truncated: false });
    }
    // A name may contain characters that a glob interprets.
    let literal = Path::new(&request.glob);
    let walked = walk(root, start, work, |entry| {
        let matches = entry.path == literal || (pattern.hidden || !entry.is_hidden()) && pattern.glob.is_match(entry.path);
        if matches {
            if files.len() >= MAX_RESULTS {
                return Next::Stop;
            }
            files.push(start.join(entry.path).to_string_lossy().into_owned());
        }
        if entry.depth < pattern.depth && (pattern.hidden || !entry.is_hidden()) { Next::Enter } else { Next::Skip }
    })?;
    files.sort_unstable();
    Ok(FileFindResult { path: start.to_string_lossy().into_owned(), files, truncated: walked == Walked::Cut })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_pythons() {
        let cases = [("a.py", ".py"), ("a.tar.gz", ".gz"), (".bashrc", ""), ("..x.y", ".y"), ("Makefile", ""), ("a.", ".")];
        for (name, expected) in cases {
            assert_eq!(extension(name), expected, "{name}");
        }
    }

    #[test]
    fn globs_stay_in_their_directory_unless_told() {
        let matches = |glob: &str, path: &str| Pattern::parse(glob).unwrap().glob.is_match(path);
        assert!(matches("*.py", "a.py") && !matches("*.py", "d/a.py"));
        assert!(matches("**/*.py", "a.py") && matches("**/*.py", "d/e/a.py"));
        assert!(matches("d/[ab].?y", "d/a.py") && !matches("d/*", "d/e/f"));
        assert!(matches("{a,b}.txt", "b.txt"));
        for bad in ["", "/etc/*", "../*", "a/../b", "[", "{a"] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
    }
}
