//! `grep` and `glob`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use http::StatusCode;
use serde_json::{Value, json};

use crate::guest::{Guest, Scratch, is_root};

fn tree(dir: &Scratch, files: &[(&str, &str)]) {
    for (name, content) in files {
        let path = dir.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// The matches' paths relative to the directory, with their line numbers.
fn places(dir: &Scratch, data: &Value) -> Vec<String> {
    let base = format!("{}/", dir.0.display());
    let matches = data["matches"].as_array().unwrap().iter();
    matches.map(|m| format!("{}:{}", m["file"].as_str().unwrap().strip_prefix(&base).unwrap(), m["line_number"])).collect()
}

/// The files' paths relative to the directory.
fn paths(dir: &Scratch, data: &Value) -> Vec<String> {
    let base = format!("{}/", dir.0.display());
    let files = data["files"].as_array().unwrap().iter();
    files.map(|f| f["path"].as_str().unwrap().strip_prefix(&base).unwrap().to_owned()).collect()
}

fn with(base: &Value, extra: Value) -> Value {
    let mut whole = base.clone();
    whole.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    whole
}

#[tokio::test]
async fn matches_come_in_order_with_their_lines() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    tree(
        &dir,
        &[
            ("a.py", "import os\nprint(1)\nimport sys\n"),
            ("b/deep/c.rs", "use std; // Import\r\nimport\r\n"),
            ("b/d.txt", "nothing\n"),
            ("z.py", "x\nx\nimport last"),
        ],
    );
    let base = json!({"path": dir.0, "pattern": "import"});
    let data = guest.file("grep", base.clone()).await;
    assert_eq!(places(&dir, &data), ["a.py:1", "a.py:3", "b/deep/c.rs:2", "z.py:3"]);
    assert_eq!(data["matches"][2]["line_content"], "import");
    assert_eq!(data["matches"][0]["context_before"], Value::Null);
    assert_eq!(
        (&data["match_count"], &data["files_searched"], &data["files_matched"], &data["truncated"]),
        (&json!(4), &json!(4), &json!(3), &json!(false))
    );
    for (extra, expected) in [
        (json!({"case_insensitive": true}), vec!["a.py:1", "a.py:3", "b/deep/c.rs:1", "b/deep/c.rs:2", "z.py:3"]),
        (json!({"include": ["*.py"]}), vec!["a.py:1", "a.py:3", "z.py:3"]),
        (json!({"include": ["*.py", "*.rs"], "exclude": ["z*"]}), vec!["a.py:1", "a.py:3", "b/deep/c.rs:2"]),
        (json!({"exclude": ["deep"]}), vec!["a.py:1", "a.py:3", "z.py:3"]),
        (json!({"include": ["b/**/*.rs"]}), vec!["b/deep/c.rs:2"]),
        (json!({"type": "rust"}), vec!["b/deep/c.rs:2"]),
        (json!({"type": "py", "pattern": "^import (os|sys)$"}), vec!["a.py:1", "a.py:3"]),
        (json!({"recursive": false}), vec!["a.py:1", "a.py:3", "z.py:3"]),
        (json!({"path": dir.path("z.py")}), vec!["z.py:3"]),
        (json!({"path": "b"}), vec!["b/deep/c.rs:2"]),
        (json!({"pattern": "print(1)", "fixed_strings": true}), vec!["a.py:2"]),
        (json!({"pattern": "print(1)"}), vec![]),
        (json!({"max_file_size": "20"}), vec!["z.py:3"]),
        (json!({"pattern": "os.print"}), vec![]),
        (json!({"pattern": "os.print", "multiline": true}), vec!["a.py:1"]),
        (json!({"pattern": "os.print.1.\nimport", "multiline": true}), vec!["a.py:1"]),
        (
            json!({"include": null, "max_results": null, "type": null, "recursive": null}),
            vec!["a.py:1", "a.py:3", "b/deep/c.rs:2", "z.py:3"],
        ),
    ] {
        let data = guest.file("grep", with(&base, extra.clone())).await;
        assert_eq!(places(&dir, &data), expected, "{extra}");
    }
    let data = guest.file("grep", with(&base, json!({"pattern": "os.print", "multiline": true}))).await;
    assert_eq!(data["matches"][0]["line_content"], "import os\nprint(1)");
}

#[tokio::test]
async fn pages_follow_each_other_without_gap_or_repetition() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    for number in 0..300 {
        let lines = "hit\nmiss\n".repeat(number % 4);
        tree(&dir, &[(&format!("{}/{number}", number % 7), &lines)]);
    }
    let base = json!({"path": dir.0, "pattern": "hit"});
    let all = places(&dir, &guest.file("grep", base.clone()).await);
    assert_eq!(all.len(), 450);
    let mut paged = Vec::new();
    loop {
        let page = guest.file("grep", with(&base, json!({"offset": paged.len(), "max_results": 64}))).await;
        assert_eq!(page["match_count"], 450);
        let places = places(&dir, &page);
        assert_eq!(page["truncated"], paged.len() + places.len() < 450);
        if places.is_empty() {
            break;
        }
        paged.extend(places);
    }
    assert_eq!(paged, all);
    let one = json!({"path": dir.path("3/3"), "pattern": "hit", "offset": 1, "max_results": 1});
    let data = guest.file("grep", one).await;
    assert_eq!(
        (places(&dir, &data), &data["match_count"], &data["truncated"]),
        (vec!["3/3:3".to_owned()], &json!(3), &json!(true))
    );
    let far = guest.file("grep", with(&base, json!({"offset": i64::MAX}))).await;
    assert_eq!((far["matches"].as_array().unwrap().len(), &far["match_count"]), (0, &json!(450)));
}

