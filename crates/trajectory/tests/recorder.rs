//! The recorder's public API, on a real directory.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use arenite_model::{ErrorCode, TenantId};
use arenite_trajectory::{
    Annotations, BlobRef, Body, Failure, Failures, Filter, Format, Intent, Limits, NetworkEvent, NotKept, Origin, Outcome,
    OutcomeKind, Recorder, SessionChange, SessionEvent, Step, StepResult, TrajectoryError,
};
use serde_json::{Value, json};

fn tenant() -> TenantId {
    TenantId::default_tenant()
}

fn intent(trajectory: &str, arguments: Option<Value>) -> Intent {
    Intent {
        tenant: tenant(),
        trajectory: trajectory.to_owned(),
        sandbox_name: "demo".to_owned(),
        dialect: "aio",
        action: "POST /v1/bash/exec".to_owned(),
        arguments,
        origin: Origin::Agent,
        client: Some("127.0.0.1:5000".to_owned()),
        request_id: "r1".to_owned(),
        work: None,
    }
}

fn ok() -> Outcome {
    Outcome { status: Some(200), result: OutcomeKind::Ok, error: None }
}

fn open(dir: &Path) -> Recorder {
    open_with(dir, Limits::default())
}

fn open_with(dir: &Path, limits: Limits) -> Recorder {
    Recorder::open(dir.to_owned(), limits).unwrap()
}

/// One whole call.
fn call(recorder: &Recorder, trajectory: &str) {
    let step = recorder.begin(intent(trajectory, None)).unwrap();
    step.finish(ok()).unwrap();
}

fn all(recorder: &Recorder, trajectory: &str) -> Vec<Step> {
    recorder.steps(&tenant(), trajectory, 0, 1000).unwrap()
}

/// Records a step that is answered with `body`, and returns how it was recorded.
fn observed(recorder: &Recorder, trajectory: &str, body: &[u8]) -> Option<Body> {
    let mut step = recorder.begin(intent(trajectory, None)).unwrap();
    let number = step.id();
    for piece in body.chunks(7001) {
        step.response_tap().feed(piece);
    }
    step.finish(ok()).unwrap();
    let mut steps = recorder.steps(&tenant(), trajectory, number - 1, 1).unwrap();
    assert_eq!(steps[0].bytes_out, body.len() as u64);
    steps.remove(0).observation
}

fn observed_blob(recorder: &Recorder, trajectory: &str, body: &[u8]) -> BlobRef {
    let Some(Body::Blob(blob)) = observed(recorder, trajectory, body) else { panic!("not a blob") };
    assert_eq!(blob.blake3, blake3::hash(body).to_string());
    assert_eq!(blob.bytes, body.len() as u64);
    blob
}

fn files_below(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => files_below(&entry.path()),
            false => 1,
        })
        .sum()
}

/// Times and durations differ from run to run; everything else of the formats is fixed.
fn without_times(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| {
            let mut value: Value = serde_json::from_str(line).unwrap();
            for (key, value) in value.as_object_mut().unwrap() {
                match key.as_str() {
                    "started_at" | "ended_at" | "at" if value.is_string() => *value = json!("TIME"),
                    "prev" | "sum" => *value = json!("SUM"),
                    "duration_ms" if value.is_number() => *value = json!(1.5),
                    _ => {}
                }
            }
            value
        })
        .collect()
}

#[test]
fn log_and_export_have_the_golden_format() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    let mut first = recorder.begin(intent("s1", Some(json!({"command": "echo hi"})))).unwrap();
    let mut second = recorder.begin(intent("s1", None)).unwrap();
    first.response_tap().feed(b"{\n  \"success\": true,\r\n \"n\": 1.50\n}");
    first.finish(ok()).unwrap();
    second.request_tap().feed(b"plain \xc3\xa9 text");
    second.response_tap().feed(&[0, 255, 1]);
    second
        .finish(Outcome { status: Some(502), result: OutcomeKind::Failed, error: Some("could not reach the guest".to_owned()) })
        .unwrap();
    drop(recorder.begin(intent("s1", None)).unwrap());
    recorder.close_trajectory(&tenant(), "s1");

    let log = fs::read_to_string(dir.path().join("logs/default/s1.jsonl")).unwrap();
    let export = |inline| {
        let mut out = Vec::new();
        let steps = recorder.export(&tenant(), "s1", (inline, &Filter::default()), &mut out).unwrap();
        assert_eq!(steps, 3);
        String::from_utf8(out).unwrap()
    };
    for (name, text) in [("log.jsonl", log), ("export.jsonl", export(false)), ("export_inlined.jsonl", export(true))] {
        let golden = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("tests/golden").join(name);
        let found = without_times(&text);
        if std::env::var_os("ARENITE_BLESS").is_some() {
            let lines: String = found.iter().map(|line| format!("{line}\n")).collect();
            fs::write(&golden, lines).unwrap();
        }
        let wanted = without_times(&fs::read_to_string(&golden).unwrap());
        assert_eq!(found, wanted, "{name} changed, and others read this format; if it is meant, run again with ARENITE_BLESS=1");
    }
    let summary = &recorder.list(&tenant()).unwrap()[0];
    assert_eq!((summary.steps, summary.ended), (3, true));
    assert_eq!(summary.sandbox_name, "demo");
}

