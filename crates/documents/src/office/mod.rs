//! Office Open XML: text documents, slides and spreadsheets. The spreadsheet reader also reads other formats.

mod numbering;
mod package;
mod runs;
pub(crate) mod slides;
pub(crate) mod word;
pub(crate) mod workbook;
mod xml;
