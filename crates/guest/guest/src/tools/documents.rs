//! Documents as text, and skills.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounded::bounded;
use super::tool::{Caller, Effect, Tool, ToolResult, structured, text};
use arenite_guest_files::skills::{self, SkillError};
use arenite_guest_files::util;
use arenite_guest_runtime::http::ApiError;

pub(super) fn tools() -> Vec<Tool> {
    vec![Tool::new("sandbox_convert_to_markdown", "Convert to Markdown", Effect::Fetches, convert)]
}

/// Callable, but not listed: agents with skills learn of them, and of this tool, elsewhere.
pub(super) fn hidden_tools() -> Vec<Tool> {
    vec![Tool::new("sandbox_load_skill", "Load a skill", Effect::Reads, load_skill)]
}

/// Converts a web page or a document to Markdown: HTML, PDF, Word, Excel, PowerPoint, notebooks, CSV, images, text and more.
#[derive(Debug, Deserialize, JsonSchema)]
struct ConvertToMarkdown {
    /// An http:, https:, file: or data: address, or a path in the sandbox.
    #[schemars(example = "https://example.com", example = "file:///home/gem/report.pdf")]
    #[serde(alias = "url", alias = "path", alias = "file")]
    uri: String,
}

async fn convert(caller: Caller, args: ConvertToMarkdown) -> ToolResult {
    let guest = &caller.guest;
    let uri = args.uri.trim();
    let uri = match uri.contains(':') || uri.is_empty() {
        true => uri.to_owned(),
        false => guest.runtime.absolute(uri).display().to_string(),
    };
    let content = util::convert(&guest.converter, &uri).await.map_err(|error| {
        let answer = ApiError::bad_request(error.to_string());
        match error.hint() {
            Some(hint) => answer.hint(hint),
            None => answer,
        }
    })?;
    let bounded = bounded(&guest.runtime, content.text).await;
    let cut = content.truncated.then(|| "the document is longer than what is converted: its end is missing".to_owned());
    let mut whole = bounded.text;
    for hint in bounded.hint.into_iter().chain(cut) {
        whole.push_str(&format!("\n\n[Hint: {hint}]"));
    }
    text(whole)
}

/// Loads a skill: the instructions of its SKILL.md, and the directory with the files that they refer to.
#[derive(Debug, Deserialize, JsonSchema)]
struct LoadSkill {
    /// The name under which it is registered.
    #[serde(alias = "skill", alias = "skill_name")]
    name: String,
}

#[derive(Debug, Serialize)]
struct Loaded {
    name: String,
    /// The skill's directory.
    path: String,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

async fn load_skill(caller: Caller, args: LoadSkill) -> ToolResult {
    let guest = &caller.guest;
    skills::preload(&guest.skills).await;
    let loaded = skills::content(&guest.skills, args.name.trim()).await;
    let (skill, content) = loaded.map_err(|error| match error {
        SkillError::Unknown(_) => {
            let names: Vec<_> = guest.skills.list(None).into_iter().map(|skill| skill.name).collect();
            let hint = match names.is_empty() {
                true => "no skill is registered: POST /v1/skills/register does it".to_owned(),
                false => format!("registered are: {}", names.join(", ")),
            };
            ApiError::not_found(error.to_string()).hint(hint)
        }
        error => error.into(),
    })?;
    let content = bounded(&guest.runtime, content).await;
    structured(&Loaded { name: skill.name, path: skill.path, content: content.text, hint: content.hint })
}
