//! Separates a shell's marks from the output of programs.

/// The longest mark: a directory of `PATH_MAX` bytes, and some.
const MAX_MARK: usize = 8 << 10;

/// A mark of the shell inside its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mark {
    /// G: the shell waits for the command's text.
    Go,
    /// S: the command's output follows.
    Start,
    /// T: a typed line starts to run.
    Typed,
    /// P: the prompt follows.
    Prompt { exit_code: i32, dir: String },
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Text(&'a [u8]),
    Mark(Mark),
}

/// Splits the stream. Marks may arrive in any pieces.
#[derive(Debug)]
pub(super) struct Marks {
    prefix: Vec<u8>,
    /// The start of a possible mark.
    pending: Vec<u8>,
}

impl Marks {
    pub(super) fn new(nonce: &str) -> Self {
        Self { prefix: format!("\x1b]7701;{nonce};").into_bytes(), pending: Vec::new() }
    }

    pub(super) fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(Token<'_>)) {
        while !bytes.is_empty() {
            if self.pending.is_empty() {
                let at = bytes.iter().position(|b| *b == 0x1b).unwrap_or(bytes.len());
                if at > 0 {
                    each(Token::Text(&bytes[..at]));
                }
                bytes = &bytes[at..];
                if let Some((first, rest)) = bytes.split_first() {
                    self.pending.push(*first);
                    bytes = rest;
                }
                continue;
            }
            let (byte, rest) = (bytes[0], &bytes[1..]);
            let length = self.pending.len();
            if length < self.prefix.len() {
                if byte == self.prefix[length] {
                    self.pending.push(byte);
                    bytes = rest;
                } else {
                    // Not a mark. The byte is processed again: it may be the escape of the next sequence.
                    each(Token::Text(&std::mem::take(&mut self.pending)));
                }
                continue;
            }
            bytes = rest;
            if byte != 0x07 && length < MAX_MARK {
                self.pending.push(byte);
                continue;
            }
            let mark = std::mem::take(&mut self.pending);
            match parse(&mark[self.prefix.len()..]) {
                Some(mark) if byte == 0x07 => each(Token::Mark(mark)),
                _ => {
                    each(Token::Text(&mark));
                    each(Token::Text(&[byte]));
                }
            }
        }
    }
}

fn parse(body: &[u8]) -> Option<Mark> {
    let body = String::from_utf8_lossy(body);
    let mut parts = body.splitn(3, ';');
    match parts.next()? {
        "G" => Some(Mark::Go),
        "S" => Some(Mark::Start),
        "T" => Some(Mark::Typed),
        "P" => Some(Mark::Prompt { exit_code: parts.next()?.parse().ok()?, dir: parts.next()?.to_owned() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(stream: &[u8], piece: usize) -> (Vec<u8>, Vec<Mark>) {
        let mut marks = Marks::new("abc");
        let (mut text, mut found) = (Vec::new(), Vec::new());
        for chunk in stream.chunks(piece) {
            marks.feed(chunk, |token| match token {
                Token::Text(bytes) => text.extend_from_slice(bytes),
                Token::Mark(mark) => found.push(mark),
            });
        }
        (text, found)
    }

    #[test]
    fn marks_are_found_in_any_pieces() {
        let stream = b"a\x1b[0mb\x1b]7701;abc;G\x07c\x1b\x1b]7701;abc;P;130;/tmp/a;b\x07\x1b]7701;abd;S\x07d\xff";
        for piece in 1..=stream.len() {
            let (text, marks) = split(stream, piece);
            assert_eq!(text, b"a\x1b[0mbc\x1b\x1b]7701;abd;S\x07d\xff", "{piece}");
            let prompt = Mark::Prompt { exit_code: 130, dir: "/tmp/a;b".to_owned() };
            assert_eq!(marks, [Mark::Go, prompt], "{piece}");
        }
    }

    #[test]
    fn a_mark_without_an_end_becomes_text() {
        let mut stream = b"\x1b]7701;abc;".to_vec();
        stream.resize(MAX_MARK + 100, b'x');
        let (text, marks) = split(&stream, 4096);
        assert_eq!(text, stream);
        assert!(marks.is_empty());
    }
}
