//! Tools in AIO's README that its hub never listed. They are callable, also by the names in the README's table of servers, but
//! not listed by the hub.

use std::collections::BTreeMap;
use std::sync::Arc;

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::registry::registry;
use super::tool::{Caller, Effect, Tool, ToolResult, structured};
use arenite_guest_files::util;
use arenite_guest_runtime::http::ApiError;
use arenite_guest_shell::shell::{self, ShellCreateSessionRequest};

/// A tool that forwards to another one with some of its arguments, under different names.
struct Part {
    name: &'static str,
    title: &'static str,
    about: &'static str,
    effect: Effect,
    of: &'static str,
    /// The fixed action.
    action: Option<&'static str>,
    /// Each argument's name, and its name in the other tool. If several map to one, the first is described.
    required: &'static [(&'static str, &'static str)],
    optional: &'static [(&'static str, &'static str)],
    aliases: &'static [(&'static str, &'static str)],
}

const FILES: &str = "sandbox_file_operations";
const FILE: (&str, &str) = ("file", "path");

const PARTS: [Part; 5] = [
    Part {
        name: "file_read",
        title: "Read a file",
        about: "Reads the text of a file, or its lines from `start_line` to before `end_line`, counted from 0.",
        effect: Effect::Reads,
        of: FILES,
        action: Some("read"),
        required: &[("path", "path")],
        optional: &[("start_line", "start_line"), ("end_line", "end_line"), ("sudo", "sudo")],
        aliases: &[FILE],
    },
    Part {
        name: "file_write",
        title: "Write a file",
        about: "Writes a file, and makes the directories that it needs.",
        effect: Effect::Anything,
        of: FILES,
        action: Some("write"),
        required: &[("path", "path"), ("content", "content")],
        optional: &[("encoding", "encoding"), ("append", "append"), ("sudo", "sudo")],
        aliases: &[FILE],
    },
    Part {
        name: "file_list",
        title: "List a directory",
        about: "Lists what is in a directory.",
        effect: Effect::Reads,
        of: FILES,
        action: Some("list"),
        required: &[("path", "path")],
        optional: &[("recursive", "recursive"), ("show_hidden", "show_hidden"), ("file_types", "file_types")],
        aliases: &[("directory", "path")],
    },
    Part {
        name: "file_search",
        title: "Search in files",
        about: "Finds the lines of a file, or of all files below a directory, that match a regular expression.",
        effect: Effect::Reads,
        of: FILES,
        action: Some("grep"),
        required: &[("path", "path"), ("pattern", "pattern")],
        optional: &[("recursive", "recursive"), ("file_types", "file_types")],
        aliases: &[FILE, ("regex", "pattern"), ("query", "pattern"), ("content", "pattern")],
    },
    Part {
        name: "file_replace",
        title: "Replace text in a file",
        about: "Replaces every occurrence of a text in a file. Both are plain text.",
        effect: Effect::Anything,
        of: FILES,
        action: Some("replace"),
        required: &[("path", "path"), ("old_str", "content"), ("new_str", "target")],
        optional: &[("sudo", "sudo")],
        aliases: &[FILE, ("old", "content"), ("search", "content"), ("new", "target"), ("replace", "target")],
    },
];

impl Part {
    /// Renames the arguments for the other tool. Unknown ones are passed on, and the other tool decides about them.
    fn arguments(&self, given: JsonObject) -> JsonObject {
        let names = || self.required.iter().chain(self.optional).chain(self.aliases);
        let renamed = |name: String| names().find(|(own, _)| *own == name).map_or(name, |(_, theirs)| (*theirs).to_owned());
        let mut arguments: JsonObject = given.into_iter().map(|(name, value)| (renamed(name), value)).collect();
        if let Some(action) = self.action {
            arguments.insert("action".to_owned(), action.into());
        }
        arguments
    }

    fn tool(&'static self, of: &Tool) -> Tool {
        let properties: JsonObject = (self.required.iter().chain(self.optional))
            .map(|(own, theirs)| ((*own).to_owned(), of.description.input_schema["properties"][*theirs].clone()))
            .collect();
        let required: Vec<_> = self.required.iter().map(|(own, _)| *own).collect();
        let schema = json!({"type": "object", "properties": properties, "required": required});
        let schema = schema.as_object().cloned().unwrap_or_default();
        Tool::forwarding(self.name, self.title, self.effect, self.about, Arc::new(schema), move |caller, arguments| async move {
            match registry().find(self.of, None) {
                Some(tool) => tool.call(caller, self.arguments(arguments)).await,
                None => unreachable!("{} was there when {} was made", self.of, self.name),
            }
        })
    }
}

