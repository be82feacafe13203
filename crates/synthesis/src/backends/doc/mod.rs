//! `doc:*`: finds and reads sections of documents in a folder of the server: AgentFlow's folders of XML and pictures, or
//! Markdown, text and JSON.

mod plain;
mod read;
mod search;
mod tree;

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::api::{self, Fault, integer, texts};
use super::folders::{Folders, Missing, SearchDirs};
use super::{Answered, needs, spec};
use crate::backend::{Backend, ToolCall, ToolSpec};
use read::{Bounds, Vision};
use tree::Element;

const NAME: &str = "doc";
/// Default number of results of one search.
const RESULTS: i64 = 10;
/// Default length of one section: characters of XML, or tokens of a plain document, which are about three quarters of a word.
const TOKENS: i64 = 20_000;
/// Default number of pictures of one section.
const PICTURES: i64 = 10;
/// The files of AgentFlow's folders. The tools use the second; the first helps authors of a model's task.
const FILES: [&str; 2] = ["outline.xml", "all_content.xml"];
/// Largest size of one of them, in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// Reads documents.
pub struct Doc {
    config: Map<String, Value>,
    folders: Folders,
    /// The folder for calls that name none.
    seed: Option<PathBuf>,
}

enum Document {
    AgentFlow(Element),
    Plain(Vec<plain::Section>),
}

impl Doc {
    /// `config`: AgentFlow's keys, and `seed_root`: the only folder in which `seed_path`s may be. Without it, they may be below
    /// the server's working directory, the configuration's folder, or the configured `seed_path`.
    pub fn new(config: Map<String, Value>, search_dirs: &SearchDirs) -> Self {
        let text = |name: &str| config.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let (root, seed) = (text("seed_root"), text("seed_path"));
        let below = |seed: &str| match root {
            Some(root) => Path::new(root).join(seed),
            None => PathBuf::from(seed),
        };
        let seed = seed.map(|seed| search_dirs.existing(&below(seed)).unwrap_or_else(|| below(seed)));
        let folders = Folders::new(search_dirs, root, seed.as_deref());
        Self { seed, folders, config }
    }

    /// The folder of a call, and the name that the call gave it.
    fn folder(&self, params: &Map<String, Value>) -> Result<(PathBuf, String), Fault> {
        let given = match params.get("seed_path") {
            None | Some(Value::Null) => "",
            Some(given) => given.as_str().ok_or_else(|| Fault::new("seed_path has to be a string"))?,
        };
        if given.is_empty() {
            let seed = self.seed.clone();
            let seed = seed.ok_or_else(|| Fault::new("seed_path must be provided in kwargs (from seed.jsonl)"))?;
            let name = self.config.get("seed_path").and_then(Value::as_str).unwrap_or_default().to_owned();
            return if seed.exists() { Ok((seed, name)) } else { Err(Fault::new(format!("Seed path not found: {name}"))) };
        }
        match self.folders.find(given) {
            Ok(path) => Ok((path, given.to_owned())),
            Err(Missing::NotThere) => Err(Fault::new(format!("Seed path not found: {given}"))),
            Err(Missing::Outside) => Err(Fault::new(format!(
                "Seed path not found: {given}; documents are below the server's working directory, the folder of its \
                 configuration, or apis.doc.seed_root"
            ))),
        }
    }

    async fn document(&self, params: &Map<String, Value>) -> Result<(PathBuf, Document), Fault> {
        let (path, given) = self.folder(params)?;
        let folder = path.clone();
        let document = tokio::task::spawn_blocking(move || open(&path, &given)).await??;
        Ok((folder, document))
    }

    /// A number from the call, otherwise from the configuration.
    fn number(&self, params: &Map<String, Value>, name: &str, default: i64) -> Result<i64, Fault> {
        let configured = || self.config.get(name).and_then(Value::as_i64).unwrap_or(default);
        Ok(integer(params, name)?.unwrap_or_else(configured))
    }

