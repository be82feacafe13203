//! The outputs of one execution, in order and within bounds.
//!
//! Clients read `outputs[0].text` for printed text. So all standard output is one stream and comes first, and the rest follows in
//! order of arrival. Standard error is also one stream, at the position of its first text.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use arenite_guest_runtime::process::{Budget, Retained};

/// Characters of each stream in an answer; the middle is cut out.
pub const MAX_STREAM_CHARS: usize = 1 << 20;
/// Bytes of all other outputs of an execution. Outputs beyond it are left out, and a note replaces them.
const MAX_RICH_BYTES: usize = 8 << 20;
/// Outputs of an execution, streams among them.
const MAX_OUTPUTS: usize = 1000;

/// Data by media type, each as raw JSON: a hostile kernel's data, parsed into values, would take ten times its size.
pub type MediaBundle = BTreeMap<String, Box<RawValue>>;

/// One output, as notebooks have them.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct JupyterOutput {
    /// `stream`, `execute_result`, `display_data` or `error`.
    #[schema(value_type = String)]
    pub output_type: &'static str,
    /// Of a stream: `stdout` or `stderr`.
    #[schema(value_type = Option<String>)]
    pub name: Option<&'static str>,
    /// Of a stream, its text; of a result or display, its plain text.
    pub text: Option<String>,
    /// By media type, such as `text/plain` or `image/png` (in base64).
    #[schema(value_type = Option<BTreeMap<String, serde_json::Value>>)]
    pub data: Option<MediaBundle>,
    #[schema(value_type = Option<BTreeMap<String, serde_json::Value>>)]
    pub metadata: Option<MediaBundle>,
    pub execution_count: Option<i64>,
    pub ename: Option<String>,
    pub evalue: Option<String>,
    /// Without colour codes.
    pub traceback: Option<Vec<String>>,
}

impl JupyterOutput {
    pub fn error(ename: &str, evalue: String) -> Self {
        let traceback = vec![format!("{ename}: {evalue}")];
        Self {
            output_type: "error",
            ename: Some(ename.to_owned()),
            evalue: Some(evalue),
            traceback: Some(traceback),
            ..Self::default()
        }
    }

