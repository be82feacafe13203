//! Office Open XML: text documents, slides and spreadsheets. Other spreadsheets come with the last.

mod numbering;
mod package;
mod runs;
pub(crate) mod slides;
pub(crate) mod word;
pub(crate) mod workbook;
mod xml;
