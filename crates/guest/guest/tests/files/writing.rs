use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use http::StatusCode;
use serde_json::json;

use crate::guest::{Guest, Scratch};

#[tokio::test]
async fn content_arrives_in_every_encoding() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let file = dir.path("new/deep/f");
    let cases = [
        (json!({"content": "é\n"}), "é\n".as_bytes()),
        (json!({"content": "x", "leading_newline": true, "trailing_newline": true}), b"\nx\n"),
        (json!({"content": "AP8=", "encoding": "base64", "trailing_newline": true}), b"\x00\xff"),
        (json!({"content": "\u{ff}\u{0}", "encoding": "raw", "leading_newline": true}), b"\xff\x00"),
        (json!({"content": "", "encoding": null}), b""),
    ];
    for (mut arguments, expected) in cases {
        arguments["file"] = json!(file);
        let data = guest.file("write", arguments).await;
        assert_eq!(fs::read(&file).unwrap(), expected);
        assert_eq!(data["bytes_written"], expected.len());
    }
    for addition in ["a", "b\n"] {
        guest.file("write", json!({"file": file, "content": addition, "append": true})).await;
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "ab\n");
    guest.file("write", json!({"file": dir.path("appended/new"), "content": "x", "append": true})).await;
    for (content, encoding) in [("€", "raw"), ("!", "base64")] {
        let arguments = json!({"file": dir.path("no/such"), "content": content, "encoding": encoding});
        assert_eq!(guest.error_type("write", arguments).await, "invalid_argument");
    }
    let (status, _) = guest.post("/v1/file/write", r#"{"file": "x", "content": "", "encoding": "latin1"}"#).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(dir.names(""), ["appended", "new"]);
    assert_eq!(dir.names("new/deep"), ["f"], "no draft is left");
}

#[tokio::test]
async fn relative_paths_begin_at_the_default_directory() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    for path in ["f", "./f", "d/../f"] {
        fs::create_dir_all(dir.path("d")).unwrap();
        guest.file("write", json!({"file": path, "content": path})).await;
        assert_eq!(fs::read_to_string(dir.path("f")).unwrap(), path);
    }
    assert_eq!(guest.file("read", json!({"file": "f"})).await["file"], dir.path("f"));
}

#[tokio::test]
async fn a_file_keeps_its_mode_owner_and_links() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let (file, link) = (dir.path("real/f"), dir.path("link"));
    fs::create_dir(dir.path("real")).unwrap();
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    if crate::guest::is_root() {
        std::os::unix::fs::chown(&file, Some(1234), Some(4321)).unwrap();
    }
    let before = fs::metadata(&file).unwrap();
    symlink("real/../real/f", &link).unwrap();
    guest.file("write", json!({"file": link, "content": "new"})).await;
    let after = fs::metadata(&file).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
    // A dangling link: its target is created.
    symlink(dir.path("later"), dir.path("dangling")).unwrap();
    guest.file("write", json!({"file": dir.path("dangling"), "content": "x"})).await;
    assert_eq!(fs::read_to_string(dir.path("later")).unwrap(), "x");
    assert_eq!(fs::metadata(dir.path("later")).unwrap().mode() & 0o777, 0o644);
    symlink("loop", dir.path("loop")).unwrap();
    assert_eq!(guest.error_type("write", json!({"file": dir.path("loop"), "content": "x"})).await, "invalid_path");
}

#[tokio::test]
async fn replacing_counts() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let file = dir.path("f");
    fs::write(&file, "a.b.a").unwrap();
    let replace = async |old: &str, new: &str| {
        guest.file("replace", json!({"file": file, "old_str": old, "new_str": new})).await["replaced_count"].clone()
    };
    assert_eq!(replace("a", "cc").await, 2);
    assert_eq!(replace("zzz", "").await, 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), "cc.b.cc");
    assert_eq!(guest.error_type("replace", json!({"file": file, "old_str": "", "new_str": "x"})).await, "invalid_argument");
}

#[tokio::test]
async fn readers_see_the_old_content_or_the_new_one_and_writers_take_turns() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let file = dir.path("f");
    let content = |n: usize| format!("{n}").repeat(50_000);
    fs::write(&file, content(0)).unwrap();
    let write = async |n: usize| {
        guest.file("write", json!({"file": file, "content": content(n % 10)})).await;
    };
    let read = async || {
        let data = guest.file("read", json!({"file": file})).await;
        let text = data["content"].as_str().unwrap();
        assert!(text.len() == 50_000 && text.bytes().all(|b| b == text.as_bytes()[0]), "{} bytes", text.len());
    };
    let append = async |n: usize| {
        guest.file("write", json!({"file": dir.path("log"), "content": format!("{n}\n"), "append": true})).await;
    };
    futures_util::future::join_all((0..60).map(|n| async move {
        tokio::join!(write(n), read(), append(n));
    }))
    .await;
    let log = fs::read_to_string(dir.path("log")).unwrap();
    let mut lines: Vec<usize> = log.lines().map(|l| l.parse().unwrap()).collect();
    lines.sort_unstable();
    assert_eq!(lines, (0..60).collect::<Vec<_>>());
    assert_eq!(dir.names(""), ["f", "log"]);
}
