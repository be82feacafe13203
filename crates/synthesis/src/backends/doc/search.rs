//! `doc:search`: finds keywords in a document, in AgentFlow's format.

use super::tree::Element;

/// Characters that are shown on each side of a keyword.
const AROUND: usize = 256;
/// Between the answers for two keywords, or two sections.
const SEPARATOR: &str = "\n\n=============================\n\n";

/// Answers of several keywords or sections as one text.
pub(super) fn joined(parts: &[String]) -> String {
    parts.join(SEPARATOR).trim_matches(['=', '\n']).to_owned()
}

/// `most`: results of one keyword; a negative number leaves out that many at the end.
pub(super) fn search(document: &Element, words: &[String], most: i64) -> String {
    let each: Vec<String> = words
        .iter()
        .map(|word| {
            let found = find(document, word);
            let count = found.len();
            if count == 0 {
                return format!(
                    "A Document search for `{word}` found 0 results:\n\nWe didn't find any section or paragraph that contains the keyword `{word}`"
                );
            }
            let all = i64::try_from(count).unwrap_or(i64::MAX);
            let kept = if most < 0 { (all + most).max(0) } else { all.min(most) };
            let said = if all > most {
                format!(
                    "A Document search for `{word}` found {count} results. To shorten response, the first {most} results are listed below:"
                )
            } else {
                format!("A Document search for `{word}` found {count} results:")
            };
            let mut results = Element::new("Search_Result");
            results.children = found.into_iter().take(usize::try_from(kept).unwrap_or_default()).collect();
            format!("{said}\n\n{}", results.pretty())
        })
        .collect();
    joined(&each)
}

fn find(document: &Element, word: &str) -> Vec<Element> {
    let wanted = word.to_lowercase();
    let holds = |text: &str| text.to_lowercase().contains(&wanted);
    let mut section = String::new();
    let mut found = Vec::new();
    for element in document.all() {
        let own = |name: &str| element.attribute(name).unwrap_or_default().to_owned();
        let item = |name: &str, of: Option<&str>, page: &str, text: String| {
            let mut attributes = vec![("type".to_owned(), element.name.clone())];
            attributes.extend(of.map(|of| (of.to_owned(), own(of))));
            attributes.extend([("section_id".to_owned(), section.clone()), ("page_num".to_owned(), own(page))]);
            Element { attributes, text, ..Element::new(name) }
        };
        match element.name.as_str() {
            "Section" => {
                section = own("section_id");
                // The element's heading, if it has one.
                let first = element.children.first().filter(|first| holds(&first.text));
                if let Some(first) = first {
                    let attributes =
                        [("type", "Section".to_owned()), ("section_id", section.clone()), ("page_num", own("start_page_num"))];
                    let attributes = attributes.map(|(name, value)| (name.to_owned(), value)).to_vec();
                    found.push(Element { attributes, text: first.text.clone(), ..Element::new("Item") });
                }
            }
            "Paragraph" if holds(&element.text) => found.push(item("Item", None, "page_num", snippet(&element.text, &wanted))),
            "HTML_Table" if holds(&element.text) => found.push(item("Item", Some("table_id"), "page_num", element.text.clone())),
            "Image" if element.children.iter().any(|child| holds(&child.text)) => {
                let mut image = item("Image", Some("image_id"), "page_num", String::new());
                let parts = element.children.iter().filter(|child| matches!(child.name.as_str(), "Alt_Text" | "Caption"));
                image.children = parts.cloned().collect();
                found.push(image);
            }
            _ => {}
        }
    }
    found
}

/// The text around each match of a lower-case word, up to the next white space.
fn snippet(text: &str, wanted: &str) -> String {
    if wanted.is_empty() {
        return String::new();
    }
    let chars: Vec<char> = text.chars().collect();
    // A character may become several in lower case: the origin of each of those.
    let (mut lower, mut from) = (Vec::new(), Vec::new());
    for (at, c) in chars.iter().enumerate() {
        for c in c.to_lowercase() {
            lower.push(c);
            from.push(at);
        }
    }
    let wanted: Vec<char> = wanted.chars().collect();
    let mut windows: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    while at + wanted.len() <= lower.len() {
        if lower[at..at + wanted.len()] != wanted[..] {
            at += 1;
            continue;
        }
        let (first, last) = (from[at], from[at + wanted.len() - 1] + 1);
        let (begin, end) = (first.saturating_sub(AROUND), (last + AROUND).min(chars.len()));
        match windows.last_mut() {
            Some(before) if begin <= before.1 => before.1 = end,
            _ => windows.push((begin, end)),
        }
        at += wanted.len();
    }
    let shown = windows.into_iter().map(|(mut begin, mut end)| {
        while begin > 0 && !chars[begin - 1].is_whitespace() {
            begin -= 1;
        }
        while end < chars.len() && !chars[end].is_whitespace() {
            end += 1;
        }
        let kept: String = chars[begin..end].iter().collect();
        format!("{}{kept}{}", if begin > 0 { "... " } else { "" }, if end < chars.len() { " ..." } else { "" })
    });
    shown.collect::<Vec<_>>().join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paragraphs_are_cut_at_words_around_what_was_found() {
        let text = format!("{}İstanbul needle {}", "before ".repeat(100), "after ".repeat(100));
        let shown = snippet(&text, "needle");
        assert!(shown.starts_with("... before ") && shown.ends_with("after ..."), "{shown}");
        assert!(shown.contains("İstanbul needle after") && shown.chars().count() < 2 * AROUND + 40, "{shown}");
        let two = snippet(&format!("needle {} needle", "x ".repeat(1000)), "needle");
        assert_eq!(two.lines().count(), 2, "{two}");
        assert_eq!(snippet("a short one", "short"), "a short one");
    }
}