#[test]
fn bodies_stand_in_the_record_or_in_a_blob_by_size_and_kind() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    let deep = "[".repeat(5000) + &"]".repeat(5000);
    for json in ["{\"big\":123456789012345678901234567890}", deep.as_str()] {
        match observed(&recorder, "s1", json.as_bytes()) {
            Some(Body::Json(raw)) => assert_eq!(raw.get(), json),
            other => panic!("{other:?}"),
        }
    }
    let text = observed(&recorder, "s1", b"data: 1\n\n");
    assert!(matches!(text, Some(Body::Text(text)) if text == "data: 1\n\n"));
    assert!(observed(&recorder, "s1", b"").is_none());

    let large: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let bodies = [&large[..], b"\xff\xfe", &large];
    let refs = bodies.map(|body| {
        let blob = observed_blob(&recorder, "s2", body);
        assert!(blob.kept && !blob.truncated);
        let mut read = Vec::new();
        let mut file = recorder.read_blob(&blob.blake3).unwrap();
        file.read_to_end(&mut read).unwrap();
        assert_eq!(read, body);
        blob
    });
    assert_eq!(refs[0], refs[2]);
    assert_eq!(files_below(&dir.path().join("blobs")), 2);
    assert_eq!(recorder.counters().blobs_bytes, large.len() as u64 + 2);

    let arguments = json!({"content": "x".repeat(20 << 10)});
    let length = arguments.to_string().len() as u64;
    let step = recorder.begin(intent("s2", Some(arguments))).unwrap();
    step.finish(ok()).unwrap();
    let step = all(&recorder, "s2").pop().unwrap();
    assert!(matches!(step.arguments, Some(Body::Blob(blob)) if blob.kept && blob.bytes == length));
    assert_eq!(step.bytes_in, length);
    let error = recorder.read_blob("../../lock").unwrap_err();
    assert!(matches!(error, TrajectoryError::BadDigest { .. }));
}

#[test]
fn beyond_the_limits_bodies_are_only_hashed_and_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { body_bytes: 200_000, blobs_bytes: 300_000, ..Limits::default() };
    let recorder = open_with(dir.path(), limits);
    let blob = observed_blob(&recorder, "s1", &vec![0xfe; 200_001]);
    assert_eq!((blob.kept, blob.truncated), (false, true));
    assert_eq!(blob.not_kept, Some(NotKept::TooLarge));
    assert_eq!(recorder.counters().bodies_not_kept, 0);

    for (fill, not_kept) in [(1, None), (0xfe, Some(NotKept::StoreFull))] {
        let blob = observed_blob(&recorder, "s1", &vec![fill; 180_000]);
        assert_eq!((blob.not_kept, blob.truncated), (not_kept, false));
    }
    let counters = recorder.counters();
    assert_eq!(counters.bodies_not_kept, 1);
    assert_eq!(counters.blobs_bytes, 180_000);
    assert_eq!(files_below(&dir.path().join("blobs")), 1);
}

