//! A fake of OSWorld's agent: its routes over TCP, with files in memory and commands that are only recorded.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The requests that it received, and its answers.
#[derive(Default)]
pub(in crate::backends::vm) struct FakeState {
    pub(in crate::backends::vm) files: BTreeMap<String, Vec<u8>>,
    /// Path and body of POST requests.
    pub(in crate::backends::vm) posted: Vec<(String, Value)>,
    /// Status and body instead of the usual ones, by path.
    pub(in crate::backends::vm) instead: BTreeMap<String, (u16, Vec<u8>)>,
}

pub(in crate::backends::vm) struct FakeAgent {
    pub(in crate::backends::vm) address: String,
    pub(in crate::backends::vm) state: Arc<Mutex<FakeState>>,
}

pub(in crate::backends::vm) const PNG: &[u8] = b"\x89PNG\r\n\x1a\nfake";

impl FakeAgent {
    pub(in crate::backends::vm) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(FakeState::default()));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                let service = service_fn(move |request| answer(Arc::clone(&state), request));
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, state }
    }
}

async fn answer(state: Arc<Mutex<FakeState>>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let kind = request.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned()).unwrap_or_default();
    let is_post = request.method() == "POST";
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut state = state.lock().unwrap();
    let json: Value = serde_json::from_slice(&body).unwrap_or_default();
    if is_post {
        state.posted.push((path.clone(), json.clone()));
    }
    let (status, body) = match state.instead.get(&path) {
        Some(instead) => instead.clone(),
        None => usual(&mut state, &path, &kind, &json, &body),
    };
    Ok(Response::builder().status(status).body(Full::new(Bytes::from(body))).unwrap())
}

fn usual(state: &mut FakeState, path: &str, kind: &str, json: &Value, body: &[u8]) -> (u16, Vec<u8>) {
    let said = |value: Value| (200, value.to_string().into_bytes());
    match path {
        "/screenshot" => (200, PNG.to_vec()),
        "/platform" => (200, b"Linux".to_vec()),
        "/screen_size" => said(json!({ "width": 1920, "height": 1080 })),
        "/accessibility" => said(json!({ "AT": super::table::tests::XML })),
        "/terminal" => said(json!({ "output": "$ ls", "status": "success" })),
        "/execute" => said(json!({ "status": "success", "output": json["command"].to_string(), "error": "", "returncode": 0 })),
        "/run_bash_script" => said(json!({ "status": "error", "output": json["script"], "error": "e", "returncode": 3 })),
        "/setup/launch" | "/start_recording" => (200, b"fine".to_vec()),
        "/end_recording" => (200, b"film".to_vec()),
        "/file" => {
            assert_eq!(kind, "application/x-www-form-urlencoded");
            let given = std::str::from_utf8(body).unwrap().strip_prefix("file_path=").unwrap();
            let name = percent_encoding::percent_decode_str(given).decode_utf8().unwrap();
            state.files.get(&*name).map_or((404, br#"{"error": "File not found"}"#.to_vec()), |content| (200, content.clone()))
        }
        "/setup/upload" => {
            let boundary = kind.strip_prefix("multipart/form-data; boundary=").unwrap();
            let mark = format!("--{boundary}");
            let at = |from: usize, needle: &[u8]| {
                body[from..].windows(needle.len()).position(|part| part == needle).map(|found| from + found).unwrap()
            };
            let name_at = at(0, b"\r\n\r\n") + 4;
            let name_end = at(name_at, format!("\r\n{mark}").as_bytes());
            let file_at = at(name_end, b"\r\n\r\n") + 4;
            let file_end = at(file_at, format!("\r\n{mark}--").as_bytes());
            let name = String::from_utf8(body[name_at..name_end].to_vec()).unwrap();
            state.files.insert(name, body[file_at..file_end].to_vec());
            (200, b"File Uploaded".to_vec())
        }
        _ => (404, b"<h1>Not Found</h1>".to_vec()),
    }
}