    async fn search(&self, params: &Map<String, Value>) -> Result<String, Fault> {
        needs("SearchTool.execute", params, &["key_words"]).map_err(Fault::internal)?;
        let words = texts(params, "key_words")?;
        let most = self.number(params, "max_search_results", RESULTS)?;
        Ok(match self.document(params).await?.1 {
            Document::AgentFlow(document) => search::search(&document, &words, most),
            Document::Plain(sections) => plain::search(&sections, &words, usize::try_from(most).unwrap_or_default()),
        })
    }

    async fn read(&self, params: &Map<String, Value>) -> Result<Value, Fault> {
        needs("ReadTool.execute", params, &["section_ids", "goal"]).map_err(Fault::internal)?;
        let ids = texts(params, "section_ids")?;
        let count = |number: i64| usize::try_from(number).unwrap_or_default();
        let characters = count(self.number(params, "max_text_token", TOKENS)?);
        let pictures = count(self.number(params, "max_image_num", PICTURES)?);
        let (folder, document) = self.document(params).await?;
        let document = match document {
            Document::AgentFlow(document) => document,
            Document::Plain(sections) => return shown(&sections, ids, characters),
        };
        let vision = Vision::from_config(&self.config)?;
        let goal = params["goal"].as_str().map_or_else(|| read::python(&params["goal"]), str::to_owned);
        let mut parts = Vec::new();
        for id in ids {
            let all = document.all();
            let sections = || all.iter().filter(|element| element.name == "Section");
            // An id may occur twice: the last one counts.
            let section = sections().rfind(|section| section.attribute("section_id") == Some(&id));
            parts.push(match section {
                Some(section) => vision.read(&folder, section, &id, &goal, Bounds { pictures, characters }).await,
                None => {
                    let mut known: Vec<&str> = Vec::new();
                    for id in sections().filter_map(|section| section.attribute("section_id")) {
                        if !known.contains(&id) {
                            known.push(id);
                        }
                    }
                    format!(
                        "The section_id {id} is not presented in the document, here is the full list of available section_id: {}. \
                         Please try again.",
                        read::python(&known.into())
                    )
                }
            });
        }
        Ok(json!({ "result": search::joined(&parts) }))
    }
}

/// Sections of a plain document. `tokens`: the limit for each.
fn shown(sections: &[plain::Section], ids: Vec<String>, tokens: usize) -> Result<Value, Fault> {
    let words = tokens * 3 / 4;
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

/// `given`: the path as the client named it, for messages.
fn open(path: &Path, given: &str) -> Result<Document, Fault> {
    if !FILES.iter().any(|name| path.join(name).exists()) {
        let sections = plain::read(path)?;
        if !sections.is_empty() {
            return Ok(Document::Plain(sections));
        }
    }
    let mut document = Element::default();
    for name in FILES {
        let file = path.join(name);
        let about = std::fs::metadata(&file).map_err(|_| Fault::new(format!("{name} not found at {given}/{name}")))?;
        if about.len() > MAX_BYTES {
            return Err(Fault::new(format!("Failed to load documents: {name} is larger than {} MiB", MAX_BYTES >> 20)));
        }
        let text = std::fs::read_to_string(&file).map_err(crate::error::invalid);
        let parsed = text.and_then(|text| Element::parse(&text));
        document = parsed.map_err(|error| Fault::new(format!("Failed to load documents: {error}")))?;
    }
    Ok(Document::AgentFlow(document))
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
                    "max_search_results": {"type": "integer", "default": RESULTS, "description": "Results of each keyword at most."},
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
                    "max_image_num": {"type": "integer", "default": PICTURES, "description": "Pictures of each section at most."},
                    "max_text_token": {"type": "integer", "default": TOKENS, "description": "Characters of each section at most."},
                    "seed_path": seed,
                }),
                &["section_ids", "goal"],
            ),
        ]
    }

    fn is_resource(&self) -> bool {
        false
    }

    async fn call(&self, call: ToolCall<'_>) -> Answered {
        let result = match call.tool {
            "doc:search" => self.search(&call.params).await.map(|text| json!({ "result": text })),
            _ => self.read(&call.params).await,
        };
        api::answer(&call.params, call.worker, result)
    }
}
