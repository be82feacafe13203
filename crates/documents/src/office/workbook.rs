//! Spreadsheets: xlsx, xlsm, xlsb, xls and ods.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;

use calamine::{Data, DataRef, ExcelDateTime, Ods, Reader, SheetType, SheetVisible, Sheets, Xls, Xlsb, Xlsx};
use serde_json::{Value, json};

use super::package::Package;
use crate::output::{self, Output};
use crate::view::{Range, Span};
use crate::{DocumentError, MAX_PROPERTY_CHARS, Metadata};

/// Maximum number of sheets that are read.
const MAX_SHEETS: usize = 1_000;
/// Maximum number of a sheet's cells in memory; more would not fit into an answer.
const MAX_CELLS: usize = 1_000_000;

type Workbook<'a> = Sheets<Cursor<&'a [u8]>>;

/// The selected cells of a sheet, and the size of the whole sheet.
#[derive(Default)]
struct Grid {
    /// By row, then by column, both from 0.
    cells: BTreeMap<u32, BTreeMap<u32, String>>,
    rows: u32,
    columns: u32,
    /// Some of the requested cells are not in `cells`.
    cut: bool,
}

fn malformed(error: impl std::fmt::Display) -> DocumentError {
    let text = error.to_string();
    if text.to_lowercase().contains("password") {
        DocumentError::Encrypted
    } else {
        DocumentError::malformed("spreadsheet", text)
    }
}

fn open(bytes: &[u8]) -> Result<Workbook<'_>, DocumentError> {
    let data = Cursor::new(bytes);
    if !bytes.starts_with(b"PK") {
        return Ok(Sheets::Xls(Xls::new(data).map_err(malformed)?));
    }
    let package = Package::open(bytes)?;
    package.check_declared_size()?;
    if package.has("xl/workbook.bin") {
        return Ok(Sheets::Xlsb(Xlsb::new(data).map_err(malformed)?));
    }
    if package.has("mimetype") && package.has("content.xml") {
        return Ok(Sheets::Ods(Ods::new(data).map_err(malformed)?));
    }
    Ok(Sheets::Xlsx(Xlsx::new(data).map_err(malformed)?))
}

/// The sheets with cells: name, and whether they are hidden.
fn sheets(workbook: &Workbook<'_>) -> Result<Vec<(String, bool)>, DocumentError> {
    let all = workbook.sheets_metadata();
    if all.len() > MAX_SHEETS {
        return Err(DocumentError::too_large(format!("a spreadsheet of more than {MAX_SHEETS} sheets")));
    }
    let with_cells = all.iter().filter(|s| s.typ == SheetType::WorkSheet);
    Ok(with_cells.map(|s| (s.name.clone(), s.visible != SheetVisible::Visible)).collect())
}

/// Reads a sheet, and keeps the rows of a range up to `limit` bytes.
fn grid(workbook: &mut Workbook<'_>, sheet: &str, range: Option<Range>, limit: usize) -> Result<Grid, DocumentError> {
    let mut grid = Grid::default();
    let mut bytes = 0;
    let mut cells = 0;
    let first = range.map_or(0, |r| u32::try_from(r.first.saturating_sub(1)).unwrap_or(0));
    let last = match range {
        Some(Range { last, .. }) if last >= 1 => u32::try_from(last - 1).unwrap_or(u32::MAX),
        _ => u32::MAX,
    };
    let mut keep = |(row, column): (u32, u32), text: &mut dyn FnMut() -> String| {
        grid.rows = grid.rows.max(row.saturating_add(1));
        grid.columns = grid.columns.max(column.saturating_add(1));
        if row < first || row > last {
            return;
        }
        if bytes > limit || cells >= MAX_CELLS {
            grid.cut = true;
            return;
        }
        let text = text();
        bytes += text.len() + 3;
        cells += 1;
        grid.cells.entry(row).or_default().insert(column, text);
    };
    match workbook {
        // One cell at a time: a sheet may claim to be a million rows high.
        Sheets::Xlsx(book) => {
            let mut reader = book.worksheet_cells_reader(sheet).map_err(malformed)?;
            while let Some(cell) = reader.next_cell().map_err(malformed)? {
                if !matches!(cell.get_value(), DataRef::Empty) {
                    keep(cell.get_position(), &mut || show(&cell.get_value().clone().into()));
                }
            }
        }
        other => {
            let range = other.worksheet_range(sheet).map_err(malformed)?;
            let (top, left) = range.start().unwrap_or_default();
            for (row, column, value) in range.used_cells() {
                let place = |offset: u32, at: usize| offset.saturating_add(u32::try_from(at).unwrap_or(u32::MAX));
                keep((place(top, row), place(left, column)), &mut || show(value));
            }
        }
    }
    Ok(grid)
}