#[test]
fn a_call_is_refused_rather_than_made_without_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { logs_bytes: 2000, open_steps: 2, ..Limits::default() };
    let recorder = open_with(dir.path(), limits);
    let held = [1, 2].map(|_| recorder.begin(intent("s1", None)).unwrap());
    let refused = recorder.begin(intent("s1", None)).err().unwrap();
    assert!(matches!(refused, TrajectoryError::TooManyOpen { open: 2, .. }));
    drop(held);
    let refused = loop {
        match recorder.begin(intent("s1", None)) {
            Ok(step) => step.finish(ok()).unwrap(),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), ErrorCode::Exhausted);
    assert_eq!(recorder.counters().refused, 2);
    // Removal frees space again.
    recorder.remove(&tenant(), "s1").unwrap();
    assert_eq!(recorder.begin(intent("s1", None)).unwrap().id(), 1);

    for bad in ["", "../x", "a/b", "é", &"x".repeat(65)] {
        let error = recorder.begin(intent(bad, None)).err().unwrap();
        assert!(matches!(error, TrajectoryError::BadTrajectory { .. }));
    }
    assert!(matches!(Recorder::open(dir.path().to_owned(), Limits::default()), Err(TrajectoryError::InUse { .. })));
}

#[test]
fn numbers_have_no_gaps_under_concurrency_with_few_open_files() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { open_files: 2, ..Limits::default() };
    let recorder = open_with(dir.path(), limits);
    const THREADS: u64 = 6;
    const EACH: u64 = 60;
    let names = ["a", "b", "c", "d", "e"];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let recorder = &recorder;
            scope.spawn(move || {
                for n in 0..EACH {
                    // Steps overlap on each thread, so that files are closed while steps are open.
                    let open = names.map(|name| {
                        let arguments = json!({ "by": thread, "n": n });
                        recorder.begin(intent(name, Some(arguments))).unwrap()
                    });
                    for mut step in open {
                        let id = step.id();
                        step.response_tap().feed(id.to_string().as_bytes());
                        step.finish(ok()).unwrap();
                    }
                }
            });
        }
    });
    for name in names {
        let steps = all(&recorder, name);
        let numbers: Vec<u64> = steps.iter().map(|step| step.step).collect();
        assert_eq!(numbers, (1..=THREADS * EACH).collect::<Vec<_>>());
        let mut calls = BTreeSet::new();
        for step in &steps {
            assert_eq!(step.outcome, Some(OutcomeKind::Ok));
            let (Some(Body::Json(arguments)), Some(Body::Json(observation))) = (&step.arguments, &step.observation) else {
                panic!("{step:?}")
            };
            // An outcome belongs to its own intent.
            assert_eq!(observation.get(), step.step.to_string());
            assert!(calls.insert(arguments.get()));
        }
    }
}

#[test]
fn pages_of_a_long_trajectory_are_found_without_gaps_and_long_calls_conclude() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    let long = recorder.begin(intent("s1", None)).unwrap();
    for n in 0..600 {
        let arguments = json!({"n": n, "fill": "y".repeat(n * 3)});
        let step = recorder.begin(intent("s1", Some(arguments))).unwrap();
        step.finish(ok()).unwrap();
    }
    assert_eq!(all(&recorder, "s1")[0].outcome, None);
    long.finish(ok()).unwrap();
    let (mut after, mut seen) = (0, Vec::new());
    loop {
        let page = recorder.steps(&tenant(), "s1", after, 37).unwrap();
        let Some(last) = page.last() else { break };
        after = last.step;
        assert!(page.iter().all(|s| s.outcome == Some(OutcomeKind::Ok)));
        seen.extend(page.into_iter().map(|step| step.step));
    }
    assert_eq!(seen, (1..=601).collect::<Vec<_>>());
    for after in [1, 300, 599, 600, 601, 9999] {
        let next = recorder.steps(&tenant(), "s1", after, 1).unwrap();
        let wanted = (after < 601).then_some(after + 1);
        assert_eq!(next.first().map(|step| step.step), wanted);
    }
    assert!(matches!(recorder.steps(&tenant(), "s9", 0, 1), Err(TrajectoryError::NoTrajectory { .. })));
}

/// What a killed server leaves behind: its logs, copied while it still runs.
fn copy_of(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let to = copy.path().join("logs/default");
    fs::create_dir_all(&to).unwrap();
    for log in fs::read_dir(dir.join("logs/default")).unwrap() {
        let log = log.unwrap();
        fs::copy(log.path(), to.join(log.file_name())).unwrap();
    }
    copy
}

