//! Lines of a log, read forwards and backwards in bounded memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

/// Longest record, in bytes: bodies in a record are at most 64 KiB each, and JSON escapes a byte to six at most.
pub(crate) const MAX_LINE: usize = 1 << 20;
const CHUNK: usize = 16 << 10;

/// Complete lines in `[from, end)` of a file, without their line break. An incomplete last line is skipped; a line that is longer
/// than any record is returned cut off.
pub(crate) struct Lines {
    reader: BufReader<io::Take<File>>,
    line: Vec<u8>,
    at: u64,
}

impl Lines {
    /// `from` is the start of a line.
    pub(crate) fn new(mut file: File, from: u64, end: u64) -> io::Result<Self> {
        file.seek(SeekFrom::Start(from))?;
        Ok(Self { reader: BufReader::with_capacity(64 << 10, file.take(end.saturating_sub(from))), line: Vec::new(), at: from })
    }

    /// The next line and its start.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        self.line.clear();
        let start = self.at;
        let read = (&mut self.reader).take(MAX_LINE as u64).read_until(b'\n', &mut self.line)?;
        self.at += read as u64;
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if read < MAX_LINE {
            return Ok(None);
        } else {
            self.at += self.reader.skip_until(b'\n')? as u64;
        }
        Ok(Some((start, &self.line)))
    }
}

/// Lines of a file from its end to its start, without their line break. The first is the text after the last line break: empty in
/// an intact file.
pub(crate) struct LinesBack<'a> {
    file: &'a File,
    /// Where `buffer` starts in the file.
    start: u64,
    buffer: Vec<u8>,
    done: bool,
}

impl<'a> LinesBack<'a> {
    pub(crate) fn new(file: &'a File, len: u64) -> Self {
        Self { file, start: len, buffer: Vec::new(), done: false }
    }

    pub(crate) fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.done {
            return Ok(None);
        }
        let mut searched = 0;
        loop {
            let unsearched = self.buffer.len() - searched;
            if let Some(at) = self.buffer[..unsearched].iter().rposition(|b| *b == b'\n') {
                let line = self.buffer.split_off(at + 1);
                self.buffer.pop();
                return Ok(Some(line));
            }
            searched = self.buffer.len();
            if self.start == 0 {
                self.done = true;
                return Ok(Some(std::mem::take(&mut self.buffer)));
            }
            if searched > MAX_LINE {
                // Not a record; its bytes need not be kept to find its start.
                self.buffer.clear();
                searched = 0;
            }
            let size = self.start.min(CHUNK as u64) as usize;
            self.start -= size as u64;
            let mut chunk = vec![0; size];
            self.file.read_exact_at(&mut chunk, self.start)?;
            chunk.extend_from_slice(&self.buffer);
            self.buffer = chunk;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file_of(text: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        file
    }

    #[test]
    fn both_directions_see_the_same_lines_whatever_their_length() {
        let long = "x".repeat(3 * CHUNK + 7);
        let lines = ["a", "", "bb", long.as_str(), "c"];
        let text = lines.join("\n") + "\n";
        let file = file_of(text.as_bytes());
        let mut back = LinesBack::new(&file, text.len() as u64);
        assert_eq!(back.next_line().unwrap().unwrap(), b"");
        for wanted in lines.iter().rev() {
            assert_eq!(back.next_line().unwrap().unwrap(), wanted.as_bytes());
        }
        assert!(back.next_line().unwrap().is_none());

        let mut forth = Lines::new(file, 0, text.len() as u64).unwrap();
        let mut start = 0;
        for wanted in lines {
            let (at, line) = forth.next_line().unwrap().unwrap();
            assert_eq!((at, line), (start, wanted.as_bytes()));
            start += wanted.len() as u64 + 1;
        }
        assert!(forth.next_line().unwrap().is_none());
    }

    #[test]
    fn torn_lines_are_passed_over_and_overlong_ones_cut() {
        let mut text = b"a\n".to_vec();
        text.extend(std::iter::repeat_n(b'y', MAX_LINE + 100));
        text.extend_from_slice(b"\nb\ntorn");
        let mut forth = Lines::new(file_of(&text), 0, text.len() as u64).unwrap();
        assert_eq!(forth.next_line().unwrap().unwrap().1, b"a");
        assert_eq!(forth.next_line().unwrap().unwrap().1.len(), MAX_LINE);
        assert_eq!(forth.next_line().unwrap().unwrap().1, b"b");
        assert!(forth.next_line().unwrap().is_none());
    }
}
