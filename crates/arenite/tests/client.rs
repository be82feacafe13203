//! The client commands against a small HTTP server that plays a prepared exchange: their requests, and how they handle answers.

#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that is not as expected")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;

use serde_json::{Value, json};

/// One request as the server received it.
#[derive(Debug)]
struct Seen {
    line: String,
    body: Vec<u8>,
}

impl Seen {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// A server that gives these answers in turn, then stops.
struct Server {
    url: String,
    seen: mpsc::Receiver<Seen>,
    thread: JoinHandle<()>,
}

impl Server {
    fn answering(answers: Vec<(u16, Vec<u8>)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (send, seen) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                send.send(read(&mut stream)).unwrap();
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).unwrap();
                stream.write_all(&body).unwrap();
            }
        });
        Self { url, seen, thread }
    }

    fn with(answers: impl IntoIterator<Item = (u16, Value)>) -> Self {
        Self::answering(answers.into_iter().map(|(status, body)| (status, body.to_string().into_bytes())).collect())
    }

    /// Runs the binary against it with this stdin, and returns its result and its requests.
    fn run(self, args: &[&str], stdin: Stdin<'_>) -> (Output, Vec<Seen>) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_arenite"));
        command.args(args).env("ARENITE_SERVER", &self.url).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = match stdin {
            Stdin::Null => command.stdin(Stdio::null()).output().unwrap(),
            Stdin::Bytes(bytes) => {
                let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
                child.stdin.take().unwrap().write_all(bytes).unwrap();
                child.wait_with_output().unwrap()
            }
        };
        let seen: Vec<Seen> = self.seen.iter().collect();
        self.thread.join().unwrap();
        (output, seen)
    }
}

enum Stdin<'a> {
    Null,
    Bytes(&'a [u8]),
}

fn read(stream: &mut TcpStream) -> Seen {
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 << 10];
    let head = loop {
        let n = stream.read(&mut buffer).unwrap();
        assert!(n > 0, "the request broke off");
        bytes.extend_from_slice(&buffer[..n]);
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec()).unwrap();
    let mut body = bytes.split_off(head);
    let header = |name: &str| text.lines().find_map(|l| l.to_ascii_lowercase().strip_prefix(name).map(|v| v.trim().to_owned()));
    if let Some(length) = header("content-length:") {
        let length: usize = length.parse().unwrap();
        while body.len() < length {
            let n = stream.read(&mut buffer).unwrap();
            body.extend_from_slice(&buffer[..n]);
        }
    } else if header("transfer-encoding:").is_some() {
        while !body.ends_with(b"\r\n0\r\n\r\n") {
            let n = stream.read(&mut buffer).unwrap();
            body.extend_from_slice(&buffer[..n]);
        }
        body = unchunked(&body);
    }
    Seen { line: text.lines().next().unwrap().to_owned(), body }
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|w| w == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return whole;
        }
        whole.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn sandbox() -> Value {
    json!({
        "id": "s0123456789a", "name": "demo", "state": "running", "template": null, "reason": null, "isolation": ["namespaces", "seccomp"],
        "created_at": "2026-01-01T00:00:00Z", "last_used_at": "2026-01-01T00:00:00Z", "expires_at": null,
        "stages": [{"name": "claim", "ms": 1.25}], "spec": {"image": "base"}, "urls": {"path": "http://h/sandbox/demo/"}, "new": 1,
    })
}

fn done(exit_code: i32, stdout: &str, stderr: &str) -> Value {
    json!({"success": true, "data": {
        "session_id": "a b", "command_id": "c", "command": "x", "status": "completed", "exit_code": exit_code,
        "stdout": stdout, "stderr": stderr, "offset": stdout.len(), "stderr_offset": stderr.len(),
    }})
}

fn closed() -> (u16, Value) {
    (200, json!({"success": true, "data": null}))
}

