//! The rows of a store as a file: JSON lines with a version, a count, and a checksum.
//!
//! The first line is the header, each further line one sandbox, and the last line holds the number of sandboxes and the SHA-256
//! of all bytes before it, as `head -n -1 FILE | sha256sum` prints it.

use std::io::{self, BufRead, Read, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::Sandbox;

const FORMAT: &str = "arenite-store";
const VERSION: u32 = 1;
/// Maximum length of a line, in bytes.
const LINE: u64 = 16 << 20;

/// Why an archive could not be written or read.
#[derive(Debug, Error)]
pub enum ArchiveError {
    #[error("the archive could not be written: {0}")]
    Write(io::Error),
    #[error("the archive could not be read: {0}")]
    Read(io::Error),
    #[error("line {line} of the archive is invalid: {reason}")]
    Line { line: usize, reason: String },
    #[error("the archive has version {found}, and this arenite reads version {VERSION}")]
    Version { found: u32 },
    #[error("the archive is incomplete: its last line, with count and checksum, is missing")]
    Truncated,
    #[error("the archive says that it holds {expected} sandboxes, and it holds {found}")]
    Count { expected: usize, found: usize },
    #[error("the archive was changed or damaged: its checksum does not match")]
    Checksum,
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Sandbox(Box<Sandbox>),
    End { sandboxes: usize, sha256: String },
}

/// Writes rows as an archive.
pub fn write(rows: Vec<Sandbox>, out: &mut dyn Write) -> Result<(), ArchiveError> {
    let sandboxes = rows.len();
    let mut digest = Sha256::new();
    let mut write = |text: serde_json::Result<String>, digest: &mut Sha256| {
        let mut text = text.map_err(|error| ArchiveError::Write(error.into()))?;
        text.push('\n');
        digest.update(&text);
        out.write_all(text.as_bytes()).map_err(ArchiveError::Write)
    };
    write(serde_json::to_string(&Header { format: FORMAT.to_owned(), version: VERSION }), &mut digest)?;
    for row in rows {
        write(serde_json::to_string(&Line::Sandbox(Box::new(row))), &mut digest)?;
    }
    let sha256 = format!("{:x}", digest.clone().finalize());
    write(serde_json::to_string(&Line::End { sandboxes, sha256 }), &mut digest)?;
    out.flush().map_err(ArchiveError::Write)
}

/// Reads the rows of an archive. Returns none of them unless the archive is complete and unchanged.
pub fn read(mut input: impl BufRead) -> Result<Vec<Sandbox>, ArchiveError> {
    let mut digest = Sha256::new();
    let mut rows: Vec<Sandbox> = Vec::new();
    let mut text = String::new();
    for line in 1.. {
        text.clear();
        if (&mut input).take(LINE).read_line(&mut text).map_err(ArchiveError::Read)? == 0 {
            return Err(ArchiveError::Truncated);
        }
        let invalid = |error: serde_json::Error| ArchiveError::Line { line, reason: error.to_string() };
        if line == 1 {
            let header: Header = serde_json::from_str(&text).map_err(invalid)?;
            if header.format != FORMAT {
                return Err(ArchiveError::Line { line, reason: format!("the format is {:?}, not {FORMAT:?}", header.format) });
            }
            if header.version != VERSION {
                return Err(ArchiveError::Version { found: header.version });
            }
        } else {
            match serde_json::from_str(&text).map_err(invalid)? {
                Line::Sandbox(row) => rows.push(*row),
                Line::End { sandboxes, .. } if sandboxes != rows.len() => {
                    return Err(ArchiveError::Count { expected: sandboxes, found: rows.len() });
                }
                Line::End { sha256, .. } if sha256 != format!("{:x}", digest.clone().finalize()) => {
                    return Err(ArchiveError::Checksum);
                }
                Line::End { .. } => break,
            }
        }
        digest.update(&text);
    }
    match input.fill_buf().map_err(ArchiveError::Read)? {
        [] => Ok(rows),
        _ => Err(ArchiveError::Line { line: rows.len() + 3, reason: "it follows the last line".to_owned() }),
    }
}
