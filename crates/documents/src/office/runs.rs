//! Runs of text with their emphasis, as Markdown.

/// The formatting of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) bold: bool,
    pub(super) italic: bool,
    pub(super) strike: bool,
    /// Target of its link.
    pub(super) link: Option<String>,
}

/// A paragraph that is being built: runs with the same formatting are joined.
#[derive(Debug, Default)]
pub(super) struct Runs(Vec<(Style, String)>);

impl Runs {
    pub(super) fn push(&mut self, style: &Style, text: &str) {
        match self.0.last_mut() {
            Some((last, joined)) if last == style => joined.push_str(text),
            _ => self.0.push((style.clone(), text.to_owned())),
        }
    }

    /// The text with Markdown marks.
    pub(super) fn markdown(&self) -> String {
        let mut out = String::new();
        for (style, text) in &self.0 {
            // Marks must touch the text: spaces go outside them.
            let core = text.trim();
            if core.is_empty() {
                out.push_str(text);
                continue;
            }
            let start = text.len() - text.trim_start().len();
            let end = start + core.len();
            out.push_str(&text[..start]);
            let mark = match (style.bold, style.italic) {
                (true, true) => "***",
                (true, false) => "**",
                (false, true) => "*",
                (false, false) => "",
            };
            let strike = if style.strike { "~~" } else { "" };
            let marked = format!("{strike}{mark}{core}{mark}{strike}");
            match &style.link {
                Some(link) => out.push_str(&format!("[{marked}]({})", address(link))),
                None => out.push_str(&marked),
            }
            out.push_str(&text[end..]);
        }
        out
    }

    /// The text without marks.
    pub(super) fn plain(&self) -> String {
        self.0.iter().map(|(_, text)| text.as_str()).collect()
    }
}

/// An address that can't close its brackets.
fn address(link: &str) -> String {
    link.replace(' ', "%20").replace('(', "%28").replace(')', "%29").replace(['\n', '\r', '<', '>'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emphasis_touches_the_words() {
        let bold = Style { bold: true, ..Style::default() };
        let link = Style { link: Some("http://x/a b".into()), ..Style::default() };
        let mut runs = Runs::default();
        for (style, text) in [(&Style::default(), "a "), (&bold, " b"), (&bold, "c "), (&link, "d"), (&bold, "  ")] {
            runs.push(style, text);
        }
        assert_eq!(runs.markdown(), "a  **bc** [d](http://x/a%20b)  ");
        assert_eq!(runs.plain(), "a  bc d  ");
    }
}
