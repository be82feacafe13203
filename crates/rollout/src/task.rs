//! Tasks: one JSON object per line of a file.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::{Fault, RolloutError};

/// Maximum number of reported faults; it may be a file of something else altogether.
const MOST_FAULTS: usize = 10;
/// Maximum size of an id, in bytes; it becomes a variable of the agent's environment.
const MAX_ID: usize = 1024;

/// One task from its line.
#[derive(Debug, Clone)]
pub struct Task {
    /// Its `id`, or the number of its line.
    pub id: String,
    /// Its JSON, with all fields unchanged, and with its id.
    pub json: Box<RawValue>,
}

/// The tasks of a file in their order, and the file's identity.
#[derive(Debug, Clone)]
pub struct Tasks {
    pub tasks: Vec<Task>,
    pub digest: String,
}

impl Task {
    /// The task's question: `question`, or `content` in seed rows.
    pub fn question(&self) -> String {
        let fields: Map<String, Value> = serde_json::from_str(self.json.get()).unwrap_or_default();
        let text = ["question", "content"].iter().find_map(|name| fields.get(*name));
        match text {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        }
    }
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    id: Option<Value>,
}

impl Tasks {
    /// Reads a file completely, and refuses it if one line is wrong: hours of work shouldn't end at a typing error.
    pub fn read(path: &Path) -> Result<Self, RolloutError> {
        let text = std::fs::read(path).map_err(RolloutError::io("read", path))?;
        let mut hasher = blake3::Hasher::new();
        let mut tasks = Vec::new();
        let mut faults = Vec::new();
        let mut more = 0;
        let mut lines_of: HashMap<String, usize> = HashMap::new();
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let number = index + 1;
            let read = parse(line, number).and_then(|task| match lines_of.insert(task.id.clone(), number) {
                Some(first) => Err(format!("the id {:?} is that of line {first} too", task.id)),
                None => Ok(task),
            });
            match read {
                Ok(task) => {
                    hasher.update(task.json.get().as_bytes()).update(b"\n");
                    tasks.push(task);
                }
                Err(why) if faults.len() < MOST_FAULTS => faults.push(Fault { line: number, why }),
                Err(_) => more += 1,
            }
        }
        if !faults.is_empty() {
            return Err(RolloutError::BadTasks { path: path.to_owned(), faults, more });
        }
        if tasks.is_empty() {
            return Err(RolloutError::NoTasks { path: path.to_owned() });
        }
        Ok(Self { tasks, digest: hasher.finalize().to_hex().to_string() })
    }
}

fn parse(line: &[u8], number: usize) -> Result<Task, String> {
    let text = std::str::from_utf8(line).map_err(|_| "it is not UTF-8".to_owned())?;
    // Within JSON it is only white space, and readers of the results take it for the end of a line.
    let text = &text.replace('\r', " ");
    let json: Box<RawValue> = serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
    if !text.starts_with('{') {
        return Err("it is not a JSON object".to_owned());
    }
    let head: Head = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let id = match head.id {
        None | Some(Value::Null) => number.to_string(),
        Some(Value::String(id)) if id.is_empty() => return Err("its id is empty".to_owned()),
        Some(Value::String(id)) if id.contains('\0') => return Err("its id has a NUL".to_owned()),
        Some(Value::String(id)) if id.len() > MAX_ID => return Err(format!("its id is longer than {MAX_ID} bytes")),
        Some(Value::String(id)) => return Ok(Task { id, json }),
        Some(Value::Number(id)) => return Ok(Task { id: id.to_string(), json }),
        Some(_) => return Err("its id is neither a text nor a number".to_owned()),
    };
    let mut fields: Map<String, Value> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    fields.insert("id".to_owned(), Value::String(id.clone()));
    let json = serde_json::value::to_raw_value(&fields).map_err(|error| error.to_string())?;
    Ok(Task { id, json })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Tasks, RolloutError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Tasks::read(file.path())
    }

    #[test]
    fn rows_of_benchmarks_and_seeds_are_read_and_all_their_fields_kept() {
        let text = "{\"id\": \"a\", \"question\": \"q\", \"big\": 123456789012345678901234567890, \"z\": 1.0}\r\n\n\
                    {\"content\": \"seed\", \"kwargs\": {\"seed_path\": \"x\"}}\n{\"id\": 7}\n";
        let tasks = read(text).unwrap().tasks;
        let ids: Vec<_> = tasks.iter().map(|task| task.id.as_str()).collect();
        assert_eq!(ids, ["a", "3", "7"]);
        assert!(tasks[0].json.get().contains("\"big\": 123456789012345678901234567890, \"z\": 1.0"));
        assert!(tasks[1].json.get().contains("\"id\":\"3\""), "{}", tasks[1].json);
        assert_eq!((tasks[0].question(), tasks[1].question()), ("q".to_owned(), "seed".to_owned()));
    }

    #[test]
    fn faults_are_told_with_their_lines_and_all_at_once() {
        let error = read("{\"id\": 1}\nnot json\n[1]\n{\"id\": \"1\"}\n{\"id\": \"\"}\n{\"id\": []}\n").unwrap_err();
        let text = error.to_string();
        for expected in
            ["line 2: it is not JSON", "line 3: it is not a JSON object", "line 4: the id \"1\" is that of line 1 too"]
        {
            assert!(text.contains(expected), "{text}");
        }
        assert!(text.contains("line 5: its id is empty") && text.contains("line 6: its id is neither"), "{text}");
        let long = format!("{{\"id\": \"{}\"}}", "x".repeat(MAX_ID + 1));
        assert!(read(&long).unwrap_err().to_string().contains("longer than 1024 bytes"));
        assert!(matches!(read("\n\n"), Err(RolloutError::NoTasks { .. })));
        assert!(read(&"x\n".repeat(25)).unwrap_err().to_string().ends_with("and 15 more"));
        // A line without an id gets its number, which may be another's id.
        assert!(read("{\"id\": \"2\"}\n{}\n").unwrap_err().to_string().contains("line 2: the id \"2\""));
    }
}
