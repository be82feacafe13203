//! Converts terminal output to plain text: no colours, no rewritten progress bars, no lone carriage returns.
//!
//! Lines are processed as in a terminal: after a carriage return, the following text overwrites the line. Movements between lines
//! are not followed.

use arenite_guest_runtime::process::Retained;

/// A longer line is no longer rewritten and is emitted in pieces.
const MAX_LINE: usize = 64 << 10;
const MAX_PARAMETERS: usize = 32;

#[derive(Debug)]
pub(super) struct Transcript {
    lines: Retained,
    line: Line,
    /// The last byte was a carriage return: followed by a newline it ends the line, otherwise it returns to the start.
    returned: bool,
    state: State,
}

#[derive(Debug)]
enum Line {
    /// The cursor is at the end, as for nearly all output.
    Plain(Vec<u8>),
    /// The cursor moved back: one cell per character.
    Cells {
        cells: Vec<char>,
        cursor: usize,
        /// The bytes of an incomplete character.
        partial: Vec<u8>,
    },
}

#[derive(Debug)]
enum State {
    Text,
    Escape,
    /// After `ESC (` and similar: one more byte.
    Charset,
    Control(Vec<u8>),
    /// A string for the terminal, up to BEL or ST.
    String,
    StringEscape,
}

impl Transcript {
    pub(super) fn new(lines: Retained) -> Self {
        Self { lines, line: Line::Plain(Vec::new()), returned: false, state: State::Text }
    }

    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if matches!(self.state, State::Text) {
                let is_special = |b: &u8| *b < 0x20 || *b == 0x7f;
                let at = bytes.iter().position(is_special).unwrap_or(bytes.len());
                if at > 0 {
                    self.text(&bytes[..at]);
                    bytes = &bytes[at..];
                    continue;
                }
            }
            self.special(bytes[0]);
            bytes = &bytes[1..];
        }
    }

    /// Everything so far, as text. With a limit, at most that number of characters: the first and the last half.
    pub(super) fn text_so_far(&self, limit: Option<usize>) -> String {
        let mut piece = self.lines.read(0);
        let last = if piece.gap == 0 { &mut piece.before } else { &mut piece.after };
        self.line.append_to(last);
        while last.last() == Some(&b'\n') {
            last.pop();
        }
        piece.text(limit)
    }

    /// The finished lines from `offset` on, and the offset after them.
    pub(super) fn lines_from(&self, offset: u64) -> (String, u64) {
        (self.lines.read(offset).text(None), self.lines.total())
    }

    /// Adds the unfinished line to the others.
    pub(super) fn end(&mut self) {
        self.commit_line();
    }

    fn text(&mut self, bytes: &[u8]) {
        if std::mem::take(&mut self.returned) {
            self.line.move_to(|_| 0);
        }
        self.line.write(bytes);
        if self.line.len() > MAX_LINE {
            self.commit_line();
        }
    }

    fn commit_line(&mut self) {
        let line = std::mem::replace(&mut self.line, Line::Plain(Vec::new()));
        match line {
            Line::Plain(mut bytes) => {
                self.lines.push(&bytes);
                bytes.clear();
                self.line = Line::Plain(bytes);
            }
            Line::Cells { .. } => {
                let mut bytes = Vec::new();
                line.append_to(&mut bytes);
                self.lines.push(&bytes);
            }
        }
    }

    fn special(&mut self, byte: u8) {
        match &mut self.state {
            State::Text => match byte {
                b'\n' => {
                    self.returned = false;
                    self.commit_line();
                    self.lines.push(b"\n");
                }
                b'\r' => self.returned = true,
                b'\t' => self.text(b"\t"),
                0x08 => {
                    let from_start = std::mem::take(&mut self.returned);
                    self.line.move_to(|cursor| if from_start { 0 } else { cursor.saturating_sub(1) });
                }
                0x1b => self.state = State::Escape,
                _ => {}
            },
            State::Escape => {
                self.state = match byte {
                    b'[' => State::Control(Vec::new()),
                    b']' | b'P' | b'X' | b'^' | b'_' => State::String,
                    b'(' | b')' | b'*' | b'+' | b'#' | b'%' => State::Charset,
                    0x1b => State::Escape,
                    _ => State::Text,
                }
            }
            State::Charset => self.state = State::Text,
            State::Control(parameters) => match byte {
                0x40..=0x7e => {
                    let count = std::str::from_utf8(parameters).ok().and_then(|p| p.parse().ok());
                    self.state = State::Text;
                    self.control(byte, count);
                }
                0x1b => self.state = State::Escape,
                b'\n' | b'\r' => {
                    self.state = State::Text;
                    self.special(byte);
                }
                _ if parameters.len() < MAX_PARAMETERS => parameters.push(byte),
                _ => self.state = State::Text,
            },
            State::String => match byte {
                0x07 | 0x18 | 0x1a => self.state = State::Text,
                0x1b => self.state = State::StringEscape,
                _ => {}
            },
            State::StringEscape => {
                self.state = match byte {
                    b'\\' => State::Text,
                    0x1b => State::StringEscape,
                    _ => State::String,
                }
            }
        }
    }

    fn control(&mut self, end: u8, count: Option<usize>) {
        let n = count.unwrap_or(1).clamp(1, MAX_LINE);
        if !matches!(end, b'K' | b'C' | b'D' | b'G' | b'P' | b'X') {
            return;
        }
        if std::mem::take(&mut self.returned) {
            self.line.move_to(|_| 0);
        }
        match end {
            b'K' => self.line.erase(count.unwrap_or(0)),
            b'C' => self.line.move_to(|cursor| (cursor + n).min(MAX_LINE)),
            b'D' => self.line.move_to(|cursor| cursor.saturating_sub(n)),
            b'G' => self.line.move_to(|_| n - 1),
            b'P' => self.line.delete(n),
            _ => self.line.blank(n),
        }
    }
}

