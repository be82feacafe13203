//! Detects the format of documents.

use std::io::Cursor;

use serde::{Deserialize, Serialize};
use zip::ZipArchive;

use crate::{DocumentError, MAX_ENTRIES};

/// Number of bytes of a text that are inspected to detect its format.
const HEAD_BYTES: usize = 1 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    Pdf,
    /// Excel's formats and OpenDocument's spreadsheets.
    Workbook,
    Slides,
    Word,
    Notebook,
    /// Comma-separated values, or with other separators.
    Table,
    Html,
    Image,
    /// Text that is passed on unchanged: JSON, XML, Markdown, source code.
    Text,
}

impl Format {
    /// The format that a file's name suggests.
    pub fn of_name(name: &str) -> Option<Self> {
        let file = name.rsplit('/').next().unwrap_or(name);
        let (_, extension) = file.rsplit_once('.')?;
        Some(match extension.to_ascii_lowercase().as_str() {
            "pdf" => Self::Pdf,
            "xlsx" | "xlsm" | "xlsb" | "xls" | "ods" => Self::Workbook,
            "pptx" | "pptm" | "ppsx" | "ppt" => Self::Slides,
            "docx" | "docm" | "dotx" | "doc" => Self::Word,
            "ipynb" => Self::Notebook,
            "csv" | "tsv" | "tab" => Self::Table,
            "html" | "htm" | "xhtml" => Self::Html,
            "png" | "jpg" | "jpeg" | "gif" | "webp" | "bmp" | "tif" | "tiff" | "ico" | "heic" | "heif" | "avif" => Self::Image,
            "txt" | "md" | "json" | "xml" | "yaml" | "yml" | "svg" => Self::Text,
            _ => return None,
        })
    }

    fn of_media_type(media_type: &str) -> Option<Self> {
        let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        Some(match essence.as_str() {
            "application/pdf" => Self::Pdf,
            "text/html" | "application/xhtml+xml" => Self::Html,
            "text/csv" | "text/tab-separated-values" => Self::Table,
            "application/x-ipynb+json" => Self::Notebook,
            "image/svg+xml" | "application/json" | "application/xml" | "text/xml" | "text/markdown" => Self::Text,
            "application/vnd.ms-excel"
            | "application/vnd.oasis.opendocument.spreadsheet"
            | "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet" => Self::Workbook,
            "application/vnd.openxmlformats-officedocument.wordprocessingml.document" => Self::Word,
            "application/vnd.openxmlformats-officedocument.presentationml.presentation" => Self::Slides,
            other if other.starts_with("image/") => Self::Image,
            _ => return None,
        })
    }

    /// Whether the format is not text, so that text editors can't change it.
    pub fn is_binary(self) -> bool {
        matches!(self, Self::Pdf | Self::Workbook | Self::Slides | Self::Word | Self::Image)
    }

    /// Detects the format: from the bytes themselves if possible, else from the name, else from the media type.
    pub fn detect(bytes: &[u8], name: Option<&str>, media_type: Option<&str>) -> Result<Self, DocumentError> {
        let named = name.and_then(Self::of_name).or_else(|| media_type.and_then(Self::of_media_type));
        let head = &bytes[..bytes.len().min(HEAD_BYTES)];
        if head.windows(5).any(|w| w == b"%PDF-") && !matches!(named, Some(Self::Text | Self::Html | Self::Table)) {
            return Ok(Self::Pdf);
        }
        if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
            return Self::of_zip(bytes);
        }
        if head.starts_with(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1") {
            return match named {
                Some(Self::Workbook) => Ok(Self::Workbook),
                Some(Self::Word | Self::Slides) => Err(DocumentError::Unsupported {
                    what: "a document of Word or PowerPoint from before 2007, or one with a password,".to_owned(),
                }),
                _ => Ok(Self::Workbook),
            };
        }
        if imagesize::image_type(head).is_ok() {
            return Ok(Self::Image);
        }
        match named {
            Some(format) if !format.is_binary() => Ok(format),
            Some(format) if !bytes.is_empty() => {
                Err(DocumentError::malformed(format.noun(), "its first bytes are not such a file's"))
            }
            Some(format) => Err(DocumentError::malformed(format.noun(), "it is empty")),
            None => Ok(if is_html(head) { Self::Html } else { Self::Text }),
        }
    }

    fn of_zip(bytes: &[u8]) -> Result<Self, DocumentError> {
        let archive = ZipArchive::new(Cursor::new(bytes)).map_err(|e| DocumentError::malformed("zip archive", e))?;
        if archive.len() > MAX_ENTRIES {
            return Err(DocumentError::too_large(format!("an archive of more than {MAX_ENTRIES} entries")));
        }
        let has = |name: &str| archive.index_for_name(name).is_some();
        let any = |prefix: &str| archive.file_names().flatten().any(|name| name.starts_with(prefix));
        if has("[Content_Types].xml") {
            for (folder, format) in [("word/", Self::Word), ("ppt/", Self::Slides), ("xl/", Self::Workbook)] {
                if any(folder) {
                    return Ok(format);
                }
            }
        }
        if has("mimetype") && has("content.xml") {
            return Ok(Self::Workbook);
        }
        Err(DocumentError::Unsupported { what: "a zip archive that is no Office document".to_owned() })
    }

    /// The noun for such a document.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Pdf => "PDF",
            Self::Workbook => "spreadsheet",
            Self::Slides => "presentation",
            Self::Word => "Word document",
            Self::Notebook => "notebook",
            Self::Table => "table",
            Self::Html => "HTML page",
            Self::Image => "image",
            Self::Text => "text",
        }
    }
}

fn is_html(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head).trim_start_matches('\u{feff}').trim_start().to_ascii_lowercase();
    text.starts_with("<!doctype html") || text.starts_with("<html") || text.starts_with("<head") || text.starts_with("<body")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_counts_more_than_a_name() {
        let detect = |bytes: &[u8], name, media| Format::detect(bytes, name, media).ok();
        assert_eq!(detect(b"%PDF-1.4", Some("a.docx"), None), Some(Format::Pdf));
        assert_eq!(detect(b"about %PDF-", Some("a.txt"), None), Some(Format::Text));
        assert_eq!(detect(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", None, None), Some(Format::Image));
        assert_eq!(detect(b" <!DOCTYPE html><p>", None, None), Some(Format::Html));
        assert_eq!(detect(b"<p>", None, Some("text/html; charset=x")), Some(Format::Html));
        assert_eq!(detect(b"a,b", Some("/x/t.CSV"), None), Some(Format::Table));
        assert_eq!(detect(b"{}", Some("n.ipynb"), None), Some(Format::Notebook));
        assert_eq!(detect(b"hello", Some("README"), None), Some(Format::Text));
        assert_eq!(detect(b"", None, None), Some(Format::Text));
        for (bytes, name) in
            [(&b"hello"[..], "a.pdf"), (b"", "a.xlsx"), (b"PK\x03\x04", "a.docx"), (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a.doc")]
        {
            assert!(Format::detect(bytes, Some(name), None).is_err(), "{name}");
        }
    }
}
