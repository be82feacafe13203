//! The two views of a document: a part of it as text, or all of it as Markdown.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::output::Output;
use crate::{
    DocumentError, Format, MAX_MARKDOWN_BYTES, MAX_VIEW_BYTES, Metadata, image, notebook, office, pdf, table, text, web,
};

/// First and last item, from 1; a last of -1 is the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub first: i64,
    pub last: i64,
}

/// The selected part of a document. Unset fields do not limit it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Pages of a PDF, or cells of a notebook.
    pub pages: Option<Range>,
    /// Sheet of a spreadsheet.
    pub sheet: Option<String>,
    /// Rows of a spreadsheet or table.
    pub rows: Option<Range>,
    /// Slides of a presentation.
    pub slides: Option<Range>,
}

/// The content that was read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Content {
    pub text: String,
    pub metadata: Metadata,
    /// Whether there is more than fits.
    pub truncated: bool,
}

/// A checked range of existing items, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: usize,
    pub(crate) last: usize,
}

impl Span {
    /// Checks a range against the number of items. The end may be beyond it; the start may not.
    pub(crate) fn new(range: Option<Range>, total: usize, parameter: &str, things: &str) -> Result<Self, DocumentError> {
        let Some(Range { first, last }) = range else { return Ok(Self { first: 1, last: total }) };
        let wrong = |what: &str| {
            DocumentError::selection(format!("{parameter} [{first}, {last}] {what}: there are {total} {things}, counted from 1"))
        };
        let begin = usize::try_from(first).ok().filter(|f| (1..=total).contains(f));
        let begin = begin.ok_or_else(|| wrong("begins outside of the document"))?;
        match last {
            -1 => Ok(Self { first: begin, last: total }),
            last => {
                let end = usize::try_from(last).ok().filter(|l| *l >= begin).ok_or_else(|| wrong("ends before it begins"))?;
                Ok(Self { first: begin, last: end.min(total) })
            }
        }
    }

    pub(crate) fn numbers(self) -> std::ops::RangeInclusive<usize> {
        self.first..=self.last
    }
}

impl Selection {
    /// Refuses a selection that a format does not support, since ignoring it would show something else.
    fn check(&self, format: Format) -> Result<(), DocumentError> {
        let fits = [
            ("page_range", self.pages.is_some(), "PDFs and notebooks", matches!(format, Format::Pdf | Format::Notebook)),
            ("sheet_name", self.sheet.is_some(), "spreadsheets", format == Format::Workbook),
            ("row_range", self.rows.is_some(), "spreadsheets and tables", matches!(format, Format::Workbook | Format::Table)),
            ("slide_range", self.slides.is_some(), "presentations", format == Format::Slides),
        ];
        for (parameter, given, meant, fits) in fits {
            if given && !fits {
                return Err(DocumentError::selection(format!("{parameter} is for {meant}; this is a {}", format.noun())));
            }
        }
        Ok(())
    }
}

/// A part of a document as text.
///
/// # Errors
/// A malformed or protected document, one that is too large, or a selection that it does not have.
pub fn view(bytes: &[u8], format: Format, selection: &Selection) -> Result<Content, DocumentError> {
    selection.check(format)?;
    let (output, mut metadata) = match format {
        Format::Pdf => pdf::read(bytes, selection.pages, true, MAX_VIEW_BYTES)?,
        Format::Workbook => office::workbook::view(bytes, selection.sheet.as_deref(), selection.rows, MAX_VIEW_BYTES)?,
        Format::Slides => office::slides::read(bytes, selection.slides, MAX_VIEW_BYTES)?,
        Format::Word => office::word::read(bytes, MAX_VIEW_BYTES)?,
        Format::Notebook => notebook::read(bytes, selection.pages, true, MAX_VIEW_BYTES)?,
        Format::Table => table::view(&text::decode(bytes, None)?, selection.rows, MAX_VIEW_BYTES)?,
        Format::Html => web::read(&text::decode(bytes, None)?, MAX_VIEW_BYTES)?,
        Format::Image => image::read(bytes, MAX_VIEW_BYTES)?,
        Format::Text => plain(&text::decode(bytes, None)?, MAX_VIEW_BYTES),
    };
    metadata.insert("type".to_owned(), Value::from(format.noun()));
    metadata.insert("size".to_owned(), Value::from(bytes.len()));
    let (text, truncated) = output.finish();
    Ok(Content { text, metadata, truncated })
}

/// All of a document as Markdown. `charset` is from the source that it was fetched from.
///
/// # Errors
/// A malformed or protected document, or one that is too large.
pub fn markdown(bytes: &[u8], format: Format, charset: Option<&str>) -> Result<Content, DocumentError> {
    let (output, metadata) = match format {
        Format::Pdf => pdf::read(bytes, None, false, MAX_MARKDOWN_BYTES)?,
        Format::Workbook => office::workbook::markdown(bytes, MAX_MARKDOWN_BYTES)?,
        Format::Slides => office::slides::read(bytes, None, MAX_MARKDOWN_BYTES)?,
        Format::Word => office::word::read(bytes, MAX_MARKDOWN_BYTES)?,
        Format::Notebook => notebook::read(bytes, None, false, MAX_MARKDOWN_BYTES)?,
        Format::Table => table::markdown(&text::decode(bytes, charset)?, MAX_MARKDOWN_BYTES)?,
        Format::Html => web::read(&web::decode(bytes, charset)?, MAX_MARKDOWN_BYTES)?,
        Format::Image => image::read(bytes, MAX_MARKDOWN_BYTES)?,
        Format::Text => plain(&text::decode(bytes, charset)?, MAX_MARKDOWN_BYTES),
    };
    let (text, truncated) = output.finish();
    Ok(Content { text, metadata, truncated })
}

fn plain(text: &str, limit: usize) -> (Output, Metadata) {
    let mut out = Output::new(limit);
    out.push(text);
    (out, Metadata::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_against_what_there_is() {
        let span = |first, last| Span::new(Some(Range { first, last }), 5, "page_range", "pages").map(|s| (s.first, s.last)).ok();
        assert_eq!(span(1, 3), Some((1, 3)));
        assert_eq!(span(2, -1), Some((2, 5)));
        assert_eq!(span(5, 99), Some((5, 5)));
        for (first, last) in [(0, 1), (6, 7), (3, 2), (-1, -1), (1, -2), (i64::MIN, i64::MAX)] {
            assert_eq!(span(first, last), None, "{first} {last}");
        }
        assert_eq!(Span::new(None, 0, "x", "x").unwrap().numbers().count(), 0);
    }

    #[test]
    fn a_selection_must_fit_the_format() {
        let slides = Selection { slides: Some(Range { first: 1, last: 2 }), ..Selection::default() };
        let error = view(b"a,b", Format::Table, &slides).unwrap_err();
        assert!(error.to_string().contains("slide_range is for presentations"), "{error}");
    }
}
