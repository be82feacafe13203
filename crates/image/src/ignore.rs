//! `.dockerignore`: files of the context that a build does not see.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use crate::ImageError;
use crate::glob::Glob;
use crate::tree::Selection;

/// Maximum size of the file, in bytes.
pub(crate) const MAX_BYTES: u64 = 256 << 10;
/// Maximum number of patterns: each is compared with each path.
const MAX_PATTERNS: usize = 1000;

/// The patterns of a `.dockerignore`. The last one that matches a path or a directory around it decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoreFile {
    patterns: Vec<Pattern>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    /// `!`: what matches is included.
    includes: bool,
    parts: Vec<PatternPart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternPart {
    /// `**`: any number of directories.
    AnyDepth,
    Name(Glob),
}

impl IgnoreFile {
    /// Reads the file of a context: `FILE.dockerignore` beside the Dockerfile goes before `.dockerignore` of the context.
    pub fn read(context: &Path, dockerfile: Option<&Path>) -> Result<Self, ImageError> {
        let own = dockerfile.map(|file| {
            let mut name = file.as_os_str().to_owned();
            name.push(".dockerignore");
            std::path::PathBuf::from(name)
        });
        for path in own.into_iter().chain([context.join(".dockerignore")]) {
            let file = match std::fs::File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(ImageError::io("could not read", path)(error)),
            };
            let mut bytes = Vec::new();
            file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(ImageError::io("could not read", &path))?;
            let refused = |reason: String| ImageError::Ignore { path: path.clone(), reason };
            if bytes.len() as u64 > MAX_BYTES {
                return Err(refused(format!("it is longer than {MAX_BYTES} bytes")));
            }
            return Self::parse(&String::from_utf8_lossy(&bytes)).map_err(refused);
        }
        Ok(Self::default())
    }

    /// Parses a file's text; the error names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut patterns = Vec::new();
        for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if patterns.len() == MAX_PATTERNS {
                return Err(format!("it has more than {MAX_PATTERNS} patterns"));
            }
            let (text, includes) = line.strip_prefix('!').map_or((line, false), |rest| (rest.trim(), true));
            let parts = parse_parts(text).ok_or_else(|| format!("line {}: the pattern {text:?} is not valid", index + 1))?;
            // `.` and `/` alone match nothing.
            if !parts.is_empty() {
                patterns.push(Pattern { includes, parts });
            }
        }
        Ok(Self { patterns })
    }

    /// Patterns that exclude, without a file.
    pub(crate) fn of_patterns(patterns: &[String]) -> Result<Self, String> {
        Self::parse(&patterns.join("\n"))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Selects a path, which is relative to the context.
    pub(crate) fn select(&self, path: &Path) -> Selection {
        let mut names: Vec<String> = Vec::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => names.push(String::from_utf8_lossy(name.as_bytes()).into_owned()),
                Component::ParentDir => drop(names.pop()),
                _ => {}
            }
        }
        if names.is_empty() || self.patterns.is_empty() {
            return Selection::Included;
        }
        let decisive = self.patterns.iter().rev().find(|pattern| pattern.matches_within(&names));
        match decisive {
            Some(pattern) if !pattern.includes => {
                if self.patterns.iter().any(|pattern| pattern.includes) {
                    Selection::Descend
                } else {
                    Selection::Excluded
                }
            }
            _ => Selection::Included,
        }
    }
}

fn parse_parts(text: &str) -> Option<Vec<PatternPart>> {
    let mut parts = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            // As a cleaned path: it can't leave the context.
            ".." => drop(parts.pop()),
            "**" if parts.last() == Some(&PatternPart::AnyDepth) => {}
            "**" => parts.push(PatternPart::AnyDepth),
            name => parts.push(PatternPart::Name(Glob::parse(name)?)),
        }
    }
    Some(parts)
}

impl Pattern {
    /// Whether the pattern matches the path or a directory around it.
    fn matches_within(&self, names: &[String]) -> bool {
        // Positions in the pattern that a prefix of the path can have reached.
        let mut reached = vec![false; self.parts.len() + 1];
        reached[0] = true;
        self.skip_depths(&mut reached);
        for name in names {
            let mut next = vec![false; self.parts.len() + 1];
            for (index, part) in self.parts.iter().enumerate() {
                match part {
                    PatternPart::AnyDepth if reached[index] => {
                        next[index] = true;
                        next[index + 1] = true;
                    }
                    PatternPart::Name(glob) if reached[index] && glob.matches(name) => next[index + 1] = true,
                    _ => {}
                }
            }
            self.skip_depths(&mut next);
            if next[self.parts.len()] {
                return true;
            }
            reached = next;
        }
        false
    }

    /// `**` may stand for no directory, except at the end.
    fn skip_depths(&self, reached: &mut [bool]) {
        for (index, part) in self.parts.iter().enumerate() {
            if reached[index] && *part == PatternPart::AnyDepth && index + 1 < self.parts.len() {
                reached[index + 1] = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pattern_that_matches_decides() {
        let cases: &[(&str, &[(&str, Selection)])] = &[
            ("", &[("a", Selection::Included)]),
            (
                "# a\n\n.git\n/build/\n",
                &[
                    (".git", Selection::Excluded),
                    (".git/HEAD", Selection::Excluded),
                    ("build/x", Selection::Excluded),
                    ("a/.git", Selection::Included),
                    ("# a", Selection::Included),
                ],
            ),
            ("**/*.pyc", &[("a.pyc", Selection::Excluded), ("x/y/a.pyc", Selection::Excluded), ("a.py", Selection::Included)]),
            (
                "*.md\n!README.md",
                &[("a.md", Selection::Descend), ("README.md", Selection::Included), ("docs/a.md", Selection::Included)],
            ),
            (
                "docs\n!docs/keep\n",
                &[
                    ("docs", Selection::Descend),
                    ("docs/a", Selection::Descend),
                    ("docs/keep", Selection::Included),
                    ("docs/keep/b", Selection::Included),
                ],
            ),
            (
                "*\n!src\nsrc/**/test",
                &[
                    ("x", Selection::Descend),
                    ("src/a", Selection::Included),
                    ("src/test", Selection::Descend),
                    ("src/a/b/test/c", Selection::Descend),
                ],
            ),
            ("a/**", &[("a", Selection::Included), ("a/b", Selection::Excluded)]),
            ("**/node_modules/**", &[("node_modules", Selection::Included), ("x/node_modules/y", Selection::Excluded)]),
            ("./a/../b", &[("b", Selection::Excluded), ("a", Selection::Included), ("x/../b", Selection::Excluded)]),
            ("temp?", &[("temp1", Selection::Excluded), ("temp", Selection::Included)]),
            ("/\n.", &[("a", Selection::Included)]),
        ];
        for (text, paths) in cases {
            let file = IgnoreFile::parse(text).unwrap();
            for (path, expected) in *paths {
                assert_eq!(file.select(Path::new(path)), *expected, "{path:?} with {text:?}");
            }
        }
        assert!(IgnoreFile::parse("a\n[").unwrap_err().contains("line 2"));
        assert!(IgnoreFile::parse(&"x\n".repeat(MAX_PATTERNS + 1)).is_err());
    }

    #[test]
    fn many_depths_take_no_exponential_time() {
        let file = IgnoreFile::parse(&"**/a/".repeat(200)).unwrap();
        let path = "a/".repeat(199) + "b";
        let started = std::time::Instant::now();
        assert_eq!(file.select(Path::new(&path)), Selection::Included);
        assert!(started.elapsed() < std::time::Duration::from_secs(5));
    }
}
