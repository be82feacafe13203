//! Jupyter notebooks: their cells and outputs.

use serde_json::Value;

use crate::output::{Output, fenced};
use crate::view::{Range, Span};
use crate::{DocumentError, Metadata, text};

/// Maximum number of lines of one output.
const MAX_OUTPUT_LINES: usize = 1_000;

/// The cells of a range, each under a separate heading if requested.
pub(crate) fn read(
    bytes: &[u8],
    range: Option<Range>,
    headings: bool,
    limit: usize,
) -> Result<(Output, Metadata), DocumentError> {
    let malformed = |reason: String| DocumentError::malformed("notebook", reason);
    let notebook: Value = serde_json::from_str(&text::decode(bytes, None)?).map_err(|e| malformed(e.to_string()))?;
    // Before version 4, the cells were in worksheets.
    let cells = notebook["cells"].as_array().or_else(|| notebook["worksheets"][0]["cells"].as_array());
    let cells = cells.ok_or_else(|| malformed("it has no cells".to_owned()))?;
    let kernel = &notebook["metadata"]["kernelspec"];
    let language = notebook["metadata"]["language_info"]["name"].as_str().or_else(|| kernel["language"].as_str());
    let language = language.filter(|l| l.len() < 32 && l.bytes().all(|b| b.is_ascii_graphic())).unwrap_or_default();
    let span = Span::new(range, cells.len(), "page_range", "cells")?;
    let mut out = Output::new(limit);
    for number in span.numbers() {
        let cell = &cells[number - 1];
        let kind = cell["cell_type"].as_str().unwrap_or("raw");
        if headings {
            let count = cell["execution_count"].as_u64().map(|n| format!(", [{n}]")).unwrap_or_default();
            out.block(&format!("## Cell {number} ({kind}{count})\n"));
        }
        let source = lines(if cell["source"].is_null() { &cell["input"] } else { &cell["source"] });
        match kind {
            "markdown" | "heading" => out.block(&source),
            "code" => {
                fenced(&mut out, language, &source);
                for output in cell["outputs"].as_array().into_iter().flatten() {
                    show(output, &mut out);
                }
            }
            _ => fenced(&mut out, "", &source),
        }
        if out.is_full() {
            break;
        }
    }
    let mut metadata = Metadata::new();
    let count = |kind: &str| cells.iter().filter(|c| c["cell_type"] == kind).count();
    metadata.insert("total_cells".to_owned(), Value::from(cells.len()));
    metadata.insert("code_cells".to_owned(), Value::from(count("code")));
    metadata.insert("markdown_cells".to_owned(), Value::from(count("markdown")));
    for (name, value) in
        [("language", Value::from(language)), ("kernel", kernel["name"].clone()), ("nbformat", notebook["nbformat"].clone())]
    {
        if value.is_number() || value.as_str().is_some_and(|s| !s.is_empty() && s.len() < 256) {
            metadata.insert(name.to_owned(), value);
        }
    }
    Ok((out, metadata))
}

/// Text that notebooks store as one string or as a list of lines.
fn lines(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        _ => String::new(),
    }
}

fn show(output: &Value, out: &mut Output) {
    match output["output_type"].as_str().unwrap_or_default() {
        "stream" => fenced_output(&lines(&output["text"]), out),
        "error" | "pyerr" => {
            let trace = lines(&Value::Array(
                output["traceback"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(|l| format!("{l}\n").into())
                    .collect(),
            ));
            let named =
                format!("{}: {}", output["ename"].as_str().unwrap_or("error"), output["evalue"].as_str().unwrap_or_default());
            fenced_output(&without_colours(if trace.trim().is_empty() { &named } else { &trace }), out);
        }
        _ => {
            // Version 4 stores formats by media type, earlier versions by short names beside the others.
            let data = output["data"].as_object();
            let form = |media: &str, short: &str| {
                let value = data.map_or(&output[short], |data| data.get(media).unwrap_or(&Value::Null));
                Some(lines(value)).filter(|text| !text.trim().is_empty())
            };
            if let Some(text) = form("text/markdown", "markdown") {
                out.block(&text);
            } else if let Some(text) = form("text/plain", "text") {
                fenced_output(&text, out);
            } else if let Some(text) = form("text/latex", "latex") {
                out.block(&text);
            }
            for (media, short) in [("image/png", "png"), ("image/jpeg", "jpeg"), ("image/svg+xml", "svg")] {
                if let Some(image) = form(media, short) {
                    out.block(&format!("[output: {media}, {} bytes as text]", image.len()));
                }
            }
        }
    }
}

fn fenced_output(text: &str, out: &mut Output) {
    if text.trim().is_empty() {
        return;
    }
    let mut shown: String = text.lines().take(MAX_OUTPUT_LINES).map(|l| format!("{l}\n")).collect();
    let rest = text.lines().count().saturating_sub(MAX_OUTPUT_LINES);
    if rest > 0 {
        shown.push_str(&format!("[{rest} more lines]\n"));
    }
    out.block("Output:");
    fenced(out, "", &shown);
}

/// Text without the escape sequences for colours in terminals.
fn without_colours(text: &str) -> String {
    let mut pieces = text.split("\u{1b}[");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find(|c: char| c.is_ascii_alphabetic()).map_or(piece.len(), |at| at + 1);
        out.push_str(&piece[end..]);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_shown_with_their_outputs() {
        let notebook = json!({
            "nbformat": 4,
            "metadata": {"kernelspec": {"name": "python3"}, "language_info": {"name": "python"}},
            "cells": [
                {"cell_type": "markdown", "source": ["# Title\n", "text"]},
                {"cell_type": "code", "execution_count": 3, "source": "print(1)", "outputs": [
                    {"output_type": "stream", "text": ["1\n"]},
                    {"output_type": "execute_result", "data": {"text/plain": "2", "text/html": "<b>2</b>", "image/png": "aGk="}},
                    {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\u{1b}[31mE\u{1b}[0m: v"]},
                ]},
                {"cell_type": "raw", "source": "r"},
            ],
        });
        let bytes = notebook.to_string();
        let (out, metadata) = read(bytes.as_bytes(), None, true, 10_000).unwrap();
        let text = out.finish().0;
        for part in [
            "## Cell 1 (markdown)\n\n# Title\ntext\n",
            "## Cell 2 (code, [3])\n\n```python\nprint(1)\n```",
            "Output:\n\n```\n1\n```",
            "```\n2\n```",
            "[output: image/png, 4 bytes as text]",
            "```\nE: v\n```",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(!text.contains("<b>"));
        assert_eq!(
            (&metadata["total_cells"], &metadata["code_cells"], &metadata["kernel"]),
            (&json!(3), &json!(1), &json!("python3"))
        );
        let (out, _) = read(bytes.as_bytes(), Some(Range { first: 3, last: -1 }), false, 10_000).unwrap();
        assert_eq!(out.finish().0, "```\nr\n```\n");
        for bad in ["{}", "[", "{\"cells\": 3}"] {
            assert!(read(bad.as_bytes(), None, true, 10_000).is_err(), "{bad}");
        }
    }
}
