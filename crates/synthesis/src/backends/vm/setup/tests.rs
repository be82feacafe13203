//! Steps on a fake VM that really runs their commands.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fake::FakeVm;
use super::*;

use crate::error::SynthesisError;

async fn one(vm: &FakeVm, setting: &Setting, kind: &str, parameters: Value) -> Result<(), SynthesisError> {
    run(vm, &[json!({ "type": kind, "parameters": parameters })], setting).await
}

/// A fake server on the network; answers with 200 and the text, or 404 for paths that contain `missing`.
async fn fake_site(text: &'static str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            let is_missing = String::from_utf8_lossy(&request[..read]).contains("missing");
            let status = if is_missing { "404 Not Found" } else { "200 OK" };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}", text.len());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    address
}

#[tokio::test]
async fn the_machine_fetches_for_itself() {
    let (vm, site) = (FakeVm::new(), fake_site("content").await);
    let files = json!([{ "url": format!("{site}/a?b=c%20d"), "path": "~/deep/er/file" }]);
    one(&vm, &Setting::default(), "download", json!({ "files": files })).await.unwrap();
    assert_eq!(std::fs::read(vm.home().join("deep/er/file")).unwrap(), b"content");
    let missing = json!({ "files": [{ "url": format!("{site}/missing"), "path": "~/other" }] });
    let error = one(&vm, &Setting::default(), "download", missing).await.unwrap_err().to_string();
    assert!(error.starts_with("step 1 of the setup (download) failed: ") && error.contains("could not be fetched"), "{error}");
    assert_eq!(std::fs::read_dir(vm.home()).unwrap().count(), 1, "nothing of it is left");
    let file = json!({ "files": [{ "url": "file:///etc/passwd", "path": "~/other" }] });
    assert!(one(&vm, &Setting::default(), "download", file).await.unwrap_err().to_string().contains("http"));
}

#[tokio::test]
async fn only_files_of_the_one_folder_are_sent() {
    let (vm, dir) = (FakeVm::new(), tempfile::tempdir().unwrap());
    let files = dir.path().join("files");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("a"), "given").unwrap();
    std::fs::write(dir.path().join("secret"), "no").unwrap();
    std::os::unix::fs::symlink(dir.path().join("secret"), files.join("link")).unwrap();
    let setting = Setting { files: Some(files), ..Setting::default() };
    let send = |local: &str| json!({ "files": [{ "local_path": local, "path": "~/sent" }] });
    one(&vm, &setting, "upload_file", send("a")).await.unwrap();
    assert_eq!(std::fs::read(vm.home().join("sent")).unwrap(), b"given");
    for outside in ["../secret", "link", "/etc/passwd", "."] {
        assert!(one(&vm, &setting, "upload_file", send(outside)).await.is_err(), "{outside}");
    }
    let error = one(&vm, &Setting::default(), "upload_file", send("a")).await.unwrap_err().to_string();
    assert!(error.contains("no folder of files is configured"), "{error}");
}

#[tokio::test]
async fn commands_are_filled_in_and_run() {
    let vm = FakeVm::new();
    let setting = Setting { client_password: "pa'ss".to_owned(), ..Setting::default() };
    let line = "printf %s \"{SCREEN_WIDTH_HALF} {SCREEN_HEIGHT} $1\" > ~/out";
    one(&vm, &setting, "execute", json!({ "command": [line, "sh", "{CLIENT_PASSWORD}"], "shell": true })).await.unwrap();
    assert_eq!(std::fs::read_to_string(vm.home().join("out")).unwrap(), "960 1080 pa'ss");
    // The exit status of a command does not matter, but a failed start does.
    one(&vm, &setting, "command", json!({ "command": "false" })).await.unwrap();
    assert!(one(&vm, &setting, "command", json!({ "command": ["no-such-program"] })).await.is_err());
    let counted = "echo x >> n; wc -l < n";
    let until = json!({ "command": counted, "shell": true, "until": { "stdout": "3" } });
    one(&vm, &setting, "execute", until).await.unwrap();
    assert_eq!(std::fs::read_to_string(vm.home().join("n")).unwrap(), "x\nx\nx\n");
    let verified = |check: &str| json!({ "command": ["true"], "verification": { "command_success": check }, "max_wait_time": 0.3, "check_interval": 0.1 });
    one(&vm, &setting, "execute_with_verification", verified("test -e n")).await.unwrap();
    assert!(
        one(&vm, &setting, "execute_with_verification", verified("test -e nothing"))
            .await
            .unwrap_err()
            .to_string()
            .contains("0.3 s")
    );
}