#[tokio::test]
async fn context_is_whole_for_each_match_also_where_they_are_close() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let text: String = (1..=30).map(|n| if [3, 5, 20].contains(&n) { format!("hit {n}\n") } else { format!("{n}\n") }).collect();
    tree(&dir, &[("f", &text), ("g", "hit")]);
    let data = guest.file("grep", json!({"path": dir.0, "pattern": "hit", "context_before": 3, "context_after": 2})).await;
    let context = |at: usize| (data["matches"][at]["context_before"].clone(), data["matches"][at]["context_after"].clone());
    assert_eq!(context(0), (json!(["1", "2"]), json!(["4", "hit 5"])));
    assert_eq!(context(1), (json!(["2", "hit 3", "4"]), json!(["6", "7"])));
    assert_eq!(context(2), (json!(["17", "18", "19"]), json!(["21", "22"])));
    assert_eq!(context(3), (json!([]), json!([])));
    // The last match of a page has its context lines too, though they contain a match beyond the page.
    let data = guest.file("grep", json!({"path": dir.0, "pattern": "hit", "context_after": 4, "max_results": 1})).await;
    assert_eq!(data["matches"][0]["context_after"], json!(["4", "hit 5", "6", "7"]));
    assert_eq!(data["matches"].as_array().unwrap().len(), 1);
    let skipped = json!({"path": dir.0, "pattern": "hit", "context_before": 2, "offset": 1, "max_results": 1});
    assert_eq!(guest.file("grep", skipped).await["matches"][0]["context_before"], json!(["hit 3", "4"]));
}

