//! The `bash` service over HTTP, with real processes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod standalone;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde_json::{Value, json};
use standalone::{Guest, eventually};

async fn exec(guest: &Guest, body: Value) -> Value {
    guest.post("/v1/bash/exec", body).await
}

/// Waits for a command to end.
async fn ended(guest: &Guest, session: &Value, command: &Value) -> Value {
    let (mut offset, mut stderr_offset) = (0, 0);
    let (mut stdout, mut stderr) = (String::new(), String::new());
    loop {
        let mut data = guest
            .post(
                "/v1/bash/output",
                json!({"session_id": session, "command_id": command, "offset": offset, "stderr_offset": stderr_offset, "wait": true}),
            )
            .await;
        assert!(data["offset"].as_u64().unwrap() >= offset);
        offset = data["offset"].as_u64().unwrap();
        stderr_offset = data["stderr_offset"].as_u64().unwrap();
        stdout += data["stdout"].as_str().unwrap();
        stderr += data["stderr"].as_str().unwrap();
        if data["command"]["status"] != "running" {
            data["stdout"] = stdout.into();
            data["stderr"] = stderr.into();
            return data;
        }
    }
}

#[tokio::test]
async fn a_command_has_its_streams_and_its_code() {
    let guest = Guest::start().await;
    let done = exec(&guest, json!({"command": "echo out; echo err >&2; exit 3"})).await;
    assert_eq!(done["status"], "completed");
    assert_eq!(done["exit_code"], 3);
    assert_eq!((&done["stdout"], &done["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!((&done["offset"], &done["stderr_offset"]), (&json!(4), &json!(4)));
    assert_eq!(done["output"], "out\nerr\n");
    assert_eq!(done["command"], "echo out; echo err >&2; exit 3");

    let silent = exec(&guest, json!({"command": "true"})).await;
    assert!(silent["stdout"].is_null() && silent["stderr"].is_null());
    let killed = exec(&guest, json!({"command": "kill -9 $$"})).await;
    assert_eq!((&killed["status"], &killed["exit_code"]), (&json!("completed"), &json!(137)));
    let bytes = exec(&guest, json!({"command": r"printf 'a\xff\xfeb'"})).await;
    assert_eq!((&bytes["stdout"], &bytes["offset"]), (&json!("a\u{fffd}\u{fffd}b"), &json!(4)));
    let missing = exec(&guest, json!({"command": "no-such-program"})).await;
    assert_eq!(missing["exit_code"], 127);
    assert_eq!(missing["stderr"], "bash: line 1: no-such-program: command not found\n");
    // Standard input is empty if it can't be written to, so that the command does not wait for it.
    assert_eq!(exec(&guest, json!({"command": "cat"})).await["exit_code"], 0);
}

#[tokio::test]
async fn only_the_directory_of_a_session_lasts() {
    let guest = Guest::start().await;
    std::fs::create_dir(guest.dir.join("sub")).unwrap();
    let made = guest.post("/v1/bash/sessions/create", json!({"session_id": "s"})).await;
    assert_eq!(made["status"], "ready");
    assert_eq!(made["working_dir"], guest.dir.display().to_string());
    let run = |extra: Value| {
        let mut body = json!({"session_id": "s", "command": "pwd; echo [$X]"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        exec(&guest, body)
    };
    let home = guest.dir.display();
    run(json!({"command": "cd /; export X=1"})).await;
    assert_eq!(run(json!({})).await["stdout"], format!("{home}\n[]\n"));
    assert_eq!(run(json!({"env": {"X": "a b"}})).await["stdout"], format!("{home}\n[a b]\n"));
    let sub = guest.dir.join("sub").display().to_string();
    assert_eq!(run(json!({"exec_dir": sub})).await["stdout"], format!("{sub}\n[]\n"));
    assert_eq!(run(json!({})).await["stdout"], format!("{sub}\n[]\n"));
    let unset = run(json!({"env": {"HOME": null}, "command": "echo ${HOME-unset}"})).await;
    assert_eq!(unset["stdout"], "unset\n");

    let sessions = guest.get("/v1/bash/sessions").await;
    assert_eq!((&sessions[0]["command_count"], &sessions[0]["working_dir"]), (&json!(6), &json!(sub)));
    let again = guest.post("/v1/bash/sessions/create", json!({"session_id": "s"})).await;
    assert_eq!(again["command_count"], 6);
    let empty = guest.call("POST", "/v1/bash/sessions/create", "").await;
    assert_eq!(empty.0, StatusCode::OK);
    assert!(!empty.1["data"]["session_id"].as_str().unwrap().is_empty());

    for (path, body, status) in [
        ("exec", json!({"session_id": "none", "command": "true"}), StatusCode::NOT_FOUND),
        ("output", json!({"session_id": "none"}), StatusCode::NOT_FOUND),
        ("output", json!({"session_id": "s", "command_id": "none"}), StatusCode::NOT_FOUND),
        ("kill", json!({"session_id": "none"}), StatusCode::NOT_FOUND),
        ("kill", json!({"session_id": "s", "signal": "SIGFOO"}), StatusCode::BAD_REQUEST),
        ("write", json!({"session_id": "s", "input": "x"}), StatusCode::CONFLICT),
        ("exec", json!({"command": "true", "exec_dir": "/none"}), StatusCode::BAD_REQUEST),
        ("exec", json!({"command": "a\u{0}b"}), StatusCode::BAD_REQUEST),
        ("exec", json!({"command": "true", "env": {"a=b": "c"}}), StatusCode::BAD_REQUEST),
        ("sessions/create", json!({"snapshot_path": "/none"}), StatusCode::BAD_REQUEST),
        ("sessions/create", json!({"session_id": "x".repeat(200)}), StatusCode::BAD_REQUEST),
        ("exec", json!({}), StatusCode::UNPROCESSABLE_ENTITY),
    ] {
        let got = guest.refused(&format!("/v1/bash/{path}"), body.clone()).await;
        assert_eq!(got, status, "{path} {body}");
    }
}

#[tokio::test]
async fn a_snapshot_comes_before_each_command_and_not_before_its_scripts() {
    let guest = Guest::start().await;
    std::fs::write(guest.dir.join("snap"), "export X=1\nhello() { echo \"hello $1\"; }\n").unwrap();
    std::fs::write(guest.dir.join("script"), "echo $X\n").unwrap();
    let body = json!({"session_id": "s", "snapshot_path": guest.dir.join("snap")});
    guest.post("/v1/bash/sessions/create", body).await;
    let command = "hello you; X=2; bash script; echo ${BASH_ENV-none}";
    let done = exec(&guest, json!({"session_id": "s", "command": command})).await;
    assert_eq!(done["stdout"], "hello you\n2\nnone\n");
}

#[tokio::test]
async fn a_timeout_ends_the_call_and_a_hard_timeout_the_command() {
    let guest = Guest::start().await;
    let command = "echo begin; read line; echo got $line; exit 5";
    let first = exec(&guest, json!({"command": command, "timeout": 0.2})).await;
    assert_eq!((&first["status"], &first["exit_code"]), (&json!("running"), &Value::Null));
    let (session, id) = (&first["session_id"], &first["command_id"]);
    guest.post("/v1/bash/write", json!({"session_id": session, "input": "it\n"})).await;
    let end = ended(&guest, session, id).await;
    assert_eq!(end["stdout"], "begin\ngot it\n");
    assert_eq!(end["command"]["status"], "completed");
    assert_eq!(end["command"]["exit_code"], 5);

    let tree = "trap '' TERM INT; (setsid sleep 1234 &); echo begin; sleep 1234";
    let hard = exec(&guest, json!({"command": tree, "hard_timeout": 0.3})).await;
    assert_eq!((&hard["status"], &hard["exit_code"]), (&json!("timed_out"), &Value::Null));
    assert_eq!(hard["stdout"], "begin\n");
    guest.gone("sleep 1234").await;
}

#[tokio::test]
async fn a_kill_reaches_the_whole_tree() {
    let guest = Guest::start().await;
    let tree = "sleep 4321 & (setsid setsid sleep 4321 &) ; echo ready; wait";
    let run = exec(&guest, json!({"command": tree, "async_mode": true})).await;
    assert_eq!(run["status"], "running");
    eventually("all run", || guest.processes("sleep 4321").len() >= 2).await;
    let session = &run["session_id"];
    let kill = guest.post("/v1/bash/kill", json!({"session_id": session})).await;
    assert_eq!(kill["signalled"], 1);
    let end = ended(&guest, session, &run["command_id"]).await;
    assert_eq!((&end["command"]["status"], &end["command"]["exit_code"]), (&json!("killed"), &Value::Null));
    guest.gone("sleep 4321").await;
    let again = guest.post("/v1/bash/kill", json!({"session_id": session})).await;
    assert_eq!(again["signalled"], 0);

    let stubborn =
        json!({"session_id": session, "command": "trap '' TERM; echo ready; while :; do sleep 0.05; done", "async_mode": true});
    let run = exec(&guest, stubborn).await;
    let ready = json!({"session_id": session, "command_id": run["command_id"], "wait": true});
    guest.post("/v1/bash/output", ready).await;
    guest.post("/v1/bash/kill", json!({"session_id": session, "signal": "SIGTERM"})).await;
    let later = json!({"session_id": session, "command_id": run["command_id"], "wait": true, "wait_timeout": 0.3, "offset": 6, "stderr_offset": 1000});
    assert_eq!(guest.post("/v1/bash/output", later).await["command"]["status"], "running");
    guest.post("/v1/bash/kill", json!({"session_id": session, "signal": "SIGKILL"})).await;
    let end = ended(&guest, session, &run["command_id"]).await;
    assert_eq!(end["command"]["status"], "killed");
}

#[tokio::test]
async fn a_background_child_does_not_hold_its_command_open() {
    let guest = Guest::start().await;
    // It continues to print after the call ends, and must not die of a closed pipe.
    let command = "(for i in 1 2 3 4 5; do sleep 0.2; echo tick $i; done; touch survived; sleep 999) & echo main";
    let began = Instant::now();
    let done = exec(&guest, json!({"command": command})).await;
    assert_eq!((&done["status"], &done["stdout"]), (&json!("completed"), &json!("main\n")));
    assert!(began.elapsed() < Duration::from_secs(100));
    eventually("the child goes on", || guest.dir.join("survived").exists()).await;
    let body = json!({"session_id": done["session_id"], "command_id": done["command_id"], "offset": done["offset"]});
    let rest = guest.post("/v1/bash/output", body).await;
    assert_eq!(rest["stdout"], "tick 1\ntick 2\ntick 3\ntick 4\ntick 5\n");
    assert_eq!(rest["command"]["status"], "completed");
    let close = format!("/v1/bash/sessions/{}/close", done["session_id"].as_str().unwrap());
    assert_eq!(guest.post(&close, json!({})).await["status"], "closed");
    guest.gone("sleep 999").await;
    assert_eq!(guest.refused(&close, json!({})).await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn endless_background_output_does_not_hold_its_command_open() {
    let guest = Guest::start().await;
    let done = exec(&guest, json!({"command": "yes & sleep 0.1"})).await;
    assert_eq!(done["status"], "completed");
}

#[tokio::test]
async fn much_output_is_counted_drained_and_kept_at_its_ends() {
    let guest = Guest::start().await;
    let before = guest.peak_memory();
    let command = "echo first; head -c 100000000 /dev/zero | tr '\\0' 'x' ; echo; echo last";
    let done = exec(&guest, json!({"command": command})).await;
    let stdout = done["stdout"].as_str().unwrap();
    assert_eq!(done["offset"], 100_000_000 + 12);
    assert!(stdout.starts_with("first\nxxx") && stdout.ends_with("xxx\nlast\n"));
    assert!(stdout.chars().count() < 50_200 && stdout.contains("output truncated"), "{}", stdout.len());
    let all = json!({"session_id": done["session_id"], "command_id": done["command_id"]});
    let all = guest.post("/v1/bash/output", all).await;
    let kept = all["stdout"].as_str().unwrap().len() as u64;
    assert_eq!(all["stdout_gap"], 100_000_012 - (10 << 20));
    assert!(kept > 10 << 20 && kept < (10 << 20) + 200);
    assert_eq!((&all["offset"], &all["stdout_start_offset"]), (&done["offset"], &json!(0)));
    assert!(guest.peak_memory() - before < 100 << 20, "{} bytes", guest.peak_memory() - before);

    let short = exec(&guest, json!({"command": "seq 1000", "max_output_length": 100})).await;
    assert_eq!(short["offset"], 3893);
    let text = short["stdout"].as_str().unwrap();
    assert!(text.starts_with("1\n2\n3\n") && text.ends_with("\n1000\n") && text.contains("3793 characters"), "{text}");
    let long = exec(&guest, json!({"command": "seq 100000", "max_output_length": 0})).await;
    assert_eq!(long["stdout"].as_str().unwrap().len(), 588_895);
}

#[tokio::test]
async fn characters_are_never_cut_between_two_reads() {
    let guest = Guest::start().await;
    let command = r"printf '\xe2\x82'; read x; printf '\xac!'";
    let run = exec(&guest, json!({"command": command, "async_mode": true})).await;
    let session = &run["session_id"];
    let body = json!({"session_id": session, "command_id": run["command_id"], "wait": true, "wait_timeout": 0.3});
    let early = guest.post("/v1/bash/output", body).await;
    assert_eq!((&early["stdout"], &early["offset"]), (&json!(""), &json!(0)));
    guest.post("/v1/bash/write", json!({"session_id": session, "input": "\n"})).await;
    assert_eq!(ended(&guest, session, &run["command_id"]).await["stdout"], "€!");
}

#[tokio::test]
async fn a_session_has_one_stream_of_all_its_commands() {
    let guest = Guest::start().await;
    guest.post("/v1/bash/sessions/create", json!({"session_id": "s"})).await;
    exec(&guest, json!({"session_id": "s", "command": "echo one"})).await;
    exec(&guest, json!({"session_id": "s", "command": "echo two; echo bad >&2"})).await;
    let all = guest.post("/v1/bash/output", json!({"session_id": "s"})).await;
    assert_eq!((&all["stdout"], &all["stderr"], &all["offset"]), (&json!("one\ntwo\n"), &json!("bad\n"), &json!(8)));
    assert_eq!(all["command"]["command"], "echo two; echo bad >&2");
    let from_two = guest.post("/v1/bash/output", json!({"session_id": "s", "offset": 6})).await;
    assert_eq!((&from_two["stdout"], &from_two["stdout_start_offset"]), (&json!("o\n"), &json!(6)));
    // The wait ends with the next output of any command.
    let guest = Arc::new(guest);
    let waiting = tokio::spawn({
        let guest = Arc::clone(&guest);
        async move {
            let run = json!({"session_id": "s", "command": "read x; echo $x", "async_mode": true});
            exec(&guest, run).await;
            let body = json!({"session_id": "s", "offset": 8, "stderr_offset": 4, "wait": true});
            guest.post("/v1/bash/output", body).await
        }
    });
    eventually("it waits", || !guest.processes("read x").is_empty()).await;
    guest.post("/v1/bash/write", json!({"session_id": "s", "input": "three\n"})).await;
    assert_eq!(waiting.await.unwrap()["stdout"], "three\n");
}

#[tokio::test]
async fn commands_of_any_length_work() {
    let guest = Guest::start().await;
    for length in [1000, 40_000, 200_000, 3_000_000] {
        let command = format!("x='{}é'\necho ${{#x}}\nread y; echo \"[$y]\"", "'\"$".replace('\'', "").repeat(length / 2));
        let run = exec(&guest, json!({"command": command, "async_mode": true})).await;
        let session = &run["session_id"];
        guest.post("/v1/bash/write", json!({"session_id": session, "input": "in put\n"})).await;
        let end = ended(&guest, session, &run["command_id"]).await;
        assert_eq!(end["stdout"], format!("{}\n[in put]\n", length / 2 * 2 + 1), "{length}");
        let sync = exec(&guest, json!({"command": format!("{command}\nexit 6")})).await;
        assert_eq!(sync["exit_code"], 6);
        assert_eq!(sync["stdout"], format!("{}\n[]\n", length / 2 * 2 + 1));
    }
}

#[tokio::test]
async fn a_hundred_calls_at_once_get_their_own_answers() {
    let guest = Arc::new(Guest::start().await);
    guest.post("/v1/bash/sessions/create", json!({"session_id": "one"})).await;
    let files = guest.open_files();
    let calls = (0..200).map(|n| {
        let guest = Arc::clone(&guest);
        tokio::spawn(async move {
            let session = if n % 2 == 0 { json!("one") } else { Value::Null };
            let command = format!("echo out {n}; echo err {n} >&2; exit {n}");
            let done = exec(&guest, json!({"session_id": session, "command": command})).await;
            assert_eq!(done["stdout"], format!("out {n}\n"));
            assert_eq!(done["stderr"], format!("err {n}\n"));
            assert_eq!(done["exit_code"], n);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    eventually("all descriptors are closed", || guest.open_files() <= files + 2).await;
}

#[tokio::test]
async fn a_caller_who_leaves_does_not_end_the_command() {
    let guest = Guest::start().await;
    guest.post("/v1/bash/sessions/create", json!({"session_id": "s"})).await;
    let body = json!({"session_id": "s", "command": "sleep 0.5; echo done; touch done"});
    let call = guest.post("/v1/bash/exec", body);
    let left = tokio::time::timeout(Duration::from_millis(200), call).await;
    assert!(left.is_err());
    eventually("it goes on", || guest.dir.join("done").exists()).await;
    let all = guest.post("/v1/bash/output", json!({"session_id": "s"})).await;
    assert_eq!(all["stdout"], "done\n");
}

#[tokio::test]
async fn input_that_nobody_reads_is_refused_in_the_end_and_input_can_end() {
    let guest = Guest::start().await;
    let run = exec(&guest, json!({"command": "wc -c", "async_mode": true})).await;
    let session = &run["session_id"];
    let input = "x".repeat(300_000);
    guest.post("/v1/bash/write", json!({"session_id": session, "input": input, "close": true})).await;
    assert_eq!(ended(&guest, session, &run["command_id"]).await["stdout"], "300000\n");
}

#[tokio::test]
async fn another_user_has_its_streams_for_itself() {
    let guest = Guest::start_as("nobody").await;
    let command = "id -un; echo out >/dev/stdout; echo err >/dev/stderr; cat /dev/stdin";
    let run = exec(&guest, json!({"command": command, "async_mode": true})).await;
    let input = json!({"session_id": run["session_id"], "input": "in\n", "close": true});
    guest.post("/v1/bash/write", input).await;
    let end = ended(&guest, &run["session_id"], &run["command_id"]).await;
    assert_eq!((&end["stdout"], &end["stderr"]), (&json!("nobody\nout\nin\n"), &json!("err\n")));
    let shell = json!({"command": "id -un; echo out >/dev/stdout; echo tty >$(tty); cat </dev/tty", "timeout": 1});
    let shell = guest.post("/v1/shell/exec", shell).await;
    assert_eq!(shell["output"], "nobody\nout\ntty");
    let stop = json!({"id": shell["session_id"]});
    assert_eq!(guest.post("/v1/shell/kill", stop).await["status"], "terminated");
}

#[tokio::test]
async fn variables_name_the_directory_and_the_user() {
    let workspace = std::env::temp_dir().join(format!("arenite-workspace-{:016x}", getrandom::u64().unwrap()));
    let workspace = workspace.display().to_string();
    let guest = Guest::start_with("root", &[("WORKSPACE", &workspace), ("USER", "nobody"), ("TZ", "Asia/Tokyo")]).await;
    let done = exec(&guest, json!({"command": "pwd; id -un; echo $USER; date +%Z"})).await;
    // Created if missing, and owned by the user.
    assert_eq!(done["stdout"], format!("{workspace}\nnobody\nnobody\nJST\n"));
    assert_eq!(exec(&guest, json!({"command": "touch made"})).await["exit_code"], 0);
    std::fs::remove_dir_all(&workspace).unwrap();

    let guest = Guest::start_with("root", &[("WORKSPACE", "relative"), ("USER", "no-such-user")]).await;
    let done = exec(&guest, json!({"command": "pwd; id -un"})).await;
    assert_eq!(done["stdout"], format!("{}\nroot\n", guest.dir.display()));
}