#[test]
fn steps_of_a_dead_server_read_as_interrupted_and_are_written_so_once() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    call(&first, "s1");
    let [second, third, fourth] = [2, 3, 4].map(|_| first.begin(intent("s1", None)).unwrap());
    third.finish(ok()).unwrap();
    assert_eq!(all(&first, "s1")[1].outcome, None);
    let copy = copy_of(dir.path());
    drop((second, fourth));

    let kinds = |recorder: &Recorder| -> Vec<Option<OutcomeKind>> {
        let steps = all(recorder, "s1");
        steps.into_iter().map(|step| step.outcome).collect()
    };
    let said = || {
        let log = fs::read_to_string(copy.path().join("logs/default/s1.jsonl")).unwrap();
        log.matches("\"interrupted\"").count()
    };
    let (fine, broken) = (Some(OutcomeKind::Ok), Some(OutcomeKind::Interrupted));
    let after = open(copy.path());
    assert_eq!(kinds(&after), [fine, broken, fine, broken]);
    assert_eq!(said(), 0);
    let step = after.begin(intent("s1", None)).unwrap();
    assert_eq!(step.id(), 5);
    step.finish(ok()).unwrap();
    assert_eq!(kinds(&after), [fine, broken, fine, broken, fine]);
    assert_eq!(said(), 2);
    drop(after);
    let again = open(copy.path());
    call(&again, "s1");
    assert_eq!(said(), 2);
    assert_eq!(all(&again, "s1").len(), 6);
}

#[test]
fn a_torn_last_line_is_passed_over_and_ended() {
    let dir = tempfile::tempdir().unwrap();
    call(&open(dir.path()), "s1");
    let path = dir.path().join("logs/default/s1.jsonl");
    let mut log = fs::OpenOptions::new().append(true).open(&path).unwrap();
    log.write_all(b"{\"v\":1,\"kind\":\"intent\",\"step\":2,\"la\0\0").unwrap();

    let recorder = open(dir.path());
    assert_eq!(all(&recorder, "s1").len(), 1);
    assert_eq!(recorder.list(&tenant()).unwrap()[0].steps, 1);
    call(&recorder, "s1");
    let steps = all(&recorder, "s1");
    assert_eq!(steps.len(), 2);
    assert_eq!(steps[1].step, 2);
    assert_eq!(steps[1].outcome, Some(OutcomeKind::Ok));
}

#[test]
fn an_outcome_after_the_end_keeps_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    let step = recorder.begin(intent("s1", None)).unwrap();
    let busy = recorder.remove(&tenant(), "s1").unwrap_err();
    assert_eq!(busy.code(), ErrorCode::Conflict);
    recorder.close_trajectory(&tenant(), "s1");
    recorder.close_trajectory(&tenant(), "never-called");
    step.finish(ok()).unwrap();
    let list = recorder.list(&tenant()).unwrap();
    assert_eq!(list.len(), 1);
    assert!(list[0].ended);
    assert_eq!(all(&recorder, "s1")[0].outcome, Some(OutcomeKind::Ok));
    let is_open = || {
        let mut open = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        open.any(|path| path.starts_with(dir.path()) && path.extension().is_some_and(|extension| extension == "jsonl"))
    };
    // The thread that syncs the file holds it for a moment.
    let begun = std::time::Instant::now();
    while is_open() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(10), "the file stays open");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Steps of a log with blobs. Their answers contain the results of the calls.
fn recorded(dir: &Path) {
    let recorder = open(dir);
    for n in 1..=6 {
        let mut step = recorder.begin(intent("s1", Some(json!({ "n": n })))).unwrap();
        let code = u8::from(n == 2);
        step.response_tap().feed(
            format!(
                "{{\"success\":true,\"message\":\"\",\"data\":{{\"stdout\":\"{}\",\"exit_code\":{code}}}}}",
                "x".repeat(n * 9000)
            )
            .as_bytes(),
        );
        step.finish(ok()).unwrap();
    }
}

