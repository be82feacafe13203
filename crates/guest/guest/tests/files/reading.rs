use std::fs;
use std::os::unix::fs::symlink;

use http::StatusCode;
use serde_json::{Value, json};

use crate::guest::{Guest, Scratch};

#[tokio::test]
async fn lines_count_from_zero_and_end_before_the_last() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let file = dir.path("f");
    fs::write(&file, "a\nb\r\nc\n\nlast").unwrap();
    for (start, end, content) in [
        (json!(null), json!(null), "a\nb\r\nc\n\nlast"),
        (json!(0), json!(1), "a\n"),
        (json!(1), json!(3), "b\r\nc\n"),
        (json!(3), json!(null), "\nlast"),
        (json!(null), json!(2), "a\nb\r\n"),
        (json!(2), json!(2), ""),
        (json!(4), json!(1), ""),
        (json!(9), json!(99), ""),
    ] {
        let data = guest.file("read", json!({"file": file, "start_line": start, "end_line": end})).await;
        assert_eq!(data["content"], content, "{start} to {end}");
        assert_eq!(data["file"], file);
    }
    let (status, answer) = guest.post("/v1/file/read", &json!({"file": file, "start_line": -1}).to_string()).await;
    assert_eq!((status, answer["detail"][0]["loc"].clone()), (StatusCode::UNPROCESSABLE_ENTITY, json!(["body", "start_line"])));
    let (status, answer) = guest.post("/v1/file/read", "").await;
    assert_eq!((status, answer["detail"][0]["loc"].clone()), (StatusCode::UNPROCESSABLE_ENTITY, json!(["body", "file"])));
}

#[tokio::test]
async fn huge_files_are_read_by_ranges_only() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let file = dir.path("huge");
    let line = "0123456789abcde\n";
    fs::write(&file, line.repeat((17 << 20) / line.len())).unwrap();
    let whole = guest.refused("read", json!({"file": file})).await;
    assert_eq!((whole["errno_name"].clone(), whole["error_type"].clone()), (json!("EFBIG"), json!("io_error")));
    assert!(whole["message"].as_str().unwrap().contains("start_line"));
    let part = guest.file("read", json!({"file": file, "start_line": 1_000_000, "end_line": 1_000_002})).await;
    assert_eq!(part["content"], line.repeat(2));
    assert_eq!(guest.refused("read", json!({"file": file, "start_line": 5})).await["errno_name"], "EFBIG");
    let found = guest.file("search", json!({"file": file, "regex": "^0.*e$"})).await;
    assert_eq!((found["matches"].as_array().unwrap().len(), found["truncated"].clone()), (10_000, json!(true)));
    // One endless line, which must never be in memory as a whole.
    let endless = dir.path("endless");
    fs::File::create(&endless).unwrap().set_len(1 << 34).unwrap();
    assert_eq!(guest.refused("read", json!({"file": endless, "start_line": 0, "end_line": 1})).await["errno_name"], "EFBIG");
    assert_eq!(guest.refused("search", json!({"file": endless, "regex": "x"})).await["errno_name"], "EFBIG");
    let status = fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB");
    assert!(peak.parse::<u64>().unwrap() < 200 << 10, "peak memory {peak} KiB");
}

#[tokio::test]
async fn what_is_no_text_is_a_decode_error_and_can_still_be_searched() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let file = dir.path("f");
    fs::write(&file, b"ok\nbad \xff here\nok again\n").unwrap();
    let error = guest.refused("read", json!({"file": file})).await;
    assert_eq!(
        (error["error_type"].clone(), error["exception_type"].clone()),
        (json!("decode_error"), json!("UnicodeDecodeError"))
    );
    assert!(error["message"].as_str().unwrap().contains("0xff in position 7"), "{error}");
    let later = guest.refused("read", json!({"file": file, "start_line": 1})).await;
    assert!(later["message"].as_str().unwrap().contains("0xff in position 7"), "{later}");
    assert_eq!(guest.file("read", json!({"file": file, "start_line": 2})).await["content"], "ok again\n");
    let found = guest.file("search", json!({"file": file, "regex": "^(ok|bad)"})).await;
    assert_eq!(found["line_numbers"], json!([0, 1, 2]));
    assert_eq!(found["matches"][0], "ok");
    for bad in ["(", "(?=x", "(a{1000}){1000}"] {
        assert_eq!(guest.error_type("search", json!({"file": file, "regex": bad})).await, "invalid_argument", "{bad}");
    }
}

