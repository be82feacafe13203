//! Exports of recorded trajectories, in every format. The fixtures are logs as a recorder writes them: a worker's with branches
//! and an interrupted last step, and a sandbox's with steps of all other dialects.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

use std::fs;
use std::path::{Path, PathBuf};

use arenite_model::{Annotation, TenantId};
use arenite_trajectory::{
    Annotations, Filter, Format, Intent, Limits, Origin, Outcome, OutcomeKind, Recorder, TrajectoryError, Work,
};
use jiff::Timestamp;
use serde_json::{Value, json};

fn tests() -> PathBuf {
    Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("tests")
}

fn tenant() -> TenantId {
    TenantId::default_tenant()
}

/// The first bytes of a picture.
fn picture() -> Vec<u8> {
    b"\x89PNG\r\n\x1a\n".iter().copied().chain(0..=255).collect()
}

fn open(dir: &Path) -> Recorder {
    let logs = dir.join("logs/default");
    fs::create_dir_all(&logs).unwrap();
    let digest = blake3::hash(&picture()).to_string();
    for fixture in fs::read_dir(tests().join("fixtures")).unwrap() {
        let fixture = fixture.unwrap();
        let text = fs::read_to_string(fixture.path()).unwrap().replace("\"BLAKE3\"", &format!("{digest:?}"));
        fs::write(logs.join(fixture.file_name()), text).unwrap();
    }
    let blobs = dir.join("blobs").join(&digest[..2]);
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(&digest[2..]), picture()).unwrap();
    Recorder::open(dir.to_owned(), Limits::default()).unwrap()
}

fn export(recorder: &Recorder, trajectory: &str, format: Format) -> String {
    let mut out = Vec::new();
    recorder.export_as(&tenant(), trajectory, (format, &Filter::default(), &Annotations::default()), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn annotations() -> Annotations {
    let annotation = |id: &str, step: Value, text: &str, labels: Value, rating: Value| {
        let at = "2026-01-02T03:04:05Z";
        serde_json::from_value::<Annotation>(json!({
            "id": id, "step": step, "text": text, "labels": labels, "rating": rating, "author": "ada",
            "created_at": at, "changed_at": at, "revision": 1,
        }))
        .unwrap()
    };
    Annotations::new(vec![
        annotation("naaaaaaaaaaa", Value::Null, "all \n in all", json!(["good"]), json!(4)),
        annotation("nbbbbbbbbbbb", json!(2), "<b>why?</b>", json!(["phase:plan", "bad"]), json!(1)),
        annotation("nccccccccccc", json!(3), "", json!(["bad"]), Value::Null),
        annotation("nddddddddddd", Value::Null, "", json!([]), json!(5)),
        // Of a step that is not there.
        annotation("neeeeeeeeeee", json!(99), "", json!(["lost"]), Value::Null),
    ])
}

#[test]
fn formats_have_annotations_where_they_have_a_place() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    let annotations = annotations();
    let export = |format| {
        let mut out = Vec::new();
        let with = (format, &Filter::default(), &annotations);
        recorder.export_as(&tenant(), "af-solver-task-17", with, &mut out).unwrap();
        lines(&String::from_utf8(out).unwrap())
    };
    let ids = |found: &Value| -> Vec<String> {
        let found = found.as_array().into_iter().flatten();
        found.map(|one| one["id"].as_str().unwrap()[1..2].to_owned()).collect()
    };
    let jsonl = export(Format::Jsonl);
    let steps: Vec<&Value> = jsonl.iter().filter(|line| line["step"].is_u64() && line["kind"].is_null()).collect();
    assert_eq!((ids(&steps[0]["annotations"]), ids(&steps[1]["annotations"])), (vec![], vec!["b".to_owned()]));
    assert!(steps[0].get("annotations").is_none());
    assert_eq!(steps[1]["annotations"][0]["text"], "<b>why?</b>");
    let of_all: Vec<&Value> = jsonl.iter().filter(|line| line["kind"] == "annotation").collect();
    assert_eq!((of_all.len(), &of_all[0]["rating"], &of_all[1]["id"]), (2, &json!(4), &json!("nddddddddddd")));
    let atif = &export(Format::Atif)[0];
    assert_eq!(ids(&atif["extra"]["annotations"]), ["a", "d"]);
    assert_eq!(ids(&atif["steps"][1]["extra"]["annotations"]), ["b"]);
    let synthesis = &export(Format::AgentflowSynthesis)[0];
    assert_eq!(
        (ids(&synthesis["nodes"][0]["annotations"]), ids(&synthesis["nodes"][2]["annotations"])),
        (ids(&atif["extra"]["annotations"]), vec!["b".to_owned()])
    );
    let rollout = export(Format::AgentflowRollout);
    assert_eq!(ids(&rollout[0]["annotations"]), ["a", "d"]);
    let calls = rollout.iter().flat_map(|line| line["trajectory"]["tool_calls"].as_array().unwrap());
    assert!(calls.flat_map(|call| ids(&call["annotations"])).any(|id| id == "b"));
    for format in [Format::OpenaiMessages, Format::Sharegpt] {
        let found = export(format);
        assert!(found.len() > 1);
        for line in &found {
            assert_eq!(line["metadata"]["rating"], 4.5, "{format:?}");
            assert_eq!(ids(&line["metadata"]["annotations"])[..2], ["a", "d"], "{format:?}");
        }
        // Each line has only the annotations on its branch.
        let of_steps =
            |id: &str| found.iter().filter(|line| ids(&line["metadata"]["annotations"]).iter().any(|one| one == id)).count();
        assert_eq!((of_steps("b") > 0, of_steps("e")), (true, 0), "{format:?}");
    }
    let cast = export(Format::Asciicast);
    assert_eq!(cast[1], json!([0.0, "m", "4/5 [good] all in all"]));
    assert_eq!(cast[2], json!([0.0, "m", "5/5"]));
}

#[test]
fn exports_have_the_golden_formats() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    for trajectory in ["af-solver-task-17", "sb-demo"] {
        for format in Format::ALL {
            let found = export(&recorder, trajectory, format);
            lines(&found);
            let name = format!("{trajectory}.{}.{}", format.name(), format.extension());
            let golden = tests().join("golden/export").join(&name);
            if std::env::var_os("ARENITE_BLESS").is_some() {
                fs::create_dir_all(golden.parent().unwrap()).unwrap();
                fs::write(&golden, &found).unwrap();
            }
            let wanted = fs::read_to_string(&golden).unwrap_or_default();
            let differs = wanted.lines().zip(found.lines()).find(|(wanted, found)| wanted != found);
            assert!(
                wanted == found,
                "{name} changed, first at {differs:?}, and others read this format; if it is meant, run again with ARENITE_BLESS=1"
            );
        }
    }
}

