use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::{Fault, Passage, Record};
use crate::Error;

/// Maximum length of a line, in bytes; the rest of a longer one is skipped.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Passages of a file with one JSON object per line. Empty lines are skipped.
pub struct JsonLines<R = BufReader<File>> {
    name: String,
    path: PathBuf,
    input: R,
    line: u64,
    ended: bool,
}

impl JsonLines {
    pub fn open(path: &Path) -> crate::Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        Ok(Self { name, path: path.to_owned(), input: BufReader::with_capacity(1 << 20, file), line: 0, ended: false })
    }
}

impl<R: BufRead> JsonLines<R> {
    /// Reads from a source that is not a file; `name` identifies it in faults.
    pub fn new(name: &str, input: R) -> Self {
        Self { name: name.to_owned(), path: name.into(), input, line: 0, ended: false }
    }

    fn fault(&self, reason: impl Into<String>) -> Fault {
        Fault { place: format!("{}, line {}", self.name, self.line), reason: reason.into() }
    }

    /// The next line, without its end. None at the end of the input. A line that is too long is truncated.
    fn next_line(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let mut within = (&mut self.input).take(MAX_LINE_BYTES as u64 + 1);
        if within.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.len() > MAX_LINE_BYTES && line.last() != Some(&b'\n') {
            self.input.skip_until(b'\n')?;
        }
        Ok(Some(line))
    }
}

impl<R: BufRead> Iterator for JsonLines<R> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        while !self.ended {
            let line = match self.next_line() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(Error::io("read", &self.path)(error)));
                }
            };
            self.line += 1;
            if line.len() > MAX_LINE_BYTES {
                return Some(Ok(Err(self.fault(format!("it is longer than {} MiB", MAX_LINE_BYTES >> 20)))));
            }
            // The byte order mark that some editors write.
            let line = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| self.line == 1).unwrap_or(&line);
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let passage = serde_json::from_slice(line)
                .map_err(|error| error.to_string())
                .and_then(|record| Passage::from_record(record, None));
            return Some(Ok(passage.map_err(|reason| self.fault(reason))));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Vec<Result<String, String>> {
        let lines = JsonLines::new("c", text);
        lines.map(|record| record.unwrap().map(|p| p.id).map_err(|fault| fault.to_string())).collect()
    }

    #[test]
    fn each_line_is_a_passage_or_a_fault() {
        let text = b"\xef\xbb\xbf{\"text\":\"a\"}\r\n\n{\"text\": \"b\", \"id\": \"B\"}\nnonsense\n{\"text\":\"\xff\"}\n{\"text\": \"d\"}";
        let read = read(text);
        assert_eq!(read.len(), 5, "{read:?}");
        assert_eq!(read[1].as_deref(), Ok("B"));
        // Without an id, a hash of the text is the id: the same text is the same passage, in any line.
        let (first, last) = (read[0].as_deref().unwrap(), read[4].as_deref().unwrap());
        assert!(first.len() == 32 && first != last, "{read:?}");
        assert_eq!(super::JsonLines::new("d", &b"\n{\"text\":\"a\"}"[..]).next().unwrap().unwrap().unwrap().id, first);
        assert!(read[2].as_ref().unwrap_err().starts_with("c, line 4: "), "{read:?}");
        assert!(read[3].as_ref().unwrap_err().starts_with("c, line 5: "), "{read:?}");
    }

    #[test]
    fn a_line_without_end_costs_no_more_than_the_longest() {
        let mut text = b"{\"text\":\"".to_vec();
        text.resize(3 * MAX_LINE_BYTES, b'x');
        text.extend_from_slice(b"\"}\n{\"text\":\"y\"}\n");
        let read = read(&text);
        assert_eq!(read.len(), 2, "the rest of the line is not a line");
        assert!(read[0].as_ref().unwrap_err().contains("longer") && read[1].is_ok());
        assert!(super::JsonLines::new("c", &b""[..]).next().is_none());
    }
}
