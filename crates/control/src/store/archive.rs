//! The rows of a store as a file: JSON lines with a version, a count, and a checksum.
//!
//! The first line is the header, each further line one row, and the last line holds the number of sandboxes and the SHA-256
//! of all bytes before it, as `head -n -1 FILE | sha256sum` prints it. Archives of version 1 have sandboxes only, and those of
//! version 2 no records and no webhooks. Those of version 3 have no annotations.

use std::io::{self, BufRead, Read, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::{AnnotationRow, Contents, Record, TenantContents, TenantRow, UsageContents};
use crate::Sandbox;
use crate::tenants::{ApiKey, AuditRow};
use crate::usage::{Meter, UsageHour};
use crate::webhooks::Webhook;

const FORMAT: &str = "arenite-store";
/// The newest version, and earlier ones.
const VERSION: u32 = 4;
const WITHOUT_ANNOTATIONS: u32 = 3;
const WITHOUT_RECORDS: u32 = 2;
const SANDBOXES_ONLY: u32 = 1;
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
    #[error("the archive has version {found}, and this arenite reads versions up to {VERSION}")]
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
    Tenant(Box<TenantRow>),
    Key(Box<ApiKey>),
    Audit(Box<AuditRow>),
    Usage(Box<UsageHour>),
    Meter(Meter),
    Record(Record),
    Webhook(Box<Webhook>),
    Annotation(Box<AnnotationRow>),
    End { sandboxes: usize, sha256: String },
}

/// Writes rows as an archive.
pub fn write(contents: Contents, out: &mut dyn Write) -> Result<(), ArchiveError> {
    let sandboxes = contents.sandboxes.len();
    let is_known = contents.tenants.is_some()
        || contents.usage.is_some()
        || contents.records.is_some()
        || contents.webhooks.is_some()
        || contents.annotations.is_some();
    let version = if is_known { VERSION } else { SANDBOXES_ONLY };
    let TenantContents { tenants, keys, audit } = contents.tenants.unwrap_or_default();
    let UsageContents { hours, meters } = contents.usage.unwrap_or_default();
    let lines = contents.sandboxes.into_iter().map(|row| Line::Sandbox(Box::new(row)));
    let lines = lines.chain(tenants.into_iter().map(|row| Line::Tenant(Box::new(row))));
    let lines = lines.chain(keys.into_iter().map(|key| Line::Key(Box::new(key))));
    let lines = lines.chain(audit.into_iter().map(|row| Line::Audit(Box::new(row))));
    let lines = lines.chain(hours.into_iter().map(|hour| Line::Usage(Box::new(hour))));
    let lines = lines.chain(meters.into_iter().map(Line::Meter));
    let lines = lines.chain(contents.records.into_iter().flatten().map(Line::Record));
    let lines = lines.chain(contents.webhooks.into_iter().flatten().map(|hook| Line::Webhook(Box::new(hook))));
    let annotations = contents.annotations.into_iter().flatten();
    let lines = lines.chain(annotations.map(|row| Line::Annotation(Box::new(row))));
    let mut digest = Sha256::new();
    let mut write = |text: serde_json::Result<String>, digest: &mut Sha256| {
        let mut text = text.map_err(|error| ArchiveError::Write(error.into()))?;
        text.push('\n');
        digest.update(&text);
        out.write_all(text.as_bytes()).map_err(ArchiveError::Write)
    };
    write(serde_json::to_string(&Header { format: FORMAT.to_owned(), version }), &mut digest)?;
    for line in lines {
        write(serde_json::to_string(&line), &mut digest)?;
    }
    let sha256 = format!("{:x}", digest.clone().finalize());
    write(serde_json::to_string(&Line::End { sandboxes, sha256 }), &mut digest)?;
    out.flush().map_err(ArchiveError::Write)
}

/// Reads the rows of an archive. Returns none of them unless the archive is complete and unchanged.
pub fn read(mut input: impl BufRead) -> Result<Contents, ArchiveError> {
    let mut digest = Sha256::new();
    let mut found = Contents::default();
    let mut text = String::new();
    let mut line = 0;
    loop {
        line += 1;
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
            match header.version {
                SANDBOXES_ONLY => {}
                version @ (WITHOUT_RECORDS | WITHOUT_ANNOTATIONS | VERSION) => {
                    found.tenants = Some(TenantContents::default());
                    found.usage = Some(UsageContents::default());
                    found.records = (version > WITHOUT_RECORDS).then(Vec::new);
                    found.webhooks = (version > WITHOUT_RECORDS).then(Vec::new);
                    found.annotations = (version > WITHOUT_ANNOTATIONS).then(Vec::new);
                }
                version => return Err(ArchiveError::Version { found: version }),
            }
        } else {
            match serde_json::from_str(&text).map_err(invalid)? {
                Line::Sandbox(row) => found.sandboxes.push(*row),
                Line::Tenant(row) => found.tenants.get_or_insert_default().tenants.push(*row),
                Line::Key(key) => found.tenants.get_or_insert_default().keys.push(*key),
                Line::Audit(row) => found.tenants.get_or_insert_default().audit.push(*row),
                Line::Usage(hour) => found.usage.get_or_insert_default().hours.push(*hour),
                Line::Meter(meter) => found.usage.get_or_insert_default().meters.push(meter),
                Line::Record(record) => found.records.get_or_insert_default().push(record),
                Line::Webhook(hook) => found.webhooks.get_or_insert_default().push(*hook),
                Line::Annotation(row) => found.annotations.get_or_insert_default().push(*row),
                Line::End { sandboxes, .. } if sandboxes != found.sandboxes.len() => {
                    return Err(ArchiveError::Count { expected: sandboxes, found: found.sandboxes.len() });
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
        [] => Ok(found),
        _ => Err(ArchiveError::Line { line: line + 1, reason: "it follows the last line".to_owned() }),
    }
}
