//! Reports: observations as gzipped JSON lines, in files.

use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::types::ObservationReportInfo;

/// Writes a report: `head` as its first line, then the lines of `body`.
pub(super) fn write(
    dir: &Path,
    report_id: String,
    session_id: Option<String>,
    reason: String,
    head: &Value,
    body: Option<&Path>,
) -> io::Result<ObservationReportInfo> {
    fs::create_dir_all(dir)?;
    let path = dir.join(format!("{report_id}.jsonl.gz"));
    let created_at = Timestamp::now();
    let whole = (|| {
        let mut encoder = GzEncoder::new(File::create(&path)?, Compression::fast());
        let head = json!({ "report": { "report_id": report_id, "session_id": session_id, "reason": reason, "created_at": created_at }, "head": head });
        writeln!(encoder, "{head}")?;
        if let Some(body) = body {
            io::copy(&mut BufReader::new(File::open(body)?), &mut encoder)?;
        }
        encoder.finish()?.metadata()
    })();
    match whole {
        Ok(meta) => {
            let path = path.display().to_string();
            Ok(ObservationReportInfo { report_id, session_id, reason, created_at, path, size_bytes: meta.len() })
        }
        Err(error) => {
            // An incomplete report is removed.
            drop(fs::remove_file(&path));
            Err(error)
        }
    }
}
