//! `ds_*`: data science in the worker's sandbox, never in the server.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::api::{self, Fault, texts};
use super::{Answered, needs, place, quoted, seconds, spec};
use crate::answer::Failure;
use crate::backend::{Backend, Call, ToolSpec};
use crate::place::Place;

const NAME: &str = "ds";
/// Seconds.
const TIMEOUT: f64 = 120.0;
/// Characters of output in an answer.
const OUTPUT: usize = 5000;
/// Rows of a table.
const ROWS: u64 = 50;
/// Bytes of a folder of data that is put into a sandbox.
const MAX_BYTES: u64 = 256 << 20;
const MAX_FILES: usize = 10_000;
/// Where folders of the server are in the sandbox.
const DATA: &str = "/tmp/data";

/// Lists a folder; runs in the sandbox.
const INSPECT: &str = r#"
import csv, os
for folder, folders, files in os.walk("."):
    folders.sort()
    for name in sorted(files):
        path = os.path.relpath(os.path.join(folder, name))
        print(f"{path} ({os.path.getsize(path)} bytes)")
        if name.lower().endswith((".csv", ".tsv")):
            with open(path, newline="", errors="replace") as file:
                rows = csv.reader(file, delimiter="\t" if name.lower().endswith(".tsv") else ",")
                head = next(rows, [])
                count = sum(1 for _ in rows)
            print(f"  {count} rows; columns: {', '.join(head)}")
"#;

const READ_CSV: &str = r#"
import csv, sys
path, most = ARGUMENTS
with open(path, newline="", errors="replace") as file:
    rows = csv.reader(file, delimiter="\t" if path.lower().endswith(".tsv") else ",")
    out = csv.writer(sys.stdout)
    shown = 0
    for row in rows:
        if shown > most:
            print(f"... more than {most} rows")
            break
        out.writerow(row)
        shown += 1
"#;

/// Works on data.
pub struct Ds {
    /// The folder of the server under which data may be.
    root: Option<PathBuf>,
}

impl Ds {
    /// `config`: `seed_root`, or AgentFlow's `seed_path`. Without either, paths are the sandbox's.
    pub fn new(config: &Map<String, Value>) -> Self {
        let root = config.get("seed_root").or_else(|| config.get("seed_path")).and_then(Value::as_str);
        Self { root: root.filter(|root| !root.is_empty()).map(PathBuf::from) }
    }

    /// The folder in the sandbox in which the data is; put there, if it is the server's.
    async fn folder(&self, params: &Map<String, Value>, place: &Place) -> Result<String, Fault> {
        let given = seed(params)?;
        let Some(root) = &self.root else { return Ok(given.to_owned()) };
        let path = api::within(root, given)?;
        let folder = format!("{DATA}/{}", &blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex()[..16]);
        let there = shell(place, &format!("test -e {}.done && echo there", quoted(&folder))).await?;
        if there.trim() == "there" {
            return Ok(folder);
        }
        let files = tokio::task::spawn_blocking(move || gather(&path)).await;
        let files = files.unwrap_or_else(|error| Err(Fault::internal(error.to_string())))?;
        shell(place, &format!("mkdir -p {}", quoted(&folder))).await?;
        for (name, bytes) in files {
            let target = format!("{folder}/{name}");
            if let Some((parent, _)) = name.rsplit_once('/') {
                shell(place, &format!("mkdir -p {}", quoted(&format!("{folder}/{parent}")))).await?;
            }
            let kept = json!({ "file": target, "content": STANDARD.encode(bytes), "encoding": "base64" });
            place.post("/v1/file/write", &kept).await.map_err(Fault::new)?;
        }
        shell(place, &format!("touch {}.done", quoted(&folder))).await?;
        Ok(folder)
    }

    async fn result(&self, call: &Call<'_>) -> Result<Value, Fault> {
        let params = &call.params;
        let code = match call.tool {
            "ds_read_csv" => {
                let file = params["csv_file"].as_str().ok_or_else(|| Fault::new("csv_file has to be a string"))?;
                let most = params.get("max_rows").and_then(Value::as_u64).unwrap_or(ROWS);
                READ_CSV.replace("ARGUMENTS", &format!("{}, {most}", Value::from(file)))
            }
            "ds_inspect_data" => INSPECT.to_owned(),
            _ => params["code"].as_str().ok_or_else(|| Fault::new("code has to be a string"))?.to_owned(),
        };
        let wanted = match params.get("return_vars") {
            None | Some(Value::Null) => Vec::new(),
            Some(_) => texts(params, "return_vars")?,
        };
        let place = place(call.place).map_err(|failure| Fault::new(failure.message))?;
        let folder = self.folder(params, place).await?;
        let mut whole = format!("import os as _os; _os.chdir({})\n{code}\n", Value::from(folder));
        for name in wanted.iter().filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_')) {
            whole.push_str(&format!("\nprint('{name} =', repr(globals().get('{name}')))"));
        }
        let asked = json!({ "language": "python", "code": whole, "timeout": seconds(TIMEOUT, call.deadline).max(1.0) as i64 });
        let done = place.post("/v1/code/execute", &asked).await.map_err(Fault::new)?;
        let mut images = Vec::new();
        for output in done["outputs"].as_array().into_iter().flatten() {
            if let Some(picture) = output["data"]["image/png"].as_str() {
                let description = output["data"]["text/plain"].as_str().unwrap_or("figure");
                images.push(json!({ "type": "png", "base64": picture.trim(), "description": description }));
            }
        }
        let lines = |field: &str| {
            done[field].as_array().map(|lines| lines.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n"))
        };
        let stdout = done["stdout"].as_str().unwrap_or_default();
        if done["status"] != "ok" {
            let why = lines("traceback").or_else(|| done["stderr"].as_str().map(str::to_owned)).unwrap_or_default();
            return Err(Fault::new(format!("{}{}", cut(stdout), cut(&why))));
        }
        Ok(json!({ "result": cut(stdout), "images": images }))
    }
}

