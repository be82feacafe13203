//! `doc:*`: finds and reads sections of documents that lie in a folder of the server, as Markdown, text or JSON.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::api::{self, Fault, texts};
use super::{Answered, needs, spec};
use crate::backend::{Backend, Call, ToolSpec};

const NAME: &str = "doc";
/// Results of one search.
const RESULTS: u64 = 10;
/// Words of one section, about three quarters of a token each.
const TOKENS: u64 = 20_000;
/// Characters around a word that was found.
const AROUND: usize = 200;
/// Bytes of one file, and files of one folder.
const MAX_BYTES: u64 = 32 << 20;
const MAX_FILES: usize = 1000;

/// Reads documents.
pub struct Doc {
    root: Option<PathBuf>,
    seed: Option<String>,
}

#[derive(Debug, PartialEq)]
struct Section {
    id: String,
    title: String,
    text: String,
}

impl Doc {
    /// `config`: `seed_root`, the folder under which `seed_path`s are; and a `seed_path` for calls that name none, which is
    /// the root itself where no other is named.
    pub fn new(config: &Map<String, Value>) -> Self {
        let text = |name: &str| config.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
        let (root, seed) = (text("seed_root"), text("seed_path"));
        match root {
            Some(root) => Self { root: Some(root.into()), seed },
            None => Self { root: seed.map(PathBuf::from), seed: Some(".".to_owned()) },
        }
    }

    async fn sections(&self, params: &Map<String, Value>) -> Result<Vec<Section>, Fault> {
        let given = params.get("seed_path").and_then(Value::as_str).map(str::to_owned).or_else(|| self.seed.clone());
        let given = given.ok_or_else(|| Fault::new("seed_path must be provided in kwargs"))?;
        let root = self.root.as_ref().ok_or_else(|| Fault::new("no folder of documents is configured: apis.doc.seed_root"))?;
        let path = api::within(root, &given)?;
        let read = tokio::task::spawn_blocking(move || read(&path)).await;
        read.unwrap_or_else(|error| Err(Fault::internal(error.to_string())))
    }

    async fn result(&self, call: &Call<'_>) -> Result<Value, Fault> {
        let params = &call.params;
        if call.tool == "doc:search" {
            needs("SearchTool.execute", params, &["key_words"]).map_err(Fault::internal)?;
            let words = texts(params, "key_words")?;
            let most = params.get("max_search_results").and_then(Value::as_u64).unwrap_or(RESULTS) as usize;
            let sections = self.sections(params).await?;
            return Ok(json!({ "result": search(&sections, &words, most) }));
        }
        needs("ReadTool.execute", params, &["section_ids", "goal"]).map_err(Fault::internal)?;
        let ids = texts(params, "section_ids")?;
        let words = params.get("max_text_token").and_then(Value::as_u64).unwrap_or(TOKENS) as usize * 3 / 4;
        let sections = self.sections(params).await?;
        let (mut parts, mut missing) = (Vec::new(), Vec::new());
        for id in ids {
            match sections.iter().find(|section| section.id == id) {
                Some(section) => {
                    let text: Vec<&str> = section.text.split_inclusive(char::is_whitespace).take(words).collect();
                    parts.push(format!("## [{id}] {}\n{}", section.title, text.concat()));
                }
                None => missing.push(id),
            }
        }
        if parts.is_empty() {
            return Err(Fault::new(format!("there is no section {}", missing.join(", "))));
        }
        Ok(json!({ "result": parts.join("\n\n"), "missing": missing }))
    }
}

fn search(sections: &[Section], words: &[String], most: usize) -> String {
    let mut found = Vec::new();
    for section in sections {
        let (text, title) = (section.text.to_lowercase(), section.title.to_lowercase());
        for word in words.iter().map(|word| word.to_lowercase()).filter(|word| !word.is_empty()) {
            let at = text.find(&word);
            if at.is_none() && !title.contains(&word) {
                continue;
            }
            // Places in the lower-case text are not always places in the other.
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

fn read(path: &Path) -> Result<Vec<Section>, Fault> {
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

/// The sections of a text are what its headings begin, numbered from 1.
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

/// Wherever a parsed document has an object with text, that is a section.
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

#[async_trait]
impl Backend for Doc {
    fn name(&self) -> &str {
        NAME
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let many = |description: &str| json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}], "description": description});
        let seed = json!({"type": "string", "description": "The folder of the document."});
        vec![
            spec(
                "doc:search",
                NAME,
                "Search for keywords in document",
                json!({
                    "key_words": many("Words to find."),
                    "max_search_results": {"type": "integer", "default": RESULTS, "description": "Results at most."},
                    "seed_path": seed,
                }),
                &["key_words"],
            ),
            spec(
                "doc:read",
                NAME,
                "Read content of specified section in document, call VLM to get useful information and return to agent",
                json!({
                    "section_ids": {"type": "array", "items": {"type": "string"}, "description": "Sections, as search names them."},
                    "goal": {"type": "string", "description": "What is looked for."},
                    "max_text_token": {"type": "integer", "default": TOKENS, "description": "Tokens of each section at most."},
                    "seed_path": seed,
                }),
                &["section_ids", "goal"],
            ),
        ]
    }

    fn is_resource(&self) -> bool {
        false
    }

    async fn call(&self, call: Call<'_>) -> Answered {
        let result = self.result(&call).await;
        api::answer(&call.params, call.worker, result)
    }
}

#[cfg(test)]
mod tests {
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