    fn size(&self) -> usize {
        let bundle = |b: &Option<MediaBundle>| b.iter().flatten().map(|(k, v)| k.len() + v.get().len()).sum::<usize>();
        let text = [&self.text, &self.ename, &self.evalue].into_iter().flatten().map(String::len).sum::<usize>();
        text + bundle(&self.data) + bundle(&self.metadata) + self.traceback.iter().flatten().map(String::len).sum::<usize>()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamContent {
    name: String,
    pub(super) text: String,
}

/// Of `display_data`, `execute_result` and `update_display_data`.
#[derive(Debug, Deserialize)]
pub(super) struct DisplayContent {
    #[serde(default)]
    data: MediaBundle,
    #[serde(default)]
    metadata: MediaBundle,
    execution_count: Option<i64>,
    #[serde(default)]
    transient: Transient,
}

#[derive(Debug, Default, Deserialize)]
struct Transient {
    display_id: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ErrorContent {
    #[serde(default)]
    pub(super) ename: String,
    #[serde(default)]
    pub(super) evalue: String,
    #[serde(default)]
    pub(super) traceback: Vec<String>,
}

/// The outputs of one execution.
#[derive(Debug)]
pub(super) struct Outputs {
    budget: Arc<Budget>,
    stdout: Option<Arc<Mutex<Retained>>>,
    stderr: Option<Arc<Mutex<Retained>>>,
    /// All outputs except standard output. The entry of standard error holds only its name.
    rest: Vec<(JupyterOutput, Option<String>)>,
    rich_bytes: usize,
    left_out: u64,
    /// The next output clears those before it.
    clear: bool,
}

impl Outputs {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            stdout: None,
            stderr: None,
            rest: Vec::new(),
            rich_bytes: 0,
            left_out: 0,
            clear: false,
        }
    }

    pub(super) fn stream(&mut self, content: &StreamContent) {
        self.clear_if_asked();
        let slot = if content.name == "stderr" { &mut self.stderr } else { &mut self.stdout };
        let is_first = slot.is_none();
        let kept = slot.get_or_insert_with(|| Arc::new(Mutex::new(Retained::new(&self.budget))));
        kept.lock().unwrap_or_else(PoisonError::into_inner).push(content.text.as_bytes());
        if is_first && content.name == "stderr" {
            self.rest.push((JupyterOutput { output_type: "stream", name: Some("stderr"), ..Default::default() }, None));
        }
    }

    /// `kind` is `display_data` or `execute_result`.
    pub(super) fn display(&mut self, kind: &'static str, content: DisplayContent) {
        let id = content.transient.display_id.clone();
        self.push(displayed(kind, content), id);
    }

    /// Replaces the displays with the same id.
    pub(super) fn update(&mut self, content: DisplayContent) {
        let Some(id) = content.transient.display_id.clone() else { return };
        let new = displayed("display_data", content);
        for (output, its) in &mut self.rest {
            let grown = (self.rich_bytes + new.size()).saturating_sub(output.size());
            if its.as_ref() == Some(&id) && grown <= MAX_RICH_BYTES {
                self.rich_bytes = grown;
                *output = JupyterOutput { output_type: output.output_type, ..new.clone() };
            }
        }
    }

    pub(super) fn error(&mut self, content: ErrorContent) {
        let output = JupyterOutput {
            output_type: "error",
            ename: Some(content.ename),
            evalue: Some(content.evalue),
            traceback: Some(content.traceback.iter().map(|line| without_colours(line)).collect()),
            ..Default::default()
        };
        self.push(output, None);
    }

    /// Adds a note for an output that was too long.
    pub(super) fn too_long(&mut self, bytes: u64) {
        let text = cut_note(bytes);
        let data = MediaBundle::from([("text/plain".to_owned(), quoted(&text))]);
        self.push(JupyterOutput { output_type: "display_data", text: Some(text), data: Some(data), ..Default::default() }, None);
    }

    pub(super) fn push(&mut self, output: JupyterOutput, id: Option<String>) {
        self.clear_if_asked();
        let size = output.size();
        // An error is short and more valuable than the outputs before it.
        let fits = self.rest.len() < MAX_OUTPUTS && self.rich_bytes + size <= MAX_RICH_BYTES;
        if fits || output.output_type == "error" && size <= MAX_RICH_BYTES / 8 {
            self.rich_bytes += size;
            self.rest.push((output, id));
        } else {
            self.left_out += 1;
        }
    }

    /// Clears the outputs so far: at once, or when the next output comes.
    pub(super) fn clear(&mut self, wait: bool) {
        self.clear = true;
        if !wait {
            self.clear_if_asked();
        }
    }

    fn clear_if_asked(&mut self) {
        if std::mem::take(&mut self.clear) {
            *self = Self::new(&self.budget);
        }
    }

    pub(super) fn finish(self) -> Vec<JupyterOutput> {
        let text = |kept: &Arc<Mutex<Retained>>| {
            kept.lock().unwrap_or_else(PoisonError::into_inner).read(0).text(Some(MAX_STREAM_CHARS))
        };
        let stdout = self.stdout.iter().map(|kept| JupyterOutput {
            output_type: "stream",
            name: Some("stdout"),
            text: Some(text(kept)),
            ..Default::default()
        });
        let stderr = self.stderr.as_ref().map(text);
        let rest = self.rest.into_iter().map(|(mut output, _)| {
            if output.name == Some("stderr") {
                output.text.clone_from(&stderr);
            }
            output
        });
        let note = (self.left_out > 0).then(|| {
            let text = format!(
                "[{} more outputs were left out: an execution may have {MAX_OUTPUTS} of them and {MAX_RICH_BYTES} bytes]",
                self.left_out
            );
            let data = MediaBundle::from([("text/plain".to_owned(), quoted(&text))]);
            JupyterOutput { output_type: "display_data", text: Some(text), data: Some(data), ..Default::default() }
        });
        stdout.chain(rest).chain(note).collect()
    }
}

/// The note that replaces dropped bytes of a kernel's message.
pub(super) fn cut_note(bytes: u64) -> String {
    format!("[{bytes} bytes of output were left out: a kernel's message may have {} bytes]", super::zmtp::MAX_MESSAGE)
}

fn displayed(kind: &'static str, content: DisplayContent) -> JupyterOutput {
    let text = content.data.get("text/plain").and_then(|raw| serde_json::from_str(raw.get()).ok());
    JupyterOutput {
        output_type: kind,
        text,
        data: Some(content.data),
        metadata: Some(content.metadata),
        execution_count: content.execution_count,
        ..Default::default()
    }
}

/// Encodes a text as JSON.
fn quoted(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).expect("a text is JSON")
}

