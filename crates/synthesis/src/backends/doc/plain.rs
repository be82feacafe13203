//! Documents as Markdown, text or JSON. Their sections are returned unchanged, without a model.

use std::path::Path;

use serde_json::Value;

use crate::backends::api::Fault;

/// Characters around a match.
const AROUND: usize = 200;
/// Largest file in bytes, and the most files of one folder.
const MAX_BYTES: u64 = 32 << 20;
const MAX_FILES: usize = 1000;

#[derive(Debug, PartialEq)]
pub(super) struct Section {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) text: String,
}

pub(super) fn search(sections: &[Section], words: &[String], most: usize) -> String {
    let mut found = Vec::new();
    for section in sections {
        let (text, title) = (section.text.to_lowercase(), section.title.to_lowercase());
        for word in words.iter().map(|word| word.to_lowercase()).filter(|word| !word.is_empty()) {
            let at = text.find(&word);
            if at.is_none() && !title.contains(&word) {
                continue;
            }
            // Offsets in the lower-case text may differ from those in the original.
            let from = text.floor_char_boundary(at.unwrap_or(0).saturating_sub(AROUND));
            let to = text.ceil_char_boundary((at.unwrap_or(0) + word.len() + AROUND).min(text.len()));
            let shown = section.text.get(from..to).unwrap_or(&text[from..to]);
            found.push(format!(
                "[{}] {}: …{}…",
                section.id,
                section.title,
                shown.split_whitespace().collect::<Vec<_>>().join(" ")
            ));
            break;
        }
        if found.len() == most {
            break;
        }
    }
    if found.is_empty() { "No results found".to_owned() } else { found.join("\n") }
}

pub(super) fn read(path: &Path) -> Result<Vec<Section>, Fault> {
    let failed = |error: std::io::Error| Fault::new(format!("the documents can't be read: {}", error.kind()));
    let mut files = Vec::new();
    if path.is_file() {
        files.push(path.to_owned());
    } else {
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_type().is_ok_and(|kind| kind.is_file()) && files.len() < MAX_FILES {
                files.push(entry.path());
            }
        }
        files.sort();
    }
    let mut sections = Vec::new();
    for file in files {
        let known = file.extension().and_then(|ending| ending.to_str()).map(str::to_ascii_lowercase);
        let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if std::fs::metadata(&file).map_err(failed)?.len() > MAX_BYTES {
            continue;
        }
        match known.as_deref() {
            Some("md" | "txt") => {
                headings(&String::from_utf8_lossy(&std::fs::read(&file).map_err(failed)?), &name, &mut sections)
            }
            Some("json") => {
                let parsed: Result<Value, _> = serde_json::from_slice(&std::fs::read(&file).map_err(failed)?);
                if let Ok(parsed) = parsed {
                    tree(&parsed, &name, &mut sections);
                }
            }
            _ => {}
        }
    }
    Ok(sections)
}

/// Sections of a text start at its headings and are numbered from 1.
fn headings(text: &str, name: &str, sections: &mut Vec<Section>) {
    let mut current = Section { id: format!("{name}.0"), title: name.to_owned(), text: String::new() };
    let mut number = 0;
    for line in text.lines() {
        let heading = line.trim_start_matches('#');
        if heading.len() < line.len() && heading.starts_with(' ') {
            number += 1;
            let next = Section { id: format!("{name}.{number}"), title: heading.trim().to_owned(), text: String::new() };
            let before = std::mem::replace(&mut current, next);
            if !before.text.trim().is_empty() {
                sections.push(before);
            }
        } else {
            current.text.push_str(line);
            current.text.push('\n');
        }
    }
    sections.push(current);
}

/// Every object with text in a parsed document is a section.
fn tree(value: &Value, name: &str, sections: &mut Vec<Section>) {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items.iter().rev()),
            Value::Object(fields) => {
                let field = |names: &[&str]| names.iter().find_map(|name| fields.get(*name));
                if let Some(text) = field(&["text", "content", "paragraph"]).and_then(Value::as_str) {
                    let id = field(&["section_id", "id"]).map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
                    let title = field(&["title", "heading", "name"]).and_then(Value::as_str).unwrap_or_default();
                    sections.push(Section {
                        id: id.unwrap_or_else(|| format!("{name}.{}", sections.len())),
                        title: title.to_owned(),
                        text: text.to_owned(),
                    });
                }
                open.extend(fields.values().filter(|value| value.is_array() || value.is_object()));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sections_are_found_in_markdown_and_json() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.md"), "before\n# One\nthe Model is here\n## Two\nnothing").unwrap();
        let parsed = json!({"sections": [{"id": 7, "title": "Seven", "text": "a model too", "children": [{"text": "deep"}]}]});
        std::fs::write(dir.path().join("b.json"), parsed.to_string()).unwrap();
        let Ok(sections) = read(dir.path()) else { panic!("not read") };
        let ids: Vec<&str> = sections.iter().map(|section| section.id.as_str()).collect();
        assert_eq!(ids, ["a.0", "a.1", "a.2", "7", "b.4"]);
        let found = search(&sections, &["model".to_owned()], 10);
        assert_eq!(found, "[a.1] One: …the Model is here…\n[7] Seven: …a model too…");
        assert_eq!(search(&sections, &["model".to_owned()], 1).lines().count(), 1);
        assert_eq!(search(&sections, &["zebra".to_owned()], 1), "No results found");
    }
}