/// `known` has the tools that these forward to.
pub(super) fn hidden_tools(known: &BTreeMap<&'static str, Tool>) -> Vec<Tool> {
    let parts = PARTS.iter().filter_map(|part| Some(part.tool(known.get(part.of)?)));
    let own = [
        Tool::new("terminal_session", "Open a shell session", Effect::Changes, session),
        Tool::new("terminal_kill", "Stop what a shell session runs", Effect::Anything, kill),
        Tool::new("extract_images", "List a document's pictures", Effect::Fetches, images),
    ];
    parts.chain(own).collect()
}

/// Opens a shell session, or returns the one that has this id. Directory and variables last in it: pass its id to
/// `sandbox_execute_bash`.
#[derive(Debug, Deserialize, JsonSchema)]
struct Session {
    /// Its id; none: a new one.
    #[serde(alias = "id")]
    session_id: Option<String>,
    /// The directory that it starts in.
    #[serde(alias = "exec_dir", alias = "working_dir")]
    cwd: Option<String>,
}

async fn session(Caller { guest, .. }: Caller, Session { session_id, cwd }: Session) -> ToolResult {
    let request = ShellCreateSessionRequest { id: session_id, exec_dir: cwd, ..Default::default() };
    structured(&guest.shell.create(request).await?)
}

/// Stops the command that a shell session runs. The session stays.
#[derive(Debug, Deserialize, JsonSchema)]
struct Kill {
    /// The session, from `terminal_session` or the result of a command.
    #[serde(alias = "id")]
    session_id: String,
}

async fn kill(Caller { guest, .. }: Caller, Kill { session_id }: Kill) -> ToolResult {
    structured(&guest.shell.kill(&shell::session_id(&session_id)?).await?)
}

/// Lists the pictures that a web page or a document refers to, with their descriptions.
#[derive(Debug, Deserialize, JsonSchema)]
struct ExtractImages {
    /// An http:, https:, file: or data: address, or a path in the sandbox.
    #[serde(alias = "url", alias = "path", alias = "file")]
    uri: String,
}

#[derive(Debug, PartialEq, Serialize)]
struct Image {
    alt: String,
    src: String,
}

async fn images(Caller { guest, .. }: Caller, ExtractImages { uri }: ExtractImages) -> ToolResult {
    let content = util::convert(&guest.converter, uri.trim()).await.map_err(|error| {
        let answer = ApiError::bad_request(error.to_string());
        match error.hint() {
            Some(hint) => answer.hint(hint),
            None => answer,
        }
    })?;
    structured(&json!({"images": pictures(&content.text)}))
}

/// Finds the images of a Markdown text: `![alt](src)`.
fn pictures(markdown: &str) -> Vec<Image> {
    let mut found = Vec::new();
    let mut rest = markdown;
    while let Some((_, after)) = rest.split_once("![") {
        rest = after;
        let Some((alt, target)) = after.split_once(']') else { break };
        let Some(target) = target.strip_prefix('(') else { continue };
        let Some((src, end)) = target.split_once(')') else { break };
        if alt.contains("\n\n") || src.contains('\n') {
            continue;
        }
        let src = src.split_whitespace().next().unwrap_or_default().to_owned();
        found.push(Image { alt: alt.to_owned(), src });
        rest = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn arguments_are_renamed_and_described() {
        let replace = &PARTS[4];
        let given = json!({"file": "/a", "old_str": "x", "new": "y", "sudo": true});
        let arguments = replace.arguments(given.as_object().cloned().unwrap());
        assert_eq!(
            Value::Object(arguments),
            json!({"path": "/a", "content": "x", "target": "y", "sudo": true, "action": "replace"})
        );
        for part in &PARTS {
            let tool = registry().find(part.name, None).unwrap();
            for (name, schema) in tool.description.input_schema["properties"].as_object().unwrap() {
                assert!(schema["description"].is_string(), "{} {name}", part.name);
            }
        }
    }

    #[test]
    fn pictures_are_those_of_markdown() {
        let image = |alt: &str, src: &str| Image { alt: alt.to_owned(), src: src.to_owned() };
        assert_eq!(pictures("a ![b](c.png \"d\") ![](e) ![x] (y) [l](m)"), [image("b", "c.png"), image("", "e")]);
    }
}
