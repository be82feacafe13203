//! The results as a Parquet file: flat columns, JSON as text, which every table reader accepts.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use crate::error::RolloutError;
use crate::results::Row;

/// Rows of a row group, unless their text is long.
const ROWS: usize = 5000;
/// Bytes of text of a row group, which is held in memory until it is complete.
const TEXT: usize = 32 << 20;

/// Times are UTC.
const SCHEMA: &str = "
message results {
    REQUIRED BYTE_ARRAY task_id (STRING);
    REQUIRED BYTE_ARRAY task (STRING);
    REQUIRED BYTE_ARRAY status (STRING);
    REQUIRED BOOLEAN success;
    OPTIONAL BYTE_ARRAY result (STRING);
    REQUIRED INT32 attempts;
    OPTIONAL BYTE_ARRAY error_kind (STRING);
    OPTIONAL BYTE_ARRAY error_message (STRING);
    REQUIRED BYTE_ARRAY worker_id (STRING);
    REQUIRED BYTE_ARRAY worker_ids (STRING);
    REQUIRED INT64 started_at (TIMESTAMP(MICROS,true));
    REQUIRED INT64 ended_at (TIMESTAMP(MICROS,true));
    REQUIRED INT64 duration_ms;
    OPTIONAL INT32 exit_code;
    REQUIRED BYTE_ARRAY trajectory (STRING);
}";

/// One row, with JSON as text.
struct Cells {
    row: Row,
    result: Option<String>,
    worker_ids: String,
    trajectory: String,
}

/// Writes rows as they arrive.
pub(crate) struct Table {
    path: PathBuf,
    writer: SerializedFileWriter<BufWriter<File>>,
    group: Vec<Cells>,
    text: usize,
}

impl Table {
    pub(crate) fn create(path: &Path) -> Result<Self, RolloutError> {
        let failed = |source| RolloutError::Parquet { path: path.to_owned(), source };
        let schema = Arc::new(parse_message_type(SCHEMA).map_err(failed)?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("arenite ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let file = BufWriter::new(File::create(path).map_err(RolloutError::io("create", path))?);
        let writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).map_err(failed)?;
        Ok(Self { path: path.to_owned(), writer, group: Vec::new(), text: 0 })
    }

    pub(crate) fn add(&mut self, row: Row, trajectory: String) -> Result<(), RolloutError> {
        let result = row.result.as_ref().map(ToString::to_string);
        let worker_ids = serde_json::json!(row.worker_ids).to_string();
        self.text += row.task.get().len() + result.as_ref().map_or(0, String::len) + trajectory.len();
        self.group.push(Cells { row, result, worker_ids, trajectory });
        if self.group.len() >= ROWS || self.text >= TEXT { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), RolloutError> {
        let rows = std::mem::take(&mut self.group);
        self.text = 0;
        if rows.is_empty() {
            return Ok(());
        }
        write_group(&mut self.writer, &rows).map_err(|source| RolloutError::Parquet { path: self.path.clone(), source })
    }

    pub(crate) fn finish(mut self) -> Result<(), RolloutError> {
        self.flush()?;
        let path = self.path;
        let file = self.writer.into_inner().map_err(|source| RolloutError::Parquet { path: path.clone(), source })?;
        let file = file.into_inner().map_err(|error| RolloutError::io("write", &path)(error.into_error()))?;
        file.sync_all().map_err(RolloutError::io("write", &path))
    }
}

/// Writes the columns, in the order of the schema.
fn write_group(writer: &mut SerializedFileWriter<BufWriter<File>>, rows: &[Cells]) -> Result<(), ParquetError> {
    let mut open = writer.next_row_group()?;
    let group = &mut open;
    text(group, rows, |c| Some(&c.row.task_id))?;
    text(group, rows, |c| Some(c.row.task.get()))?;
    text(group, rows, |c| Some(c.row.status.name()))?;
    column::<BoolType>(group, rows, false, |c| Some(c.row.success))?;
    optional_text(group, rows, |c| c.result.as_deref())?;
    column::<Int32Type>(group, rows, false, |c| Some(i32::try_from(c.row.attempts).unwrap_or(i32::MAX)))?;
    optional_text(group, rows, |c| c.row.error_kind.as_deref())?;
    optional_text(group, rows, |c| c.row.error_message.as_deref())?;
    text(group, rows, |c| Some(&c.row.worker_id))?;
    text(group, rows, |c| Some(&c.worker_ids))?;
    column::<Int64Type>(group, rows, false, |c| Some(c.row.started_at.as_microsecond()))?;
    column::<Int64Type>(group, rows, false, |c| Some(c.row.ended_at.as_microsecond()))?;
    column::<Int64Type>(group, rows, false, |c| Some(i64::try_from(c.row.duration_ms).unwrap_or(i64::MAX)))?;
    column::<Int32Type>(group, rows, true, |c| c.row.exit_code)?;
    text(group, rows, |c| Some(&c.trajectory))?;
    open.close().map(drop)
}

type Group<'a> = SerializedRowGroupWriter<'a, BufWriter<File>>;

fn text(group: &mut Group<'_>, rows: &[Cells], of: impl Fn(&Cells) -> Option<&str>) -> Result<(), ParquetError> {
    column::<ByteArrayType>(group, rows, false, |cells| of(cells).map(ByteArray::from))
}

fn optional_text(group: &mut Group<'_>, rows: &[Cells], of: impl Fn(&Cells) -> Option<&str>) -> Result<(), ParquetError> {
    column::<ByteArrayType>(group, rows, true, |cells| of(cells).map(ByteArray::from))
}

/// Writes the next column. In an optional one, each row has a level that says whether it has a value.
fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, BufWriter<File>>,
    rows: &[Cells],
    is_optional: bool,
    of: impl Fn(&Cells) -> Option<T::T>,
) -> Result<(), ParquetError> {
    let cells: Vec<Option<T::T>> = rows.iter().map(of).collect();
    let levels: Vec<i16> = cells.iter().map(|cell| i16::from(cell.is_some())).collect();
    let values: Vec<T::T> = cells.into_iter().flatten().collect();
    let missing = || ParquetError::General("the schema has fewer columns than are written".into());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    column.typed::<T>().write_batch(&values, is_optional.then_some(&levels[..]), None)?;
    column.close()
}