#[test]
fn create_sends_what_was_said_and_nothing_else() {
    let server = Server::with([(201, sandbox())]);
    let args = [
        "create",
        "demo",
        "--memory",
        "1GiB",
        "--cpu",
        "0.5",
        "-e",
        "A=b=c",
        "--network",
        "none",
        "--timeout",
        "1h",
        "--",
        "sleep",
        "9",
    ];
    let (output, seen) = server.run(&args, Stdin::Null);
    assert_eq!(text(&output.stdout), "demo\n", "{}", text(&output.stderr));
    assert_eq!(seen[0].line, "POST /api/v2/sandboxes HTTP/1.1");
    let expected = json!({
        "name": "demo", "env": {"A": "b=c"}, "args": ["sleep", "9"], "network": "none", "timeout_seconds": 3600,
        "resources": {"memory_bytes": 1u64 << 30, "cpu_millis": 500},
    });
    assert_eq!(seen[0].json(), expected);
    let (_, seen) = Server::with([(201, sandbox())]).run(&["create"], Stdin::Null);
    assert_eq!(seen[0].json(), json!({}));
}

#[test]
fn lists_are_tables_for_people_and_the_servers_json_for_programs() {
    let list = json!({"sandboxes": [sandbox()]});
    let (output, _) = Server::with([(200, list.clone())]).run(&["ls"], Stdin::Null);
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].trim_start().starts_with("NAME"), "{lines:?}");
    assert!(["demo", "running", "base", "s0123456789a"].iter().all(|word| lines[1].contains(word)), "{lines:?}");
    let (output, _) = Server::with([(200, list.clone())]).run(&["ls", "--json"], Stdin::Null);
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), list);
}

#[test]
fn a_list_has_the_entries_of_all_its_pages() {
    let page = |name: &str, next: Value| (200, json!({"sandboxes": [{"name": name}], "next_cursor": next}));
    let server = Server::with([page("a", json!("c1")), page("b", json!("c=2")), page("c", Value::Null)]);
    let filters = ["ls", "--json", "--state", "paused", "--label", "a=b&c", "--label", "team", "--newest"];
    let (output, seen) = server.run(&filters, Stdin::Null);
    let all = json!({"sandboxes": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "next_cursor": null});
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), all, "{}", text(&output.stderr));
    let query = "state=paused&label=a%3Db%26c&label=team&order=newest";
    let lines: Vec<&str> = seen.iter().map(|request| request.line.as_str()).collect();
    let expected = ["", "&cursor=c1", "&cursor=c%3D2"].map(|cursor| format!("GET /api/v2/sandboxes?{query}{cursor} HTTP/1.1"));
    assert_eq!(lines, expected);
    let server = Server::with([page("a", json!("c1")), page("b", json!("c1"))]);
    let (output, _) = server.run(&["ls", "--json"], Stdin::Null);
    assert!(text(&output.stderr).contains("does not end"), "{}", text(&output.stderr));
}

#[test]
fn a_refusal_is_told_with_its_hint_and_the_rest_goes_on() {
    let refused =
        json!({"status": 404, "code": "not_found", "message": "there is no sandbox x", "hint": "create it", "request_id": "r"});
    let list = |names: &[&str]| {
        let entries: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
        (200, json!({ "sandboxes": entries, "next_cursor": null }))
    };
    let deleted = || (200, json!({"name": "y", "id": "s", "deleted": true}));
    let server = Server::with([(404, refused.clone()), list(&["demo", "y"]), deleted()]);
    let (output, seen) = server.run(&["rm", "dmeo", "y"], Stdin::Null);
    let hint = "hint: did you mean \"demo\"? see what there is with: arenite ls\n";
    assert_eq!(text(&output.stderr), format!("error: there is no sandbox x\n{hint}"));
    assert_eq!((text(&output.stdout), output.status.code()), ("y\n", Some(3)));
    assert_eq!(seen[1].line, "GET /api/v2/sandboxes HTTP/1.1");
    assert_eq!(seen[2].line, "DELETE /api/v2/sandboxes/y HTTP/1.1");
    // Without a near name, the server's hint stays; and it is all that there is if the list is refused.
    let server = Server::with([(404, refused.clone()), list(&["demo"])]);
    let (output, _) = server.run(&["rm", "nobody"], Stdin::Null);
    assert!(text(&output.stderr).ends_with("hint: create it; see what there is with: arenite ls\n"), "{}", text(&output.stderr));
    let server = Server::with([(404, refused), (403, json!({}))]);
    let (output, _) = server.run(&["rm", "dmeo"], Stdin::Null);
    assert!(text(&output.stderr).ends_with("hint: create it\n"), "{}", text(&output.stderr));
}