/// Both versions of AIO's client parse these: the error's fields, and the required fields of the result.
#[tokio::test]
async fn errors_carry_what_both_clients_require() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let missing = dir.path("missing");
    for (operation, arguments, required) in [
        ("read", json!({"file": missing}), &["content", "file"][..]),
        ("write", json!({"file": dir.path(""), "content": ""}), &["file"]),
        ("replace", json!({"file": missing, "old_str": "a", "new_str": "b"}), &["file"]),
        ("search", json!({"file": missing, "regex": "a"}), &["file"]),
        ("find", json!({"path": missing, "glob": "*"}), &[]),
        ("list", json!({"path": missing}), &[]),
        ("str_replace_editor", json!({"command": "view", "path": missing}), &["output", "prev_exist", "path"]),
    ] {
        let error = guest.refused(operation, arguments).await;
        for field in ["path", "operation", "message", "error_type", "retryable", "errno", "errno_name"].iter().chain(required) {
            assert!(!error[field].is_null(), "{operation} {field}: {error}");
        }
        assert_eq!(error["operation"], operation);
        if operation != "write" {
            assert_eq!((error["error_type"].clone(), error["errno"].clone()), (json!("not_found"), json!(2)));
            assert!(error["message"].as_str().unwrap().contains("does not exist"), "{error}");
        }
    }
    let (status, answer) = guest.upload(&[("path", None, b"/dev/null"), ("file", Some("f"), b"x")]).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!((answer["data"]["success"].clone(), answer["data"]["file_size"].clone()), (json!(false), json!(0)));
    assert_eq!(answer["data"]["error_type"], "invalid_target");
    fs::create_dir(dir.path("d")).unwrap();
    fs::write(dir.path("file"), "").unwrap();
    for (operation, arguments, expected) in [
        ("read", json!({"file": dir.path("d")}), "invalid_target"),
        ("read", json!({"file": dir.path("file/x")}), "invalid_target"),
        ("list", json!({"path": dir.path("file")}), "invalid_target"),
        ("write", json!({"file": dir.path("d"), "content": "x"}), "invalid_target"),
        ("write", json!({"file": dir.path("new/"), "content": "x"}), "invalid_target"),
        ("write", json!({"file": dir.path("file/x"), "content": "x"}), "invalid_target"),
        ("write", json!({"file": "/proc/nothing/here", "content": "x"}), "not_found"),
        ("read", json!({"file": ""}), "invalid_path"),
        ("read", json!({"file": "a\u{0}b"}), "invalid_path"),
        ("read", json!({"file": "x".repeat(5000)}), "invalid_path"),
        ("write", json!({"file": dir.path(&"x".repeat(256)), "content": ""}), "invalid_path"),
    ] {
        assert_eq!(guest.error_type(operation, arguments.clone()).await, expected, "{operation} {arguments}");
    }
    assert_eq!(dir.names(""), ["d", "file"], "nothing is left of what failed");
}

