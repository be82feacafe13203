//! Searches the content of files, with ripgrep's own parts.
//!
//! ```text
//!  tree: all files that rules admit, on several threads ──► count the matches of each
//!                                                              │ the first files, in order of path, that fill a page
//!                                                              ▼
//!                                                       search these again for their lines
//! ```
//!
//! Two passes give pages one stable order, whatever the number of threads. Memory holds one page and the names of the files
//! before it, whatever the number of matches.

mod lines;
mod pattern;
mod rules;
mod tree;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink};
use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use lines::GrepMatch;
use lines::{Count, Page};
pub(super) use pattern::{Meaning, Pattern};
use rules::Filter;
use tree::{Walk, walk_files};

use super::error::Failure;
use super::resolve::{Root, is_dir, open_in, require_regular};
use super::walk::Walked;
use arenite_guest_runtime::http::optional_within;
use arenite_guest_runtime::workers::Work;

/// The longest line, and the largest file of a multi-line search, in bytes.
const MAX_HEAP_BYTES: usize = 8 << 20;
/// Threads of one search. The guest's own cgroup allows few.
const MAX_THREADS: usize = 4;
/// The time for the first pass: the second also needs some of the time that callers wait.
const FIRST_PASS: Duration = Duration::from_secs(40);
/// The most bytes of file names kept between the passes.
const MAX_KEPT_BYTES: usize = 8 << 20;

/// What to search files for.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct FileGrepRequest {
    /// A file, or a directory with what is in it.
    pub path: String,
    /// A regular expression, or text with `fixed_strings`. Look-around and back-references work, on text in UTF-8.
    pub pattern: String,
    /// Globs of the files to read, such as `*.py`; none: all.
    #[serde(default)]
    pub include: Option<Vec<String>>,
    /// Globs of files and directories that are left out.
    #[serde(default)]
    pub exclude: Option<Vec<String>>,
    /// Ignore case.
    #[serde(default)]
    #[schema(default = false)]
    pub case_insensitive: Option<bool>,
    /// `pattern` is text and no expression.
    #[serde(default)]
    #[schema(default = false)]
    pub fixed_strings: Option<bool>,
    /// Lines to show before each match.
    #[serde(default, deserialize_with = "optional_within::<_, 0, 20>")]
    #[schema(default = 0, minimum = 0, maximum = 20)]
    pub context_before: Option<i64>,
    /// Lines to show after each match.
    #[serde(default, deserialize_with = "optional_within::<_, 0, 20>")]
    #[schema(default = 0, minimum = 0, maximum = 20)]
    pub context_after: Option<i64>,
    /// The most matches to show.
    #[serde(default, deserialize_with = "optional_within::<_, 1, 10000>")]
    #[schema(default = 500, minimum = 1, maximum = 10000)]
    pub max_results: Option<i64>,
    /// Larger files are passed over: bytes, or with K, M or G.
    #[serde(default)]
    #[schema(default = "1M")]
    pub max_file_size: Option<String>,
    /// A match may span lines, and `.` matches their ends.
    #[serde(default)]
    #[schema(default = false)]
    pub multiline: Option<bool>,
    /// Matches to pass over: for the next page, those already seen.
    #[serde(default, deserialize_with = "optional_within::<_, 0, { i64::MAX }>")]
    #[schema(default = 0, minimum = 0)]
    pub offset: Option<i64>,
    /// A type as ripgrep knows them, such as `py` or `rust`.
    #[serde(default, rename = "type")]
    pub file_type: Option<String>,
    /// Also in directories below.
    #[serde(default)]
    #[schema(default = true)]
    pub recursive: Option<bool>,
}

/// What a search through files found.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileGrepResult {
    /// Where the search began.
    pub path: String,
    /// As it was asked.
    pub pattern: String,
    /// By file, then by line.
    pub matches: Vec<GrepMatch>,
    /// How many there are, shown or not.
    pub match_count: u64,
    /// Files that were read.
    pub files_searched: Option<u64>,
    /// Files in which something was found.
    pub files_matched: Option<u64>,
    /// There are more than are shown.
    pub truncated: bool,
    /// What is not in the answer and why.
    #[serde(skip)]
    pub note: Option<String>,
}

/// A size such as `500K` or `1M`, in bytes. Units are binary, as ripgrep's.
fn size(text: &str) -> Result<u64, Failure> {
    let wrong = || Failure::Invalid {
        message: format!("max_file_size is {text:?}, which is no size"),
        hint: Some("give bytes, or a number with K, M or G, such as 500K or 1M".to_owned()),
    };
    let upper = text.trim().to_ascii_uppercase();
    let plain = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
    let (digits, unit) = match plain.as_bytes().last() {
        Some(b'K') => (&plain[..plain.len() - 1], 10),
        Some(b'M') => (&plain[..plain.len() - 1], 20),
        Some(b'G') => (&plain[..plain.len() - 1], 30),
        _ => (plain, 0),
    };
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(1 << unit).ok_or_else(wrong)
}

