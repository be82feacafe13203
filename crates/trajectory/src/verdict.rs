//! Result of a call, read from its answer while that passes.
//!
//! HTTP only states that an answer came. The answer contains the result: a command's exit code, `success: false`, `isError`. The
//! answer may be many megabytes long and is not held, so its JSON is scanned byte by byte, and only a few short fields near its
//! top are kept. Of JSON lines, the last one counts.

use crate::record::{Failure, StepResult};

/// Largest value of a field that is kept, in bytes; longer text is cut off.
const MAX_VALUE: usize = 512;
/// Levels with keys that are inspected.
const LEVELS: usize = 5;
/// Values of `status` that indicate a failure if there is no exit code.
const BAD_STATUS: [&str; 8] =
    ["error", "failed", "timed_out", "timeout", "hard_timeout", "no_change_timeout", "killed", "aborted"];

/// The last key of a level, if it is relevant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Key {
    #[default]
    Other,
    Data,
    Structured,
    Command,
    Content,
    Text,
    /// Around the last of an answer's JSON lines.
    Answer,
    Success,
    Code,
    IsError,
    Message,
    ExitCode,
    Status,
}

impl Key {
    fn parse(text: &[u8]) -> Self {
        match text {
            b"data" => Self::Data,
            b"structuredContent" => Self::Structured,
            b"command" => Self::Command,
            b"content" => Self::Content,
            b"text" => Self::Text,
            b"answer" => Self::Answer,
            b"success" => Self::Success,
            b"code" => Self::Code,
            b"isError" => Self::IsError,
            b"message" => Self::Message,
            b"exit_code" | b"return_code" | b"returncode" => Self::ExitCode,
            b"status" => Self::Status,
            _ => Self::Other,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Level {
    is_object: bool,
    key: Key,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    /// Between values.
    Gap,
    Text {
        is_key: bool,
        escaped: bool,
    },
    /// A number, `true`, `false` or `null`.
    Plain,
}

/// Result fields of one document.
#[derive(Debug, Default)]
struct Said {
    success: Option<bool>,
    code: Option<i64>,
    is_error: bool,
    message: Option<String>,
    has_data: bool,
    exit_code: Option<i64>,
    status: Option<String>,
    content: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Verdict {
    /// It is not JSON that could contain a result.
    off: bool,
    started: bool,
    depth: usize,
    levels: [Level; LEVELS],
    /// In an object, a text that starts here is a key.
    at_key: bool,
    token: Token,
    keep: bool,
    value: Vec<u8>,
    said: Said,
    last: Option<Said>,
}

impl Default for Verdict {
    fn default() -> Self {
        Self {
            off: false,
            started: false,
            depth: 0,
            levels: [Level::default(); LEVELS],
            at_key: false,
            token: Token::Gap,
            keep: false,
            value: Vec::new(),
            said: Said::default(),
            last: None,
        }
    }
}

impl Verdict {
    /// The result of a whole answer.
    pub(crate) fn judge(answer: &[u8]) -> StepResult {
        let mut verdict = Self::default();
        verdict.feed(answer);
        verdict.result()
    }

    /// Processes the next bytes of the answer.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.off {
            return;
        }
        let mut rest = bytes;
        while let [byte, after @ ..] = rest {
            // Most of a long answer is inside its texts.
            if let Token::Text { escaped: false, .. } = self.token
                && !self.keep
            {
                let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) else { return };
                self.byte(rest[at]);
                rest = &rest[at + 1..];
                continue;
            }
            self.byte(*byte);
            if self.off {
                return;
            }
            rest = after;
        }
    }

    /// The result up to here.
    pub(crate) fn result(&self) -> StepResult {
        self.last.as_ref().map_or(StepResult::Succeeded, Said::result)
    }

    fn byte(&mut self, byte: u8) {
        match self.token {
            Token::Text { escaped: true, is_key } => {
                self.push(byte);
                self.token = Token::Text { is_key, escaped: false };
            }
            Token::Text { is_key, .. } => match byte {
                b'\\' => {
                    self.push(byte);
                    self.token = Token::Text { is_key, escaped: true };
                }
                b'"' => {
                    self.token = Token::Gap;
                    if is_key {
                        let key = if self.keep { Key::parse(&self.value) } else { Key::Other };
                        if let Some(level) = self.depth.checked_sub(1).and_then(|at| self.levels.get_mut(at)) {
                            level.key = key;
                        }
                        self.at_key = false;
                    } else if self.keep {
                        self.note(true);
                    }
                }
                other => self.push(other),
            },
            Token::Plain => {
                if matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace() {
                    self.token = Token::Gap;
                    if self.keep {
                        self.note(false);
                    }
                    self.structure(byte);
                } else {
                    self.push(byte);
                }
            }
            Token::Gap => self.structure(byte),
        }
    }

    fn push(&mut self, byte: u8) {
        if self.keep && self.value.len() < MAX_VALUE {
            self.value.push(byte);
        }
    }

    fn structure(&mut self, byte: u8) {
        match byte {
            b'{' | b'[' => {
                self.see_data();
                let is_object = byte == b'{';
                if let Some(level) = self.levels.get_mut(self.depth) {
                    *level = Level { is_object, key: Key::Other };
                }
                self.depth += 1;
                self.at_key = is_object;
                self.started = true;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.at_key = false;
                if self.depth == 0 && self.started {
                    self.last = Some(std::mem::take(&mut self.said));
                }
            }
            b',' => {
                let level = self.depth.checked_sub(1).and_then(|at| self.levels.get(at));
                self.at_key = level.is_some_and(|level| level.is_object);
            }
            b'"' => {
                let is_key = self.at_key;
                self.token = Token::Text { is_key, escaped: false };
                self.value.clear();
                self.keep = if is_key { self.depth <= LEVELS } else { self.matters() };
                if !is_key {
                    self.see_data();
                }
                self.outside();
            }
            b':' => {}
            byte if byte.is_ascii_whitespace() => {}
            byte => {
                self.token = Token::Plain;
                self.value.clear();
                self.keep = self.matters();
                self.push(byte);
                self.see_data();
                self.outside();
            }
        }
    }

    /// Called at the start of a value. Which one it is does not matter for `data`: an envelope has it.
    fn see_data(&mut self) {
        self.said.has_data |= self.value_key() == Key::Data && self.top() == 1;
    }

    /// A text or number alone, or anything that is not JSON, contains no result.
    fn outside(&mut self) {
        self.off |= self.depth == 0;
    }

    /// Levels around the answer itself: the last of its JSON lines has one more.
    fn around(&self) -> usize {
        usize::from(self.depth > 1 && self.levels[0].key == Key::Answer)
    }

    /// The depth of a value in the answer; 1 for its own fields.
    fn top(&self) -> usize {
        self.depth - self.around().min(self.depth)
    }

    fn value_key(&self) -> Key {
        self.depth.checked_sub(1).and_then(|at| self.levels.get(at)).map_or(Key::Other, |level| level.key)
    }

    fn matters(&self) -> bool {
        if self.depth == 0 || self.depth > LEVELS {
            return false;
        }
        let levels = &self.levels[self.around()..self.depth];
        let keys = [0, 1, 2].map(|at| levels.get(at).map_or(Key::Other, |level| level.key));
        match levels.len() {
            1 => matches!(keys[0], Key::Success | Key::Code | Key::IsError | Key::Message),
            2 => matches!(keys[0], Key::Data | Key::Structured) && matches!(keys[1], Key::ExitCode | Key::Status),
            3 if keys[0] == Key::Content => keys[2] == Key::Text && self.said.content.is_none(),
            3 => keys[0] == Key::Data && keys[1] == Key::Command && matches!(keys[2], Key::ExitCode | Key::Status),
            _ => false,
        }
    }

    /// Keeps the value of a relevant field.
    fn note(&mut self, is_text: bool) {
        self.keep = false;
        let text = is_text.then(|| unescaped(&self.value));
        let number = || std::str::from_utf8(&self.value).ok()?.parse::<i64>().ok();
        let truth = match &self.value[..] {
            b"true" if !is_text => Some(true),
            b"false" if !is_text => Some(false),
            _ => None,
        };
        let is_null = !is_text && self.value == b"null";
        match self.value_key() {
            Key::Success => self.said.success = truth,
            Key::Code if !is_text => self.said.code = number(),
            Key::IsError => self.said.is_error = truth == Some(true),
            Key::Message => self.said.message = text,
            Key::ExitCode if !is_text && !is_null => self.said.exit_code = number(),
            Key::Status => self.said.status = text,
            Key::Text => self.said.content = text,
            _ => {}
        }
    }
}

impl Said {
    fn result(&self) -> StepResult {
        let is_envelope = self.has_data && self.message.is_some();
        let refused = self.is_error || is_envelope && (self.code.is_some_and(|code| code != 0) || self.success == Some(false));
        if let Some(code) = self.exit_code.filter(|code| *code != 0) {
            return StepResult::Failed(Failure::ExitCode(code));
        }
        if refused {
            let message = self.message.as_ref().or(self.content.as_ref()).filter(|text| !text.is_empty());
            return StepResult::Failed(Failure::Error(message.cloned().unwrap_or_else(|| "it failed".to_owned())));
        }
        match &self.status {
            Some(status) if self.exit_code.is_none() && BAD_STATUS.contains(&status.as_str()) => {
                StepResult::Failed(Failure::Error(status.clone()))
            }
            _ => StepResult::Succeeded,
        }
    }
}

/// The text of a JSON string that may be cut off.
fn unescaped(raw: &[u8]) -> String {
    // An escape that was cut is at most `\u123` long, a pair of them twice that.
    for cut in 0..=12.min(raw.len()) {
        let mut quoted = vec![b'"'];
        quoted.extend_from_slice(&raw[..raw.len() - cut]);
        quoted.push(b'"');
        if let Ok(text) = serde_json::from_slice::<String>(&quoted) {
            return text;
        }
    }
    String::from_utf8_lossy(raw).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn failed(error: &str) -> StepResult {
        StepResult::Failed(Failure::Error(error.to_owned()))
    }

    #[test]
    fn answers_say_how_it_went_in_the_words_of_each_dialect() {
        let exit = |code| StepResult::Failed(Failure::ExitCode(code));
        for (answer, wanted) in [
            (json!({"success": true, "message": "ok", "data": {"stdout": "x", "exit_code": 0}}), StepResult::Succeeded),
            (json!({"success": true, "message": "ok", "data": {"stdout": "exit_code\": 4", "exit_code": 3}}), exit(3)),
            (json!({"success": true, "message": "", "data": {"status": "running", "exit_code": null}}), StepResult::Succeeded),
            (json!({"success": true, "message": "", "data": {"status": "timed_out", "exit_code": null}}), failed("timed_out")),
            (json!({"success": true, "message": "", "data": {"command": {"status": "completed", "exit_code": 7}}}), exit(7)),
            (json!({"success": false, "message": "no \"such\" file", "data": null, "hint": "h"}), failed("no \"such\" file")),
            (json!({"code": 0, "message": "success", "data": {"return_code": 2, "exit_code": 2}, "meta": {}}), exit(2)),
            (json!({"code": 5005, "message": "gone", "data": {"traceback": "…"}, "meta": {}}), failed("gone")),
            (json!({"code": 0, "message": "success", "data": "x", "meta": {"code": 9}}), StepResult::Succeeded),
            (json!({"content": [{"type": "text", "text": "no file"}], "isError": true}), failed("no file")),
            (
                json!({"content": [{"type": "text", "text": "x"}], "structuredContent": {"exit_code": 1}, "isError": false}),
                exit(1),
            ),
            // Values that only look like a failure.
            (json!({"success": false}), StepResult::Succeeded),
            (json!({"data": {"deep": {"exit_code": 1}}, "message": "", "success": true}), StepResult::Succeeded),
            (json!([{"success": false, "message": "", "data": null}]), StepResult::Succeeded),
            (json!("success"), StepResult::Succeeded),
        ] {
            let text = answer.to_string();
            assert_eq!(Verdict::judge(text.as_bytes()), wanted, "{text}");
            assert_eq!(Verdict::judge(serde_json::to_string_pretty(&answer).unwrap().as_bytes()), wanted, "{text}");
            for size in [1, 3, 7] {
                let mut verdict = Verdict::default();
                text.as_bytes().chunks(size).for_each(|piece| verdict.feed(piece));
                assert_eq!(verdict.result(), wanted, "{text} in pieces of {size}");
            }
        }
    }

    #[test]
    fn of_json_lines_the_last_counts_and_what_is_no_json_tells_nothing() {
        let lines = "{\"progress\":\"x\"}\n{\"status\":200,\"answer\":{\"content\":[{\"text\":\"bad\"}],\"isError\":true}}\n";
        assert_eq!(Verdict::judge(lines.as_bytes()), failed("bad"));
        for other in
            [&b"\x89PNG {\"success\":false,\"message\":\"\",\"data\":null}"[..], b"", b"data: {}", b"}{", b"]]]]", b"{\"a"]
        {
            assert_eq!(Verdict::judge(other), StepResult::Succeeded);
        }
        let deep = "[".repeat(9000) + "{\"success\":false}" + &"]".repeat(9000);
        assert_eq!(Verdict::judge(deep.as_bytes()), StepResult::Succeeded);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let long = json!({"success": false, "message": format!("x{}", "é\n".repeat(4000)), "data": null}).to_string();
        let StepResult::Failed(Failure::Error(told)) = Verdict::judge(long.as_bytes()) else { panic!() };
        assert!(told.starts_with("xé\né") && told.len() <= MAX_VALUE, "{told}");
    }
}
