//! Evaluators on a fake VM, with the real metrics in their real process.

use std::time::Duration;

use super::super::osworld::table::tests::XML;
use super::super::setup::fake::FakeVm;
use super::*;

/// The unpacked package, and the scorer that uses it.
struct Bench {
    vm: FakeVm,
    setting: Setting,
    scorer: Scorer,
    _package: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let package = tempfile::tempdir().unwrap();
        crate::plugin::unpack(package.path()).unwrap();
        let scorer = Scorer::new("python3", package.path());
        Self { vm: FakeVm::new(), setting: Setting::default(), scorer, _package: package }
    }

    fn file(&self, name: &str, content: &str) {
        std::fs::write(self.vm.home().join(name), content).unwrap();
    }

    async fn judged(&self, evaluator: Value, failed: bool) -> Result<Value, Failure> {
        evaluate(&self.vm, &evaluator, failed, &self.setting, &self.scorer).await
    }

    async fn score(&self, evaluator: Value) -> f64 {
        self.judged(evaluator, false).await.unwrap()["score"].as_f64().unwrap()
    }

    async fn refused(&self, evaluator: Value) -> (i64, String) {
        let failure = self.judged(evaluator, false).await.unwrap_err();
        (failure.code, failure.message)
    }
}

fn rule(expected: Value) -> Value {
    json!({ "type": "rule", "rules": { "expected": expected } })
}

#[tokio::test]
async fn a_task_is_judged_by_what_the_machine_holds() {
    let bench = Bench::new();
    bench.file("a.txt", "one\ntwo\n");
    let evaluator = json!({
        "func": ["file_contains", "exact_match"],
        "conj": "and",
        "result": [{ "type": "vm_file", "path": "~/a.txt", "dest": "a.txt" }, { "type": "vm_command_line", "command": "cat made", "shell": true }],
        "expected": [rule(json!(["one", "two"])), rule(json!("by postconfig"))],
        "postconfig": [{ "type": "execute", "parameters": { "command": "printf 'by postconfig' > made", "shell": true } }],
    });
    let judged = bench.judged(evaluator.clone(), false).await.unwrap();
    assert_eq!(judged["score"], 1.0);
    assert_eq!(judged["results"], json!([1.0, 1.0]));
    assert_eq!(judged["details"][0]["result"], json!({ "file": "a.txt" }));
    assert_eq!(judged["details"][1]["result"], "by postconfig");
    assert_eq!(judged["evaluator"], evaluator);
    // A failing metric ends an `and`, and is ignored by an `or`.
    let both = |conj: &str| {
        let file = json!({ "type": "vm_file", "path": "~/a.txt" });
        let missing = json!({ "type": "vm_file", "path": "~/nothing" });
        json!({ "func": ["file_contains", "file_contains"], "conj": conj, "result": [missing, file], "expected": [rule(json!("one")), rule(json!("one"))] })
    };
    let judged = bench.judged(both("and"), false).await.unwrap();
    assert_eq!((&judged["score"], &judged["results"]), (&json!(0.0), &json!([0.0])));
    assert_eq!(judged["details"][0]["reason"], "there is no result");
    assert_eq!(bench.judged(both("or"), false).await.unwrap()["results"], json!([0.0, 1.0]));
}

#[tokio::test]
async fn giving_up_is_right_when_nothing_can_be_done() {
    let bench = Bench::new();
    let judged = bench.judged(json!({ "func": "infeasible" }), true).await.unwrap();
    assert_eq!((&judged["score"], &judged["last_action_failed"]), (&json!(1.0), &json!(true)));
    assert_eq!(bench.score(json!({ "func": "infeasible" })).await, 0.0);
    let evaluator = json!({ "func": "exact_match", "result": { "type": "rule", "rules": 1 }, "expected": rule(json!(1)) });
    assert_eq!(bench.score(evaluator.clone()).await, 1.0);
    assert_eq!(bench.judged(evaluator, true).await.unwrap()["score"], 0.0);
}

#[tokio::test]
async fn a_client_names_no_file_of_the_server() {
    let bench = Bench::new();
    let path = "/etc/passwd";
    let (code, why) = bench
        .refused(json!({ "func": "compare_text_file", "result": { "type": "rule", "rules": path }, "expected": { "type": "rule", "rules": path } }))
        .await;
    assert_eq!(code, codes::INVALID_INPUT);
    assert!(why.contains("result has to be a file"), "{why}");
    // A file name can't lead out of the evaluation's folder either.
    bench.file("a", "x");
    let dir = tempfile::tempdir().unwrap();
    let mut getting = Getting::new(&bench.vm, &bench.setting, dir.path());
    for (dest, kept) in
        [("../../up", "r/up"), ("/etc/passwd", "r/passwd"), ("..", "r/file-0"), ("a\n;b", "r/a__b"), ("up", "r/0-up")]
    {
        let Ok(found) = getting.get(&json!({ "type": "vm_file", "path": "~/a", "dest": dest }), "r").await else {
            panic!("{dest}")
        };
        assert_eq!(found, Found::File(kept.to_owned()));
        assert_eq!(std::fs::read(dir.path().join(kept)).unwrap(), b"x");
    }
}