#[tokio::test]
async fn listings_have_their_options() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    for (name, size) in [("b.py", 3), ("a.TXT", 20), (".hidden", 1), ("Makefile", 0), ("sub/c.py", 7), ("sub/deep/d.py", 9)] {
        let path = dir.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x".repeat(size)).unwrap();
    }
    symlink(dir.path("sub"), dir.path("link")).unwrap();
    symlink("..", dir.path("sub/loop")).unwrap();
    symlink("nowhere", dir.path("broken")).unwrap();
    let list = async |mut options: Value| {
        options["path"] = json!(".");
        let data = guest.file("list", options).await;
        let names = data["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| f["path"].as_str().unwrap().strip_prefix(dir.path("").as_str()).unwrap().to_owned());
        (names.collect::<Vec<String>>(), data.clone())
    };
    let (names, data) = list(json!({})).await;
    assert_eq!(names, [".hidden", "Makefile", "a.TXT", "b.py", "broken", "link", "sub"]);
    assert_eq!(data["path"], dir.path("").trim_end_matches('/'));
    assert_eq!([&data["total_count"], &data["directory_count"], &data["file_count"]], [&json!(7), &json!(2), &json!(5)]);
    let file = &data["files"][2];
    assert_eq!(
        (file["name"].clone(), file["size"].clone(), file["extension"].clone()),
        (json!("a.TXT"), json!(20), json!(".TXT"))
    );
    assert_eq!((file["permissions"].clone(), file["is_directory"].clone()), (Value::Null, json!(false)));
    assert!(file["modified_time"].as_str().unwrap().ends_with('Z'));
    assert_eq!(data["files"][1]["extension"], "");
    assert_eq!(data["files"][5]["is_directory"], true, "a link counts as what it points at");
    let (names, data) = list(json!({"show_hidden": false, "include_size": false, "include_permissions": true})).await;
    assert_eq!(names[0], "Makefile");
    assert_eq!((data["files"][0]["size"].clone(), data["files"][0]["permissions"].clone()), (Value::Null, json!("644")));
    assert_eq!(list(json!({"recursive": true, "file_types": [".py"]})).await.0, ["b.py", "sub/c.py", "sub/deep/d.py"]);
    assert_eq!(list(json!({"recursive": true, "file_types": ["py"], "max_depth": 2})).await.0, ["b.py", "sub/c.py"]);
    assert_eq!(list(json!({"file_types": ["txt", ".py"]})).await.0, ["a.TXT", "b.py"]);
    let by_size = list(json!({"recursive": true, "file_types": ["py"], "sort_by": "size", "sort_desc": true})).await.0;
    assert_eq!(by_size, ["sub/deep/d.py", "sub/c.py", "b.py"]);
    assert_eq!(list(json!({"sort_by": "type"})).await.0[..2], ["link", "sub"]);
    assert_eq!(guest.error_type("list", json!({"path": ".", "sort_by": "colour"})).await, "invalid_argument");
    let everything = list(json!({"recursive": true})).await.0;
    assert!(everything.contains(&"sub/loop".to_owned()) && everything.len() == 11, "{everything:?}");
}

#[tokio::test]
async fn files_are_found_by_name_and_pattern() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    for name in ["a.py", "[x].py", ".env", "sub/a.py", "sub/.git/c.py", "sub/deep/b.py"] {
        let path = dir.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    for (glob, found) in [
        ("a.py", &["a.py"][..]),
        ("b.py", &[]),
        ("[x].py", &["[x].py"]),
        ("*.py", &["[x].py", "a.py"]),
        (".env", &[".env"]),
        ("*", &["[x].py", "a.py", "sub"]),
        (".*", &[".env"]),
        ("sub/*.py", &["sub/a.py"]),
        ("**/*.py", &["[x].py", "a.py", "sub/a.py", "sub/deep/b.py"]),
        ("./a.py", &["a.py"]),
        ("nothing*", &[]),
    ] {
        let data = guest.file("find", json!({"path": dir.path(""), "glob": glob})).await;
        let found: Vec<String> = found.iter().map(|f| dir.path(f)).collect();
        assert_eq!(data["files"], json!(found), "{glob}");
    }
    assert_eq!(guest.error_type("find", json!({"path": dir.path(""), "glob": "../*"})).await, "invalid_argument");
    assert_eq!(guest.error_type("find", json!({"path": dir.path("missing"), "glob": "a"})).await, "not_found");
}

#[tokio::test]
async fn a_large_directory_is_cut_and_says_so() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    for n in 0..10_050 {
        fs::File::create(dir.path(&format!("{n}.txt"))).unwrap();
    }
    let data = guest.file("list", json!({"path": dir.path("")})).await;
    assert_eq!((data["total_count"].clone(), data["truncated"].clone()), (json!(10_000), json!(true)));
    let data = guest.file("find", json!({"path": dir.path(""), "glob": "*.txt"})).await;
    assert_eq!((data["files"].as_array().unwrap().len(), data["truncated"].clone()), (10_000, json!(true)));
    let all = guest.file("find", json!({"path": dir.path(""), "glob": "77?.txt"})).await;
    assert_eq!((all["files"].as_array().unwrap().len(), all["truncated"].clone()), (10, json!(false)));
}
