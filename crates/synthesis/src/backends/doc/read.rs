//! `doc:read`: a model reads a section's text and pictures, and extracts what serves a goal.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::tree::Element;
use crate::backends::api::Fault;
use crate::backends::ask::{Model, setting};
use crate::error::SynthesisError;

const TOKENS: u64 = 16_384;
const SECONDS: u64 = 300;
const TRIES: u64 = 10;
const BETWEEN_TRIES: Duration = Duration::from_secs(1);
/// Largest picture, in bytes.
const MAX_PICTURE: u64 = 16 << 20;
const URL: &str = "https://openrouter.ai/api/v1";

/// The text before a section.
const BEFORE: &str = "Below is one section of a document, as XML, and what a reader wants to know. Pictures of its pages, figures \
and tables may have come before this message. Use nothing but this section and its pictures.";
const AFTER: &str = "Work in three steps: say which parts of the section matter for the goal and why (rational), quote or describe \
those parts in full, with their numbers and their context (evidence), and sum up what they mean for the goal (summary). Answer with \
a JSON object with the keys \"rational\", \"evidence\" and \"summary\" between <json> and </json>.";
/// Result if a model never answered in the requested format.
const UNPROCESSED: [&str; 2] = [
    "The provided document section could not be processed by the VLM. Please check the section ID and try again.",
    "The document section could not be processed, and therefore, no information is available.",
];

/// The model that reads, and its number of attempts.
pub(super) struct Vision {
    model: Model,
    max_tokens: u64,
    tries: u64,
}

/// How much of a section the model gets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Pictures.
    pub(super) pictures: usize,
    /// Characters of the section as XML.
    pub(super) characters: usize,
}

impl Vision {
    pub(super) fn from_config(config: &Map<String, Value>) -> Result<Self, Fault> {
        let name = setting(config, "vlm_model", &["VLM_MODEL"]).ok_or_else(|| {
            Fault::new("VLM model not configured. Please set 'vlm_model' in config or VLM_MODEL environment variable")
        })?;
        let key = setting(config, "vlm_api_key", &["VLM_API_KEY", "OPENAI_API_KEY"]).ok_or_else(|| {
            let message = "VLM API key not configured. Please set 'vlm_api_key' in config or VLM_API_KEY/OPENAI_API_KEY \
                           environment variable";
            Fault::new(message)
        })?;
        let url = setting(config, "vlm_api_url", &["VLM_API_URL", "OPENAI_API_URL"]).unwrap_or_else(|| URL.to_owned());
        let number = |name: &str, default: u64| config.get(name).and_then(Value::as_u64).unwrap_or(default);
        let mut model = Model::new(name, key, url);
        model.timeout = Duration::from_secs(number("vlm_timeout", SECONDS).clamp(1, 3600));
        let tries = number("vlm_retry_max_attempts", TRIES).clamp(1, 100);
        Ok(Self { model, max_tokens: number("vlm_max_tokens", TOKENS), tries })
    }

    /// A section's answer, which may be that it could not be read.
    pub(super) async fn read(&self, folder: &Path, section: &Element, id: &str, goal: &str, bounds: Bounds) -> String {
        let (folder, of) = (folder.to_owned(), section.clone());
        let wanted = goal.to_owned();
        let messages = tokio::task::spawn_blocking(move || messages(&folder, &of, &wanted, bounds)).await;
        let read = match messages {
            Ok(messages) => self.evidence(messages).await,
            Err(error) => Err(error.into()),
        };
        match read {
            Ok((evidence, summary)) => format!(
                "The useful information from the document section (section_id={id}) for user goal `{goal}` is as follows: \n\n\
                 Evidence in document: \n{evidence}\n\nSummary: \n{summary}"
            )
            .trim()
            .to_owned(),
            Err(error) => format!("[ERROR] Section {id} read failed: {error}"),
        }
    }

    async fn evidence(&self, messages: Value) -> Result<(String, String), SynthesisError> {
        for _ in 0..self.tries {
            let answer = self.answer(&messages).await?;
            let inner = answer.rsplit_once("<json>").map(|(_, rest)| rest.split("</json>").next().unwrap_or(rest));
            if let Ok(Value::Object(said)) = serde_json::from_str(inner.unwrap_or(&answer).trim()) {
                let part = |name: &str| said.get(name).map(python).unwrap_or_default();
                return Ok((part("evidence"), part("summary")));
            }
        }
        Ok((UNPROCESSED[0].to_owned(), UNPROCESSED[1].to_owned()))
    }

    async fn answer(&self, messages: &Value) -> Result<String, SynthesisError> {
        let mut last = String::new();
        for attempt in 0..self.tries {
            if attempt > 0 {
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            match self.model.complete(messages.clone(), json!({ "max_tokens": self.max_tokens })).await {
                Ok(text) if !text.is_empty() => return Ok(text),
                Ok(_) => last = "Empty response from VLM API".to_owned(),
                Err(error) => last = error.into(),
            }
        }
        let reason = format!("Failed to call VLM API after {} attempts. Last error: {last}", self.tries);
        Err(SynthesisError::Service { reason })
    }
}

/// A value in the format of Python's `str`.
pub(super) fn python(value: &Value) -> String {
    fn inner(value: &Value) -> String {
        match value {
            Value::Null => "None".to_owned(),
            Value::Bool(true) => "True".to_owned(),
            Value::Bool(false) => "False".to_owned(),
            Value::Number(number) => number.to_string(),
            Value::String(text) => {
                let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
                let text = text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r");
                let text = if quote == '\'' { text.replace('\'', "\\'") } else { text };
                format!("{quote}{text}{quote}")
            }
            Value::Array(items) => format!("[{}]", items.iter().map(inner).collect::<Vec<_>>().join(", ")),
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| format!("{}: {}", inner(&name.as_str().into()), inner(value)));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
            }
        }
    }
    match value {
        Value::String(text) => text.clone(),
        other => inner(other),
    }
}