/// The parameters of one search.
struct Search<'a> {
    root: &'a Root,
    start: &'a Path,
    work: &'a Work,
    matcher: Pattern,
    multiline: bool,
    max_file_size: u64,
    before: usize,
    after: usize,
}

/// The first files with matches, in order of path, up to `wanted` matches.
struct Kept {
    files: BTreeMap<PathBuf, u64>,
    matches: u64,
    bytes: usize,
    wanted: u64,
    cut: bool,
}

impl Kept {
    fn add(&mut self, path: PathBuf, count: u64) {
        if self.matches >= self.wanted && self.files.last_key_value().is_some_and(|(last, _)| path > *last) {
            return;
        }
        self.bytes += path.as_os_str().len();
        self.matches += count;
        self.files.insert(path, count);
        while let Some(last) = self.files.last_entry() {
            let over = self.bytes > MAX_KEPT_BYTES;
            if !over && self.matches - last.get() < self.wanted {
                break;
            }
            self.cut |= over;
            self.matches -= *last.get();
            self.bytes -= last.key().as_os_str().len();
            last.remove();
        }
    }
}

#[derive(Default)]
struct Tally {
    searched: AtomicU64,
    matched: AtomicU64,
    matches: AtomicU64,
    /// Files that were abandoned at a line, or a size, beyond the memory bound.
    failed: AtomicU64,
}

impl Search<'_> {
    fn searcher(&self, lines: bool, binary: BinaryDetection) -> Searcher {
        let mut builder = SearcherBuilder::new();
        builder.line_number(lines).multi_line(self.multiline).binary_detection(binary).heap_limit(Some(MAX_HEAP_BYTES));
        if lines {
            builder.before_context(self.before).after_context(self.after);
        }
        builder.build()
    }

    /// Searches a file. Returns whether all of it was searched. Cancellation and timeout are errors.
    fn search(&self, searcher: &mut Searcher, file: &File, sink: impl Sink<Error = std::io::Error>) -> Result<bool, Failure> {
        match searcher.search_reader(&self.matcher, self.work.watch(file), sink) {
            Ok(()) => Ok(true),
            Err(error) => match Failure::io(error, "") {
                stop @ (Failure::Cancelled | Failure::TimedOut { .. }) => Err(stop),
                _ => Ok(false),
            },
        }
    }

    /// The first pass: counts the matches of each file.
    fn count(&self, filter: &Filter, recursive: bool, tally: &Tally, kept: &Mutex<Kept>) -> Result<Walked, Failure> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let (root, start, work) = (self.root, self.start, self.work);
        let walk = Walk { root, start, recursive, filter, work, until: Instant::now() + FIRST_PASS, threads };
        let searcher = || self.searcher(false, BinaryDetection::quit(0));
        walk_files(&walk, searcher, |searcher, found| {
            let Some((file, stat)) = found.open() else { return Ok(()) };
            if u64::try_from(stat.st_size).is_ok_and(|size| size > self.max_file_size) {
                return Ok(());
            }
            let mut count = Count::default();
            tally.searched.fetch_add(1, Ordering::Relaxed);
            if !self.search(searcher, &file, &mut count)? {
                tally.failed.fetch_add(1, Ordering::Relaxed);
            }
            if count.0 > 0 {
                tally.matched.fetch_add(1, Ordering::Relaxed);
                tally.matches.fetch_add(count.0, Ordering::Relaxed);
                kept.lock().unwrap_or_else(PoisonError::into_inner).add(found.path(), count.0);
            }
            Ok(())
        })
    }

    /// The second pass: collects the lines of a page.
    fn lines(&self, kept: &Kept, mut offset: u64, most: usize) -> Result<Page, Failure> {
        let top = self.root.open_dir(self.start)?;
        let mut searcher = self.searcher(true, BinaryDetection::quit(0));
        let mut page = None;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        for (path, count) in &kept.files {
            // All matches of this file are before the page.
            if page.is_none() && offset >= *count {
                offset -= count;
                continue;
            }
            let page = page.get_or_insert_with(|| Page::new(offset, most, self.before, self.after));
            if page.is_full() {
                break;
            }
            let Ok(fd) = open_in(&top, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, resolve) else { continue };
            let regular = rustix::fs::fstat(&fd).is_ok_and(|stat| require_regular(&stat, path).is_ok());
            if regular {
                let shown = self.start.join(path);
                self.search(&mut searcher, &File::from(fd), page.file(&shown.to_string_lossy(), false))?;
            }
        }
        Ok(page.unwrap_or_else(|| Page::new(0, most, self.before, self.after)))
    }
}

