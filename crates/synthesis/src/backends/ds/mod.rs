//! `ds_*`: data science in the worker's sandbox, never in the server. A Python process in the sandbox has the libraries loaded
//! and forks for each call: see `worker.py`.

mod data;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use super::api::{self, Fault, integer, texts};
use super::ask::{Model, setting};
use super::folders::{Folders, Missing, SearchDirs};
use super::{Answered, handle, needs, quoted, seconds, spec};
use crate::answer::Failure;
use crate::backend::{Backend, ToolCall, ToolSpec};
use crate::error::SynthesisError;
use crate::sandboxes::{GuestRequest, SandboxHandle};
use data::Data;

const NAME: &str = "ds";
/// Timeout in seconds of a call with a client that states none.
const TIMEOUT: f64 = 120.0;
/// Default number of rows of a table.
const ROWS: i64 = 50;
/// Default number of files of a folder that are described, and characters of the description.
const MAX_CSV: u64 = 100;
const MAX_CHARACTERS: u64 = 12_000;
/// Characters that a model gets for a summary.
const CONTENT: u64 = 50_000;
/// Location of the server's folders in the sandbox.
const DATA: &str = "/tmp/data";
/// The process that runs calls, and its location in the sandbox.
const WORKER: &str = include_str!("worker.py");
const WORKER_DIR: &str = "/tmp/.ds";
/// Seconds for its start. It loads libraries after that.
const START: u64 = 60;
/// Sandboxes with remembered processes.
const MAX_PORTS: usize = 10_000;
const URL: &str = "https://openrouter.ai/api/v1";

/// Data science tools.
pub struct Ds {
    config: Map<String, Value>,
    folders: Folders,
    /// The ports of sandboxes' processes, by the sandboxes' names.
    ports: Mutex<HashMap<String, Arc<OnceCell<u16>>>>,
}

/// The data of a call.
struct Seed {
    /// Its path in the sandbox.
    folder: String,
    /// Its name in the call.
    given: String,
    /// The server's folder that is copied there. None: it is the sandbox's own.
    path: Option<PathBuf>,
}

impl Ds {
    /// `config`: AgentFlow's keys, and `seed_root`: the only folder in which `seed_path`s may be. Without it, they may be below
    /// the server's working directory or the configuration's folder. A path that does not exist there is the sandbox's own.
    pub fn new(config: Map<String, Value>, search_dirs: &SearchDirs) -> Self {
        let text = |name: &str| config.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let folders = Folders::new(search_dirs, text("seed_root").or_else(|| text("seed_path")), None);
        Self { config, folders, ports: Mutex::default() }
    }

    fn seed(&self, params: &Map<String, Value>) -> Result<Seed, Fault> {
        let given = named(params)?.to_owned();
        Ok(match self.folders.find(&given) {
            Ok(path) if !path.is_dir() => return Err(Fault::internal(format!("[Errno 20] Not a directory: '{given}'"))),
            Ok(path) => {
                let hash = blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex();
                // Its own name is kept, because code may read it.
                let name = path.file_name().map_or_else(|| "data".into(), |name| name.to_string_lossy());
                Seed { folder: format!("{DATA}/{}/{name}", &hash[..16]), given, path: Some(path) }
            }
            Err(_) => Seed { folder: given.clone(), given, path: None },
        })
    }