#[test]
fn results_are_told_by_answers_of_any_size_and_are_filtered_by() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path());
    let recorder = open(dir.path());
    let mut person = intent("s1", None);
    person.origin = Origin::Person;
    recorder.begin(person).unwrap().finish(Outcome { status: Some(404), result: OutcomeKind::Error, error: None }).unwrap();
    drop(recorder.begin(intent("s1", None)).unwrap());
    let results: Vec<Option<StepResult>> = all(&recorder, "s1").into_iter().map(|step| step.result).collect();
    assert_eq!(results[0], Some(StepResult::Succeeded));
    assert_eq!(results[1], Some(StepResult::Failed(Failure::ExitCode(1))));
    assert_eq!(results[5], Some(StepResult::Succeeded));
    assert_eq!(results[6], Some(StepResult::Failed(Failure::Error("the answer was 404".to_owned()))));
    assert_eq!(results[7], None);
    let numbers = |filter: &Filter, limit| {
        let (mut after, mut found) = (Some(0), Vec::new());
        while let Some(from) = after {
            let (steps, next) = recorder.filtered(&tenant(), "s1", (from, limit), filter).unwrap();
            found.extend(steps.into_iter().map(|step| step.step));
            after = next;
        }
        found
    };
    for limit in [1, 2, 100] {
        assert_eq!(numbers(&Filter { failed: Some(true), ..Filter::default() }, limit), [2, 7]);
        assert_eq!(numbers(&Filter { failed: Some(true), ..Filter::agent() }, limit), [2]);
        assert_eq!(numbers(&Filter::of_origins("person, system").unwrap(), limit), [7]);
        assert_eq!(numbers(&Filter::agent(), limit), [1, 2, 3, 4, 5, 6, 8]);
    }
    assert!(Filter::of_origins("nobody").is_err());
}

#[test]
fn lists_have_the_number_of_failed_steps_and_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path());
    let failures = |recorder: &Recorder| recorder.list(&tenant()).unwrap()[0].failures;
    let of = |steps, last| Some(Failures { steps, last });
    let recorder = open(dir.path());
    assert_eq!(failures(&recorder), of(1, Some(2)));
    // A step that fails after a later one has is not the last.
    let [early, late] = [7, 8].map(|_| recorder.begin(intent("s1", None)).unwrap());
    let failed = || Outcome { status: Some(404), result: OutcomeKind::Error, error: None };
    late.finish(failed()).unwrap();
    assert_eq!(failures(&recorder), of(2, Some(8)));
    early.finish(failed()).unwrap();
    // A client that left is no failure.
    drop(recorder.begin(intent("s1", None)).unwrap());
    recorder.note_network(&tenant(), "s1", network_event("a.test")).unwrap();
    assert_eq!(failures(&recorder), of(3, Some(8)));
    drop(recorder);
    let again = open(dir.path());
    call(&again, "s1");
    again.close_trajectory(&tenant(), "s1");
    assert_eq!(failures(&again), of(3, Some(8)));
}

#[test]
fn whatever_is_changed_on_disk_is_found_and_never_answered_as_recorded() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path());
    let path = dir.path().join("logs/default/s1.jsonl");
    let log = fs::read(&path).unwrap();
    let clean = open(dir.path()).verify(&tenant(), "s1").unwrap();
    assert_eq!((clean.lines, clean.steps, clean.blobs, clean.problems.len()), (12, 6, 5, 0));
    let lines: Vec<usize> =
        std::iter::once(0).chain(log.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at + 1)).collect();

    // One bit anywhere, in an intent and in an outcome.
    for (line, at) in [(2, 3), (2, 40), (3, 9), (3, 200), (4, 60), (11, 30), (10, 30)] {
        let mut changed = log.clone();
        changed[lines[line] + at] ^= 4;
        fs::write(&path, &changed).unwrap();
        let recorder = open(dir.path());
        let found = recorder.verify(&tenant(), "s1").unwrap();
        assert!(found.problems.iter().any(|problem| problem.line.is_some()), "line {line}: {found:?}");
        let steps = all(&recorder, "s1");
        assert_eq!(steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6], "line {line}");
        let hurt = line as u64 / 2;
        for step in steps {
            let is_hurt = step.step == hurt + 1;
            assert_eq!(step.outcome == Some(OutcomeKind::Damaged), is_hurt, "line {line}: {step:?}");
            assert!(Filter { failed: Some(true), ..Filter::agent() }.takes(&step) || !is_hurt);
        }
        // A number is never used twice.
        assert!(recorder.begin(intent("s1", None)).unwrap().id() >= 7);
    }

    // A line that is completely missing.
    for line in [2, 3, 5] {
        let mut changed = log.clone();
        changed.drain(lines[line]..lines[line + 1]);
        fs::write(&path, &changed).unwrap();
        let recorder = open(dir.path());
        assert_eq!(all(&recorder, "s1").len(), 6);
        assert!(!recorder.verify(&tenant(), "s1").unwrap().problems.is_empty(), "line {line}");
    }

    fs::write(&path, &log).unwrap();
    let recorder = open(dir.path());
    let Some(Body::Blob(blob)) = all(&recorder, "s1").remove(3).observation else { panic!("not a blob") };
    let file = dir.path().join("blobs").join(&blob.blake3[..2]).join(&blob.blake3[2..]);
    let mut bytes = fs::read(&file).unwrap();
    bytes[1000] ^= 1;
    fs::write(&file, &bytes).unwrap();
    assert!(matches!(recorder.read_blob(&blob.blake3), Err(TrajectoryError::DamagedBlob { .. })));
    let found = recorder.verify(&tenant(), "s1").unwrap();
    assert_eq!(found.problems.len(), 1, "{found:?}");
    assert_eq!(found.problems[0].step, Some(4));
    let mut out = Vec::new();
    recorder.export(&tenant(), "s1", (true, &Filter::default()), &mut out).unwrap();
    assert!(!String::from_utf8(out).unwrap().contains(&"y".repeat(10)));
    // The same body again is stored again.
    bytes[1000] ^= 1;
    assert!(observed_blob(&recorder, "s2", &bytes).kept);
    assert!(recorder.verify(&tenant(), "s1").unwrap().problems.is_empty());
    fs::remove_file(&file).unwrap();
    assert_eq!(recorder.verify(&tenant(), "s1").unwrap().problems.len(), 1);
}

