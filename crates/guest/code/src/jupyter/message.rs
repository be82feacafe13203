//! Jupyter's messages, version 5: requests to a kernel, and the relevant parts of its answers.

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::zmtp::Message;

/// Between a message's route and its parts.
const DELIMITER: &[u8] = b"<IDS|MSG>";

/// A request to a kernel.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: String,
    pub(super) frames: Vec<Bytes>,
}

impl Request {
    /// Not signed: the connection file has no key, since any process that can reach the kernel's sockets could read it there.
    pub(super) fn new(session: &str, kind: &str, content: &Value) -> Self {
        let id = arenite_guest_runtime::random_id();
        let header = json!({
            "msg_id": id,
            "session": session,
            "username": "arenite",
            "date": Timestamp::now().to_string(),
            "msg_type": kind,
            "version": "5.3",
        });
        let frames = [
            Bytes::from_static(DELIMITER),
            Bytes::new(),
            header.to_string().into(),
            Bytes::from_static(b"{}"),
            Bytes::from_static(b"{}"),
            content.to_string().into(),
        ];
        Self { id, frames: frames.into() }
    }
}

/// A message from a kernel.
#[derive(Debug)]
pub(super) struct Incoming {
    /// The message type, such as `stream` or `execute_reply`.
    pub(super) kind: String,
    /// The id of the request that it answers; empty for unsolicited messages.
    pub(super) parent: String,
    content: Bytes,
    /// Bytes that were dropped because the message was too long.
    pub(super) dropped: u64,
}

#[derive(Debug, Deserialize)]
struct Header {
    msg_type: String,
}

#[derive(Debug, Default, Deserialize)]
struct Parent {
    #[serde(default)]
    msg_id: String,
}

impl Incoming {
    /// Parses a message. None if it is no Jupyter message; kernels may send anything.
    pub(super) fn read(message: Message) -> Option<Self> {
        let start = message.frames.iter().position(|frame| frame == DELIMITER)?;
        let part = |n: usize| message.frames.get(start + 1 + n).cloned();
        let header: Header = parse(&part(1)?)?;
        let parent: Parent = parse(&part(2)?).unwrap_or_default();
        Some(Self { kind: header.msg_type, parent: parent.msg_id, content: part(4)?, dropped: message.dropped })
    }

    /// Parses the content. If it was cut, parses what is left of it.
    pub(super) fn content<T: DeserializeOwned>(&self) -> Option<T> {
        match self.dropped {
            0 => parse(&self.content),
            _ => parse(&completed(&self.content)?),
        }
    }
}

/// Completes truncated JSON: closes the text in which it stops, and the enclosing values. None when it stops elsewhere than in a
/// text that is a value.
fn completed(cut: &[u8]) -> Option<Vec<u8>> {
    const ESCAPED: u8 = u8::MAX;
    let (mut open, mut in_text, mut is_key, mut escape) = (Vec::new(), false, false, 0);
    // The end of the last whole character.
    let mut whole = 0;
    for (at, byte) in cut.iter().enumerate() {
        match (in_text, byte) {
            // A backslash is followed by one character, and a `u` by four digits.
            (true, _) if escape == ESCAPED => escape = if *byte == b'u' { 4 } else { 0 },
            (true, _) if escape > 0 => escape -= 1,
            (true, b'\\') => escape = ESCAPED,
            (true, b'"') => in_text = false,
            (true, _) => {}
            (false, b'"') => {
                in_text = true;
                is_key = matches!(open.last(), Some((b'}', true)));
            }
            (false, b'{') => open.push((b'}', true)),
            (false, b'[') => open.push((b']', false)),
            (false, b'}' | b']') => drop(open.pop()),
            (false, b':') => {
                if let Some(last) = open.last_mut() {
                    last.1 = false;
                }
            }
            (false, b',') => {
                if let Some((close, expects_key)) = open.last_mut() {
                    *expects_key = *close == b'}';
                }
            }
            (false, _) => {}
        }
        if in_text && escape == 0 {
            whole = at + 1;
        }
    }
    if !in_text || is_key {
        return None;
    }
    let mut text = cut[..whole].to_vec();
    text.push(b'"');
    text.extend(open.iter().rev().map(|(close, _)| *close));
    Some(text)
}

/// Parses JSON lossily: kernels repeat what programs print, which may be invalid UTF-8.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::from_str(text).ok(),
        Err(_) => serde_json::from_str(&String::from_utf8_lossy(bytes)).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_is_read_up_to_there() {
        let whole = br#"{"name": "stdout", "text": "a\n\u00e4\"b", "more": {"list": ["x", "yz"]}}"#;
        let read = |length: usize| {
            let completed = completed(&whole[..length])?;
            Some(serde_json::from_slice::<Value>(&completed).unwrap_or_else(|e| panic!("{length} {e}: {completed:?}")))
        };
        let texts: Vec<_> =
            (0..whole.len()).filter_map(read).filter_map(|value| value["text"].as_str().map(str::to_owned)).collect();
        assert!(
            texts.contains(&String::new()) && texts.contains(&"a\nä".to_owned()) && texts.contains(&"a\nä\"b".to_owned()),
            "{texts:?}"
        );
        let list = whole.iter().position(|byte| *byte == b'y').unwrap() + 1;
        assert_eq!(read(list).unwrap()["more"]["list"], json!(["x", "y"]));
        assert_eq!(read(4), None, "in the middle of a name");
    }

    fn message(parts: &[&[u8]]) -> Message {
        Message { frames: parts.iter().map(|p| Bytes::copy_from_slice(p)).collect(), dropped: 0 }
    }

    #[test]
    fn a_kernels_words_are_read() {
        let header = br#"{"msg_type": "stream", "msg_id": "x"}"#;
        let read = Incoming::read(message(&[
            b"kernel.x.stream",
            DELIMITER,
            b"",
            header,
            br#"{"msg_id": "ours"}"#,
            b"{}",
            b"{\"text\": \"a\xff\"}",
        ]))
        .unwrap();
        assert_eq!((read.kind.as_str(), read.parent.as_str()), ("stream", "ours"));
        assert_eq!(read.content::<Value>().unwrap(), json!({"text": "a\u{fffd}"}));
        let welcome = Incoming::read(message(&[DELIMITER, b"", header, b"{}", b"{}", b"{}"])).unwrap();
        assert_eq!(welcome.parent, "");
        for broken in [&[b"x".as_slice()][..], &[DELIMITER, b"", b"{"], &[DELIMITER, b"", header, b"{}"], &[]] {
            assert!(Incoming::read(message(broken)).is_none());
        }
    }
}