/// What trainers check first.
#[test]
fn every_call_is_answered_once_in_messages_of_every_branch() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    let branches = lines(&export(&recorder, "af-solver-task-17", Format::OpenaiMessages));
    let steps: Vec<usize> = branches.iter().map(|branch| branch["messages"].as_array().unwrap().len() / 2).collect();
    // 1-2-3, 1-4-5, 1-4-6-7, and 8, which continues nothing.
    assert_eq!(steps, [3, 3, 4, 1]);
    for branch in &branches {
        let described: Vec<&str> =
            branch["tools"].as_array().unwrap().iter().map(|t| t["function"]["name"].as_str().unwrap()).collect();
        for pair in branch["messages"].as_array().unwrap().chunks(2) {
            let call = &pair[0]["tool_calls"][0];
            assert_eq!((&pair[0]["role"], &pair[1]["role"]), (&json!("assistant"), &json!("tool")));
            assert_eq!(call["id"], pair[1]["tool_call_id"]);
            let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
            assert!(arguments.is_object());
            assert!(described.contains(&call["function"]["name"].as_str().unwrap()));
        }
    }
    let told = |branch: usize, message: usize| branches[branch]["messages"][message]["content"].as_str().unwrap();
    assert_eq!(told(3, 1), "[no answer: the server ended during the call]");
    assert!(told(0, 5).contains("[image/png, 264 bytes"), "{}", told(0, 5));
    assert!(!export(&recorder, "af-solver-task-17", Format::Sharegpt).contains("iVBORw0KGgo"));
}

#[test]
fn a_call_under_way_is_unknown_and_never_a_success() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    let intent = |parent| Intent {
        tenant: tenant(),
        trajectory: "live".to_owned(),
        sandbox_name: String::new(),
        dialect: "agentflow",
        action: "bash:run".to_owned(),
        arguments: Some(json!({"command": "make"})),
        origin: Origin::Agent,
        client: None,
        request_id: String::new(),
        work: Some(Work {
            worker: "w".to_owned(),
            task: None,
            parent,
            trace_id: "t".to_owned(),
            queued_at: Timestamp::now(),
            sandbox: None,
            timeout: None,
            tokens: None,
        }),
    };
    let open = recorder.begin(intent(None)).unwrap();
    let rollout = lines(&export(&recorder, "live", Format::AgentflowRollout)).remove(0);
    assert_eq!(rollout["task_id"], "live");
    assert_eq!((&rollout["success"], &rollout["trajectory"]["success"]), (&Value::Null, &Value::Null));
    let call = &rollout["trajectory"]["tool_calls"][0];
    assert_eq!((&call["success"], &call["result"]), (&Value::Null, &Value::Null));
    let atif = lines(&export(&recorder, "live", Format::Atif)).remove(0);
    assert_eq!(atif["steps"][0]["extra"]["unknown"], "the call was still under way");
    assert!(atif["steps"][0].get("observation").is_none());
    let tree = lines(&export(&recorder, "live", Format::AgentflowSynthesis)).remove(0);
    assert_eq!(tree["nodes"][1]["outcome"], "unknown");
    assert!(export(&recorder, "live", Format::Asciicast).contains("[no answer: the call was still under way]"));

    open.finish(Outcome { status: Some(200), result: OutcomeKind::Ok, error: None }).unwrap();
    let rollout = lines(&export(&recorder, "live", Format::AgentflowRollout)).remove(0);
    assert_eq!((&rollout["success"], &rollout["trajectory"]["tool_calls"][0]["success"]), (&json!(true), &json!(true)));

    // A parent that doesn't exist yet is ignored.
    drop(recorder.begin(intent(Some(77))).unwrap());
    let tree = lines(&export(&recorder, "live", Format::AgentflowSynthesis)).remove(0);
    assert_eq!((&tree["total_depth"], &tree["nodes"][2]["parent_id"]), (&json!(2), &json!("step-1")));

    for _ in 0..1000 {
        drop(recorder.begin(intent(Some(0))).unwrap());
    }
    let refused = recorder
        .export_as(&tenant(), "live", (Format::Sharegpt, &Filter::default(), &Annotations::default()), &mut Vec::new())
        .unwrap_err();
    assert!(matches!(refused, TrajectoryError::TooManyBranches { branches: 1001, .. }), "{refused}");
    assert!(
        recorder
            .export_as(&tenant(), "none", (Format::Atif, &Filter::default(), &Annotations::default()), &mut Vec::new())
            .is_err()
    );
}