#[test]
fn exec_keeps_the_streams_apart_and_passes_the_exit_code_on() {
    let server = Server::with([(200, done(3, "out\n", "err\n")), closed()]);
    let (output, seen) = server.run(&["exec", "demo", "-w", "/tmp", "--", "printf", "%s", "it's"], Stdin::Null);
    assert_eq!((text(&output.stdout), text(&output.stderr), output.status.code()), ("out\n", "err\n", Some(3)));
    assert_eq!(seen[0].line, "POST /sandbox/demo/v1/bash/exec HTTP/1.1");
    let request = seen[0].json();
    assert_eq!((&request["command"], &request["close_stdin"]), (&json!(r"printf %s 'it'\''s'"), &json!(true)));
    assert_eq!(
        (&request["exec_dir"], &request["async_mode"], &request["max_output_length"]),
        (&json!("/tmp"), &json!(false), &json!(0))
    );
    assert_eq!(seen[1].line, "POST /sandbox/demo/v1/bash/sessions/a%20b/close HTTP/1.1");
}

#[test]
fn a_longer_command_is_followed_to_its_last_byte() {
    let progress = |stdout: &str, offset: u64, status: &str| {
        let command = json!({"command_id": "c", "command": "x", "status": status, "exit_code": if status == "completed" { json!(0) } else { json!(null) }});
        (
            200,
            json!({"success": true, "data": {"session_id": "s", "stdout": stdout, "stderr": "", "offset": offset, "stderr_offset": 0, "command": command}}),
        )
    };
    let mut started = done(0, "one ", "");
    started["data"]["status"] = json!("running");
    started["data"]["exit_code"] = json!(null);
    // The end arrives before all output is read.
    let server = Server::with([
        (200, started),
        progress("two ", 8, "running"),
        progress("three ", 14, "completed"),
        progress("four", 18, "completed"),
        progress("", 18, "completed"),
        closed(),
    ]);
    let (output, seen) = server.run(&["exec", "demo", "-c", "x"], Stdin::Null);
    assert_eq!((text(&output.stdout), output.status.code()), ("one two three four", Some(0)), "{}", text(&output.stderr));
    let offsets: Vec<Value> = seen[1..5].iter().map(|s| s.json()["offset"].clone()).collect();
    assert_eq!(offsets, [4, 8, 14, 18]);
}

#[test]
fn an_upload_is_a_form_with_the_path_before_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data.bin");
    let content: Vec<u8> = (0..600_000u32).flat_map(|n| n.to_le_bytes()).collect();
    std::fs::write(&file, &content).unwrap();
    let uploaded = json!({"success": true, "data": {"file_path": "/tmp/data.bin", "file_size": content.len(), "success": true}});
    let server = Server::with([(200, uploaded)]);
    let (output, seen) = server.run(&["cp", file.to_str().unwrap(), "demo:/tmp/"], Stdin::Null);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(seen[0].line, "POST /sandbox/demo/v1/file/upload HTTP/1.1");
    let body = &seen[0].body;
    let at = |needle: &[u8]| body.windows(needle.len()).position(|w| w == needle).unwrap();
    assert!(at(b"name=\"path\"\r\n\r\n/tmp/data.bin\r\n") < at(b"name=\"file\""));
    let start = at(b"application/octet-stream\r\n\r\n") + b"application/octet-stream\r\n\r\n".len();
    assert_eq!(&body[start..start + content.len()], content);
    assert!(body[start + content.len()..].starts_with(b"\r\n--arenite-"));
}

#[test]
fn a_download_goes_to_stdout_byte_by_byte() {
    let bytes: Vec<u8> = (0..=255).collect();
    let (output, seen) = Server::answering(vec![(200, bytes.clone())]).run(&["cp", "demo:/tmp/a b", "-"], Stdin::Null);
    assert_eq!(output.stdout, bytes);
    assert_eq!(seen[0].line, "GET /sandbox/demo/v1/file/download?path=%2Ftmp%2Fa%20b HTTP/1.1");
}