/// Searches a tree, or one file.
pub(super) fn grep(root: &Root, start: &Path, request: &FileGrepRequest, work: &Work) -> Result<FileGrepResult, Failure> {
    let multiline = request.multiline.unwrap_or(false);
    let number = |value: Option<i64>, default: u64| value.and_then(|v| u64::try_from(v).ok()).unwrap_or(default);
    let offset = number(request.offset, 0);
    let most = number(request.max_results, 500) as usize;
    let meaning = Meaning {
        case_insensitive: request.case_insensitive.unwrap_or(false),
        fixed_strings: request.fixed_strings.unwrap_or(false),
        multiline,
    };
    let search = Search {
        root,
        start,
        work,
        matcher: Pattern::parse(&request.pattern, meaning)?,
        multiline,
        max_file_size: size(request.max_file_size.as_deref().unwrap_or("1M"))?,
        before: number(request.context_before, 0) as usize,
        after: number(request.context_after, 0) as usize,
    };
    let (include, exclude) = (request.include.as_deref().unwrap_or(&[]), request.exclude.as_deref().unwrap_or(&[]));
    let filter = Filter::new(start, include, exclude, request.file_type.as_deref())?;
    let tally = Tally::default();
    let (mut cut, page);
    let is_tree = is_dir(&root.inspect(start)?.1);
    if is_tree {
        let wanted = offset.saturating_add(most as u64);
        let kept = Mutex::new(Kept { files: BTreeMap::new(), matches: 0, bytes: 0, wanted, cut: false });
        let walked = search.count(&filter, request.recursive.unwrap_or(true), &tally, &kept)?;
        let kept = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
        cut = walked == Walked::Cut || kept.cut;
        page = search.lines(&kept, offset, most)?;
    } else {
        // A file that the caller names is searched whatever its size, name or content.
        let (file, _) = root.open_file(start)?;
        let mut searcher = search.searcher(true, BinaryDetection::none());
        let mut found = Page::new(offset, most, search.before, search.after);
        let shown = start.to_string_lossy();
        let mut lines = found.file(&shown, true);
        let whole = search.search(&mut searcher, &file, &mut lines)?;
        let count = lines.count;
        if !whole && search.matcher.gave_up() {
            return Err(pattern::too_hard());
        }
        if !whole {
            let what = if multiline { "the file, for a search over several lines," } else { "a line of it" };
            let note = format!("{what} exceeds {} MiB", MAX_HEAP_BYTES >> 20);
            return Err(Failure::Os { errno: Errno::FBIG, path: shown.into_owned(), note });
        }
        tally.searched.store(1, Ordering::Relaxed);
        tally.matched.store(u64::from(count > 0), Ordering::Relaxed);
        tally.matches.store(count, Ordering::Relaxed);
        (cut, page) = (false, found);
    }
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (match_count, failed) = (value(&tally.matches), value(&tally.failed));
    cut |= offset.saturating_add(page.matches.len() as u64) < match_count;
    Ok(FileGrepResult {
        path: start.to_string_lossy().into_owned(),
        pattern: request.pattern.clone(),
        match_count,
        files_searched: Some(value(&tally.searched)),
        files_matched: Some(value(&tally.matched)),
        truncated: cut,
        note: note(&page, failed, search.matcher.gave_up(), offset, match_count, cut, is_tree),
        matches: page.matches,
    })
}

fn note(page: &Page, failed: u64, gave_up: bool, offset: u64, total: u64, cut: bool, is_tree: bool) -> Option<String> {
    let mut notes = Vec::new();
    let next = offset.saturating_add(page.matches.len() as u64);
    if next < total && !page.matches.is_empty() {
        notes.push(format!("there are more matches: continue with offset {next}, or narrow the search"));
    } else if cut {
        notes.push("not everything was searched: use a deeper path, include or type".to_owned());
    }
    if failed > 0 {
        let why = if gave_up { "lines that take the pattern too long" } else { "lines, or are, too long to search" };
        notes.push(format!("{failed} files have {why}"));
    }
    if page.lines_cut {
        notes.push("long lines were cut".to_owned());
    }
    if total == 0 && is_tree {
        notes.push(
            "hidden and binary files, those that .gitignore names and those above max_file_size are passed over; name one as \
             path, or by include, to search it"
                .to_owned(),
        );
    }
    (!notes.is_empty()).then(|| notes.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_ripgreps() {
        for (text, bytes) in
            [("0", 0), ("17", 17), ("500K", 500 << 10), ("1M", 1 << 20), ("2g", 2 << 30), ("1MB", 1 << 20), (" 3 KiB ", 3 << 10)]
        {
            assert_eq!(size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "M", "-1", "1.5M", "1T", "99999999999G", "one"] {
            assert_eq!(size(text).unwrap_err().error_type(), "invalid_argument", "{text}");
        }
    }

    #[test]
    fn files_are_kept_in_order_until_they_fill_the_page() {
        let mut kept = Kept { files: BTreeMap::new(), matches: 0, bytes: 0, wanted: 5, cut: false };
        for (path, count) in [("z", 9), ("m", 2), ("a", 1), ("x", 1), ("n", 2), ("b", 1)] {
            kept.add(PathBuf::from(path), count);
        }
        let files: Vec<_> = kept.files.iter().map(|(path, count)| (path.to_str().unwrap(), *count)).collect();
        assert_eq!(files, [("a", 1), ("b", 1), ("m", 2), ("n", 2)]);
        assert_eq!((kept.matches, kept.bytes, kept.cut), (6, 4, false));
    }
}
