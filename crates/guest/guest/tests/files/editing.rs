use std::fs;

use serde_json::{Value, json};

use crate::guest::{Guest, Scratch};

async fn edit(guest: &Guest, command: &str, path: &str, mut arguments: Value) -> Value {
    arguments["command"] = json!(command);
    arguments["path"] = json!(path);
    guest.file("str_replace_editor", arguments).await
}

async fn refused(guest: &Guest, command: &str, path: &str, mut arguments: Value) -> (String, String) {
    arguments["command"] = json!(command);
    arguments["path"] = json!(path);
    let error = guest.refused("str_replace_editor", arguments).await;
    assert_eq!(error["error"], error["message"]);
    (error["error_type"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn edits_are_undone_one_by_one_to_before_the_file() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let file = dir.path("new/f.txt");
    let made = edit(&guest, "create", &file, json!({"file_text": "one\ntwo\nthree\n"})).await;
    assert_eq!((made["prev_exist"].clone(), made["new_content"].clone()), (json!(false), json!("one\ntwo\nthree\n")));
    let (kind, message) = refused(&guest, "create", &file, json!({"file_text": "x"})).await;
    assert_eq!(kind, "already_exists");
    assert!(message.contains("/v1/file/write"), "{message}");
    let replaced = edit(&guest, "str_replace", &file, json!({"old_str": "two", "new_str": "2"})).await;
    assert_eq!(replaced["old_content"], "one\ntwo\nthree\n");
    assert_eq!(replaced["new_content"], "one\n2\nthree\n");
    assert_eq!(replaced["prev_exist"], true);
    assert!(replaced["output"].as_str().unwrap().contains("     2\t2\n"), "{replaced}");
    edit(&guest, "insert", &file, json!({"insert_line": 1, "new_str": "one and a half"})).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "one\none and a half\n2\nthree\n");
    let all = edit(&guest, "str_replace", &file, json!({"old_str": "one", "replace_mode": "ALL"})).await;
    assert_eq!(all["new_content"], "\n and a half\n2\nthree\n", "new_str is optional");
    // Another name for the same file has the same history.
    let other = dir.path("new/../new/f.txt");
    for expected in ["one\none and a half\n2\nthree\n", "one\n2\nthree\n", "one\ntwo\nthree\n"] {
        edit(&guest, "undo_edit", &other, json!({})).await;
        assert_eq!(fs::read_to_string(&file).unwrap(), expected);
    }
    let undone = edit(&guest, "undo_edit", &file, json!({})).await;
    assert!(undone["output"].as_str().unwrap().contains("deleted"), "{undone}");
    assert!(!fs::exists(&file).unwrap());
    assert_eq!(refused(&guest, "undo_edit", &file, json!({})).await.0, "no_history");
}

#[tokio::test]
async fn failures_change_nothing_and_are_told_apart() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let file = dir.path("f.txt");
    let text = "same\nother\nsame\n";
    fs::write(&file, text).unwrap();
    let missing = dir.path("missing.txt");
    for (command, path, arguments, kind, words) in [
        ("str_replace", &file, json!({"old_str": "absent", "new_str": "x"}), "no_match", "did not appear"),
        ("str_replace", &file, json!({"old_str": "same", "new_str": "x"}), "not_unique", "not unique"),
        ("str_replace", &file, json!({"old_str": "same", "new_str": "x"}), "not_unique", "multiple"),
        ("str_replace", &file, json!({"new_str": "x"}), "invalid_argument", "old_str"),
        ("str_replace", &missing, json!({"old_str": "a", "new_str": "x"}), "not_found", "does not exist"),
        ("insert", &file, json!({"insert_line": 4, "new_str": "x"}), "invalid_argument", "0 to 3"),
        ("insert", &file, json!({"insert_line": 1}), "invalid_argument", "new_str"),
        ("insert", &file, json!({"new_str": "x"}), "invalid_argument", "insert_line"),
        ("insert", &missing, json!({"insert_line": 0, "new_str": "x"}), "not_found", "does not exist"),
        ("create", &missing, json!({}), "invalid_argument", "file_text"),
        ("view", &missing, json!({}), "not_found", "does not exist"),
        ("view", &file, json!({"view_range": [4, 5]}), "invalid_argument", "3 lines"),
        ("view", &dir.path(""), json!({"view_range": [1, 2]}), "invalid_argument", "directory"),
        ("view", &file, json!({"page_range": [1, 2]}), "invalid_argument", "page_range is for PDFs"),
        ("undo_edit", &file, json!({}), "no_history", "undo"),
    ] {
        let (error_type, message) = refused(&guest, command, path, arguments.clone()).await;
        assert_eq!(error_type, kind, "{command} {arguments}: {message}");
        assert!(message.contains(words), "{command} {arguments}: {message}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(dir.names(""), ["f.txt"]);
}

#[tokio::test]
async fn views_show_files_by_lines_and_directories_by_levels() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    fs::create_dir_all(dir.path("a/b/c")).unwrap();
    fs::create_dir(dir.path(".git")).unwrap();
    fs::write(dir.path("a/f.txt"), "1\n2\n3\n").unwrap();
    let shown = edit(&guest, "view", &dir.path("a/f.txt"), json!({"view_range": [2, -1]})).await;
    assert!(shown["output"].as_str().unwrap().ends_with(":\n     2\t2\n     3\t3\n"), "{shown}");
    let shown = edit(&guest, "view", ".", json!({"view_range": []})).await;
    let output = shown["output"].as_str().unwrap();
    for (name, is_shown) in [("/a/\n", true), ("/a/b/\n", true), ("/a/f.txt\n", true), ("/a/b/c", false), (".git", false)] {
        assert_eq!(output.contains(name), is_shown, "{name}: {output}");
    }
    assert!(output.contains("1 hidden"), "{output}");
}

#[tokio::test]
async fn edits_of_one_file_at_once_all_arrive() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let file = dir.path("f");
    let text: String = (0..40).map(|n| format!("<{n}>\n")).collect();
    fs::write(&file, text).unwrap();
    let change = async |n: usize| {
        edit(&guest, "str_replace", &file, json!({"old_str": format!("<{n}>"), "new_str": format!("done {n}")})).await;
    };
    futures_util::future::join_all((0..40).map(change)).await;
    let expected: String = (0..40).map(|n| format!("done {n}\n")).collect();
    assert_eq!(fs::read_to_string(&file).unwrap(), expected);
    let undo = async |_| edit(&guest, "undo_edit", &file, json!({})).await;
    futures_util::future::join_all((0..40).map(undo)).await;
    assert_eq!(fs::read_to_string(&file).unwrap().matches('<').count(), 40);
}
