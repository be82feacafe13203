//! Reads text, whole or by lines, with bounds.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use rustix::io::Errno;
use serde::Deserialize;
use utoipa::ToSchema;

use super::error::Failure;
use arenite_guest_runtime::process::incomplete_end;
use arenite_guest_runtime::workers::Work;

/// The most bytes of text that one call reads into memory. AIO's daemon has the same bound.
pub(super) const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 128 << 10;

/// How `content` is written down in a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
pub enum FileContentEncoding {
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
    /// One byte for each character.
    #[serde(rename = "raw")]
    Raw,
}

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Decodes `content` to bytes.
pub(super) fn decode(content: String, encoding: FileContentEncoding) -> Result<Vec<u8>, Failure> {
    match encoding {
        FileContentEncoding::Utf8 => Ok(content.into_bytes()),
        FileContentEncoding::Base64 => {
            let mut bytes = content.into_bytes();
            bytes.retain(|b| !b.is_ascii_whitespace());
            BASE64.decode(bytes).map_err(|e| Failure::invalid(format!("content is not base64: {e}")))
        }
        FileContentEncoding::Raw => content
            .chars()
            .enumerate()
            .map(|(at, c)| {
                u8::try_from(u32::from(c)).map_err(|_| Failure::Invalid {
                    message: format!("content has {c:?} at character {at}, which is no single byte"),
                    hint: Some("send text as utf-8 and bytes as base64".to_owned()),
                })
            })
            .collect(),
    }
}

fn too_large(path: &str, what: &str) -> Failure {
    Failure::Os {
        errno: Errno::FBIG,
        path: path.to_owned(),
        note: format!(
            "{what} exceeds the {} MiB that one answer carries; read a part with start_line and end_line, or use /v1/file/download",
            MAX_TEXT_BYTES >> 20
        ),
    }
}

/// Checks that bytes are UTF-8. `offset` is their position in the file.
fn utf8(bytes: Vec<u8>, offset: u64) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::Decode { byte: error.as_bytes()[at], position: offset + at as u64 }
    })
}

/// Reads a whole text file.
pub(super) fn read_all(file: &File, path: &str) -> Result<String, Failure> {
    let length = file.metadata().map_err(|e| Failure::io(e, path))?.len();
    if length > MAX_TEXT_BYTES {
        return Err(too_large(path, "the file"));
    }
    // Files of /proc report a length of 0.
    let mut bytes = Vec::with_capacity(length as usize + 1);
    file.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes).map_err(|e| Failure::io(e, path))?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(too_large(path, "the file"));
    }
    utf8(bytes, 0)
}

/// Reads lines `start` (from 0) to before `end` of a text file of any size, with their line ends.
pub(super) fn read_lines(file: &File, start: u64, end: Option<u64>, work: &Work, path: &str) -> Result<String, Failure> {
    let fail = |e| Failure::io(e, path);
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, work.watch(file));
    let mut offset = 0;
    for _ in 0..start {
        match reader.skip_until(b'\n').map_err(fail)? {
            0 => return Ok(String::new()),
            skipped => offset += skipped as u64,
        }
    }
    let mut bytes = Vec::new();
    let mut wanted = end.map_or(u64::MAX, |end| end.saturating_sub(start));
    while wanted > 0 {
        let room = (MAX_TEXT_BYTES + 1).saturating_sub(bytes.len() as u64);
        if (&mut reader).take(room).read_until(b'\n', &mut bytes).map_err(fail)? == 0 {
            if room == 0 {
                return Err(too_large(path, "the range of lines"));
            }
            break;
        }
        wanted -= 1;
    }
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(too_large(path, "the range of lines"));
    }
    utf8(bytes, offset)
}

/// A range of lines, as many as fit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) content: String,
    /// The line, from 0, before which it ends.
    pub(super) end: u64,
    /// Lines of the whole file.
    pub(super) total: u64,
    /// Its only line did not fit and is cut.
    pub(super) is_line_cut: bool,
}

