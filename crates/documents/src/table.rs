//! Comma-separated values, and those with other separators.

use csv::{ReaderBuilder, StringRecord};
use serde_json::Value;

use crate::output::{self, Output};
use crate::view::{Range, Span};
use crate::{DocumentError, Metadata};

/// Number of lines that are inspected to find the separator.
const SAMPLE_LINES: usize = 20;

/// The separator with the same count in most of the first lines.
fn separator(text: &str) -> u8 {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).take(SAMPLE_LINES).collect();
    let score = |separator: char| {
        let counts: Vec<usize> = lines.iter().map(|l| l.matches(separator).count()).collect();
        let first = counts.first().copied().unwrap_or(0);
        let agreeing = counts.iter().filter(|c| **c == first && first > 0).count();
        (agreeing, first)
    };
    [',', '\t', ';', '|'].into_iter().rev().max_by_key(|s| score(*s)).map_or(b',', |s| s as u8)
}

fn records(text: &str) -> impl Iterator<Item = Result<StringRecord, DocumentError>> {
    let reader = ReaderBuilder::new().has_headers(false).flexible(true).delimiter(separator(text)).from_reader(text.as_bytes());
    reader.into_records().map(|record| record.map_err(|e| DocumentError::malformed("table", e)))
}

/// Counts the rows, and the columns of the longest row.
fn measure(text: &str) -> Result<(usize, usize), DocumentError> {
    let (mut rows, mut columns) = (0, 0);
    for record in records(text) {
        rows += 1;
        columns = columns.max(record?.len());
    }
    Ok((rows, columns))
}

fn metadata(rows: usize, columns: usize) -> Metadata {
    [("total_rows", rows), ("total_columns", columns)].map(|(name, n)| (name.to_owned(), Value::from(n))).into_iter().collect()
}

/// A range of rows with their numbers.
pub(crate) fn view(text: &str, range: Option<Range>, limit: usize) -> Result<(Output, Metadata), DocumentError> {
    let (rows, columns) = measure(text)?;
    let span = Span::new(range, rows, "row_range", "rows")?;
    let mut out = Output::new(limit);
    let names: Vec<String> = (1..=columns).map(|n| n.to_string()).collect();
    output::row(&mut out, std::iter::once("row").chain(names.iter().map(String::as_str)));
    output::rule(&mut out, columns + 1);
    for (at, record) in records(text).enumerate().skip(span.first - 1).take((span.last + 1).saturating_sub(span.first)) {
        let record = record?;
        let number = (at + 1).to_string();
        output::row(&mut out, std::iter::once(number.as_str()).chain(record.iter()));
        if out.is_full() {
            break;
        }
    }
    Ok((out, metadata(rows, columns)))
}

/// The whole table, with the first row as the head.
pub(crate) fn markdown(text: &str, limit: usize) -> Result<(Output, Metadata), DocumentError> {
    let (rows, columns) = measure(text)?;
    let mut out = Output::new(limit);
    for (at, record) in records(text).enumerate() {
        let record = record?;
        output::row(&mut out, record.iter().chain(std::iter::repeat_n("", columns - record.len())));
        if at == 0 {
            output::rule(&mut out, columns);
        }
        if out.is_full() {
            break;
        }
    }
    Ok((out, metadata(rows, columns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_with_any_separator() {
        for text in ["a,b\n1,\"x,y\nz\"\n3\n", "a\tb\n1\t\"x,y\nz\"\n3\n", "a;b\r\n1;\"x,y\nz\"\r\n3\r\n"] {
            let (out, metadata) = markdown(text, 1000).unwrap();
            assert_eq!(out.finish().0, "| a | b |\n| --- | --- |\n| 1 | x,y<br>z |\n| 3 |  |\n", "{text}");
            assert_eq!((&metadata["total_rows"], &metadata["total_columns"]), (&Value::from(3), &Value::from(2)));
        }
    }

    #[test]
    fn rows_are_numbered_and_ranged() {
        let text: String = (1..=50).map(|n| format!("{n},x\n")).collect();
        let (out, _) = view(&text, Some(Range { first: 49, last: -1 }), 1000).unwrap();
        assert_eq!(out.finish().0, "| row | 1 | 2 |\n| --- | --- | --- |\n| 49 | 49 | x |\n| 50 | 50 | x |\n");
        assert!(view(&text, Some(Range { first: 51, last: 52 }), 1000).is_err());
        let (out, _) = view("", None, 1000).unwrap();
        assert_eq!(out.finish().0, "| row |\n| --- |\n");
    }
}