fn show(value: &Data) -> String {
    match value {
        Data::Float(number) => float(*number),
        Data::DateTime(moment) => date(moment),
        other => other.to_string(),
    }
}

fn float(number: f64) -> String {
    // As shown in a spreadsheet: 0.1 + 0.2 is 0.3.
    let rounded: f64 = format!("{number:.14e}").parse().unwrap_or(number);
    rounded.to_string()
}

fn date(moment: &ExcelDateTime) -> String {
    let value = moment.as_f64();
    if moment.is_duration() {
        let seconds = (value * 86_400.0).round() as i64;
        let sign = if seconds < 0 { "-" } else { "" };
        let seconds = seconds.unsigned_abs();
        return format!("{sign}{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    }
    let (year, month, day, hour, minute, second, _) = moment.to_ymd_hms_milli();
    let time = format!("{hour:02}:{minute:02}:{second:02}");
    if (0.0..1.0).contains(&value) {
        return time;
    }
    let day = format!("{year:04}-{month:02}-{day:02}");
    if value.fract() == 0.0 { day } else { format!("{day} {time}") }
}

/// A column's letters, from 0.
fn letters(column: u32) -> String {
    let mut out = Vec::new();
    let mut rest = u64::from(column) + 1;
    while rest > 0 {
        rest -= 1;
        out.push(char::from(b'A' + (rest % 26) as u8));
        rest /= 26;
    }
    out.iter().rev().collect()
}

/// One sheet or all, with the letters of columns and the numbers of rows.
pub(crate) fn view(
    bytes: &[u8],
    wanted: Option<&str>,
    range: Option<Range>,
    limit: usize,
) -> Result<(Output, Metadata), DocumentError> {
    let mut workbook = open(bytes)?;
    let all = sheets(&workbook)?;
    let chosen: Vec<&(String, bool)> = match wanted {
        None => all.iter().collect(),
        Some(name) => {
            let exact = all.iter().find(|(n, _)| n == name);
            let found = exact.or_else(|| all.iter().find(|(n, _)| n.to_lowercase() == name.to_lowercase()));
            let names = || all.iter().take(50).map(|(n, _)| format!("{n:?}")).collect::<Vec<_>>().join(", ");
            vec![found.ok_or_else(|| DocumentError::selection(format!("there is no sheet {name:?}; there are {}", names())))?]
        }
    };
    let mut out = Output::new(limit);
    let mut sizes = Vec::new();
    for (name, hidden) in &chosen {
        let grid = grid(&mut workbook, name, range, limit)?;
        let total = grid.rows as usize;
        // Of several sheets, each shows its part of the range; for a single one, the range must exist.
        let span = match Span::new(range, total, "row_range", "rows") {
            Err(error) if chosen.len() == 1 => return Err(error),
            Err(_) => Span { first: 1, last: 0 },
            Ok(span) => span,
        };
        let note = if *hidden { ", hidden" } else { "" };
        out.block(&format!(
            "## Sheet: {name} (rows {} to {} of {total}, {} columns{note})\n",
            span.first, span.last, grid.columns
        ));
        let columns: BTreeSet<u32> = grid.cells.values().flat_map(|row| row.keys().copied()).collect();
        if !columns.is_empty() {
            out.part();
            let names: Vec<String> = columns.iter().map(|c| letters(*c)).collect();
            output::row(&mut out, std::iter::once("").chain(names.iter().map(String::as_str)));
            output::rule(&mut out, columns.len() + 1);
        }
        for (number, row) in &grid.cells {
            let number = (u64::from(*number) + 1).to_string();
            let texts = columns.iter().map(|c| row.get(c).map_or("", String::as_str));
            output::row(&mut out, std::iter::once(number.as_str()).chain(texts));
            if out.is_full() {
                break;
            }
        }
        if grid.cut {
            out.cut();
        }
        sizes.push(json!({"name": name, "rows": total, "columns": grid.columns, "hidden": hidden}));
        if out.is_full() {
            break;
        }
    }
    let mut metadata = properties(&mut workbook);
    metadata.insert("total_sheets".to_owned(), Value::from(all.len()));
    metadata.insert("sheet_names".to_owned(), all.iter().map(|(name, _)| Value::from(name.as_str())).collect());
    metadata.insert("sheets".to_owned(), Value::Array(sizes));
    Ok((out, metadata))
}

/// All sheets as tables, with the first row of each as the head.
pub(crate) fn markdown(bytes: &[u8], limit: usize) -> Result<(Output, Metadata), DocumentError> {
    let mut workbook = open(bytes)?;
    let mut out = Output::new(limit);
    for (name, _) in sheets(&workbook)? {
        let grid = grid(&mut workbook, &name, None, limit)?;
        out.block(&format!("## {name}\n"));
        let columns: BTreeSet<u32> = grid.cells.values().flat_map(|row| row.keys().copied()).collect();
        out.part();
        for (at, row) in grid.cells.values().enumerate() {
            output::row(&mut out, columns.iter().map(|c| row.get(c).map_or("", String::as_str)));
            if at == 0 {
                output::rule(&mut out, columns.len());
            }
            if out.is_full() {
                break;
            }
        }
        if grid.cut {
            out.cut();
        }
        if out.is_full() {
            break;
        }
    }
    let metadata = properties(&mut workbook);
    Ok((out, metadata))
}

fn properties(workbook: &mut Workbook<'_>) -> Metadata {
    // A spreadsheet with broken properties is still read.
    let found = workbook.workbook_properties().unwrap_or_default();
    let named = [
        ("title", found.title),
        ("author", found.creator),
        ("subject", found.subject),
        ("keywords", found.keywords),
        ("description", found.description),
        ("last_modified_by", found.last_modified_by),
        ("created", found.created),
        ("modified", found.modified),
    ];
    let present = named.into_iter().filter_map(|(name, value)| Some((name, value.filter(|v| !v.trim().is_empty())?)));
    present
        .map(|(name, value)| (name.to_owned(), Value::String(value.trim().chars().take(MAX_PROPERTY_CHARS).collect())))
        .collect()
}

#[cfg(test)]
mod tests {
    use calamine::ExcelDateTimeType;

    use super::*;

    #[test]
    fn columns_have_letters() {
        for (column, expected) in [(0, "A"), (25, "Z"), (26, "AA"), (701, "ZZ"), (702, "AAA"), (16_383, "XFD")] {
            assert_eq!(letters(column), expected);
        }
    }

    #[test]
    fn values_are_shown_as_people_see_them() {
        let moment = |value, kind| date(&ExcelDateTime::new(value, kind, false));
        assert_eq!(moment(45_943.0, ExcelDateTimeType::DateTime), "2025-10-13");
        assert_eq!(moment(45_943.541_666_666_7, ExcelDateTimeType::DateTime), "2025-10-13 13:00:00");
        assert_eq!(moment(0.5, ExcelDateTimeType::DateTime), "12:00:00");
        assert_eq!(moment(1.25, ExcelDateTimeType::TimeDelta), "30:00:00");
        assert_eq!(
            (float(0.1 + 0.2), float(1e21), float(3.0)),
            ("0.3".to_owned(), "1000000000000000000000".to_owned(), "3".to_owned())
        );
    }
}
