//! Here-documents: lines after RUN, COPY, or ADD up to a delimiter.

use super::ParseError;

/// Maximum number of here-documents of one instruction.
pub(super) const MAX_HEREDOCS: usize = 32;

/// A here-document with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Heredoc {
    /// The delimiter without quotes.
    pub(super) name: String,
    /// Variables stand for their values: no part of the delimiter was quoted.
    pub(super) expands: bool,
    /// `<<-`: leading tabs are not part of the lines.
    pub(super) strips_tabs: bool,
    /// All lines, each with its line feed.
    pub(super) content: String,
}

impl Heredoc {
    /// Whether a line ends it.
    pub(super) fn ends_at(&self, line: &str) -> bool {
        let line = if self.strips_tabs { line.trim_start_matches('\t') } else { line };
        line == self.name
    }

    /// The lines as a program reads them.
    pub(super) fn text(&self) -> String {
        if !self.strips_tabs {
            return self.content.clone();
        }
        self.content.split_inclusive('\n').map(|line| line.trim_start_matches('\t')).collect()
    }
}

/// The here-documents that an instruction's text opens, in their order and without content. As in a shell, `<<` counts at the
/// start of a word and outside quotes, after an optional descriptor's number. `<<<` and shifts (`1<<n`, `<<2`) open none.
pub(super) fn opened(line: usize, text: &str) -> Result<Vec<Heredoc>, ParseError> {
    let mut found = Vec::new();
    let mut chars = text.char_indices().peekable();
    let mut quote = None;
    let mut at_start = true;
    while let Some((index, c)) = chars.next() {
        match (quote, c) {
            (Some(q), _) if c == q => quote = None,
            (Some('\''), _) => {}
            (_, '\\') => {
                chars.next();
            }
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, _) if c.is_whitespace() => {
                at_start = true;
                continue;
            }
            (None, '0'..='9') if at_start => continue,
            (None, '<') if at_start => {
                if let Some((heredoc, length)) = marker(&text[index..]) {
                    if found.len() == MAX_HEREDOCS {
                        return Err(ParseError::new(line, format!("there are more than {MAX_HEREDOCS} here-documents")));
                    }
                    found.push(heredoc);
                    while chars.next_if(|(at, _)| *at < index + length).is_some() {}
                }
            }
            _ => {}
        }
        at_start = false;
    }
    Ok(found)
}

/// Whether the text is one here-document and nothing else.
pub(super) fn is_only_marker(text: &str) -> bool {
    let text = text.trim();
    marker(text.trim_start_matches(|c: char| c.is_ascii_digit())).is_some_and(|(_, length)| length == text.len())
}

/// Parses `<<EOF`, `<<-EOF`, `<<"EOF"`, or `<<'EOF'` at the start of a text; also returns its length in bytes.
pub(super) fn marker(text: &str) -> Option<(Heredoc, usize)> {
    let rest = text.strip_prefix("<<")?;
    let (rest, strips_tabs) = rest.strip_prefix('-').map_or((rest, false), |rest| (rest, true));
    let mut name = String::new();
    let mut quote = None;
    let mut expands = true;
    let mut length = rest.len();
    for (index, c) in rest.char_indices() {
        match (quote, c) {
            (Some(q), _) if c == q => quote = None,
            (Some(_), _) => name.push(c),
            (None, '\'' | '"') => {
                expands = false;
                quote = Some(c);
            }
            (None, _) if c.is_ascii_alphanumeric() || "._-".contains(c) => name.push(c),
            (None, _) => {
                length = index;
                break;
            }
        }
    }
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    (starts_well && quote.is_none()).then(|| {
        let heredoc = Heredoc { name, expands, strips_tabs, content: String::new() };
        (heredoc, text.len() - rest.len() + length)
    })
}