#[tokio::test]
async fn what_ripgrep_passes_over_is_passed_over() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    tree(
        &dir,
        &[
            ("repo/.git/info/exclude", "excluded\n"),
            ("repo/.git/config", "hit"),
            ("repo/.gitignore", "\u{feff}*.log\n!keep.log\n/build\n"),
            ("repo/a.log", "hit"),
            ("repo/keep.log", "hit"),
            ("repo/excluded", "hit"),
            ("repo/build/x", "hit"),
            ("repo/sub/build/x", "hit"),
            ("repo/sub/.gitignore", "!b.log\n"),
            ("repo/sub/b.log", "hit"),
            ("repo/.env", "hit"),
            ("repo/.hidden/x", "hit"),
            ("loose/.gitignore", "x\n"),
            ("loose/x", "hit"),
            ("loose/.ignore", "y\n"),
            ("loose/y", "hit"),
            ("loose/.rgignore", "!y2\nz\n"),
            ("loose/z", "hit"),
            ("binary", "hit\u{0}"),
        ],
    );
    let base = json!({"path": dir.0, "pattern": "hit"});
    let data = guest.file("grep", base.clone()).await;
    assert_eq!(places(&dir, &data), ["loose/x:1", "repo/keep.log:1", "repo/sub/b.log:1", "repo/sub/build/x:1"]);
    // From a subdirectory: the rules above apply too.
    let data = guest.file("grep", with(&base, json!({"path": "repo/sub"}))).await;
    assert_eq!(places(&dir, &data), ["repo/sub/b.log:1", "repo/sub/build/x:1"]);
    for (extra, expected) in [
        (json!({"include": [".env"]}), vec!["repo/.env:1"]),
        (json!({"include": ["*.log"]}), vec!["repo/a.log:1", "repo/keep.log:1", "repo/sub/b.log:1"]),
        (json!({"path": dir.path("repo/.hidden")}), vec!["repo/.hidden/x:1"]),
        (json!({"path": dir.path("repo/a.log")}), vec!["repo/a.log:1"]),
        (json!({"path": dir.path("binary")}), vec!["binary:1"]),
    ] {
        assert_eq!(places(&dir, &guest.file("grep", with(&base, extra.clone())).await), expected, "{extra}");
    }
    let (_, answer) = guest.post("/v1/file/grep", &with(&base, json!({"pattern": "nowhere"})).to_string()).await;
    assert!(answer["hint"].as_str().unwrap().contains("gitignore"), "{answer}");
}

#[tokio::test]
async fn bad_searches_are_refused() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    tree(&dir, &[("f", "x")]);
    let base = json!({"path": dir.0, "pattern": "x"});
    for (extra, kind) in [
        (json!({"pattern": "("}), "invalid_argument"),
        (json!({"pattern": "(?=x"}), "invalid_argument"),
        (json!({"pattern": r"\w{1000}{1000}"}), "invalid_argument"),
        (json!({"pattern": r"a\nb"}), "invalid_argument"),
        (json!({"include": ["["]}), "invalid_argument"),
        (json!({"include": ["!x"]}), "invalid_argument"),
        (json!({"type": "klingon"}), "invalid_argument"),
        (json!({"max_file_size": "many"}), "invalid_argument"),
        (json!({"path": dir.path("missing")}), "not_found"),
        (json!({"path": "/dev/zero"}), "invalid_target"),
    ] {
        assert_eq!(guest.error_type("grep", with(&base, extra.clone())).await, kind, "{extra}");
    }
    let data = guest.refused("grep", with(&base, json!({"pattern": "("}))).await;
    assert_eq!(data["pattern"], "", "version 0.0.30 of the SDK insists on it");
    for extra in [
        json!({"context_before": 21}),
        json!({"context_after": -1}),
        json!({"max_results": 0}),
        json!({"max_results": 10001}),
        json!({"offset": -1}),
        json!({"include": "*.py"}),
        json!({"multiline": "perhaps"}),
        json!({"pattern": null}),
    ] {
        let (status, answer) = guest.post("/v1/file/grep", &with(&base, extra.clone()).to_string()).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{extra}: {answer}");
        let field = extra.as_object().unwrap().keys().next().unwrap();
        assert_eq!(answer["detail"][0]["loc"], json!(["body", field]), "{answer}");
    }
}