#[test]
fn an_upload_from_stdin_is_streamed() {
    let server =
        Server::with([(200, json!({"success": true, "data": {"file_path": "/tmp/x", "file_size": 5, "success": true}}))]);
    let (output, seen) = server.run(&["cp", "-", "demo:/tmp/x"], Stdin::Bytes(b"\xff\x00abc"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(seen[0].body.windows(7).any(|w| w == b"\xff\x00abc\r\n"));
}

#[test]
fn a_failure_in_the_sandbox_that_comes_with_status_200_is_a_failure() {
    let refused = json!({"success": false, "message": "Failed to upload: no space left", "data": {"error_type": "no_space_left"}, "hint": "delete something"});
    let (output, _) = Server::with([(200, refused)]).run(&["cp", "-", "demo:/tmp/x"], Stdin::Bytes(b"x"));
    assert_eq!(text(&output.stderr), "error: Failed to upload: no space left\nhint: delete something\n");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn an_export_is_found_by_its_sandboxes_name() {
    let summary = |id: &str, last: &str| json!({"trajectory": id, "sandbox_name": "demo", "first_at": "2026-01-01T00:00:00Z", "last_at": last, "steps": 1, "bytes": 10, "ended": false});
    let list = json!({"trajectories": [summary("new", "2026-02-01T00:00:00Z"), summary("old", "2026-01-01T00:00:00Z")]});
    let lines = "{\"step\":1}\n{\"step\":2}\n";
    let server = Server::answering(vec![(200, list.to_string().into()), (200, lines.into())]);
    let (output, seen) = server.run(&["trajectory", "export", "demo"], Stdin::Null);
    assert_eq!(text(&output.stdout), lines, "{}", text(&output.stderr));
    assert_eq!(seen[1].line, "GET /api/v1/trajectories/new/export?format=jsonl HTTP/1.1");
}

fn recorded(number: u64, action: &str, dialect: &str, arguments: &Value, observation: &Value) -> Value {
    json!({
        "v": 1, "step": number, "tenant": "default", "sandbox_id": "s-old-12345", "sandbox_name": "demo", "dialect": dialect, "action": action,
        "arguments": {"json": arguments}, "observation": {"json": observation}, "started_at": "2026-01-01T00:00:00Z",
        "ended_at": "2026-01-01T00:00:01Z", "duration_ms": 1.0, "outcome": "ok", "status": 200, "error": null, "origin": null,
        "request_id": "r", "bytes_in": 1, "bytes_out": 1,
    })
}

fn ran(session: &str, stdout: &str) -> Value {
    json!({"success": true, "message": "", "data": {"session_id": session, "stdout": stdout, "exit_code": 0}})
}

/// A list with one trajectory, its steps, and a sandbox for them.
fn replayed(answers: impl IntoIterator<Item = (u16, Value)>) -> Server {
    let list = json!({"trajectories": [{
        "trajectory": "s-old-12345", "sandbox_name": "demo", "first_at": "2026-01-01T00:00:00Z", "last_at": "2026-01-01T00:00:00Z", "steps": 3,
    }]});
    let steps = json!({"trajectory": "s-old-12345", "next_after": null, "steps": [
        recorded(1, "POST /api/v2/sandboxes", "api", &json!({"name": "demo", "image": "base", "env": {"A": "1"}}), &json!({})),
        recorded(2, "POST /v1/bash/exec", "aio", &json!({"command": "one"}), &ran("session-old", "in 0.1s: 7\n")),
        recorded(3, "POST /v1/bash/exec", "aio", &json!({"command": "two", "session_id": "session-old"}), &ran("session-old", "x\n")),
    ]});
    let mut sandbox = sandbox();
    sandbox["id"] = json!("s-new-12345");
    let before = [(200, list), (200, steps.clone()), (200, steps), (201, sandbox.clone()), (200, sandbox)];
    Server::with(before.into_iter().chain(answers))
}

#[test]
fn a_replay_makes_the_same_calls_in_a_fresh_sandbox_and_removes_it() {
    let server = replayed([(200, ran("session-new", "in 9.9s: 7\n")), (200, ran("session-new", "x\n")), (204, Value::Null)]);
    let (output, seen) = server.run(&["trajectory", "replay", "dem", "--on", "aio"], Stdin::Null);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "2 steps were run again without a difference, 1 left out\n");
    assert!(text(&output.stderr).contains("step 1 (api_v2_sandboxes) is left out"), "{}", text(&output.stderr));
    assert_eq!(seen[1].line, "GET /api/v1/trajectories/s-old-12345?after=0&limit=50&origin=agent HTTP/1.1");
    let made = seen[3].json();
    let name = made["name"].as_str().unwrap();
    assert!(name.starts_with("replay-") && name.len() == 15, "{name}");
    assert_eq!((&made["image"], &made["env"]), (&json!("aio"), &json!({"A": "1"})));
    assert_eq!(seen[5].line, format!("POST /sandbox/{name}/v1/bash/exec HTTP/1.1"));
    assert_eq!(seen[6].json(), json!({"command": "two", "session_id": "session-new"}));
    assert_eq!(seen[7].line, format!("DELETE /api/v2/sandboxes/{name} HTTP/1.1"));
}

#[test]
fn a_replay_says_where_the_first_difference_is_and_ends_there() {
    let server = replayed([(200, ran("session-new", "in 9.9s: 8\n")), (204, Value::Null)]);
    let (output, _) = server.run(&["trajectory", "replay", "demo", "--json"], Stdin::Null);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        told["divergence"],
        json!({"step": 2, "tool": "bash_exec", "field": "/data/stdout", "recorded": "in <took>: 7\n", "now": "in <took>: 8\n"})
    );
    assert_eq!((&told["replayed"], &told["skipped"][0]["step"]), (&json!(1), &json!(1)));

    let (output, _) = Server::with([(200, json!({"trajectories": []}))]).run(&["trajectory", "replay", "demo"], Stdin::Null);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn a_worker_is_replayed_as_a_worker_of_its_own() {
    let envelope = |id: &str, out: &str| {
        json!({"code": 0, "message": "success", "data": {"stdout": out}, "meta": {"tool": "bash:run", "session_id": id, "trace_id": id,
               "execution_time_ms": 1.0, "resource_type": "bash"}})
    };
    let mut step = recorded(1, "bash:run", "agentflow", &json!({"command": "pwd"}), &envelope("bash_w_001_aaaaaaaa", "/root\n"));
    step["work"] = json!({"worker": "solver", "trace_id": "t", "queued_at": "2026-01-01T00:00:00Z"});
    let list = json!({"trajectories": [{
        "trajectory": "af-1", "sandbox_name": "", "worker": "solver", "first_at": "2026-01-01T00:00:00Z", "last_at": "2026-01-01T00:00:00Z",
        "steps": 1,
    }]});
    let server = Server::with([
        (200, list),
        (200, json!({"steps": [step.clone()]})),
        (200, json!({"steps": [step]})),
        (200, json!({"sessions": []})),
        (200, json!({"code": 0, "message": "", "data": {}, "meta": {}})),
        (200, envelope("bash_w_001_bbbbbbbb", "/root\n")),
        (200, json!({"code": 0, "message": "", "data": {}, "meta": {}})),
    ]);
    let (output, seen) = server.run(&["trajectory", "replay", "solver", "--on", "aio"], Stdin::Null);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines: Vec<&str> = seen[3..].iter().map(|seen| seen.line.split(' ').nth(1).unwrap()).collect();
    let sessions = "/api/v1/trajectories/af-1/sessions";
    assert_eq!(lines, [sessions, "/api/v1/session/create", "/api/v1/execute", "/api/v1/worker/disconnect"]);
    let (created, executed) = (seen[4].json(), seen[5].json());
    assert_eq!((&created["resource_type"], &created["session_config"]), (&json!("bash"), &json!({"image": "aio"})));
    assert_eq!(created["worker_id"], executed["worker_id"]);
    assert_eq!((&executed["action"], &executed["params"]), (&json!("bash:run"), &json!({"command": "pwd"})));
}
