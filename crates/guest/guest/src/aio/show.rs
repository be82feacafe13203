//! Formats answers for people: texts unchanged, objects as lines, lists of objects as tables.

use serde_json::{Map, Value};

/// The widest cell of a table, in characters.
const WIDEST_CELL: usize = 60;

/// Formats an answer's data, or its message if it has no data.
pub(super) fn text(answer: &Value) -> String {
    let mut out = String::new();
    match (answer.get("data"), answer.get("message")) {
        (Some(Value::Null) | None, Some(Value::String(message))) => out.push_str(&harmless(message)),
        (Some(data), Some(_)) => value(&mut out, data, 0),
        // A bare object.
        _ => value(&mut out, answer, 0),
    }
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

/// Makes text from a sandbox safe for a terminal: replaces control characters except line ends and tabs.
pub(super) fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c }).collect()
}

fn value(out: &mut String, shown: &Value, depth: usize) {
    match shown {
        Value::Object(object) => lines(out, object, depth),
        Value::Array(items) => match table(items) {
            Some(rows) => rows.iter().for_each(|row| line(out, depth, row)),
            None => items.iter().for_each(|item| value(out, item, depth)),
        },
        scalar => plain(scalar).lines().for_each(|text| line(out, depth, text)),
    }
}

fn line(out: &mut String, depth: usize, text: &str) {
    out.push_str(&format!("{:1$}{text}\n", "", depth * 2));
}

/// One line `name  value` for each field, with longer values below their names. Leaves out null and empty values.
fn lines(out: &mut String, object: &Map<String, Value>, depth: usize) {
    let shown: Vec<(&String, &Value)> = object.iter().filter(|(_, value)| !is_empty(value)).collect();
    let width = shown.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, held) in shown {
        let text = plain(held);
        if matches!(held, Value::Object(_) | Value::Array(_)) || text.contains('\n') {
            line(out, depth, name);
            value(out, held, depth + 1);
        } else {
            line(out, depth, &format!("{name:width$}  {text}"));
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn plain(value: &Value) -> String {
    harmless(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// The rows of a table, starting with its head. `None` if the table would be empty, or if not all items are objects of single
/// values.
fn table(items: &[Value]) -> Option<Vec<String>> {
    let objects: Vec<&Map<String, Value>> = items.iter().map(Value::as_object).collect::<Option<_>>()?;
    if objects.iter().any(|object| object.values().any(|held| matches!(held, Value::Array(_) | Value::Object(_)))) {
        return None;
    }
    let mut names: Vec<&String> = Vec::new();
    for (name, held) in objects.iter().flat_map(|object| object.iter()) {
        if !is_empty(held) && !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return None;
    }
    let head = names.iter().map(|name| name.to_uppercase()).collect();
    let body = objects.iter().map(|object| names.iter().map(|name| object.get(*name).map_or(String::new(), cell)).collect());
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(body).collect();
    let widths: Vec<usize> =
        (0..names.len()).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let padded = rows.iter().map(|row| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    });
    Some(padded.collect())
}

fn cell(value: &Value) -> String {
    if value.is_null() {
        return String::new();
    }
    let text = plain(value).replace(['\n', '\t'], " ");
    if text.chars().count() <= WIDEST_CELL {
        text
    } else {
        format!("{}…", text.chars().take(WIDEST_CELL - 1).collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(data: Value) -> String {
        text(&json!({"success": true, "message": "Done", "data": data, "hint": null}))
    }

    #[test]
    fn objects_are_lines_and_lists_of_them_tables() {
        assert_eq!(shown(json!({"a": 1, "long": "x\ny", "none": null})), "a     1\nlong\n  x\n  y\n");
        assert_eq!(shown(json!([{"name": "a", "size": 5}, {"name": "bcd", "size": null}])), "NAME  SIZE\na     5\nbcd\n");
        assert_eq!(shown(json!({"all": [{"n": {"m": 1}}]})), "all\n  n\n    m  1\n");
        assert_eq!(shown(json!(["a", "b"])), "a\nb\n");
        assert_eq!(shown(json!("# Text\n")), "# Text\n");
        assert_eq!(shown(Value::Null), "Done\n");
        assert_eq!(shown(json!([])), "");
    }

    #[test]
    fn nothing_acts_on_a_terminal() {
        assert_eq!(shown(json!("\u{1b}[2Jx\ty")), "\u{fffd}[2Jx\ty\n");
        assert!(shown(json!([{"a": "x".repeat(100)}])).contains(&format!("{}…\n", "x".repeat(59))));
    }
}