#[tokio::test]
async fn windows_are_opened_found_and_closed() {
    let vm = FakeVm::new();
    vm.program(
        "wmctrl",
        r#"echo "$@" >> "$HOME/asked"; case "$1" in -l) echo "0x01 0 host report - Editor";; -a) [ "$2" = Editor ];; esac"#,
    );
    std::fs::write(vm.home().join("report.txt"), "").unwrap();
    one(&vm, &Setting::default(), "open", json!({ "path": "~/report.txt" })).await.unwrap();
    let path = vm.home().join("report.txt");
    assert_eq!(*vm.noted(), [format!("launch {:?}", ["xdg-open", path.to_str().unwrap()])]);
    one(&vm, &Setting::default(), "close_window", json!({ "window_name": "Edit", "strict": true, "by_class": true }))
        .await
        .unwrap();
    one(&vm, &Setting::default(), "activate_window", json!({ "window_name": "Editor" })).await.unwrap();
    let error =
        one(&vm, &Setting::default(), "activate_window", json!({ "window_name": "Other" })).await.unwrap_err().to_string();
    assert!(error.contains("the window \"Other\": there is no such window"), "{error}");
    let asked = std::fs::read_to_string(vm.home().join("asked")).unwrap();
    assert_eq!(asked, "-l\n-i -a 0x01\n-xFc Edit\n-a Editor\n-a Other\n");
    let error = one(&vm, &Setting::default(), "open", json!({ "path": "/no/such/file" })).await.unwrap_err().to_string();
    assert!(error.contains("there is no file or program"), "{error}");
}

