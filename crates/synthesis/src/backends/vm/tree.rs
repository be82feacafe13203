//! Converts the accessibility tree for models: a table of what is on the screen.

use serde_json::Value;

/// Longest table, in characters, without its last line.
const MAX_TABLE: usize = 30_000;
/// Longest name, and longest text, in characters.
const MAX_NAME: usize = 120;
const MAX_TEXT: usize = 600;
/// Levels of the tree that are read.
const MAX_DEPTH: usize = 64;
const HEAD: &str = "tag\tname\ttext\tstate\tcentre (x, y)\tsize (w, h)";
/// States that show what can be done with an element, or was done.
const STATES: [&str; 10] =
    ["focused", "checked", "selected", "pressed", "expanded", "collapsed", "editable", "read only", "active", "modal"];
/// Containers, which are listed only if they have a name.
const CONTAINERS: [&str; 14] = [
    "filler",
    "panel",
    "frame",
    "window",
    "viewport",
    "scroll pane",
    "split pane",
    "layered pane",
    "root pane",
    "glass pane",
    "unknown",
    "application",
    "section",
    "desktop frame",
];
const WINDOWS: [&str; 4] = ["frame", "window", "dialog", "alert"];

/// A table of what is on a screen of this size: first windows without accessibility data, then the elements of programs.
pub(super) fn table(told: &Value, windows: &Value, size: (u32, u32)) -> String {
    let mut lines = Vec::new();
    let mut framed = Vec::new();
    walk(&told["tree"], size, 0, &mut lines, &mut framed);
    let untold = windows.as_array().into_iter().flatten().filter_map(|window| {
        let title = window["title"].as_str().unwrap_or_default();
        if window["minimised"] == Value::Bool(true) || framed.iter().any(|name| name == title) {
            return None;
        }
        let state = if window["active"] == Value::Bool(true) { "active" } else { "" };
        line("window", title, "", state, &window["box"], size)
    });
    let mut table = HEAD.to_owned();
    let (mut room, mut left) = (MAX_TABLE - HEAD.len(), 0_usize);
    for line in untold.collect::<Vec<_>>().into_iter().chain(lines) {
        let length = line.chars().count() + 1;
        if left > 0 || length > room {
            left += 1;
            continue;
        }
        room -= length;
        table.push('\n');
        table.push_str(&line);
    }
    if left > 0 {
        table.push_str(&format!("\n({left} more elements are left out)"));
    }
    if told["truncated"] == Value::Bool(true) {
        table.push_str("\n(there are more elements than were read)");
    }
    table
}

