//! Which files a search skips: ripgrep's rules, with its own matchers.
//!
//! The rule files are read here and not by the `ignore` crate, which opens anything with their names: a named pipe called
//! `.gitignore` would block a search for ever.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ignore::overrides::{Override, OverrideBuilder};
use ignore::types::{Types, TypesBuilder};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::super::error::Failure;
use super::super::resolve::Root;

/// The most bytes and lines read from one rule file.
const MAX_FILE_BYTES: u64 = 128 << 10;
const MAX_FILE_LINES: usize = 4_000;
/// The most rule lines in one search: each takes memory.
const MAX_LINES: usize = 40_000;
/// The most globs of `include` and `exclude`, and the longest, in bytes.
const MAX_GLOBS: usize = 256;
const MAX_GLOB_BYTES: usize = 4096;

/// The rules of one directory and of all directories above it.
#[derive(Debug, Default)]
pub(super) struct Rules {
    above: Option<Arc<Rules>>,
    /// `.rgignore`, then `.ignore`: they apply everywhere.
    own: [Option<Gitignore>; 2],
    /// `.gitignore`, then `.git/info/exclude`: they apply in a repository, up to its top.
    git: [Option<Gitignore>; 2],
    is_repository: bool,
    in_repository: bool,
}

/// The globs and the file type of a search.
#[derive(Debug)]
pub(super) struct Filter {
    globs: Override,
    types: Types,
    lines: AtomicUsize,
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}

impl Filter {
    /// Builds a filter. `include` and `exclude` are globs as in a `.gitignore` in `start`; `file_type` is one of ripgrep's types.
    pub(super) fn new(start: &Path, include: &[String], exclude: &[String], file_type: Option<&str>) -> Result<Self, Failure> {
        if include.len() + exclude.len() > MAX_GLOBS {
            return Err(Failure::invalid(format!("include and exclude may have {MAX_GLOBS} globs together")));
        }
        let mut globs = OverrideBuilder::new(start);
        let given = include.iter().map(|g| (g, g.clone())).chain(exclude.iter().map(|g| (g, format!("!{g}"))));
        for (glob, rule) in given {
            let malformed = |why: String| Failure::invalid(format!("glob {glob:?} can't be used: {why}"));
            if glob.is_empty() || glob.len() > MAX_GLOB_BYTES || glob.starts_with('!') {
                return Err(malformed(format!("it must have 1 to {MAX_GLOB_BYTES} bytes and not begin with !")));
            }
            globs.add(&rule).map_err(|e| malformed(e.to_string()))?;
        }
        let mut types = TypesBuilder::new();
        if let Some(name) = file_type.filter(|name| !name.is_empty()) {
            types.add_defaults();
            types.select(name);
        }
        let types = types.build().map_err(|error| Failure::Invalid {
            message: format!("type can't be used: {error}"),
            hint: Some("it is one of ripgrep's names, such as py, js, ts, rust, go, java, c, cpp, md, json".to_owned()),
        })?;
        let globs = globs.build().map_err(|e| Failure::invalid(format!("include and exclude can't be used: {e}")))?;
        Ok(Self { globs, types, lines: AtomicUsize::new(0) })
    }

    /// Whether to search a file or enter a directory. The order is ripgrep's: the search's own globs decide alone. Then files
    /// that the rules ignore are skipped, and hidden files are skipped unless a rule or the file type names them.
    pub(super) fn admits(&self, path: &Path, name: &OsStr, is_dir: bool, rules: &Rules) -> bool {
        match self.globs.matched(path, is_dir) {
            Match::Ignore(_) => return false,
            Match::Whitelist(_) => return true,
            Match::None => {}
        }
        let mut asked_for = match rules.decide(path, is_dir) {
            Match::Ignore(()) => return false,
            other => other.is_whitelist(),
        };
        match self.types.matched(path, is_dir) {
            Match::Ignore(_) => return false,
            Match::Whitelist(_) => asked_for = true,
            Match::None => {}
        }
        asked_for || !is_hidden(name)
    }

    /// The rules that apply in the directories above `start`.
    pub(super) fn above(&self, root: &Root, start: &Path) -> Arc<Rules> {
        let mut rules = Arc::default();
        let mut ancestors: Vec<&Path> = start.ancestors().skip(1).collect();
        ancestors.reverse();
        for path in ancestors {
            // A directory that can't be opened adds no rules.
            if let Ok(dir) = root.open_dir(path) {
                rules = self.below(&rules, &dir, path);
            }
        }
        rules
    }

    /// The rules that apply in a directory, given those of its parent.
    pub(super) fn below(&self, above: &Arc<Rules>, dir: &OwnedFd, path: &Path) -> Arc<Rules> {
        let own = [".rgignore", ".ignore"].map(|name| self.read(dir, name, path));
        let is_repository = rustix::fs::statat(dir, ".git", AtFlags::empty()).is_ok();
        let in_repository = is_repository || above.in_repository;
        let gitignore = if in_repository { self.read(dir, ".gitignore", path) } else { None };
        let exclude = if is_repository { self.read(dir, ".git/info/exclude", path) } else { None };
        if !is_repository && gitignore.is_none() && own.iter().all(Option::is_none) {
            return above.clone();
        }
        Arc::new(Rules { above: Some(above.clone()), own, git: [gitignore, exclude], is_repository, in_repository })
    }

    fn read(&self, dir: &OwnedFd, name: &str, path: &Path) -> Option<Gitignore> {
        let text = read_small(dir, name)?;
        let mut builder = GitignoreBuilder::new(path);
        for line in text.trim_start_matches('\u{feff}').lines().take(MAX_FILE_LINES) {
            if self.lines.fetch_add(1, Ordering::Relaxed) >= MAX_LINES {
                break;
            }
            // Malformed rules are skipped, as in git and ripgrep.
            drop(builder.add_line(None, line));
        }
        builder.build().ok().filter(|rules| !rules.is_empty())
    }
}

/// Reads the start of a small regular file as text.
fn read_small(dir: &OwnedFd, name: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir.as_fd(), name, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut text = Vec::new();
    File::from(file).take(MAX_FILE_BYTES).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

impl Rules {
    fn decide(&self, path: &Path, is_dir: bool) -> Match<()> {
        let mut own = [Match::None, Match::None];
        let mut git = [Match::None, Match::None];
        let mut beyond_the_top = false;
        let mut level = Some(self);
        // The nearest directory with a matching rule decides, separately for each kind of rule file.
        while let Some(rules) = level {
            first(&mut own, &rules.own, path, is_dir);
            if self.in_repository && !beyond_the_top {
                first(&mut git, &rules.git, path, is_dir);
            }
            beyond_the_top |= rules.is_repository;
            level = rules.above.as_deref();
        }
        own.into_iter().chain(git).find(|found| !found.is_none()).unwrap_or(Match::None)
    }
}

fn first(found: &mut [Match<()>; 2], rules: &[Option<Gitignore>; 2], path: &Path, is_dir: bool) {
    for (found, rules) in found.iter_mut().zip(rules) {
        if let (Match::None, Some(rules)) = (&found, rules) {
            *found = rules.matched(path, is_dir).map(|_| ());
        }
    }
}
