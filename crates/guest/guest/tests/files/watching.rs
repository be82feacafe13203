//! `watch` and related calls.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::guest::{Guest, Scratch, is_root};

async fn watch(guest: &Guest, arguments: Value) -> String {
    let (status, answer) = guest.post("/v1/file/watch", &arguments.to_string()).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!((&answer["success"], &answer["initial_cursor"]), (&json!(true), &json!(0)));
    assert_eq!(answer["data"]["watcher_id"], answer["watcher_id"], "in the envelope, and beside it");
    answer["watcher_id"].as_str().unwrap().to_owned()
}

async fn poll(guest: &Guest, id: &str, arguments: Value) -> Value {
    let (status, answer) = guest.post(&format!("/v1/file/watch/{id}/poll"), &arguments.to_string()).await;
    assert_eq!((status, &answer["success"]), (StatusCode::OK, &json!(true)), "{answer}");
    assert_eq!(answer["events"], answer["data"]["events"]);
    answer["data"].clone()
}

/// Reads events until `last`, as `type relative_path`.
async fn until(guest: &Guest, id: &str, last: &str) -> Vec<String> {
    let (mut told, mut cursor) = (Vec::new(), 0);
    for _ in 0..20 {
        let page = poll(guest, id, json!({"cursor": cursor, "timeout": 5, "limit": 1000})).await;
        assert_eq!(page["overflow"], false, "{page}");
        cursor = page["cursor"].as_u64().unwrap();
        for event in page["events"].as_array().unwrap() {
            told.push(format!("{} {}", event["type"].as_str().unwrap(), event["relative_path"].as_str().unwrap()));
        }
        if told.iter().any(|t| t == last) {
            return told;
        }
    }
    panic!("{last} did not come: {told:?}");
}

async fn delete(guest: &Guest, path: &str) -> (StatusCode, Value) {
    let request = Request::delete(path).header("host", "guest").body(Full::default()).unwrap();
    let (status, _, body) = guest.send(request).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn changes_are_told_once_and_in_order() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    fs::create_dir(dir.path("old")).unwrap();
    fs::write(dir.path("old/f"), "x").unwrap();
    let id = watch(&guest, json!({"path": dir.0, "debounce": 50})).await;
    fs::write(dir.path("new"), "12345").unwrap();
    let first = poll(&guest, &id, json!({"timeout": 10})).await;
    let event = &first["events"][0];
    assert_eq!((&event["seq"], &event["type"], &event["path"]), (&json!(1), &json!("create"), &json!(dir.path("new"))));
    assert_eq!((&event["relative_path"], &event["is_dir"], &event["size"]), (&json!("new"), &json!(false), &json!(5)));
    assert!(event["inode"].is_u64() && event["mtime"].is_f64() && event["timestamp"].is_f64() && event["old_path"].is_null());
    let step = async |what: &dyn Fn(), last: &str| {
        what();
        until(&guest, &id, last).await
    };
    step(&|| fs::write(dir.path("old/f"), "y").unwrap(), "write old/f").await;
    step(&|| fs::set_permissions(dir.path("old/f"), fs::Permissions::from_mode(0o600)).unwrap(), "chmod old/f").await;
    step(&|| fs::rename(dir.path("old/f"), dir.path("g")).unwrap(), "rename g").await;
    step(&|| fs::remove_file(dir.path("g")).unwrap(), "remove g").await;
    step(&|| fs::rename(dir.path("old"), dir.path("renamed")).unwrap(), "rename renamed").await;
    // A directory that moved is watched at its new path.
    step(&|| fs::write(dir.path("renamed/h"), "").unwrap(), "create renamed/h").await;
    // A directory that moves in from elsewhere is scanned.
    let other = Scratch::new();
    fs::create_dir_all(other.path("in/deep")).unwrap();
    fs::write(other.path("in/deep/f"), "").unwrap();
    step(&|| fs::rename(other.path("in"), dir.path("in")).unwrap(), "create in/deep/f").await;
    step(&|| fs::write(dir.path("in/deep/g"), "").unwrap(), "create in/deep/g").await;
    // A directory that moves out is no longer watched.
    let told = step(&|| fs::rename(dir.path("in"), other.path("out")).unwrap(), "remove in").await;
    assert!(!told.contains(&"rename in".to_owned()));
    fs::write(other.path("out/deep/unseen"), "").unwrap();
    let told = step(&|| fs::write(dir.path("last"), "").unwrap(), "create last").await;
    assert!(!told.iter().any(|t| t.contains("unseen")), "{told:?}");
    let renamed = poll(&guest, &id, json!({"limit": 1000})).await;
    let renamed = renamed["events"]
        .as_array()
        .unwrap()
        .iter()
        .find(|e| e["relative_path"] == "g" && e["type"] == "rename")
        .unwrap()
        .clone();
    assert_eq!(renamed["old_path"], dir.path("old/f"));
}

