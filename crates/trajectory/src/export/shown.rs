//! The text of an answer that a model sees: a result, the text of streams, or JSON; never a picture's bytes.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::call::{Content, ExportedCall, is_envelope};

/// The most characters of an answer in AgentFlow's formats, as its own agents cut them.
pub(super) const AGENTFLOW_TEXT: usize = 4000;
/// The most characters of an answer in other formats of messages.
pub(super) const TEXT: usize = 30_000;
/// Shorter strings can't contain a picture worth a reference.
const MIN_PICTURE: usize = 256;

/// The text of an answer, cut to `most` characters with a mark. A call without an answer gives the reason, in brackets.
pub(super) fn shown(call: &ExportedCall<'_>, most: usize) -> String {
    if let Some(why) = call.unknown() {
        return format!("[no answer: {why}]");
    }
    let text = match &call.answer {
        Content::Nothing => call.error().map(|error| format!("Error: {error}")).unwrap_or_default(),
        Content::Text(text) => text.clone(),
        Content::Elsewhere { blake3, bytes, kept, picture } => reference(*picture, *bytes, blake3, *kept),
        Content::Json(value) => told(value),
    };
    cut(text, most, call.step.step)
}

fn cut(mut text: String, most: usize, step: u64) -> String {
    if let Some((at, _)) = text.char_indices().nth(most) {
        let more = text[at..].chars().count();
        text.truncate(at);
        // Writing to a string doesn't fail.
        let _ = write!(text, "\n[cut here: {more} more characters in step {step}]");
    }
    text
}

fn told(value: &Value) -> String {
    if !is_envelope(value) {
        return of_data(value);
    }
    let data = &value["data"];
    let message = value["message"].as_str().unwrap_or_default();
    match value.get("code").and_then(Value::as_i64) {
        Some(code) if code != 0 => with_details(format!("Error {code}: {message}"), data),
        None if value["success"] == Value::Bool(false) => with_details(format!("Error: {message}"), data),
        _ if data.is_null() => message.to_owned(),
        _ => of_data(data),
    }
}

/// An error may come with the output printed before it.
fn with_details(mut error: String, data: &Value) -> String {
    let tells = match data {
        Value::Object(fields) => fields.keys().any(|key| key != "traceback"),
        other => !other.is_null(),
    };
    if tells {
        error.push('\n');
        error.push_str(&of_data(data));
    }
    error
}

fn of_data(data: &Value) -> String {
    match data {
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            if let Some(result) = fields.get("result") {
                return result.as_str().map_or_else(|| result.to_string(), str::to_owned);
            }
            let text = |key: &str| fields.get(key).and_then(Value::as_str);
            if fields.contains_key("stdout") || fields.contains_key("stderr") {
                return with_exit(streams(text("stdout"), text("stderr")), data);
            }
            if let Some(text) = of_parts_if_any(data).or_else(|| text("content").map(str::to_owned)) {
                return text;
            }
            match text("output") {
                Some(output) => with_exit(output.to_owned(), data),
                None => data.to_string(),
            }
        }
        other => other.to_string(),
    }
}

/// The parts of an answer in the form of the Model Context Protocol; none for other forms.
pub(super) fn of_parts_if_any(data: &Value) -> Option<String> {
    let parts = data.get("content")?.as_array()?;
    if !parts.iter().all(|part| part.get("type").is_some()) {
        return None;
    }
    let part = |part: &Value| match part["type"].as_str() {
        Some("text") => part["text"].as_str().map(str::to_owned),
        Some("image") => part["data"].as_str().map(str::to_owned),
        _ => Some(part.to_string()),
    };
    Some(parts.iter().filter_map(part).collect::<Vec<_>>().join("\n"))
}

fn streams(stdout: Option<&str>, stderr: Option<&str>) -> String {
    let mut text = stdout.unwrap_or_default().to_owned();
    if let Some(stderr) = stderr.filter(|text| !text.is_empty()) {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str("[stderr]\n");
        text.push_str(stderr);
    }
    text
}

fn with_exit(mut text: String, data: &Value) -> String {
    let note = match exit_code(data) {
        Some(0) => return text,
        Some(code) => format!("[exit code {code}]"),
        None => match data.get("status").and_then(Value::as_str) {
            None | Some("completed" | "ok") => return text,
            Some(status) => format!("[{status}]"),
        },
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&note);
    text
}

