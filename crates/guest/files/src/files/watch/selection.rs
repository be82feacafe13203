//! Which files a watcher reports.

use std::path::Path;

use ignore::overrides::{Override, OverrideBuilder};

use super::super::error::Failure;

/// The most globs of a watcher, and the longest, in bytes.
const MAX_GLOBS: usize = 256;
const MAX_GLOB_BYTES: usize = 4096;

/// `exclude` and `include_patterns`: globs as in a `.gitignore`, so that a plain name matches at every depth.
#[derive(Debug)]
pub(super) struct Selection {
    excluded: Override,
    included: Override,
}

impl Selection {
    pub(super) fn new(root: &Path, exclude: &[String], include: &[String]) -> Result<Self, Failure> {
        if exclude.len() + include.len() > MAX_GLOBS {
            return Err(Failure::invalid(format!("exclude and include_patterns may have {MAX_GLOBS} globs together")));
        }
        let build = |globs: &[String], prefix: &str| {
            let mut builder = OverrideBuilder::new(root);
            for glob in globs.iter().filter(|glob| !glob.is_empty()) {
                let malformed = |why: String| Failure::invalid(format!("glob {glob:?} can't be used: {why}"));
                if glob.len() > MAX_GLOB_BYTES || glob.starts_with('!') {
                    return Err(malformed(format!("it may have {MAX_GLOB_BYTES} bytes and not begin with !")));
                }
                builder.add(&format!("{prefix}{glob}")).map_err(|e| malformed(e.to_string()))?;
            }
            builder.build().map_err(|e| Failure::invalid(format!("the globs can't be used: {e}")))
        };
        Ok(Self { excluded: build(exclude, "!")?, included: build(include, "")? })
    }

    /// Whether the path and everything in it are excluded. The caller has already checked the directories above it.
    pub(super) fn excludes(&self, path: &Path, is_dir: bool) -> bool {
        self.excluded.matched(path, is_dir).is_ignore()
    }

    pub(super) fn tells_of(&self, path: &Path, is_dir: bool) -> bool {
        !self.excludes(path, is_dir) && (self.included.is_empty() || self.included.matched(path, false).is_whitelist())
    }
}