/// Reads whole lines from `start` (from 0) to before `end`, up to `most` characters, and counts all lines. If the first line is
/// longer, reads its start.
pub(super) fn read_part(
    reader: &mut impl BufRead,
    start: u64,
    end: Option<u64>,
    most: usize,
    path: &str,
) -> Result<Part, Failure> {
    let fail = |e| Failure::io(e, path);
    // Enough for `most` characters, however long each is.
    let longest = 4 * most;
    let mut part = Part { content: String::new(), end: start, total: 0, is_line_cut: false };
    let (mut chars, mut offset, mut is_full) = (0, 0, false);
    let mut line = Vec::new();
    loop {
        if is_full || part.total < start || end.is_some_and(|end| part.total >= end) {
            match reader.skip_until(b'\n').map_err(fail)? {
                0 => break,
                skipped => offset += skipped as u64,
            }
            part.total += 1;
            continue;
        }
        line.clear();
        let read = reader.by_ref().take(longest as u64).read_until(b'\n', &mut line).map_err(fail)?;
        if read == 0 {
            break;
        }
        let mut is_cut = false;
        if read == longest && line.last() != Some(&b'\n') {
            is_cut = true;
            let rest = reader.skip_until(b'\n').map_err(fail)?;
            line.truncate(read - incomplete_end(&line));
            offset += (rest + read - line.len()) as u64;
        }
        let begin = offset;
        offset += line.len() as u64;
        let text = utf8(std::mem::take(&mut line), begin)?;
        part.total += 1;
        let count = text.chars().count();
        if chars + count <= most && !is_cut {
            part.content.push_str(&text);
            part.end = part.total;
            chars += count;
        } else {
            is_full = true;
            if part.content.is_empty() {
                part.content.extend(text.chars().take(most));
                part.end = part.total;
                part.is_line_cut = true;
            }
        }
    }
    part.end = part.end.min(part.total);
    Ok(part)
}

/// Reads a part of a file of any size.
pub(super) fn read_part_of(
    file: &File,
    start: u64,
    end: Option<u64>,
    most: usize,
    work: &Work,
    path: &str,
) -> Result<Part, Failure> {
    read_part(&mut BufReader::with_capacity(CHUNK_BYTES, work.watch(file)), start, end, most, path)
}

/// Calls `each` with the number (from 0) and the bytes of each line, without its end, until it returns stop.
pub(super) fn for_each_line(
    file: &File,
    work: &Work,
    path: &str,
    mut each: impl FnMut(u64, &[u8]) -> bool,
) -> Result<(), Failure> {
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, work.watch(file));
    let mut line = Vec::new();
    for number in 0.. {
        line.clear();
        let read = (&mut reader).take(MAX_TEXT_BYTES + 1).read_until(b'\n', &mut line);
        let read = read.map_err(|e| Failure::io(e, path))?;
        if read as u64 > MAX_TEXT_BYTES {
            return Err(too_large(path, &format!("line {number}")));
        }
        if read == 0 {
            break;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if !each(number, text) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_lines_that_fit() {
        let part = |text: &str, start, end, most| {
            let part = read_part(&mut text.as_bytes(), start, end, most, "/f").unwrap();
            (part.content, part.end, part.total, part.is_line_cut)
        };
        let shown = |content: &str, end, total, is_cut| (content.to_owned(), end, total, is_cut);
        assert_eq!(part("a\nb\nc", 0, None, 100), shown("a\nb\nc", 3, 3, false));
        assert_eq!(part("a\nb\nc", 1, Some(2), 100), shown("b\n", 2, 3, false));
        assert_eq!(part("a\nb\nc\n", 0, None, 5), shown("a\nb\n", 2, 3, false));
        assert_eq!(part("äöü\nb\n", 0, None, 2), shown("äö", 1, 2, true));
        assert_eq!(part(&format!("{}\nb\n", "ä".repeat(50)), 0, None, 2), shown("ää", 1, 2, true));
        assert_eq!(part("a\n€€€€€€€€€\nb\n", 0, None, 3), shown("a\n", 1, 3, false));
        assert_eq!(part("a\n", 7, None, 3), shown("", 1, 1, false));
        assert_eq!(part("", 0, None, 3), shown("", 0, 0, false));
        let wrong = read_part(&mut &b"a\n\xffb\n"[..], 1, None, 9, "/f").unwrap_err();
        assert_eq!(wrong, Failure::Decode { byte: 0xff, position: 2 });
    }

    #[test]
    fn content_stands_for_its_bytes() {
        let decode = |text: &str, encoding| decode(text.to_owned(), encoding);
        assert_eq!(decode("é", FileContentEncoding::Utf8).unwrap(), "é".as_bytes());
        assert_eq!(decode("é\u{0}", FileContentEncoding::Raw).unwrap(), [0xe9, 0]);
        assert_eq!(decode("/+\n8A", FileContentEncoding::Base64).unwrap(), [0xff, 0xef, 0x00]);
        assert_eq!(decode("/w==", FileContentEncoding::Base64).unwrap(), [0xff]);
        assert_eq!(decode("/w", FileContentEncoding::Base64).unwrap(), [0xff]);
        for (text, encoding) in [("€", FileContentEncoding::Raw), ("*", FileContentEncoding::Base64)] {
            assert_eq!(decode(text, encoding).unwrap_err().error_type(), "invalid_argument");
        }
    }
}