#[tokio::test]
async fn browsers_go_through_the_proxy_once_it_is_set() {
    let vm = FakeVm::new();
    vm.program("gsettings", r#"echo "$@" >> "$HOME/set""#);
    let setting = Setting { proxy: Some("http://10.0.0.1:3128".to_owned()), ..Setting::default() };
    let launch = json!({ "type": "launch", "parameters": { "command": "google-chrome 'a b'" } });
    run(&vm, &[launch.clone(), json!({ "type": "proxy" }), launch], &setting).await.unwrap();
    let expected =
        [r#"launch ["google-chrome", "a b"]"#, r#"launch ["google-chrome", "a b", "--proxy-server=http://10.0.0.1:3128"]"#];
    assert_eq!(*vm.noted(), expected);
    assert!(std::fs::read_to_string(vm.home().join("set")).unwrap().contains("org.gnome.system.proxy.https port 3128"));
    assert!(one(&vm, &Setting::default(), "proxy", Value::Null).await.is_err());
}

#[tokio::test]
async fn tabs_are_opened_and_closed_through_the_debugger() {
    let vm = FakeVm::new();
    let listed = r#"[{"id":"T1","type":"page","url":"chrome://newtab/","title":""},{"id":"T2","type":"page","url":"https://www.a.org/","title":""},{"id":"W","type":"service_worker","url":"https://b.org"}]"#;
    vm.program(
        "curl",
        &format!(r#"for last; do :; done; echo "$last" >> "$HOME/asked"; case "$last" in *list) echo '{listed}';; esac"#),
    );
    one(&vm, &Setting::default(), "chrome_open_tabs", json!({ "urls_to_open": ["https://a.org/?q=1&r"] })).await.unwrap();
    one(&vm, &Setting::default(), "chrome_close_tabs", json!({ "urls_to_close": ["https://a.org", "https://b.org"] }))
        .await
        .unwrap();
    let asked = std::fs::read_to_string(vm.home().join("asked")).unwrap().replace("http://127.0.0.1:9222/json/", "");
    assert_eq!(asked, "list\nnew?https%3A%2F%2Fa%2Eorg%2F%3Fq%3D1%26r\nclose/T1\nlist\nclose/T2\n");
}

#[tokio::test]
async fn visits_are_added_to_the_history() {
    let vm = FakeVm::new();
    let profile = vm.home().join(".config/google-chrome/Default");
    std::fs::create_dir_all(&profile).unwrap();
    let base = rusqlite::Connection::open(profile.join("History")).unwrap();
    let tables = "CREATE TABLE urls (id INTEGER PRIMARY KEY, url, title, visit_count, typed_count, last_visit_time, hidden);
                  CREATE TABLE visits (id INTEGER PRIMARY KEY, url, visit_time, from_visit, transition, segment_id, visit_duration);";
    base.execute_batch(tables).unwrap();
    let history = json!([{ "url": "https://a.org/'", "title": "A", "visit_time_from_now_in_seconds": 3600 }]);
    one(&vm, &Setting::default(), "update_browse_history", json!({ "history": history })).await.unwrap();
    let found: (String, i64) = base
        .query_row("SELECT urls.url, visit_time FROM urls JOIN visits ON visits.url = urls.id", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(found.0, "https://a.org/'");
    let hour_ago = jiff::Timestamp::now().as_microsecond() + 11_644_473_600_000_000 - 3_600_000_000;
    assert!((found.1 - hour_ago).abs() < 60_000_000);
}

#[tokio::test]
async fn actions_and_their_faults() {
    let (vm, dir) = (FakeVm::new(), tempfile::tempdir().unwrap());
    std::fs::write(dir.path().join("acts"), "{\"action_type\": \"PRESS\", \"key\": \"a\"}\n{\"action\": \"DONE\"}\n").unwrap();
    let setting = Setting { files: Some(dir.path().to_owned()), ..Setting::default() };
    one(&vm, &setting, "replay", json!({ "trajectory": "acts" })).await.unwrap();
    one(&vm, &setting, "act", json!({ "action_seq": [{ "action_type": "KEY_UP", "key": "b" }] })).await.unwrap();
    assert_eq!(*vm.noted(), [r#"Keys { keys: ["a"] }"#, r#"KeyUp { key: "b" }"#]);
    let steps = [
        json!({ "type": "sleep", "parameters": { "seconds": 0 } }),
        json!({ "type": "act", "parameters": { "action_seq": [1] } }),
    ];
    let error = run(&vm, &steps, &setting).await.unwrap_err().to_string();
    assert_eq!(error, "step 2 of the setup (act) failed: action 1: an action is a text, or an object with action_type");
    for (kind, parameters) in [
        ("login", json!({})),
        ("googledrive", json!({})),
        ("fly", json!({})),
        ("", json!({})),
        ("sleep", json!({ "seconds": -1 })),
        ("sleep", json!({ "seconds": 1e9 })),
        ("sleep", json!([])),
        ("execute", json!({ "command": [] })),
        ("execute", json!({ "command": ["a", 1] })),
        ("execute", json!({ "command": "'open" })),
        ("download", json!({ "files": ["x"] })),
        ("chrome_open_tabs", json!({ "urls_to_open": [] })),
    ] {
        assert!(one(&vm, &setting, kind, parameters).await.is_err(), "{kind}");
    }
    assert!(run(&vm, &vec![json!({}); 201], &setting).await.unwrap_err().to_string().contains("200 is the most"));
}

#[test]
fn words_are_parted_as_in_a_shell() {
    assert_eq!(words(r#"a "b \" c" 'd \' e\ f "" "#).unwrap(), ["a", "b \" c", "d \\", "e f", ""]);
    assert_eq!(words(r#""\n" a"b"c"#).unwrap(), ["\\n", "abc"]);
    assert!(words("\"a").is_err() && words("a\\").is_err());
    assert!(words("  ").unwrap().is_empty());
}