#[tokio::test]
async fn getters_look_at_the_machine() {
    let mut bench = Bench::new();
    bench.vm.xml = Some(XML.to_owned());
    bench.vm.terminal = Some("$ ls".to_owned());
    bench.vm.program("wmctrl", "echo '0x1 0 10 20 800 600 gimp.Gimp host An image'");
    bench.vm.program("curl", r#"echo '[{"id":"A","type":"page","url":"https://a.org/","title":"A"}]'"#);
    let profile = bench.vm.home().join(".config/chromium/Default");
    std::fs::create_dir_all(&profile).unwrap();
    std::fs::write(profile.join("Preferences"), r#"{"enable_do_not_track": true, "profile": {"name": "Me"}}"#).unwrap();
    std::fs::create_dir(bench.vm.home().join("folder")).unwrap();
    bench.file("folder/b", "");
    let dir = tempfile::tempdir().unwrap();
    let mut getting = Getting::new(&bench.vm, &bench.setting, dir.path());
    for (config, expected) in [
        (json!({ "type": "vm_screen_size" }), json!({ "width": 1920, "height": 1080 })),
        (json!({ "type": "vm_terminal_output" }), json!("$ ls")),
        (json!({ "type": "vm_command_error", "command": ["sh", "-c", "echo e >&2"] }), json!("e\n")),
        (json!({ "type": "vm_window_size", "app_class_name": "gimp" }), json!({ "width": 800, "height": 600 })),
        (json!({ "type": "active_url_from_accessTree" }), json!("https://example.org/a<b")),
        (json!({ "type": "active_tab_info" }), json!({ "title": "A", "url": "https://a.org/" })),
        (json!({ "type": "open_tabs_info" }), json!([{ "title": "A", "url": "https://a.org/" }])),
        (json!({ "type": "enable_do_not_track" }), json!("true")),
        (json!({ "type": "profile_name" }), json!("Me")),
        (json!({ "type": "default_search_engine" }), json!("Google")),
        (
            json!({ "type": "list_directory", "path": "~/folder" }),
            json!({ "type": "directory", "name": "folder", "children": [{ "type": "file", "name": "b" }] }),
        ),
    ] {
        let Ok(found) = getting.get(&config, "r").await else { panic!("{config}") };
        assert_eq!(found, Found::Value(expected), "{config}");
    }
    let many = json!({ "type": "vm_file", "multi": true, "path": ["~/folder/b", "~/no"], "dest": ["b", "c"], "gives": [1, 0] });
    let Ok(found) = getting.get(&many, "m").await else { panic!() };
    assert_eq!(found, Found::Files(vec![None, Some("m/b".to_owned())]));
}

#[tokio::test]
async fn files_of_the_network_come_from_the_folder_if_they_are_there() {
    let mut bench = Bench::new();
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("gold.txt"), "gold").unwrap();
    bench.file("mine", "gold");
    bench.setting.files = Some(files.path().to_owned());
    let evaluator = |url: &str| {
        json!({
            "func": "compare_text_file",
            "result": { "type": "vm_file", "path": "~/mine", "dest": "mine" },
            "expected": { "type": "cloud_file", "path": url, "dest": "other.txt" },
        })
    };
    assert_eq!(bench.score(evaluator("https://nowhere.invalid/x/gold.txt?download=true")).await, 1.0);
    bench.vm.program("curl", "exit 6");
    let (code, why) = bench.refused(evaluator("https://nowhere.invalid/absent.txt")).await;
    assert_eq!(code, codes::UNEXPECTED_ERROR);
    assert!(why.contains("put \"absent.txt\" into the configured folder"), "{why}");
}

#[tokio::test]
async fn evaluators_that_make_no_sense_are_refused() {
    let bench = Bench::new();
    let value = json!({ "type": "rule", "rules": 1 });
    for (evaluator, said) in [
        (json!({}), "evaluator.func"),
        (json!({ "func": [] }), "evaluator.func"),
        (json!({ "func": ["exact_match"], "result": [], "expected": [1, 2] }), "as long as func"),
        (json!({ "func": "exact_match", "result": [value] }), "have to be objects"),
        (json!({ "func": "exact_match", "conj": "xor" }), "conj"),
        (json!({ "func": "no_such", "result": value }), "there is no metric 'no_such'"),
        (json!({ "func": "exact_match", "result": { "type": "no_such" } }), "there is no getter \"no_such\""),
        (json!({ "func": "exact_match", "result": value, "expected": value }), "with expected"),
        (json!({ "func": "exact_match", "result": value, "expected": rule(json!(1)), "options": { "x": 1 } }), "x"),
        (json!({ "func": "exact_match", "result": value, "postconfig": {} }), "postconfig"),
        (json!({ "func": "check_python_file_by_test_suite", "result": value, "expected": value }), "does not do that"),
    ] {
        let (code, why) = bench.refused(evaluator).await;
        assert_eq!(code, codes::INVALID_INPUT, "{why}");
        assert!(why.contains(said), "{why}");
    }
    let (code, why) = bench.refused(json!({ "func": "exact_match", "postconfig": [{ "type": "login" }] })).await;
    assert_eq!(code, codes::UNEXPECTED_ERROR);
    assert!(why.starts_with("[VM] Error: postconfig: step 1 of the setup (login) failed"), "{why}");
}

#[tokio::test]
async fn a_metric_that_hangs_or_breaks_its_process_is_ended_alone() {
    let mut bench = Bench::new();
    bench.scorer = bench.scorer.within(Duration::from_secs(3));
    bench.file("a", &format!("{}!\n", "a".repeat(64)));
    let hang = json!({
        "func": "check_list",
        "result": { "type": "vm_file", "path": "~/a" },
        "expected": { "type": "rule", "rules": { "expect": ["^(a+)+$"] } },
    });
    let (code, why) = bench.refused(hang).await;
    assert_eq!((code, why.as_str()), (codes::UNEXPECTED_ERROR, "[VM] Error: check_list: it took more than 3 s"));
    bench.scorer = bench.scorer.within(Duration::from_secs(60));
    let fine = json!({ "func": "exact_match", "result": { "type": "rule", "rules": 1 }, "expected": rule(json!(1)) });
    assert_eq!(bench.score(fine).await, 1.0);
    bench.scorer.end().await;
}
