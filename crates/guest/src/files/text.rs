//! Reading text, whole or by lines, with bounds.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use rustix::io::Errno;
use serde::Deserialize;
use utoipa::ToSchema;

use super::error::Failure;
use super::worker::Work;

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

/// The bytes that `content` stands for.
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

/// Checks that bytes are UTF-8; `offset` is where in the file they begin.
fn utf8(bytes: Vec<u8>, offset: u64) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::Decode { byte: error.as_bytes()[at], position: offset + at as u64 }
    })
}

/// The whole of a text file.
pub(super) fn read_all(file: &File, path: &str) -> Result<String, Failure> {
    let length = file.metadata().map_err(|e| Failure::io(e, path))?.len();
    if length > MAX_TEXT_BYTES {
        return Err(too_large(path, "the file"));
    }
    // Files of /proc say that they are empty.
    let mut bytes = Vec::with_capacity(length as usize + 1);
    file.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes).map_err(|e| Failure::io(e, path))?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(too_large(path, "the file"));
    }
    utf8(bytes, 0)
}

/// Lines `start` (from 0) to before `end` of a text file of any size, with their line ends.
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

/// Calls `each` with the number (from 0) and the bytes of each line, without its end, until it says stop.
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
