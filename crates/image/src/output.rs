//! Splits a command's output into lines that are safe to show.

use std::collections::VecDeque;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Longer lines are shown in pieces.
const MAX_LINE_BYTES: usize = 4 << 10;
/// Number of last lines that are kept for an error.
const TAIL: usize = 20;

/// Splits bytes into lines at LF and CR and passes them on without control characters: a build's output must not control the
/// terminal that shows it.
pub(crate) struct OutputLines<'a> {
    line: Vec<u8>,
    tail: VecDeque<String>,
    show: &'a mut (dyn FnMut(&str) + Send),
}

impl<'a> OutputLines<'a> {
    pub(crate) fn new(show: &'a mut (dyn FnMut(&str) + Send)) -> Self {
        Self { line: Vec::new(), tail: VecDeque::new(), show }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' | b'\r' => self.end_line(),
                _ => {
                    self.line.push(byte);
                    if self.line.len() >= MAX_LINE_BYTES {
                        self.end_line();
                    }
                }
            }
        }
    }

    /// Reads to the end of the stream.
    pub(crate) async fn drain(&mut self, mut from: impl AsyncRead + Unpin) -> io::Result<()> {
        let mut buffer = vec![0; 16 << 10];
        loop {
            match from.read(&mut buffer).await? {
                0 => return Ok(()),
                n => self.feed(&buffer[..n]),
            }
        }
    }

    /// Ends the last line; returns the last lines of the output.
    pub(crate) fn finish(mut self) -> Vec<String> {
        self.end_line();
        self.tail.into()
    }

    fn end_line(&mut self) {
        let text: String = String::from_utf8_lossy(&self.line).chars().filter(|c| !c.is_control() || *c == '\t').collect();
        self.line.clear();
        let text = text.trim_end();
        if text.is_empty() {
            return;
        }
        (self.show)(text);
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(text.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_cleaned_and_the_last_ones_kept() {
        let mut shown = Vec::new();
        let mut show = |line: &str| shown.push(line.to_owned());
        let mut lines = OutputLines::new(&mut show);
        lines.feed(b"one\r\n\x1b]0;title\x07two\n10%\r20%\rth");
        lines.feed(b"ree\xff");
        let tail = lines.finish();
        assert_eq!(tail, ["one", "]0;titletwo", "10%", "20%", "three\u{fffd}"]);
        assert_eq!(shown, tail);

        let mut count = 0;
        let mut show = |line: &str| {
            count += 1;
            assert!(line.len() <= MAX_LINE_BYTES);
        };
        let mut lines = OutputLines::new(&mut show);
        lines.feed(&vec![b'x'; MAX_LINE_BYTES * 30]);
        assert_eq!(lines.finish().len(), TAIL);
        assert_eq!(count, 30);
    }
}