#[test]
fn logs_of_version_one_are_read_and_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("logs/default");
    fs::create_dir_all(&logs).unwrap();
    let fixture = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("tests/fixtures/sb-demo.jsonl");
    fs::copy(fixture, logs.join("sb-demo.jsonl")).unwrap();
    let recorder = open(dir.path());
    let before = all(&recorder, "sb-demo");
    assert_eq!(before[0].origin, Origin::System);
    assert_eq!((before[1].origin, before[1].client.as_deref()), (Origin::Agent, Some("127.0.0.1:5000")));
    assert_eq!(before[1].result, Some(StepResult::Failed(Failure::ExitCode(1))));
    call(&recorder, "sb-demo");
    assert_eq!(all(&recorder, "sb-demo").len(), before.len() + 1);
    assert_eq!(recorder.list(&tenant()).unwrap()[0].failures, None);
    let found = recorder.verify(&tenant(), "sb-demo").unwrap();
    assert!(found.unchecked > 10 && found.lines > found.unchecked, "{found:?}");
    assert!(found.problems.iter().all(|problem| problem.line.is_none()), "{found:?}");
}

#[test]
fn sessions_stand_between_steps_and_take_no_number() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    let event = |event, config| SessionEvent {
        event,
        id: "vm_1".to_owned(),
        resource_type: "vm".to_owned(),
        config,
        ttl_seconds: Some(300.0),
        sandbox: Some("w".to_owned()),
        at: "2026-01-01T00:00:00Z".parse().unwrap(),
        after: 0,
    };
    recorder.note_session(&tenant(), "s1", event(SessionChange::Begin, Some(json!({"screen_size": [800, 600]})))).unwrap();
    call(&recorder, "s1");
    recorder.note_session(&tenant(), "s1", event(SessionChange::End, None)).unwrap();
    call(&recorder, "s1");
    let again = recorder.sessions(&tenant(), "s1").unwrap();
    assert_eq!(
        again.iter().map(|event| (event.event, event.after)).collect::<Vec<_>>(),
        [(SessionChange::Begin, 0), (SessionChange::End, 1)]
    );
    assert_eq!(again[0].config, Some(json!({"screen_size": [800, 600]})));
    assert_eq!(all(&recorder, "s1").iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2]);
    assert!(recorder.verify(&tenant(), "s1").unwrap().problems.is_empty());
}