pub(super) fn exit_code(data: &Value) -> Option<i64> {
    ["exit_code", "return_code", "returncode"].iter().find_map(|key| data.get(key)?.as_i64())
}

/// The text that replaces bytes.
pub(super) fn reference(picture: Option<&str>, bytes: u64, blake3: &str, kept: bool) -> String {
    let what = picture.unwrap_or("data");
    let lost = if kept { "" } else { ", not kept" };
    format!("[{what}, {bytes} bytes, blake3 {blake3}{lost}]")
}

/// Replaces every Base64 picture by a reference, so that none is text in a prompt. `place` is where the value stands.
pub(super) fn refer_to_pictures(value: &mut Value, step: u64, place: &str) {
    match value {
        Value::String(text) => {
            if let Some(told) = picture_in(text, step, place) {
                *text = told;
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter_mut().enumerate() {
                refer_to_pictures(item, step, &format!("{place}/{at}"));
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                refer_to_pictures(field, step, &format!("{place}/{name}"));
            }
        }
        _ => {}
    }
}

fn picture_in(text: &str, step: u64, place: &str) -> Option<String> {
    if text.len() < MIN_PICTURE {
        return None;
    }
    let encoded = match text.strip_prefix("data:image/") {
        Some(rest) => rest.split_once(";base64,")?.1,
        None => text,
    };
    let head = STANDARD.decode(encoded.get(..16)?).ok()?;
    let kind = picture(&head)?;
    let clean: Vec<u8> = encoded.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let bytes = STANDARD.decode(&clean).ok()?;
    let hash = blake3::hash(&bytes);
    Some(format!("[{kind}, {} bytes, blake3 {hash}: step {step}, {place}]", bytes.len()))
}

/// The media type of a picture, by its first bytes.
pub(crate) fn picture(head: &[u8]) -> Option<&'static str> {
    match head {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_is_told_by_its_shape() {
        let bash = json!({"stdout": "out", "stderr": "err\n", "return_code": 2, "exit_code": 2});
        for (answer, wanted) in [
            (json!({"code": 0, "message": "success", "data": {"result": "# found"}, "meta": {}}), "# found"),
            (json!({"code": 0, "message": "success", "data": "   1→x", "meta": {}}), "   1→x"),
            (json!({"code": 0, "message": "success", "data": bash, "meta": {}}), "out\n[stderr]\nerr\n[exit code 2]"),
            (json!({"code": 5005, "message": "gone", "data": {"traceback": "…"}, "meta": {}}), "Error 5005: gone"),
            (json!({"code": 5006, "message": "late", "data": {"stdout": "a"}, "meta": {}}), "Error 5006: late\na"),
            (json!({"success": true, "message": "ok", "data": {"stdout": null, "status": "running"}}), "[running]"),
            (json!({"success": true, "message": "done", "data": null}), "done"),
            (json!({"success": true, "message": "", "data": {"content": "text of a file", "file": "/f"}}), "text of a file"),
            (json!({"success": true, "message": "", "data": {"output": "x", "exit_code": 0}}), "x"),
            (json!({"success": false, "message": "no such file", "data": null, "hint": "h"}), "Error: no such file"),
            (json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "isError": false}), "a\nb"),
            (json!({"n": 1}), "{\"n\":1}"),
        ] {
            assert_eq!(told(&answer), wanted, "{answer}");
        }
    }

    #[test]
    fn a_cut_says_how_much_is_missing_and_never_parts_a_character() {
        assert_eq!(cut("äöü".to_owned(), 3, 1), "äöü");
        assert_eq!(cut("äöüß".to_owned(), 2, 7), "äö\n[cut here: 2 more characters in step 7]");
    }

    #[test]
    fn pictures_become_references_wherever_they_stand() {
        let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
        png.resize(600, 7);
        let encoded = STANDARD.encode(&png);
        let hash = blake3::hash(&png);
        let mut value = json!({"data": [{"image": encoded}, format!("data:image/png;base64,{encoded}")], "n": "x".repeat(500)});
        refer_to_pictures(&mut value, 4, "observation");
        assert_eq!(value["data"][0]["image"], format!("[image/png, 600 bytes, blake3 {hash}: step 4, observation/data/0/image]"));
        assert!(value["data"][1].as_str().unwrap().ends_with("step 4, observation/data/1]"));
        assert_eq!(value["n"].as_str().unwrap().len(), 500);
    }
}
