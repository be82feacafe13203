use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use http::StatusCode;
use serde_json::{Value, json};

use crate::guest::{Guest, Scratch};

/// Makes every call that opens a file, on one path.
async fn every_way(guest: &Guest, path: &str) -> Vec<(&'static str, Value)> {
    let mut answers = Vec::new();
    for (operation, arguments) in [
        ("read", json!({"file": path})),
        ("read", json!({"file": path, "start_line": 0, "end_line": 1})),
        ("search", json!({"file": path, "regex": "."})),
        ("write", json!({"file": path, "content": "x"})),
        ("write", json!({"file": path, "content": "x", "append": true})),
        ("replace", json!({"file": path, "old_str": "a", "new_str": "b"})),
        ("str_replace_editor", json!({"command": "view", "path": path})),
        ("str_replace_editor", json!({"command": "str_replace", "path": path, "old_str": "a", "new_str": "b"})),
        ("str_replace_editor", json!({"command": "insert", "path": path, "insert_line": 0, "new_str": "b"})),
    ] {
        answers.push((operation, guest.refused(operation, arguments).await));
    }
    let (status, answer) = guest.upload(&[("path", None, path.as_bytes()), ("file", Some("f"), b"x")]).await;
    assert_eq!((status, answer["success"].clone()), (StatusCode::OK, json!(false)), "{answer}");
    answers.push(("upload", answer["data"].clone()));
    let (status, _, body) = guest.get(&format!("/v1/file/download?path={path}"), &[]).await;
    assert!(status.is_client_error(), "{path}: {status}");
    answers.push(("download", serde_json::from_slice::<Value>(&body).unwrap()["data"].clone()));
    answers
}

#[tokio::test]
async fn what_is_no_file_is_refused_without_waiting_for_it() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let pipe = dir.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
    let socket = dir.path("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    symlink("/dev/zero", dir.path("zero")).unwrap();
    for (path, what) in
        [(pipe, "named pipe"), (socket, "socket"), ("/dev/zero".to_owned(), "device"), (dir.path("zero"), "device")]
    {
        for (operation, error) in every_way(&guest, &path).await {
            assert_eq!(error["error_type"], "invalid_target", "{operation} {path}: {error}");
            assert!(error["message"].as_str().unwrap().contains(what), "{operation} {path}: {error}");
        }
    }
    assert_eq!(dir.names(""), ["pipe", "socket", "zero"]);
}

#[tokio::test]
async fn links_through_other_processes_lead_nowhere() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    fs::write(dir.path("f"), "a").unwrap();
    let open = fs::File::open(dir.path("f")).unwrap();
    let (own, fd) = (std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&open));
    symlink(format!("/proc/{own}/fd/{fd}"), dir.path("link")).unwrap();
    for path in [
        format!("/proc/self/root{}", dir.path("f")),
        format!("/proc/{own}/root{}", dir.path("f")),
        format!("/proc/{own}/cwd/Cargo.toml"),
        format!("/proc/{own}/fd/{fd}"),
        format!("/proc/{own}/exe"),
        "/proc/self/fd/0".to_owned(),
        "/dev/stdin".to_owned(),
        dir.path("link"),
    ] {
        for (operation, error) in every_way(&guest, &path).await {
            assert_eq!(error["errno_name"], "ELOOP", "{operation} {path}: {error}");
        }
        for operation in ["list", "find"] {
            let error = guest.refused(operation, json!({"path": path, "glob": "*"})).await;
            assert_ne!(error["error_type"], Value::Null, "{operation} {path}");
        }
    }
    assert_eq!(fs::read_to_string(dir.path("f")).unwrap(), "a");
}

#[tokio::test]
async fn paths_above_the_root_end_at_the_root() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let up = "../".repeat(50);
    fs::write(dir.path("f"), "here").unwrap();
    assert_eq!(guest.file("read", json!({"file": format!("{up}{}", dir.path("f"))})).await["content"], "here");
    assert_eq!(guest.file("list", json!({"path": "/../.."})).await["path"], "/../..");
    let _ = guest.file("find", json!({"path": up, "glob": "etc"})).await;
}

#[tokio::test]
async fn the_kernels_own_trees_are_passed_over_and_a_walk_ends_with_its_caller() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let data = guest.file("find", json!({"path": "/", "glob": "proc/*/status"})).await;
    assert_eq!(data["files"], json!([]));
    let data = guest.file("find", json!({"path": "/proc", "glob": "self/status"})).await;
    assert_eq!(data["files"], json!(["/proc/self/status"]));
    // More walks than may run at once, with callers that leave: the next one still gets a slot.
    let endless = dir.path("endless");
    fs::File::create(&endless).unwrap().set_len(1 << 40).unwrap();
    let body = json!({"file": endless, "start_line": 10}).to_string();
    let head = format!("POST /v1/file/read HTTP/1.1\r\nhost: guest\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut connections = Vec::new();
    for _ in 0..8 {
        let mut connection = guest.connect().await;
        tokio::io::AsyncWriteExt::write_all(&mut connection, head.as_bytes()).await.unwrap();
        connections.push(connection);
    }
    // These don't wait for slots of walks.
    guest.file("write", json!({"file": dir.path("f"), "content": "x"})).await;
    drop(connections);
    // Left running, each of them would take 50 s.
    let listed = guest.file("list", json!({"path": dir.path("")}));
    let listed = tokio::time::timeout(std::time::Duration::from_secs(30), listed).await;
    assert_eq!(listed.unwrap()["total_count"], 2);
}