    fn hint(&self, seed: &Seed) -> &'static str {
        match self.folders.find(&seed.given) {
            Err(Missing::Outside) if seed.path.is_none() => {
                " It is no folder of the sandbox. Folders of the server are those below its working directory, the folder of its \
                 configuration, or apis.ds.seed_root."
            }
            _ => "",
        }
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.config.get(name).and_then(Value::as_u64).unwrap_or(default)
    }

    async fn result(&self, call: &ToolCall<'_>) -> Result<Value, Fault> {
        let params = &call.params;
        let handle = handle(call.handle).map_err(|failure| Fault::new(failure.message))?;
        let seed = self.seed(params)?;
        let mut request = json!({
            "tool": call.tool,
            "folder": seed.folder,
            "given": seed.given,
            "hint": self.hint(&seed),
            "timeout": seconds(call.deadline.map_or(TIMEOUT, |_| f64::INFINITY), call.deadline),
            "mark": null,
        });
        match call.tool {
            "ds_read_csv" => {
                let file = params["csv_file"].as_str();
                let Some(file) = file else { return Ok(json!({ "result": "Read failed: csv_file has to be a string" })) };
                request["csv_file"] = file.into();
                request["max_rows"] = integer(params, "max_rows")?.unwrap_or(ROWS).into();
            }
            "ds_inspect_data" => {
                request["max_csv"] = self.number("ds_max_csv", MAX_CSV).into();
                request["max_chars"] = self.number("ds_summary_max_chars", MAX_CHARACTERS).into();
            }
            _ => {
                // Without code, the process describes the data.
                request["code"] = params.get("code").and_then(Value::as_str).unwrap_or_default().into();
                request["return_vars"] = match params.get("return_vars") {
                    None | Some(Value::Null) => Vec::new(),
                    Some(_) => texts(params, "return_vars")?,
                }
                .into();
            }
        }
        let mut said = self.call_worker(handle, request, seed).await?;
        if let Some(fault) = said["fault"].as_str() {
            return Err(Fault::internal(fault.to_owned()));
        }
        let mut text = said["text"].as_str().unwrap_or_default().to_owned();
        let is_long = text.chars().count() as u64 > self.number("ds_summary_max_chars", MAX_CHARACTERS);
        if call.tool == "ds_inspect_data" || call.tool == "ds_run_python" && is_long {
            text = self.summed_up(text).await?;
        }
        Ok(match call.tool {
            "ds_run_python" => json!({ "result": text, "images": said["images"].take() }),
            _ => json!({ "result": text }),
        })
    }

    /// A model's summary, if a model with a key is configured.
    async fn summed_up(&self, text: String) -> Result<String, Fault> {
        let is_wanted = self.config.get("enable_llm_summary") == Some(&Value::Bool(true));
        let model = setting(&self.config, "summary_model", &[]).filter(|_| is_wanted);
        let key = setting(&self.config, "openai_api_key", &["OPENROUTER_API_KEY", "OPENAI_API_KEY"]);
        let (Some(model), Some(key)) = (model, key) else { return Ok(text) };
        let url = setting(&self.config, "openai_api_url", &["OPENAI_API_URL"]).unwrap_or_else(|| URL.to_owned());
        let content: String = text.chars().take(self.number("content_limit", CONTENT) as usize).collect();
        let wanted = format!(
            "Summarize the following for someone who analyses this data: keep names of files and columns, numbers and errors, and \
             leave out repetition.\n\n+++Content:\n{content}\n\n+++Summary:"
        );
        let more = json!({
            "max_tokens": self.number("llm_summary_max_tokens", 2000),
            "temperature": self.config.get("llm_summary_temperature").and_then(Value::as_f64).unwrap_or(0.3),
        });
        let said = Model::new(model, key, url).complete(json!([{ "role": "user", "content": wanted }]), more).await;
        match said {
            Ok(said) => Ok(said.trim().to_owned()),
            Err(error) => Err(Fault::new(format!("LLM summarization failed: {error}"))),
        }
    }

    /// Sends the request to the sandbox's process, with the data that it needs.
    async fn call_worker(&self, handle: &SandboxHandle, mut request: Value, seed: Seed) -> Result<Value, Fault> {
        let data = match seed.path {
            None => None,
            Some(path) => {
                let data = tokio::task::spawn_blocking(move || Data::open(&path)).await??;
                Some(Arc::new(data))
            }
        };
        request["mark"] = data.as_ref().map(|data| data.mark.clone()).into();
        let body = request.to_string().into_bytes();
        let mut was_started = false;
        loop {
            let (port, known) = self.port(handle).await?;
            match (send(handle, port, "/call", body.clone()).await, &data) {
                (Ok((200, said)), _) => {
                    return serde_json::from_slice(&said).map_err(|error| Fault::internal(error.to_string()));
                }
                (Ok((409, _)), Some(data)) => self.put(handle, port, data, &seed.folder).await?,
                (Ok((413, _)), _) => return Err(Fault::new("the code is too long")),
                // The process has ended, as after the sandbox's end. A call that it may have received is not sent twice.
                (failed, _) => {
                    self.forget(handle, port);
                    let is_unsent = matches!(failed, Err(SynthesisError::NothingListens { .. }));
                    if !known || was_started || !is_unsent {
                        let ended = || "its process ended, most likely for lack of memory".to_owned();
                        let said = failed.err().map_or_else(ended, String::from);
                        return Err(Fault::new(format!("the sandbox's Python gave no answer: {said}")));
                    }
                    was_started = true;
                }
            }
        }
    }

    async fn put(&self, handle: &SandboxHandle, port: u16, data: &Arc<Data>, folder: &str) -> Result<(), Fault> {
        let (data, folder) = (Arc::clone(data), folder.to_owned());
        let (sender, mut messages) = tokio::sync::mpsc::channel(1);
        tokio::task::spawn_blocking(move || {
            for message in data.messages(&folder) {
                if sender.blocking_send(message).is_err() {
                    return;
                }
            }
        });
        while let Some(message) = messages.recv().await {
            match send(handle, port, "/put", message?).await {
                Ok((200, _)) => {}
                Ok((status, _)) => {
                    return Err(Fault::new(format!("the data could not be put into the sandbox: status {status}")));
                }
                Err(error) => return Err(Fault::new(format!("the data could not be put into the sandbox: {error}"))),
            }
        }
        Ok(())
    }

    /// The port of the sandbox's process, which is started if needed. True: the port was known.
    async fn port(&self, handle: &SandboxHandle) -> Result<(u16, bool), Fault> {
        let cell = {
            let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
            if ports.len() >= MAX_PORTS {
                ports.clear();
            }
            Arc::clone(ports.entry(handle.name.clone()).or_default())
        };
        if let Some(port) = cell.get() {
            return Ok((*port, true));
        }
        cell.get_or_try_init(|| start(handle)).await.map(|port| (*port, false))
    }

    fn forget(&self, handle: &SandboxHandle, port: u16) {
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        if ports.get(&handle.name).is_some_and(|cell| cell.get() == Some(&port)) {
            ports.remove(&handle.name);
        }
    }
}