/// A small disk in memory, which exists as long as this value.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(kibibytes: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={kibibytes}k"), "tmpfs"]).arg(dir.path());
        assert!(mount.status().unwrap().success(), "mounting needs root, as other tests of this repository do");
        Self(dir)
    }

    /// Fills all free space.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.path().join("filler")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_takes_no_result_of_a_call_that_was_accepted_and_accepts_no_further_one() {
    let disk = SmallDisk::new(4096);
    let limits = || Limits { reserve_bytes: 1 << 20, ..Limits::default() };
    let dir = disk.0.path().join("records");
    let recorder = open_with(&dir, limits());
    let steps = [0, 1, 2].map(|_| recorder.begin(intent("s1", None)).unwrap());
    disk.fill();
    for (size, mut step) in [100, 15_000, 300_000].into_iter().zip(steps) {
        step.response_tap().feed(&vec![b'x'; size]);
        step.finish(ok()).unwrap();
    }
    let kept = all(&recorder, "s1");
    assert!(kept.iter().all(|step| step.outcome == Some(OutcomeKind::Ok)), "{kept:?}");
    assert!(matches!(&kept[2].observation, Some(Body::Blob(blob)) if blob.kept));
    // No call is accepted if its end could not be written.
    assert!(matches!(recorder.begin(intent("s1", None)).err(), Some(TrajectoryError::DiskFull)));
    drop(recorder);
    let recorder = open_with(&dir, limits());
    assert!(matches!(recorder.begin(intent("s1", None)).err(), Some(TrajectoryError::DiskFull)));
    assert_eq!(all(&recorder, "s1").len(), 3);
    assert!(recorder.verify(&tenant(), "s1").unwrap().problems.is_empty());
    fs::remove_file(disk.0.path().join("filler")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    recorder.begin(intent("s1", None)).unwrap().finish(ok()).unwrap();
    assert_eq!(all(&recorder, "s1").len(), 4);
}

fn network_event(name: &str) -> NetworkEvent {
    let event = json!({
        "time": "2026-01-31T00:00:00Z", "kind": "decision", "sandbox": "s1", "protocol": "tls", "name": name, "port": 443,
        "allowed": false, "reason": "no_rule", "count": 1, "bytes_sent": 0, "bytes_received": 0, "duration_ms": 0,
    });
    serde_json::from_value(event).unwrap()
}

#[test]
fn network_records_stand_between_steps_and_outlive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    recorder.note_network(&tenant(), "s1", network_event("before.test")).unwrap();
    for name in ["a.test", "b.test"] {
        recorder.begin(intent("s1", None)).unwrap().finish(ok()).unwrap();
        recorder.note_network(&tenant(), "s1", network_event(name)).unwrap();
    }
    drop(recorder);
    let recorder = open(dir.path());
    recorder.note_network(&tenant(), "s1", network_event("c.test")).unwrap();
    let found = recorder.network(&tenant(), "s1").unwrap();
    let names: Vec<_> = found.events.iter().map(|event| (event.name.as_deref().unwrap(), event.after)).collect();
    assert_eq!(names, [("before.test", 0), ("a.test", 1), ("b.test", 2), ("c.test", 2)]);
    assert_eq!((found.left_out, all(&recorder, "s1").len()), (0, 2), "they are no steps");
    assert_eq!(recorder.verify(&tenant(), "s1").unwrap().problems.len(), 0);

    let kinds = |network| {
        let (mut out, filter) = (Vec::new(), Filter { network, ..Filter::default() });
        let steps = recorder.export_as(&tenant(), "s1", (Format::Jsonl, &filter, &Annotations::default()), &mut out).unwrap();
        assert_eq!(steps, 2);
        let lines = String::from_utf8(out).unwrap();
        let place = |line: &str| {
            let value: Value = serde_json::from_str(line).unwrap();
            if value["kind"] == "network" { value["name"].clone() } else { value["step"].clone() }
        };
        lines.lines().map(place).collect::<Vec<_>>()
    };
    assert_eq!(kinds(false), [json!(1), json!(2)]);
    assert_eq!(kinds(true), [json!("before.test"), json!(1), json!("a.test"), json!(2), json!("b.test"), json!("c.test")]);
}

#[test]
fn network_records_beyond_the_most_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = open(dir.path());
    let most = 10_000;
    let note = |recorder: &Recorder, count| {
        (0..count).for_each(|_| recorder.note_network(&tenant(), "s1", network_event("a.test")).unwrap());
    };
    note(&recorder, most);
    let full = fs::metadata(dir.path().join("logs/default/s1.jsonl")).unwrap().len();
    note(&recorder, 1_000);
    drop(recorder);
    let recorder = open(dir.path());
    note(&recorder, 1_000);
    let found = recorder.network(&tenant(), "s1").unwrap();
    assert_eq!((found.events.len(), found.left_out), (most, 1_024), "the restart went by the last record of 512");
    let grown = fs::metadata(dir.path().join("logs/default/s1.jsonl")).unwrap().len() - full;
    assert!(grown < 12 * 400, "a record for each doubling: {grown} bytes");
}
