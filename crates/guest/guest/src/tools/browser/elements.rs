//! The usable elements of a page, each with its index.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::look;
use crate::tools::answer::worded;
use crate::tools::tool::{Caller, ToolResult};

/// Maximum elements of one answer.
const MOST: usize = 500;
/// Maximum characters of a text or an address in a line.
const LINE: usize = 150;

/// Lists the usable elements of the current tab's page and its frames: links, buttons, fields and anything else that is
/// clickable. Each line is `[index]<tag …>text</tag>`; browser_click, browser_form_input_fill, browser_select, browser_hover and
/// browser_screenshot take the index. Indexes stay with their elements until the page navigates.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct GetClickableElements {}

pub(super) async fn list(caller: Caller, GetClickableElements {}: GetClickableElements) -> ToolResult {
    let hint = "browser_get_text reads the page without its elements";
    let found = look(&caller, hint, |work| async move { work.elements().await }).await?;
    let Elements { shown, left } = first(found, MOST);
    worded(in_words(&shown, left), &json!({"elements": shown, "elements_left": left}))
}

/// The listed elements, and the number of further ones.
pub(super) struct Elements {
    pub(super) shown: Vec<Value>,
    pub(super) left: usize,
}

pub(super) fn first(mut found: Vec<Value>, most: usize) -> Elements {
    let left = found.len().saturating_sub(most);
    found.truncate(most);
    Elements { shown: found, left }
}

pub(super) fn in_words(shown: &[Value], left: usize) -> String {
    if shown.is_empty() {
        return "The page has nothing that can be clicked or filled in.".to_owned();
    }
    let mut said: Vec<String> = shown.iter().filter_map(Value::as_object).map(line).collect();
    if left > 0 {
        said.push(format!(
            "[… {left} more …]\nHint: browser_get_clickable_elements lists up to {MOST}; selectors reach every element"
        ));
    }
    said.join("\n")
}

/// `[3]<a href="/x">Text</a>`
fn line(element: &Map<String, Value>) -> String {
    let word = |key: &str| element.get(key).and_then(Value::as_str).unwrap_or_default();
    let tag = word("tag");
    let mut said = format!("[{}]<{tag}", element.get("index").unwrap_or(&Value::Null));
    let mut add = |name: &str, value: &str| said.push_str(&format!(" {name}=\"{}\"", short(value).replace('"', "&quot;")));
    let kind = word("type");
    if !kind.is_empty() && (tag, kind) != ("button", "submit") {
        add("type", kind);
    }
    // Other elements are identified by their tag.
    if matches!(tag, "div" | "span" | "li" | "td" | "svg" | "label" | "p") && word("role") != "generic" {
        add("role", word("role"));
    }
    for name in ["href", "value", "frame"] {
        if !word(name).is_empty() {
            add(name, word(name));
        }
    }
    for name in ["checked", "disabled"] {
        if element.get(name) == Some(&Value::Bool(true)) {
            said.push(' ');
            said.push_str(name);
        }
    }
    let text = if word("text").is_empty() { word("name") } else { word("text") };
    format!("{said}>{}</{tag}>", short(text))
}

fn short(text: &str) -> String {
    let text = text.replace('\n', " ");
    match text.char_indices().nth(LINE) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_like_html() {
        let said = |element: Value| in_words(&[element], 0);
        let button = json!({"index": 0, "tag": "button", "type": "submit", "role": "button", "name": "Save", "text": "Save"});
        assert_eq!(said(button), "[0]<button>Save</button>");
        let field =
            json!({"index": 7, "tag": "input", "type": "text", "role": "textbox", "name": "Mail", "text": "", "value": "a\"b"});
        assert_eq!(said(field), "[7]<input type=\"text\" value=\"a&quot;b\">Mail</input>");
        let fancy = json!({"index": 1, "tag": "span", "role": "checkbox", "name": "Fancy", "text": "Fancy", "checked": true});
        assert_eq!(said(fancy), "[1]<span role=\"checkbox\" checked>Fancy</span>");
        let long = json!({"index": 2, "tag": "a", "role": "link", "text": "é".repeat(1000), "href": "/x"});
        assert_eq!(said(long).chars().count(), "[2]<a href=\"/x\">…</a>".chars().count() + LINE);
        assert!(in_words(&[], 0).contains("nothing"));
        assert!(in_words(&[json!({"index": 0, "tag": "a"})], 9).contains("9 more"));
    }
}