#[tokio::test]
async fn nothing_in_new_directories_is_missed() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let id = watch(&guest, json!({"path": dir.0, "debounce": 50})).await;
    let mut wanted = Vec::new();
    for round in 0..50 {
        let deep = format!("{round}/a/b/c");
        fs::create_dir_all(dir.path(&deep)).unwrap();
        fs::write(dir.path(&format!("{deep}/f")), "").unwrap();
        wanted.push(format!("create {deep}/f"));
    }
    let mut told = until(&guest, &id, "create 49/a/b/c/f").await;
    for want in wanted {
        if !told.contains(&want) {
            told = until(&guest, &id, &want).await;
        }
    }
    let files = told.iter().filter(|t| t.ends_with("/f")).count();
    assert_eq!(files, 50, "each is told of once: {told:?}");
}

#[tokio::test]
async fn excluded_and_other_files_are_not_told_of() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    fs::create_dir_all(dir.path("node_modules/x")).unwrap();
    let usual = watch(&guest, json!({"path": dir.0, "debounce": 50})).await;
    let own = watch(
        &guest,
        json!({"path": dir.0, "debounce": 50, "exclude": ["logs", "*.tmp"], "include_patterns": ["*.py", "logs/*", "end"]}),
    )
    .await;
    let flat = watch(&guest, json!({"path": dir.0, "debounce": 50, "recursive": false})).await;
    for name in ["a.py", "a.pyc", "b.tmp", "logs/c.py", "node_modules/x/d.py", ".git/e.py", "sub/f.py", "end"] {
        fs::create_dir_all(dir.0.join(name).parent().unwrap()).unwrap();
        fs::write(dir.path(name), "").unwrap();
    }
    let told = until(&guest, &usual, "create end").await;
    assert_eq!(
        told,
        ["create a.py", "create b.tmp", "create logs", "create sub", "create end", "create logs/c.py", "create sub/f.py"]
            .iter()
            .filter(|t| told.contains(&(**t).to_owned()))
            .map(|t| (*t).to_owned())
            .collect::<Vec<_>>()
            .tap_order(&told)
    );
    assert!(!told.iter().any(|t| t.contains("pyc") || t.contains("node_modules") || t.contains(".git")), "{told:?}");
    until(&guest, &own, "create end").await;
    let told = until(&guest, &own, "create sub/f.py").await;
    // Events about what `exclude` replaces are sent.
    assert!(told.contains(&"create a.py".to_owned()), "{told:?}");
    let told = until(&guest, &own, "create node_modules/x/d.py").await;
    assert!(!told.iter().any(|t| t.contains("logs") || t.contains("tmp") || t.ends_with("sub")), "{told:?}");
    let told = until(&guest, &flat, "create end").await;
    assert!(!told.iter().any(|t| t.contains('/')), "{told:?}");
}

trait TapOrder {
    fn tap_order(self, as_in: &[String]) -> Vec<String>;
}

impl TapOrder for Vec<String> {
    /// Returns the same events in the order of another list: the kernel decides which of two is first.
    fn tap_order(mut self, as_in: &[String]) -> Vec<String> {
        self.sort_by_key(|t| as_in.iter().position(|other| other == t));
        self
    }
}

#[tokio::test]
async fn one_file_is_watched_through_exchanges() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    fs::write(dir.path("f"), "").unwrap();
    let id = watch(&guest, json!({"path": dir.path("f"), "debounce": 50})).await;
    fs::write(dir.path("other"), "").unwrap();
    fs::write(dir.path("f"), "1").unwrap();
    assert_eq!(until(&guest, &id, "write f").await, ["write f"]);
    fs::write(dir.path("f.new"), "2").unwrap();
    fs::rename(dir.path("f.new"), dir.path("f")).unwrap();
    until(&guest, &id, "create f").await;
    fs::remove_file(dir.path("f")).unwrap();
    until(&guest, &id, "remove f").await;
}

