//! The zip archive of an Office document, and the relationships of its parts.

use std::collections::HashMap;
use std::io::{Cursor, Read};

use serde_json::Value;
use zip::ZipArchive;

use super::xml;
use crate::{DocumentError, MAX_ENTRIES, MAX_PROPERTY_CHARS, MAX_UNPACKED_BYTES, Metadata, text};

const OFFICE: &str = "Office document";

/// An opened document.
pub(super) struct Package<'a> {
    archive: ZipArchive<Cursor<&'a [u8]>>,
    /// Bytes that may still be unpacked.
    budget: u64,
}

/// A reference from a part.
#[derive(Debug)]
pub(super) struct Relationship {
    pub(super) id: String,
    /// The last segment of its type: `slide`, `hyperlink`, `notesSlide`.
    pub(super) kind: String,
    /// A part's name, or an external address.
    pub(super) target: String,
}

impl<'a> Package<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, DocumentError> {
        let archive = ZipArchive::new(Cursor::new(bytes)).map_err(|e| DocumentError::malformed(OFFICE, e))?;
        if archive.len() > MAX_ENTRIES {
            return Err(DocumentError::too_large(format!("an archive of more than {MAX_ENTRIES} entries")));
        }
        Ok(Self { archive, budget: MAX_UNPACKED_BYTES })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.archive.index_for_name(name).is_some()
    }

    /// Refuses a document with parts that declare a larger unpacked size than is read. The declaration may be wrong, so the
    /// unpacking code checks again.
    pub(super) fn check_declared_size(&self) -> Result<(), DocumentError> {
        match self.archive.decompressed_size() {
            Some(size) if size > u128::from(MAX_UNPACKED_BYTES) => Err(too_much()),
            _ => Ok(()),
        }
    }

    /// A part as text; none if it doesn't exist.
    pub(super) fn part(&mut self, name: &str) -> Result<Option<String>, DocumentError> {
        let Some(index) = self.archive.index_for_name(name) else { return Ok(None) };
        let entry = self.archive.by_index(index).map_err(|e| DocumentError::malformed(OFFICE, e))?;
        if entry.encrypted() {
            return Err(DocumentError::Encrypted);
        }
        let mut bytes = Vec::new();
        entry
            .take(self.budget + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| DocumentError::malformed(OFFICE, format!("{name}: {e}")))?;
        self.budget = self.budget.checked_sub(bytes.len() as u64).ok_or_else(too_much)?;
        text::decode(&bytes, None).map(Some)
    }

    /// A required part.
    pub(super) fn required(&mut self, name: &str) -> Result<String, DocumentError> {
        self.part(name)?.ok_or_else(|| DocumentError::malformed(OFFICE, format!("its part {name} is missing")))
    }

    /// The relationships of a part.
    pub(super) fn relationships(&mut self, part: &str) -> Result<Vec<Relationship>, DocumentError> {
        let (folder, file) = part.rsplit_once('/').unwrap_or(("", part));
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let Some(text) = self.part(&format!("{prefix}_rels/{file}.rels"))? else { return Ok(Vec::new()) };
        let root = xml::parse(&text)?;
        Ok(root
            .named("Relationship")
            .filter_map(|element| {
                let target = element.attribute("Target")?;
                let external = element.attribute("TargetMode") == Some("External");
                Some(Relationship {
                    id: element.attribute("Id")?.to_owned(),
                    kind: element.attribute("Type")?.rsplit('/').next()?.to_owned(),
                    target: if external { target.to_owned() } else { resolve(folder, target) },
                })
            })
            .collect())
    }

    /// The main part of the document.
    pub(super) fn main_part(&mut self, usual: &str) -> Result<String, DocumentError> {
        let found = self.relationships("")?.into_iter().find(|r| r.kind == "officeDocument");
        Ok(found.map_or_else(|| usual.to_owned(), |r| r.target))
    }

    /// Title, author and other properties.
    pub(super) fn properties(&mut self) -> Result<Metadata, DocumentError> {
        let mut properties = Metadata::new();
        let Some(text) = self.part("docProps/core.xml")? else { return Ok(properties) };
        let root = xml::parse(&text)?;
        for (element, name) in [
            ("title", "title"),
            ("creator", "author"),
            ("subject", "subject"),
            ("keywords", "keywords"),
            ("description", "description"),
            ("lastModifiedBy", "last_modified_by"),
            ("created", "created"),
            ("modified", "modified"),
        ] {
            let value = root.child(element).map(|e| e.text.trim()).unwrap_or_default();
            if !value.is_empty() {
                properties.insert(name.to_owned(), Value::String(value.chars().take(MAX_PROPERTY_CHARS).collect()));
            }
        }
        Ok(properties)
    }
}

fn too_much() -> DocumentError {
    DocumentError::too_large(format!("an archive that unpacks to more than {} MiB", MAX_UNPACKED_BYTES >> 20))
}

/// A relationship's target, which is relative to its part's folder, as a part's name.
fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = if target.starts_with('/') { Vec::new() } else { folder.split('/').collect() };
    for piece in target.split('/') {
        match piece {
            "" | "." => {}
            ".." => drop(parts.pop()),
            piece => parts.push(piece),
        }
    }
    parts.retain(|p| !p.is_empty());
    parts.join("/")
}

/// Relationships by their id.
pub(super) fn by_id(relationships: Vec<Relationship>) -> HashMap<String, Relationship> {
    relationships.into_iter().map(|r| (r.id.clone(), r)).collect()
}

#[cfg(test)]
mod tests {
    use super::resolve;

    #[test]
    fn targets_are_relative_to_their_part() {
        assert_eq!(resolve("ppt/slides", "../notes/n1.xml"), "ppt/notes/n1.xml");
        assert_eq!(resolve("ppt", "/word/a.xml"), "word/a.xml");
        assert_eq!(resolve("", "xl/workbook.xml"), "xl/workbook.xml");
        assert_eq!(resolve("a", "../../../etc/passwd"), "etc/passwd");
    }
}
