//! The YAML between two lines of `---` at the start of a Markdown file.

use serde_json::{Map, Value};
use serde_saphyr::{Budget, Options};

use crate::DocumentError;

/// Maximum length of front matter, in bytes.
const MAX_BYTES: usize = 64 << 10;
/// Maximum nesting depth.
const MAX_DEPTH: usize = 32;
/// Maximum number of values; values repeated by aliases count each time.
const MAX_NODES: usize = 4_096;

/// A parsed Markdown file.
#[derive(Debug, Clone, PartialEq)]
pub struct FrontMatter<'a> {
    pub fields: Map<String, Value>,
    /// The text after the front matter.
    pub body: &'a str,
}

/// Splits the front matter from a text. A text without one has no fields.
///
/// # Errors
/// If it is not closed, too long, not YAML, or not a mapping.
pub fn front_matter(text: &str) -> Result<FrontMatter<'_>, DocumentError> {
    let malformed = |reason: String| DocumentError::malformed("front matter", reason);
    let text = text.trim_start_matches('\u{feff}');
    let Some(rest) = text.strip_prefix("---").and_then(line_end) else {
        return Ok(FrontMatter { fields: Map::new(), body: text });
    };
    let mut at = 0;
    let (yaml, body) = loop {
        let line = rest[at..].split_inclusive('\n').next();
        let line = line.ok_or_else(|| malformed("its closing line of --- is missing".to_owned()))?;
        if line.trim_end() == "---" {
            break (&rest[..at], &rest[at + line.len()..]);
        }
        at += line.len();
        if at > MAX_BYTES {
            return Err(DocumentError::too_large(format!("front matter of more than {} KiB", MAX_BYTES >> 10)));
        }
    };
    if yaml.trim().is_empty() {
        return Ok(FrontMatter { fields: Map::new(), body });
    }
    let value: Value = serde_saphyr::from_str_with_options(yaml, options()).map_err(|e| malformed(e.to_string()))?;
    match value {
        Value::Object(fields) => Ok(FrontMatter { fields, body }),
        Value::Null => Ok(FrontMatter { fields: Map::new(), body }),
        _ => Err(malformed("it is not a list of names with values".to_owned())),
    }
}

/// The text from the next line on, if the rest of this one is empty.
fn line_end(text: &str) -> Option<&str> {
    let (line, rest) = text.split_once('\n')?;
    line.trim().is_empty().then_some(rest)
}

fn options() -> Options {
    let mut budget = Budget::default();
    budget.max_depth = MAX_DEPTH;
    budget.max_nodes = MAX_NODES;
    let mut options = Options::default();
    options.budget = Some(budget);
    options
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_and_body_are_parted() {
        let text = "---\nname: a\nlist: [1, x]\nnested:\n  key: \"v: w\"\ndate: 2026-01-01\n---\n# Body\n---\nrest";
        let read = front_matter(text).unwrap();
        assert_eq!(
            Value::Object(read.fields),
            json!({"name": "a", "list": [1, "x"], "nested": {"key": "v: w"}, "date": "2026-01-01"})
        );
        assert_eq!(read.body, "# Body\n---\nrest");
        assert_eq!(front_matter("# Only\n").unwrap(), FrontMatter { fields: Map::new(), body: "# Only\n" });
        assert_eq!(front_matter("---\r\nname: a\r\n---\r\nb").unwrap().fields["name"], "a");
        assert_eq!(front_matter("----\nno").unwrap().body, "----\nno");
        assert_eq!(front_matter("---\n---\nb").unwrap().body, "b");
    }

    #[test]
    fn hostile_front_matter_is_refused() {
        let deep = format!("---\na: {}{}\n---\n", "[".repeat(1000), "]".repeat(1000));
        let mut bomb = "---\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..10 {
            let previous = format!("*a{}, ", n - 1).repeat(10);
            bomb.push_str(&format!("a{n}: &a{n} [{}]\n", previous.trim_end_matches(", ")));
        }
        bomb.push_str("---\n");
        let long = format!("---\na: {}\n---\n", "x".repeat(MAX_BYTES));
        for text in ["---\nname: a\n", "---\n- a\n---\n", "---\na: [\n---\n", "---\na: b: c\n---\n", &deep, &bomb, &long] {
            assert!(front_matter(text).is_err(), "{}", &text[..text.len().min(40)]);
        }
    }
}