/// A picture of a section.
enum Visual {
    Page(u64),
    Image(String),
    Table(String),
}

fn messages(folder: &Path, section: &Element, goal: &str, bounds: Bounds) -> Value {
    let text = |text: &str| json!({ "type": "text", "text": text });
    let mut messages = vec![json!({ "role": "system", "content": [text("You are a helpful assistant.")] })];
    let mut user = |content: Vec<Value>| messages.push(json!({ "role": "user", "content": content }));
    let (visuals, omitted) = visuals(folder, section, bounds.pictures);
    for (visual, path) in visuals {
        let Some(url) = data_url(&path) else { continue };
        let (said, mut picture) = match visual {
            Visual::Page(page) => (
                format!(
                    "I have uploaded the full page images for the selected section, corresponding to the following page numbers: {page}."
                ),
                json!({ "min_pixels": 4096, "max_pixels": 2_097_152 }),
            ),
            Visual::Image(id) => (
                format!("I have uploaded the image with image ID {id} from the selected section."),
                json!({ "min_pixels": 4096, "max_pixels": 2_097_152 }),
            ),
            Visual::Table(id) => (format!("I have uploaded the table with table ID {id} from the selected section."), json!({})),
        };
        picture["type"] = "image_url".into();
        picture["image_url"] = json!({ "url": url });
        user(vec![text(&said), picture]);
    }
    if omitted {
        user(vec![text(
            "Note that due to the large number of visual inputs in this section, some visual inputs have been omitted.",
        )]);
    }
    let mut content = section.pretty();
    if let Some((at, _)) = content.char_indices().nth(bounds.characters) {
        content.truncate(at);
        content.push_str("\n\n... [Document content truncated to comply with maximum text length limit] ...");
        let said = format!(
            "Note that the document content has been truncated due to its large size exceeding the {} character limit.",
            bounds.characters
        );
        user(vec![text(&said)]);
    }
    user(vec![text(&format!("{BEFORE}\n\n## Document Content\n{content}\n\n## User Goal\n{goal}\n\n{AFTER}"))]);
    messages.into()
}

/// The section's existing pictures, up to a limit: pages first, then tables. True: some were left out.
fn visuals(folder: &Path, section: &Element, most: usize) -> (Vec<(Visual, PathBuf)>, bool) {
    let all = section.all();
    let page = |element: &&Element| element.attribute("page_num")?.parse::<f64>().ok();
    // Pages are numbered from 1, their files from 0.
    let pages: BTreeSet<u64> =
        all.iter().filter_map(page).filter(|page| (1.0..1e6).contains(page)).map(|page| page as u64).collect();
    let mut found: Vec<(Visual, PathBuf)> = pages
        .into_iter()
        .filter_map(|page| {
            let name = format!("page_images/page_{:04}", page - 1);
            Some((Visual::Page(page), file(folder, &name, &["_compressed.jpg", ".jpg", ".png"])?))
        })
        .collect();
    for element in all {
        // Picture names in the document must not lead to other folders.
        let plain = |id: &&str| id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        let id = |name: &str| element.attribute(name).filter(plain).map(str::to_owned);
        let visual = match element.name.as_str() {
            "Image" => id("image_id").and_then(|id| {
                let path = file(folder, &format!("figures/image_{id}"), &["_compressed.jpg", ".jpg", ".png"])?;
                Some((Visual::Image(id), path))
            }),
            "HTML_Table" => id("table_id").and_then(|id| {
                let path = file(folder, &format!("tables/table_{id}"), &[".png", ".jpg"])?;
                Some((Visual::Table(id), path))
            }),
            _ => None,
        };
        found.extend(visual);
    }
    if found.len() > most {
        found.retain(|(visual, _)| !matches!(visual, Visual::Page(_)));
    }
    if found.len() > most {
        found.retain(|(visual, _)| !matches!(visual, Visual::Table(_)));
    }
    let omitted = found.len() > most;
    found.truncate(most);
    (found, omitted)
}

/// The first of the files that exists, in the folder itself.
fn file(folder: &Path, name: &str, endings: &[&str]) -> Option<PathBuf> {
    let root = folder.canonicalize().ok()?;
    endings.iter().find_map(|ending| {
        let path = root.join(format!("{name}{ending}")).canonicalize().ok()?;
        let about = std::fs::metadata(&path).ok()?;
        (path.starts_with(&root) && about.is_file() && about.len() <= MAX_PICTURE).then_some(path)
    })
}

fn data_url(path: &Path) -> Option<String> {
    let kind = if path.extension().is_some_and(|ending| ending == "png") { "png" } else { "jpeg" };
    Some(format!("data:image/{kind};base64,{}", STANDARD.encode(std::fs::read(path).ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_python_writes_them() {
        for (value, wanted) in [
            (json!("it's"), "it's"),
            (json!(["a", "it's", "\"'"]), r#"['a', "it's", '"\'']"#),
            (json!({"k": 1, "n": null, "t": true}), "{'k': 1, 'n': None, 't': True}"),
        ] {
            assert_eq!(python(&value), wanted);
        }
    }
}