/// The folder that a call names.
fn seed(params: &Map<String, Value>) -> Result<&str, Fault> {
    let given = params.get("seed_path").and_then(Value::as_str).filter(|path| !path.is_empty());
    given.ok_or_else(|| Fault::new("seed_path must be provided in kwargs"))
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(OUTPUT) {
        Some((at, _)) => format!("{}...[Truncated]", &text[..at]),
        None => text.to_owned(),
    }
}

async fn shell(place: &Place, command: &str) -> Result<String, Fault> {
    let asked = json!({ "command": command, "hard_timeout": 30 });
    let done = place.post("/v1/bash/exec", &asked).await.map_err(Fault::new)?;
    Ok(done["stdout"].as_str().unwrap_or_default().to_owned())
}

/// The files of a folder, or the one that it is, by their names in it. Links are left out.
fn gather(path: &Path) -> Result<Vec<(String, Vec<u8>)>, Fault> {
    let failed = |error: std::io::Error| Fault::new(format!("the data can't be read: {}", error.kind()));
    let (mut files, mut open, mut bytes) = (Vec::new(), vec![path.to_owned()], 0);
    while let Some(next) = open.pop() {
        let about = std::fs::symlink_metadata(&next).map_err(failed)?;
        if about.is_dir() {
            for entry in std::fs::read_dir(&next).map_err(failed)? {
                open.push(entry.map_err(failed)?.path());
            }
        } else if about.is_file() {
            bytes += about.len();
            if bytes > MAX_BYTES || files.len() >= MAX_FILES {
                return Err(Fault::new(format!("the data is larger than {} MiB or {MAX_FILES} files", MAX_BYTES >> 20)));
            }
            let base = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
            let name = next.strip_prefix(base).unwrap_or(&next).to_string_lossy().into_owned();
            files.push((name, std::fs::read(&next).map_err(failed)?));
        }
    }
    Ok(files)
}

#[async_trait]
impl Backend for Ds {
    fn name(&self) -> &str {
        NAME
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let seed = json!({"type": "string", "description": "The folder of the data."});
        let vars = json!({"type": "array", "items": {"type": "string"}, "description": "Variables to show at the end."});
        vec![
            spec("ds_inspect_data", NAME, "Inspect data directory", json!({"seed_path": seed}), &["seed_path"]),
            spec(
                "ds_read_csv",
                NAME,
                "Read CSV file",
                json!({
                    "csv_file": {"type": "string", "description": "The file, relative to the folder."},
                    "max_rows": {"type": "integer", "default": ROWS, "description": "Rows at most."},
                    "seed_path": seed,
                }),
                &["csv_file", "seed_path"],
            ),
            spec(
                "ds_run_python",
                NAME,
                "Run Python code",
                json!({"code": {"type": "string", "description": "The code; it runs in the folder."}, "return_vars": vars, "seed_path": seed}),
                &["code", "seed_path"],
            ),
        ]
    }

    fn is_resource(&self) -> bool {
        false
    }

    fn needs_place(&self) -> bool {
        true
    }

    fn check(&self, tool: &str, params: &Map<String, Value>, worker: &str) -> Result<(), Failure> {
        let needed: (&str, &[&str]) = match tool {
            "ds_read_csv" => ("ReadCsvTool.execute", &["csv_file"]),
            "ds_run_python" => ("RunPythonTool.execute", &["code"]),
            _ => ("InspectDataTool.execute", &[]),
        };
        let checked = needs(needed.0, params, needed.1).map_err(Fault::internal).and_then(|()| seed(params).map(drop));
        let empty = params.get("code").and_then(Value::as_str).is_some_and(|code| code.trim().is_empty());
        let checked = checked.and(if empty { Err(Fault::new("code is empty")) } else { Ok(()) });
        match checked {
            Ok(()) => Ok(()),
            Err(fault) => api::answer(params, worker, Err(fault)).map(drop),
        }
    }

    async fn call(&self, call: Call<'_>) -> Answered {
        let result = self.result(&call).await;
        api::answer(&call.params, call.worker, result)
    }
}