#[tokio::test]
async fn a_watched_directory_that_goes_ends_its_watcher() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    for end in ["removed", "moved"] {
        let root = dir.path(&format!("{end}-root"));
        fs::create_dir(&root).unwrap();
        fs::write(format!("{root}/f"), "").unwrap();
        let id = watch(&guest, json!({"path": root, "debounce": 50})).await;
        match end {
            "removed" => fs::remove_dir_all(&root).unwrap(),
            _ => fs::rename(&root, dir.path("elsewhere")).unwrap(),
        }
        until(&guest, &id, "remove .").await;
        let page = poll(&guest, &id, json!({"cursor": 1000, "timeout": 0})).await;
        assert_eq!(page["closed"], true);
        let (_, listed) = {
            let (s, _, b) = guest.get("/v1/file/watch", &[]).await;
            (s, serde_json::from_slice::<Value>(&b).unwrap())
        };
        assert!(listed["watchers"].as_array().unwrap().iter().any(|w| w["watcher_id"] == *id && w["closed"] == true), "{listed}");
        assert_eq!(delete(&guest, &format!("/v1/file/watch/{id}")).await.0, StatusCode::OK);
        assert_eq!(delete(&guest, &format!("/v1/file/watch/{id}")).await.0, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn more_than_the_kernel_queues_is_told_as_a_loss() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let id = watch(&guest, json!({"path": dir.0, "debounce": 50})).await;
    // While the guest is stopped, it reads nothing, and the queue (16,384 by default) overflows.
    let pid = rustix::process::Pid::from_raw(i32::try_from(guest.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let queue: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    for number in 0..queue / 2 + 100 {
        fs::write(dir.path(&format!("f{}", number % 100)), "").unwrap();
        fs::remove_file(dir.path(&format!("f{}", number % 100))).unwrap();
    }
    fs::create_dir_all(dir.path("late/deep")).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let mut page = Value::Null;
    for _ in 0..50 {
        page = poll(&guest, &id, json!({"timeout": 2})).await;
        if page["overflow"] == true {
            break;
        }
    }
    assert_eq!(page["overflow"], true);
    let cursor = page["cursor"].clone();
    // A directory that was created while events were lost is watched.
    tokio::time::sleep(Duration::from_millis(300)).await;
    fs::write(dir.path("late/deep/f"), "").unwrap();
    let mut cursor = cursor;
    let begun = Instant::now();
    loop {
        let page = poll(&guest, &id, json!({"since": cursor, "timeout": 5, "limit": 1000})).await;
        if page["events"].as_array().unwrap().iter().any(|e| e["relative_path"] == "late/deep/f") {
            break;
        }
        cursor = page["cursor"].clone();
        assert!(begun.elapsed() < Duration::from_secs(20), "{page}");
    }
}

#[tokio::test]
async fn streams_and_plain_answers_by_accept() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let id = watch(&guest, json!({"path": dir.0, "debounce": 50})).await;
    let path = format!("/v1/file/watch/{id}/events");
    let io = TokioIo::new(guest.connect().await);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(&path).header("host", "guest").header("accept", "text/event-stream");
    let answer = sender.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut body = answer.into_body();
    let mut text = String::new();
    let mut read = async |what: &str| {
        while !text.contains(what) {
            let frame = tokio::time::timeout(Duration::from_secs(20), body.frame()).await.expect(what);
            let Some(frame) = frame else { panic!("the stream ended before {what}: {text}") };
            text.push_str(&String::from_utf8_lossy(frame.unwrap().data_ref().unwrap()));
        }
        text.clone()
    };
    read("event: watch_started").await;
    fs::write(dir.path("a"), "").unwrap();
    let text = read("\"relative_path\":\"a\"").await;
    assert!(text.contains("event: file_change") && text.contains(&format!("id: {id}:1")), "{text}");
    let (status, headers, body) = guest.get(&path, &[]).await;
    assert_eq!((status, &headers["content-type"]), (StatusCode::OK, &"application/json".parse().unwrap()));
    let plain: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&plain["events"][0]["relative_path"], &plain["data"]["cursor"]), (&json!("a"), &json!(1)));
    fs::write(dir.path("b"), "").unwrap();
    read("\"relative_path\":\"b\"").await;
    // Resumed after the first event, a stream starts with the second.
    let io = TokioIo::new(guest.connect().await);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(&path)
        .header("host", "guest")
        .header("accept", "text/event-stream")
        .header("last-event-id", format!("{id}:1"));
    let mut resumed = sender.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap().into_body();
    let mut text = String::new();
    while !text.contains("\"relative_path\":\"b\"") {
        text.push_str(&String::from_utf8_lossy(resumed.frame().await.unwrap().unwrap().data_ref().unwrap()));
    }
    assert!(!text.contains("\"relative_path\":\"a\""), "{text}");
    // Stopping a watcher ends its streams.
    assert_eq!(delete(&guest, &format!("/v1/file/watch/{id}")).await.1["stopped"], true);
    let end = tokio::time::timeout(Duration::from_secs(5), async { while resumed.frame().await.is_some() {} }).await;
    assert!(end.is_ok(), "the stream went on");
    assert_eq!(guest.get(&path, &[]).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn wait_sees_files_that_are_there_that_come_and_that_go() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let wait = async |arguments: Value| {
        let (status, answer) = guest.post("/v1/file/watch/wait", &arguments.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer["event"], answer["data"]["event"]);
        answer
    };
    fs::write(dir.path("there"), "1").unwrap();
    let answer = wait(json!({"path": dir.path("there"), "timeout": 1})).await;
    assert_eq!((&answer["event"]["type"], &answer["event"]["path"]), (&json!("create"), &json!(dir.path("there"))));
    let begun = Instant::now();
    let answer = wait(json!({"path": dir.path("there"), "timeout": 1, "event_types": ["write"]})).await;
    assert_eq!((&answer["success"], &answer["event"], &answer["timed_out"]), (&json!(false), &Value::Null, &json!(true)));
    assert!(begun.elapsed() >= Duration::from_secs(1));
    // In directories that do not exist yet.
    let deep = dir.path("a/b/c/f");
    let later = async {
        for made in ["a", "a/b", "a/b/c"] {
            tokio::time::sleep(Duration::from_millis(50)).await;
            fs::create_dir(dir.path(made)).unwrap();
        }
        fs::write(&deep, "").unwrap();
    };
    let (answer, ()) = tokio::join!(wait(json!({"path": deep, "timeout": 20})), later);
    assert_eq!(answer["event"]["type"], "create");
    let later = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        fs::write(dir.path("a/b/c/other"), "").unwrap();
        fs::remove_file(&deep).unwrap();
    };
    let (answer, ()) = tokio::join!(wait(json!({"path": deep, "timeout": 20, "event_types": ["remove"]})), later);
    assert_eq!((&answer["event"]["type"], &answer["event"]["path"]), (&json!("remove"), &json!(deep)));
    for bad in [
        json!({"path": deep, "timeout": 0}),
        json!({"path": deep, "timeout": 301}),
        json!({"path": deep, "event_types": ["open"]}),
        json!({}),
    ] {
        assert_eq!(guest.post("/v1/file/watch/wait", &bad.to_string()).await.0, StatusCode::UNPROCESSABLE_ENTITY, "{bad}");
    }
}