impl Line {
    fn len(&self) -> usize {
        match self {
            Self::Plain(bytes) => bytes.len(),
            Self::Cells { cells, .. } => cells.len(),
        }
    }

    fn append_to(&self, to: &mut Vec<u8>) {
        match self {
            Self::Plain(bytes) => to.extend_from_slice(bytes),
            Self::Cells { cells, partial, .. } => {
                let text: String = cells.iter().collect();
                to.extend_from_slice(text.trim_end_matches(' ').as_bytes());
                to.extend_from_slice(partial);
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let (cells, cursor, partial) = match self {
            Self::Plain(line) => return line.extend_from_slice(bytes),
            Self::Cells { cells, cursor, partial } => (cells, cursor, partial),
        };
        partial.extend_from_slice(bytes);
        let cut = partial.len() - arenite_guest_runtime::process::incomplete_end(partial);
        for c in String::from_utf8_lossy(&partial[..cut]).chars() {
            if *cursor >= cells.len() {
                cells.resize(*cursor, ' ');
                cells.push(c);
            } else {
                cells[*cursor] = c;
            }
            *cursor += 1;
        }
        partial.drain(..cut);
    }

    /// The cells and the cursor, for operations other than appending.
    fn cells(&mut self) -> (&mut Vec<char>, &mut usize) {
        if let Self::Plain(bytes) = self {
            let cells: Vec<char> = String::from_utf8_lossy(bytes).chars().collect();
            *self = Self::Cells { cursor: cells.len(), cells, partial: Vec::new() };
        }
        match self {
            Self::Cells { cells, cursor, .. } => (cells, cursor),
            Self::Plain(_) => unreachable!("made into cells above"),
        }
    }

    fn move_to(&mut self, to: impl FnOnce(usize) -> usize) {
        let (_, cursor) = self.cells();
        *cursor = to(*cursor);
    }

    fn erase(&mut self, how: usize) {
        let (cells, cursor) = self.cells();
        match how {
            0 => cells.truncate(*cursor),
            1 => {
                let end = (*cursor + 1).min(cells.len());
                cells[..end].fill(' ');
            }
            2 => cells.clear(),
            _ => {}
        }
    }

    fn delete(&mut self, n: usize) {
        let (cells, cursor) = self.cells();
        if *cursor < cells.len() {
            let end = (*cursor + n).min(cells.len());
            cells.drain(*cursor..end);
        }
    }

    fn blank(&mut self, n: usize) {
        let (cells, cursor) = self.cells();
        if *cursor < cells.len() {
            let end = (*cursor + n).min(cells.len());
            cells[*cursor..end].fill(' ');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arenite_guest_runtime::process::Budget;

    fn read(stream: &[u8]) -> String {
        let mut whole = Transcript::new(Retained::new(&Budget::new(1 << 30)));
        whole.push(stream);
        let mut by_bytes = Transcript::new(Retained::new(&Budget::new(1 << 30)));
        for byte in stream {
            by_bytes.push(&[*byte]);
        }
        let text = whole.text_so_far(None);
        assert_eq!(text, by_bytes.text_so_far(None));
        text
    }

    #[test]
    fn lines_read_as_a_terminal_would_show_them() {
        for (stream, text) in [
            ("plain\r\n", "plain"),
            ("no newline", "no newline"),
            ("a\r\r\nb\r\n\r\n", "a\nb"),
            ("\x1b[1;31mred\x1b[0m \x1b[38;5;12mblue\x1b[m\r\n", "red blue"),
            ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
            (" 10%\r 50%\r100%\r\ndone", "100%\ndone"),
            ("long line\rshort\x1b[K\n", "short"),
            ("long line\rshort\n", "shortline"),
            ("abc\x08\x08X\n", "aXc"),
            ("é€\rö\n", "ö€"),
            ("x\x1b[2K\ry\n", "y"),
            ("\x1b[3Cx", "   x"),
            ("bell\x07 nul\0 \x1b(Bend", "bell nul end"),
            ("\x1b[?25l\x1b[2J\x1b[Hscreen", "screen"),
            ("tab\there", "tab\there"),
        ] {
            assert_eq!(read(stream.as_bytes()), text, "{stream:?}");
        }
        assert_eq!(read(b"bad \xff\xfe utf-8"), "bad \u{fffd}\u{fffd} utf-8");
    }

    #[test]
    fn endless_lines_and_sequences_are_bounded() {
        let mut transcript = Transcript::new(Retained::new(&Budget::new(0)));
        for _ in 0..1000 {
            transcript.push(&[b'x'; 4096]);
        }
        assert!(transcript.line.len() <= MAX_LINE);
        assert!(transcript.lines.dropped() > 0);
        transcript.push(b"\x1b[");
        transcript.push(&[b'1'; 1 << 20]);
        transcript.push(b"\nend");
        assert!(transcript.text_so_far(None).ends_with("\nend"));
    }
}
