//! Finds tools by the names that clients use, and names sessions.

use std::collections::HashMap;

/// Longest part of a worker's name, and of a session's own, in a session's name, in characters.
const KEPT: usize = 32;

/// Result of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    Tool(&'a str),
    Ambiguous(Vec<String>),
    Nothing,
}

/// The names of all tools, in the order of their registration.
#[derive(Debug, Default)]
pub(crate) struct Names {
    full: HashMap<String, usize>,
    order: Vec<String>,
    simple: HashMap<String, Vec<usize>>,
    /// By the names that models get, which can't contain colons and dots.
    shown: HashMap<String, usize>,
}

/// The part after the colon; the whole name if it has none.
pub(crate) fn simple(full: &str) -> &str {
    full.split_once(':').map_or(full, |(_, simple)| simple)
}

/// The part before the colon: the type of the session in which it works.
pub(crate) fn prefix(full: &str) -> Option<&str> {
    full.split_once(':').map(|(prefix, _)| prefix)
}

impl Names {
    /// False for a name that exists.
    pub(crate) fn add(&mut self, full: &str) -> bool {
        let at = self.order.len();
        if self.full.contains_key(full) {
            return false;
        }
        self.full.insert(full.to_owned(), at);
        self.order.push(full.to_owned());
        self.shown.entry(shown(full)).or_insert(at);
        self.simple.entry(simple(full).to_owned()).or_default().push(at);
        true
    }

    /// Tries the full name first; for a name without a colon, then `prefix.tool`, `prefix_tool` and `prefix-tool`, split at the
    /// first separator; then the name that models get; then a simple name that only one tool has.
    pub(crate) fn find(&self, given: &str) -> Found<'_> {
        if let Some(&at) = self.full.get(given) {
            return Found::Tool(&self.order[at]);
        }
        if given.contains(':') {
            return Found::Nothing;
        }
        for separator in ['.', '_', '-'] {
            if let Some((prefix, rest)) = given.split_once(separator)
                && let Some(&at) = self.full.get(&format!("{prefix}:{rest}"))
            {
                return Found::Tool(&self.order[at]);
            }
        }
        if let Some(&at) = self.shown.get(given) {
            return Found::Tool(&self.order[at]);
        }
        match self.simple.get(given).map(Vec::as_slice) {
            Some([at]) => Found::Tool(&self.order[*at]),
            Some(several) => Found::Ambiguous(several.iter().map(|&at| self.order[at].clone()).collect()),
            None => Found::Nothing,
        }
    }
}

/// A tool's name as models get it: letters, digits, `_` and `-`, at most 64.
pub(crate) fn shown(full: &str) -> String {
    fit(full).chars().take(64).collect()
}

fn fit(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' }).collect()
}

/// `{type}_{worker}_{NNN}[_{custom}]`.
pub(crate) fn session_name(resource_type: &str, worker: &str, number: u32, custom: Option<&str>) -> String {
    let worker = fit(worker);
    let worker: String = worker.trim_matches('-').chars().take(KEPT).collect();
    let worker = if worker.is_empty() { "worker" } else { &worker };
    let mut name = format!("{resource_type}_{worker}_{number:03}");
    let custom = fit(custom.unwrap_or_default());
    let custom: String = custom.trim_matches(['-', '_']).chars().take(KEPT).collect();
    if !custom.is_empty() {
        name.push('_');
        name.push_str(&custom);
    }
    name
}

/// The id of a worker's trajectory, or of one of its tasks: its shortened name, with `-` for other characters, and a hash of
/// the whole name.
pub fn trajectory_id(worker: &str, task: Option<&str>) -> String {
    let mut hash = blake3::Hasher::new();
    hash.update(worker.as_bytes());
    if let Some(task) = task {
        hash.update(&[0]);
        hash.update(task.as_bytes());
    }
    let short = |text: &str, most: usize| -> String { fit(text).trim_matches('-').chars().take(most).collect() };
    let hash = &hash.finalize().to_hex()[..12];
    match task {
        Some(task) => format!("w-{}-{}-{hash}", short(worker, 20), short(task, 20)),
        None => format!("w-{}-{hash}", short(worker, 32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_as_agentflow_finds_them() {
        let mut names = Names::default();
        for name in [
            "web:search",
            "web:image_search",
            "doc:search",
            "text2sql:list_databases",
            "ds_run_python",
            "demo:incr",
            "mcp:fs.read_file",
        ] {
            assert!(names.add(name));
        }
        assert!(!names.add("demo:incr"));
        for (given, wanted) in [
            ("web:search", "web:search"),
            ("web-search", "web:search"),
            ("web_image_search", "web:image_search"),
            ("web.search", "web:search"),
            ("text2sql_list_databases", "text2sql:list_databases"),
            ("list_databases", "text2sql:list_databases"),
            ("ds_run_python", "ds_run_python"),
            ("incr", "demo:incr"),
            ("mcp-fs-read_file", "mcp:fs.read_file"),
        ] {
            assert_eq!(names.find(given), Found::Tool(wanted), "{given}");
        }
        for given in ["ds-run_python", "nope:nothing", "nope", "", "web:image-search", "demo:", ":"] {
            assert_eq!(names.find(given), Found::Nothing, "{given}");
        }
        assert_eq!(names.find("search"), Found::Ambiguous(vec!["web:search".to_owned(), "doc:search".to_owned()]));
    }

    #[test]
    fn sessions_and_trajectories_have_names_that_fit() {
        for (worker, custom, wanted) in [
            ("w1", Some("my vm!!/é_"), "demo_w1_001_my-vm"),
            ("../../etc/pass wd:ü", None, "demo_etc-pass-wd_001"),
            ("", Some("--__"), "demo_worker_001"),
            ("ü", None, "demo_worker_001"),
        ] {
            assert_eq!(session_name("demo", worker, 1, custom), wanted);
        }
        let long = session_name("demo", &"w".repeat(60), 12, Some(&"c".repeat(60)));
        assert_eq!(long, format!("demo_{}_012_{}", "w".repeat(32), "c".repeat(32)));
        for worker in ["w1", "", "../..", &"ü".repeat(200)] {
            for task in [None, Some("t/1"), Some("")] {
                let id = trajectory_id(worker, task);
                assert!(id.len() <= 64 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{id}");
            }
        }
        assert_ne!(trajectory_id("a", Some("b")), trajectory_id("a", None));
    }
}
