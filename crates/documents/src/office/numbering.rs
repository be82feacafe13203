//! Numbered lists of Word, and their current numbers.

use std::collections::HashMap;

use super::xml::Element;

/// A list and a nesting level in it.
pub(super) type Level = (String, usize);

/// The numbering of Word lists.
#[derive(Debug, Default)]
pub(super) struct Numbering {
    /// Levels with bullets; a level that is not here has a number.
    bullets: HashMap<Level, bool>,
    counts: HashMap<Level, u32>,
}

/// The deepest level of a list in Word.
const MAX_LEVEL: usize = 8;

impl Numbering {
    pub(super) fn read(root: &Element) -> Self {
        let mut kinds: HashMap<&str, Vec<(usize, bool)>> = HashMap::new();
        for kind in root.named("abstractNum") {
            let Some(id) = kind.attribute("abstractNumId") else { continue };
            let levels = kind.named("lvl").filter_map(|level| {
                let depth = level.attribute("ilvl")?.parse().ok()?;
                Some((depth, matches!(level.value("numFmt"), Some("bullet" | "none"))))
            });
            kinds.insert(id, levels.collect());
        }
        let mut bullets = HashMap::new();
        for list in root.named("num") {
            let (Some(id), Some(kind)) = (list.attribute("numId"), list.value("abstractNumId")) else { continue };
            for (depth, bullet) in kinds.get(kind).into_iter().flatten() {
                bullets.insert((id.to_owned(), *depth), *bullet);
            }
        }
        Self { bullets, counts: HashMap::new() }
    }

    /// The marker of a list's next item, indented for its level.
    pub(super) fn mark(&mut self, list: &str, level: usize) -> String {
        let level = level.min(MAX_LEVEL);
        let indent = "    ".repeat(level);
        let at = |level| (list.to_owned(), level);
        if self.bullets.get(&at(level)).copied().unwrap_or(self.bullets.is_empty()) {
            return format!("{indent}- ");
        }
        for deeper in level + 1..=MAX_LEVEL {
            self.counts.remove(&at(deeper));
        }
        let count = self.counts.entry(at(level)).or_default();
        *count = count.saturating_add(1);
        format!("{indent}{count}. ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::xml::parse;
    use super::Numbering;

    #[test]
    fn deeper_levels_restart() {
        let root = parse(
            r#"<numbering><abstractNum abstractNumId="7"><lvl ilvl="0"><numFmt val="decimal"/></lvl><lvl ilvl="1"><numFmt val="lowerLetter"/></lvl>
            <lvl ilvl="2"><numFmt val="bullet"/></lvl></abstractNum><num numId="1"><abstractNumId val="7"/></num></numbering>"#,
        )
        .unwrap();
        let mut numbering = Numbering::read(&root);
        let marks: Vec<String> = [0, 1, 1, 2, 0, 1].iter().map(|level| numbering.mark("1", *level)).collect();
        assert_eq!(marks, ["1. ", "    1. ", "    2. ", "        - ", "2. ", "    1. "]);
        assert_eq!(Numbering::default().mark("9", 99), format!("{}- ", "    ".repeat(8)));
    }
}