fn walk(node: &Value, size: (u32, u32), depth: usize, lines: &mut Vec<String>, framed: &mut Vec<String>) {
    let role = node["role"].as_str().unwrap_or_default();
    let name = node["name"].as_str().unwrap_or_default();
    let text = match &node["value"] {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    };
    if WINDOWS.contains(&role) {
        framed.push(name.to_owned());
    }
    let states: Vec<&str> = node["states"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut state: Vec<&str> = STATES.into_iter().filter(|state| states.contains(state)).collect();
    // An element is insensitive if it has neither the state `enabled` nor `sensitive`.
    if !states.contains(&"sensitive") && !CONTAINERS.contains(&role) && !states.is_empty() {
        state.push("disabled");
    }
    let is_something = !name.is_empty() || !text.is_empty() || !CONTAINERS.contains(&role);
    if is_something && let Some(line) = line(role, name, &text, &state.join(","), &node["box"], size) {
        lines.push(line);
    }
    if depth < MAX_DEPTH {
        for child in node["children"].as_array().into_iter().flatten() {
            walk(child, size, depth + 1, lines, framed);
        }
    }
}

/// None for an element that is not on the screen.
fn line(tag: &str, name: &str, text: &str, state: &str, place: &Value, size: (u32, u32)) -> Option<String> {
    let number = |field: &str| place[field].as_i64();
    let (x, y, width, height) = (number("x")?, number("y")?, number("width")?, number("height")?);
    // The middle of the visible part, so that a click there hits it.
    let middle = |from: i64, length: i64, all: u32| {
        let (from, to) = (from.max(0), from.saturating_add(length).min(all.into()));
        (from < to).then_some((from + to) / 2)
    };
    let (column, row) = (middle(x, width, size.0)?, middle(y, height, size.1)?);
    let (name, text) = (plain(name, MAX_NAME), plain(text, MAX_TEXT));
    Some(format!("{}\t{name}\t{text}\t{state}\t({column}, {row})\t({width}, {height})", tag.replace(' ', "-")))
}

/// The text on one line, with `most` characters at most.
fn plain(text: &str, most: usize) -> String {
    let mut line: String = text
        .chars()
        .take(most)
        .flat_map(|c| match c {
            '\n' => ['\\', 'n'].into_iter().take(2),
            '\t' => ['\\', 't'].into_iter().take(2),
            c if c.is_control() => [' ', ' '].into_iter().take(1),
            c => [c, c].into_iter().take(1),
        })
        .collect();
    if text.chars().nth(most).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(role: &str, name: &str, at: (i64, i64, i64, i64), children: Vec<Value>) -> Value {
        let place = json!({"x": at.0, "y": at.1, "width": at.2, "height": at.3});
        json!({"role": role, "name": name, "states": ["sensitive", "showing"], "box": place, "children": children})
    }

    #[test]
    fn what_is_on_the_screen_has_a_line_and_the_rest_has_none() {
        let mut text = node("text", "", (10, 10, 20, 20), vec![]);
        text["value"] = "a\tb\nc".into();
        text["states"] = json!(["focused", "editable"]);
        let told = json!({"truncated": false, "tree": node("desktop frame", "", (0, 0, 100, 100), vec![
            node("frame", "Editor", (0, 0, 100, 100), vec![
                node("filler", "", (0, 0, 100, 100), vec![text]),
                node("push button", "Off", (100, 0, 20, 20), vec![]),
                node("push button", "Half", (90, 40, 20, 20), vec![]),
                node("menu", "", (0, 0, 10, 10), vec![]),
            ]),
        ])});
        let windows = json!([
            {"title": "Editor", "box": {"x": 0, "y": 0, "width": 9, "height": 9}},
            {"title": "xterm", "active": true, "box": {"x": 0, "y": 0, "width": 50, "height": 50}},
            {"title": "hidden", "minimised": true, "box": {"x": 0, "y": 0, "width": 50, "height": 50}},
        ]);
        let wanted = [
            HEAD,
            "window\txterm\t\tactive\t(25, 25)\t(50, 50)",
            "frame\tEditor\t\t\t(50, 50)\t(100, 100)",
            "text\t\ta\\tb\\nc\tfocused,editable,disabled\t(20, 20)\t(20, 20)",
            "push-button\tHalf\t\t\t(95, 50)\t(20, 20)",
            "menu\t\t\t\t(5, 5)\t(10, 10)",
        ];
        assert_eq!(table(&told, &windows, (100, 100)), wanted.join("\n"));
    }

    #[test]
    fn a_table_is_bounded_and_says_what_is_missing() {
        let many = (0..5000).map(|n| node("push button", &"x".repeat(n), (1, 1, 5, 5), vec![])).collect();
        let made = table(&json!({"tree": node("frame", "f", (0, 0, 9, 9), many)}), &json!(null), (100, 100));
        assert!(made.chars().count() < MAX_TABLE + 100);
        let lines = made.lines().count();
        assert!(made.ends_with(&format!("({} more elements are left out)", 5001 - (lines - 2))), "{lines}");
        for hostile in [json!(null), json!([]), json!({"tree": {"children": {"a": 1}, "box": {"x": i64::MAX}}})] {
            assert_eq!(table(&hostile, &hostile, (0, 0)), HEAD);
        }
    }
}
