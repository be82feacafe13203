use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;

use super::{Fault, Passage, Record};
use crate::Error;

/// Passages of a Parquet file, one per row. Columns have the names of the fields of JSON lines.
pub struct Parquet {
    name: String,
    rows: RowIter<'static>,
    row: u64,
    ended: bool,
}

impl Parquet {
    pub fn open(path: &Path) -> crate::Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let reader = guarded(|| SerializedFileReader::new(file)).map_err(|reason| Error::corrupt(path, reason))?;
        let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        let rows = RowIter::from_file_into(Box::new(reader) as Box<dyn FileReader>);
        Ok(Self { name, rows, row: 0, ended: false })
    }
}

/// Runs the library on an untrusted file: some invalid files make it panic.
fn guarded<T>(read: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err("its reader gave up on it".to_owned()),
    }
}

impl Iterator for Parquet {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        if self.ended {
            return None;
        }
        let rows = &mut self.rows;
        let row = match guarded(|| rows.next().transpose()) {
            Ok(Some(row)) => Ok(row),
            Ok(None) => return None,
            Err(reason) => Err(reason),
        };
        self.row += 1;
        // After invalid data, nothing later can be read.
        self.ended = row.is_err();
        let passage = row.and_then(|row| Passage::from_record(row.to_json_value(), None));
        Some(Ok(passage.map_err(|reason| Fault { place: format!("{}, row {}", self.name, self.row), reason })))
    }
}
