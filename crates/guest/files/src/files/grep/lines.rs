//! Sinks for the lines of a search: count them, or keep them with their context.

use std::collections::VecDeque;
use std::io;

use grep_searcher::{LineIter, Searcher, Sink, SinkContext, SinkMatch};
use serde::ser::{Serialize, SerializeStruct, Serializer};
use utoipa::ToSchema;

/// The longest line in an answer, in bytes. Minified code has lines of megabytes.
const MAX_LINE_BYTES: usize = 16 << 10;
/// The most bytes of lines in one answer.
const MAX_BYTES: usize = 4 << 20;

/// A line that matches.
#[derive(Debug, Clone, ToSchema)]
pub struct GrepMatch {
    /// The file, absolute.
    pub file: String,
    /// From 1.
    pub line_number: u64,
    /// Without its end.
    pub line_content: String,
    /// Those that stand before it.
    pub context_before: Option<Vec<String>>,
    /// Those that follow it.
    pub context_after: Option<Vec<String>>,
}

/// Adds `line`, which is `line_content` in AIO's README. An answer holds megabytes of lines, so none is copied for it.
impl Serialize for GrepMatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { file, line_number, line_content, context_before, context_after } = self;
        let mut fields = serializer.serialize_struct("GrepMatch", 6)?;
        fields.serialize_field("file", file)?;
        fields.serialize_field("line_number", line_number)?;
        fields.serialize_field("line_content", line_content)?;
        fields.serialize_field("line", line_content)?;
        fields.serialize_field("context_before", context_before)?;
        fields.serialize_field("context_after", context_after)?;
        fields.end()
    }
}

/// Counts the matches of a file.
#[derive(Debug, Default)]
pub(super) struct Count(pub(super) u64);

impl Sink for Count {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, _: &SinkMatch<'_>) -> io::Result<bool> {
        self.0 += 1;
        Ok(true)
    }
}

/// The page of matches in an answer.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) matches: Vec<GrepMatch>,
    /// Matches before the page.
    skip: u64,
    most: usize,
    bytes: usize,
    before: usize,
    after: usize,
    /// Long lines were cut.
    pub(super) lines_cut: bool,
}

impl Page {
    pub(super) fn new(skip: u64, most: usize, before: usize, after: usize) -> Self {
        Self { matches: Vec::new(), skip, most, bytes: 0, before, after, lines_cut: false }
    }

    pub(super) fn is_full(&self) -> bool {
        self.matches.len() >= self.most || self.bytes >= MAX_BYTES
    }

    /// Adds the matches of one more file. `to_the_end`: also counts matches that don't fit any more.
    pub(super) fn file<'a>(&'a mut self, file: &'a str, to_the_end: bool) -> Lines<'a> {
        Lines { page: self, file, to_the_end, count: 0, recent: VecDeque::new(), open: VecDeque::new() }
    }

    fn text(&mut self, line: &[u8]) -> String {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = if line.len() > MAX_LINE_BYTES {
            self.lines_cut = true;
            let rest = line.len() - MAX_LINE_BYTES;
            format!("{} [… {rest} more bytes]", String::from_utf8_lossy(&line[..MAX_LINE_BYTES]))
        } else {
            String::from_utf8_lossy(line).into_owned()
        };
        self.bytes += text.len();
        text
    }
}

/// Collects the matches of one file into a page.
///
/// The searcher passes each line once, but an answer repeats lines that are near several matches.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    page: &'a mut Page,
    file: &'a str,
    to_the_end: bool,
    pub(super) count: u64,
    /// The last lines, up to the context before a match.
    recent: VecDeque<String>,
    /// Matches that still need lines after them, by their index in the page.
    open: VecDeque<usize>,
}

impl Lines<'_> {
    fn pass(&mut self, line: &[u8]) {
        if self.page.before == 0 && self.open.is_empty() {
            return;
        }
        let text = self.page.text(line);
        for at in &self.open {
            if let Some(lines) = self.page.matches[*at].context_after.as_mut() {
                self.page.bytes += text.len();
                lines.push(text.clone());
            }
        }
        let (page, after) = (&*self.page, self.page.after);
        self.open.retain(|at| page.matches[*at].context_after.as_ref().is_some_and(|lines| lines.len() < after));
        if self.page.before > 0 {
            if self.recent.len() == self.page.before {
                self.recent.pop_front();
            }
            self.recent.push_back(text);
        }
    }

    fn wants_more(&self) -> bool {
        self.to_the_end || !self.page.is_full() || !self.open.is_empty()
    }
}

impl Sink for Lines<'_> {
    type Error = io::Error;

    fn matched(&mut self, searcher: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.count += 1;
        let full = self.page.is_full();
        let context = self.page.before > 0 || self.page.after > 0;
        let mut made = None;
        if self.page.skip > 0 {
            self.page.skip -= 1;
        } else if !full {
            let before: Vec<String> = self.recent.iter().cloned().collect();
            self.page.bytes += before.iter().map(String::len).sum::<usize>();
            let line_content = self.page.text(found.bytes());
            made = Some(GrepMatch {
                file: self.file.to_owned(),
                line_number: found.line_number().unwrap_or(0),
                line_content,
                context_before: context.then_some(before),
                context_after: context.then(Vec::new),
            });
        }
        for line in LineIter::new(searcher.line_terminator().as_byte(), found.bytes()) {
            self.pass(line);
        }
        if let Some(made) = made {
            self.page.matches.push(made);
            if self.page.after > 0 {
                self.open.push_back(self.page.matches.len() - 1);
            }
        }
        Ok(self.wants_more())
    }

    fn context(&mut self, _: &Searcher, line: &SinkContext<'_>) -> io::Result<bool> {
        self.pass(line.bytes());
        Ok(self.wants_more())
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        self.recent.clear();
        self.open.clear();
        Ok(self.wants_more())
    }
}