#[tokio::test]
async fn bad_watches_are_refused_and_their_number_is_bounded() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    symlink("nowhere", dir.path("dangling")).unwrap();
    for (arguments, status) in [
        (json!({"path": dir.path("missing")}), StatusCode::NOT_FOUND),
        (json!({"path": dir.path("dangling")}), StatusCode::NOT_FOUND),
        (json!({"path": ""}), StatusCode::BAD_REQUEST),
        (json!({"path": dir.0, "exclude": ["["]}), StatusCode::BAD_REQUEST),
        (json!({"path": dir.0, "debounce": 49}), StatusCode::UNPROCESSABLE_ENTITY),
        (json!({"path": dir.0, "debounce": null}), StatusCode::UNPROCESSABLE_ENTITY),
        (json!({"path": dir.0, "exclude": null}), StatusCode::UNPROCESSABLE_ENTITY),
        (json!({}), StatusCode::UNPROCESSABLE_ENTITY),
    ] {
        let (got, answer) = guest.post("/v1/file/watch", &arguments.to_string()).await;
        assert_eq!((got, &answer["success"]), (status, &json!(false)), "{arguments}: {answer}");
    }
    let (status, _) = guest.post("/v1/file/watch/w-0/poll", "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let id = watch(&guest, json!({"path": dir.0})).await;
    for bad in [json!({"limit": 0}), json!({"limit": 1001}), json!({"timeout": 61}), json!({"cursor": -1})] {
        let (status, _) = guest.post(&format!("/v1/file/watch/{id}/poll"), &bad.to_string()).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{bad}");
    }
    for _ in 1..32 {
        watch(&guest, json!({"path": dir.0})).await;
    }
    let (status, answer) = guest.post("/v1/file/watch", &json!({"path": dir.0}).to_string()).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{answer}");
    let (_, _, body) = guest.get("/v1/file/watch", &[]).await;
    let listed: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(listed["count"], 32);
    for watcher in listed["watchers"].as_array().unwrap() {
        delete(&guest, &format!("/v1/file/watch/{}", watcher["watcher_id"].as_str().unwrap())).await;
    }
    let inotify = || {
        let fds = fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap().flatten();
        fds.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("inotify"))).count()
    };
    for _ in 0..200 {
        if inotify() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{} watchers are left", inotify());
}

#[tokio::test]
async fn closed_directories_can_not_be_watched() {
    if !is_root() {
        return;
    }
    let dir = Scratch::new();
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o777)).unwrap();
    let guest = Guest::start_as(&dir.0, "nobody");
    fs::create_dir_all(dir.path("closed/deep")).unwrap();
    fs::set_permissions(dir.path("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    let (status, answer) = guest.post("/v1/file/watch", &json!({"path": dir.path("closed")}).to_string()).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{answer}");
    let id = watch(&guest, json!({"path": dir.0, "debounce": 50})).await;
    fs::write(dir.path("closed/deep/secret"), "").unwrap();
    fs::write(dir.path("end"), "").unwrap();
    assert_eq!(until(&guest, &id, "create end").await, ["create end"]);
}
