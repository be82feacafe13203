//! Text output with a size limit.

/// Collects text up to a limit; records whether some was left out.
#[derive(Debug)]
pub(crate) struct Output {
    text: String,
    limit: usize,
    cut: bool,
}

impl Output {
    pub(crate) fn new(limit: usize) -> Self {
        Self { text: String::new(), limit, cut: false }
    }

    /// Adds text without its control characters, which would confuse a terminal that shows it.
    pub(crate) fn push(&mut self, text: &str) {
        let is_plain = |c: char| !c.is_control() || c == '\n' || c == '\t';
        for piece in text.split_inclusive(|c| !is_plain(c)) {
            let piece = piece.strip_suffix(|c| !is_plain(c)).unwrap_or(piece);
            let room = self.limit.saturating_sub(self.text.len());
            if piece.len() > room {
                let end = piece.floor_char_boundary(room);
                self.text.push_str(&piece[..end]);
                self.cut = true;
                return;
            }
            self.text.push_str(piece);
        }
    }

    /// Adds text after one empty line.
    pub(crate) fn block(&mut self, text: &str) {
        self.part();
        self.push(text);
    }

    /// Ends a part, so that the next text starts after one empty line.
    pub(crate) fn part(&mut self) {
        let trimmed = self.text.trim_end_matches([' ', '\n', '\t']).len();
        self.text.truncate(trimmed);
        if !self.text.is_empty() {
            self.push("\n\n");
        }
    }

    /// Records that something was already left out.
    pub(crate) fn cut(&mut self) {
        self.cut = true;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.cut
    }

    /// The text, and whether something is missing.
    pub(crate) fn finish(mut self) -> (String, bool) {
        let trimmed = self.text.trim_end().len();
        self.text.truncate(trimmed);
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        (self.text, self.cut)
    }
}

/// Text for one cell of a Markdown table.
pub(crate) fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.trim().chars() {
        match c {
            '|' => out.push_str("\\|"),
            '\n' => out.push_str("<br>"),
            '\r' => {}
            c => out.push(c),
        }
    }
    out
}

/// One row of a Markdown table.
pub(crate) fn row<'a>(out: &mut Output, cells: impl IntoIterator<Item = &'a str>) {
    out.push("|");
    for text in cells {
        out.push(" ");
        out.push(&cell(text));
        out.push(" |");
    }
    out.push("\n");
}

/// The line below a table's head.
pub(crate) fn rule(out: &mut Output, columns: usize) {
    out.push("|");
    for _ in 0..columns {
        out.push(" --- |");
    }
    out.push("\n");
}

/// A code block, in a fence that does not occur in it.
pub(crate) fn fenced(out: &mut Output, language: &str, code: &str) {
    let longest = code.lines().map(|l| l.trim_start().bytes().take_while(|b| *b == b'`').count()).max().unwrap_or(0);
    let fence = "`".repeat((longest + 1).max(3));
    out.block(&format!("{fence}{language}\n"));
    out.push(code.trim_end_matches('\n'));
    out.push("\n");
    out.push(&fence);
    out.push("\n");
}

/// A table as Markdown, with the first row as the head; shorter rows are padded. Nothing for a table without cells.
pub(crate) fn table(out: &mut Output, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    if columns == 0 {
        return;
    }
    out.part();
    for (at, cells) in rows.iter().enumerate() {
        row(out, cells.iter().map(String::as_str).chain(std::iter::repeat_n("", columns - cells.len())));
        if at == 0 {
            rule(out, columns);
        }
        if out.is_full() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_a_character_and_said_to_be() {
        let mut out = Output::new(6);
        out.push("a\u{1b}[31mb");
        assert!(!out.is_full());
        out.push("é");
        assert_eq!(out.finish(), ("a[31mb\n".to_owned(), true));
        let mut out = Output::new(100);
        out.block("a  \n\n");
        out.block("b\r\n");
        assert_eq!(out.finish(), ("a\n\nb\n".to_owned(), false));
    }

    #[test]
    fn tables_and_fences_hold_what_they_are_given() {
        let mut out = Output::new(1000);
        row(&mut out, ["a|b", "c\r\nd"]);
        rule(&mut out, 2);
        fenced(&mut out, "py", "```\nx\n");
        assert_eq!(out.finish().0, "| a\\|b | c<br>d |\n| --- | --- |\n\n````py\n```\nx\n````\n");
    }
}