/// Removes terminal colours from a text.
fn without_colours(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        out.push_str(before);
        // Parameters, and one letter at the end of the sequence.
        rest = after.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        rest = rest.strip_prefix(|c: char| c.is_ascii_alphabetic()).unwrap_or(rest);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outputs() -> Outputs {
        Outputs::new(&Budget::new(32 << 20))
    }

    fn stream(name: &str, text: &str) -> StreamContent {
        StreamContent { name: name.to_owned(), text: text.to_owned() }
    }

    fn display(value: serde_json::Value) -> DisplayContent {
        serde_json::from_str(&value.to_string()).unwrap()
    }

    #[test]
    fn what_is_printed_stands_first_and_the_rest_in_order() {
        let mut outputs = outputs();
        outputs.display("display_data", display(json!({"data": {"text/plain": "fig", "image/png": "aGk="}})));
        outputs.stream(&stream("stderr", "warning\n"));
        outputs.stream(&stream("stdout", "a"));
        outputs.display("execute_result", display(json!({"data": {"text/plain": "3"}, "execution_count": 7})));
        outputs.stream(&stream("stderr", "again\n"));
        outputs.stream(&stream("stdout", "b"));
        outputs.error(ErrorContent { traceback: vec!["\u{1b}[0;31mValueError\u{1b}[0m".to_owned()], ..Default::default() });
        let all = outputs.finish();
        let shown: Vec<_> = all.iter().map(|o| (o.output_type, o.text.as_deref())).collect();
        assert_eq!(
            shown,
            [
                ("stream", Some("ab")),
                ("display_data", Some("fig")),
                ("stream", Some("warning\nagain\n")),
                ("execute_result", Some("3")),
                ("error", None)
            ]
        );
        assert_eq!(serde_json::to_value(&all[1]).unwrap()["data"]["image/png"], "aGk=");
        assert_eq!(all[3].execution_count, Some(7));
        assert_eq!(all[4].traceback.as_deref().unwrap(), ["ValueError"]);
    }

    #[test]
    fn displays_are_updated_and_cleared() {
        let mut outputs = outputs();
        let bar = |text: &str| display(json!({"data": {"text/plain": text}, "transient": {"display_id": "bar"}}));
        outputs.display("display_data", bar("1%"));
        outputs.update(bar("100%"));
        outputs.clear(true);
        assert_eq!(outputs.rest[0].0.text.as_deref(), Some("100%"));
        outputs.stream(&stream("stdout", "new"));
        assert_eq!(outputs.finish().iter().map(|o| o.text.as_deref().unwrap()).collect::<Vec<_>>(), ["new"]);
    }

    #[test]
    fn a_flood_is_cut_and_said() {
        let mut outputs = outputs();
        let big = "x".repeat(3 << 20);
        for _ in 0..5 {
            outputs.display("display_data", display(json!({"data": {"text/html": big}})));
        }
        for _ in 0..2 * MAX_OUTPUTS {
            outputs.display("display_data", display(json!({"data": {}})));
        }
        for _ in 0..8 {
            outputs.stream(&stream("stdout", &big));
        }
        outputs.error(ErrorContent { ename: "E".to_owned(), ..Default::default() });
        let all = outputs.finish();
        assert!(
            all[0].text.as_ref().unwrap().len() < MAX_STREAM_CHARS + 200 && all[0].text.as_ref().unwrap().contains("truncated")
        );
        assert!(all.len() <= MAX_OUTPUTS + 3);
        assert_eq!(all[all.len() - 2].ename.as_deref(), Some("E"));
        assert!(all.last().unwrap().text.as_ref().unwrap().contains("left out"));
        let whole: usize = all.iter().map(JupyterOutput::size).sum();
        assert!(whole < MAX_RICH_BYTES + (2 << 20), "{whole}");
    }
}