/// A tree that would block a search that opens everything.
#[tokio::test]
async fn a_hostile_tree_holds_nothing() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    tree(&dir, &[("a/f", "hit"), ("b/.git/x", ""), ("b/f", "hit")]);
    for pipe in ["pipe", "a/.ignore", "a/.rgignore", "b/.gitignore", "b/.git/info"] {
        rustix::fs::mkfifoat(rustix::fs::CWD, dir.0.join(pipe), rustix::fs::Mode::from_raw_mode(0o666)).unwrap();
    }
    let _socket = UnixListener::bind(dir.path("socket")).unwrap();
    symlink(&dir.0, dir.path("a/loop")).unwrap();
    symlink("/dev/zero", dir.path("endless")).unwrap();
    symlink("/", dir.path("outside")).unwrap();
    fs::create_dir(dir.path("closed")).unwrap();
    fs::set_permissions(dir.path("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::File::create(dir.path("sparse")).unwrap().set_len(1 << 40).unwrap();
    let mut deep = dir.0.clone();
    for _ in 0..80 {
        deep.push("d");
        fs::create_dir(&deep).unwrap();
    }
    fs::write(deep.join("f"), "hit").unwrap();
    let begun = Instant::now();
    let data = guest.file("grep", json!({"path": dir.0, "pattern": "hit"})).await;
    assert_eq!(places(&dir, &data), ["a/f:1", "b/f:1"]);
    assert_eq!(data["truncated"], true, "deeper than a walk goes");
    // An endless file is abandoned in its first line, which does not end either.
    let data =
        guest.file("grep", json!({"path": dir.0, "pattern": "hit", "max_file_size": "2000G", "include": ["sparse"]})).await;
    assert_eq!(data["match_count"], 0);
    assert_eq!(guest.error_type("grep", json!({"path": dir.path("pipe"), "pattern": "x"})).await, "invalid_target");
    let proc =
        guest.file("grep", json!({"path": "/proc", "pattern": "^arenite-no-such-text$", "include": ["environ", "kmsg"]})).await;
    assert_eq!(proc["match_count"], 0);
    assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn searches_have_the_users_rights_on_every_thread() {
    if !is_root() {
        return;
    }
    let dir = Scratch::new();
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o777)).unwrap();
    let guest = Guest::start_as(&dir.0, "nobody");
    for number in 0..64 {
        tree(
            &dir,
            &[(&format!("{number}/open"), "hit"), (&format!("{number}/secret"), "hit"), (&format!("{number}/in/f"), "hit")],
        );
        fs::set_permissions(dir.path(&format!("{number}/secret")), fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(dir.path(&format!("{number}/in")), fs::Permissions::from_mode(0o700)).unwrap();
    }
    let data = guest.file("grep", json!({"path": dir.0, "pattern": "hit"})).await;
    assert_eq!((data["match_count"].clone(), data["files_searched"].clone()), (json!(64), json!(64)));
    let data = guest.file("glob", json!({"path": dir.0, "pattern": "**/f"})).await;
    assert_eq!(data["total_count"], 0);
    let file = json!({"path": dir.path("1/secret"), "pattern": "hit"});
    assert_eq!(guest.error_type("grep", file).await, "permission_denied");
}

#[tokio::test]
async fn memory_and_time_are_bounded() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    // Ten thousand matches with context, and long lines.
    tree(&dir, &[("many", &"hit and some more text on the line\n".repeat(300_000)), ("long", &"hit ".repeat(1 << 20))]);
    let all = json!({"path": dir.0, "pattern": "hit", "max_results": 10_000, "max_file_size": "1G", "context_before": 20, "context_after": 20});
    let data = guest.file("grep", all).await;
    assert_eq!((&data["match_count"], &data["truncated"]), (&json!(300_001), &json!(true)));
    let long = guest.file("grep", json!({"path": dir.path("long"), "pattern": "hit"})).await;
    assert!(long["matches"][0]["line_content"].as_str().unwrap().len() < 20_000);
    let plain = guest.file("grep", json!({"path": dir.0, "pattern": "hit", "max_results": 10_000, "max_file_size": "1G"})).await;
    assert_eq!(plain["matches"].as_array().unwrap().len(), 10_000);
    let status = fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB");
    assert!(peak.parse::<u64>().unwrap() < 64 << 10, "peak memory {peak} KiB");
    // The slowest kind of pattern, on matching text: a caller that leaves stops the work.
    tree(&dir, &[("bomb", &format!("{}\n", "1".repeat(400)).repeat(200_000))]);
    let bomb = json!({"path": dir.path("bomb"), "pattern": "[01]*1[01]{5000}x", "max_file_size": "1G"});
    let call = guest.post("/v1/file/grep", &bomb.to_string()).await;
    assert_eq!(call.0, StatusCode::OK);
    let threads = || fs::read_dir(format!("/proc/{}/task", guest.pid())).unwrap().count();
    let idle = threads();
    let slow = json!({"path": "/", "pattern": "[01]*1[01]{3000}x", "max_file_size": "100G"}).to_string();
    let left = tokio::time::timeout(Duration::from_millis(300), guest.post("/v1/file/grep", &slow)).await;
    if left.is_err() {
        for _ in 0..1000 {
            if threads() <= idle {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(threads() <= idle, "the search went on though nobody waits");
    }
}

#[tokio::test]
async fn globs_find_sort_and_describe() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    tree(
        &dir,
        &[
            ("b.py", "12345"),
            ("a.py", "1"),
            ("c.txt", "123"),
            ("sub/d.py", "12"),
            ("sub/node_modules/e.py", ""),
            (".hidden.py", ""),
            (".cache/f.py", ""),
        ],
    );
    let base = json!({"path": dir.0, "pattern": "**/*.py"});
    for (extra, expected) in [
        (json!({}), vec!["a.py", "b.py", "sub/d.py", "sub/node_modules/e.py"]),
        (json!({"pattern": "*.py"}), vec!["a.py", "b.py"]),
        (json!({"pattern": "?.[pt]*"}), vec!["a.py", "b.py", "c.txt"]),
        (json!({"exclude": ["node_modules"]}), vec!["a.py", "b.py", "sub/d.py"]),
        (json!({"exclude": ["node_modules", "b*"]}), vec!["a.py", "sub/d.py"]),
        (json!({"include_hidden": true, "exclude": ["sub"]}), vec![".cache/f.py", ".hidden.py", "a.py", "b.py"]),
        (json!({"pattern": "**", "files_only": false, "exclude": ["*.*"]}), vec!["sub", "sub/node_modules"]),
        (json!({"sort_by": "size"}), vec!["sub/node_modules/e.py", "a.py", "sub/d.py", "b.py"]),
        (json!({"sort_by": "name", "sort_desc": true}), vec!["sub/node_modules/e.py", "sub/d.py", "b.py", "a.py"]),
        (json!({"sort_by": "size", "sort_desc": true, "max_results": 2}), vec!["b.py", "sub/d.py"]),
    ] {
        let data = guest.file("glob", with(&base, extra.clone())).await;
        assert_eq!(paths(&dir, &data), expected, "{extra}");
        let total = if extra["max_results"].is_null() { expected.len() } else { 4 };
        assert_eq!((&data["total_count"], &data["truncated"]), (&json!(total), &json!(total > expected.len())), "{extra}");
    }
    let old = fs::File::options().append(true).open(dir.path("b.py")).unwrap();
    old.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(86_400)).unwrap();
    let data = guest.file("glob", with(&base, json!({"sort_by": "modified", "max_results": 1}))).await;
    assert_eq!(
        data["files"][0],
        json!({"path": dir.path("b.py"), "name": "b.py", "is_directory": false, "size": 5, "modified_time": "1970-01-02T00:00:00Z"})
    );
    let data = guest.file("glob", with(&base, json!({"include_metadata": false, "max_results": 1}))).await;
    assert_eq!((&data["files"][0]["size"], &data["files"][0]["modified_time"]), (&Value::Null, &Value::Null));
    for (extra, kind) in [
        (json!({"pattern": "["}), "invalid_argument"),
        (json!({"pattern": "/etc/*"}), "invalid_argument"),
        (json!({"exclude": ["["]}), "invalid_argument"),
        (json!({"sort_by": "colour"}), "invalid_argument"),
        (json!({"path": dir.path("a.py")}), "invalid_target"),
        (json!({"path": dir.path("missing")}), "not_found"),
    ] {
        assert_eq!(guest.error_type("glob", with(&base, extra.clone())).await, kind, "{extra}");
    }
    let (status, _) = guest.post("/v1/file/glob", &with(&base, json!({"max_results": 50_001})).to_string()).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}