async fn start(handle: &SandboxHandle) -> Result<u16, Fault> {
    let file = format!("{WORKER_DIR}/worker.py");
    let written = json!({ "file": file, "content": WORKER });
    handle.post("/v1/file/write", &written).await.map_err(Fault::new)?;
    let asked = json!({ "command": format!("python3 {} start", quoted(&file)), "hard_timeout": START });
    let done = handle.post("/v1/bash/exec", &asked).await.map_err(Fault::new)?;
    let port = done["stdout"].as_str().and_then(|said| said.trim().parse().ok());
    port.ok_or_else(|| {
        let said = done["stderr"].as_str().filter(|said| !said.is_empty()).or(done["output"].as_str()).unwrap_or_default();
        Fault::new(format!("the sandbox's Python can't be started: {}", said.trim()))
    })
}

async fn send(handle: &SandboxHandle, port: u16, path: &str, body: Vec<u8>) -> Result<(u16, Vec<u8>), SynthesisError> {
    let request = GuestRequest { port, method: "POST", path, content_type: Some("application/octet-stream"), body };
    handle.sandboxes.send(&handle.caller, &handle.name, request).await
}

/// The folder in a call.
fn named(params: &Map<String, Value>) -> Result<&str, Fault> {
    match params.get("seed_path") {
        Some(Value::String(path)) if !path.is_empty() => Ok(path),
        None | Some(Value::Null | Value::String(_)) => Err(Fault::new("seed_path must be provided in kwargs")),
        Some(_) => Err(Fault::internal("seed_path has to be a string".to_owned())),
    }
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

    fn needs_sandbox(&self) -> bool {
        true
    }

    fn check(&self, tool: &str, params: &Map<String, Value>, worker: &str) -> Result<(), Failure> {
        let needed: (&str, &[&str]) = match tool {
            "ds_read_csv" => ("ReadCsvTool.execute", &["csv_file"]),
            _ => ("InspectDataTool.execute", &[]),
        };
        let checked = needs(needed.0, params, needed.1).map_err(Fault::internal).and_then(|()| named(params).map(drop));
        match checked {
            Ok(()) => Ok(()),
            Err(fault) => api::answer(params, worker, Err(fault)).map(drop),
        }
    }

    async fn call(&self, call: ToolCall<'_>) -> Answered {
        let result = self.result(&call).await;
        api::answer(&call.params, call.worker, result)
    }
}
