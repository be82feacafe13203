//! Exports of trajectories with calls of models: complete turns in order, each message once, tools beside them.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

use arenite_model::TenantId;
use arenite_trajectory::{
    Annotations, Filter, Format, Intent, Limits, MODEL_DIALECT, ModelStep, Origin, Outcome, OutcomeKind, Recorder, replay,
};
use serde_json::{Value, json};

struct Trajectory {
    recorder: Recorder,
    _dir: tempfile::TempDir,
}

fn tenant() -> TenantId {
    TenantId::default_tenant()
}

impl Trajectory {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { recorder: Recorder::open(dir.path().to_owned(), Limits::default()).unwrap(), _dir: dir }
    }

    fn step(&self, dialect: &'static str, action: &str, arguments: &Value, observation: &Value, outcome: Outcome) -> u64 {
        let intent = Intent {
            tenant: tenant(),
            trajectory: "t".to_owned(),
            sandbox_name: "demo".to_owned(),
            dialect,
            action: action.to_owned(),
            arguments: None,
            origin: Origin::Agent,
            client: None,
            request_id: "r".to_owned(),
            work: None,
        };
        let mut step = self.recorder.begin_with_body(intent, arguments.to_string().as_bytes()).unwrap();
        if dialect == MODEL_DIALECT {
            step.response_tap().is_payload();
            step.set_model(ModelStep {
                model: "m".to_owned(),
                prompt_tokens: Some(3),
                completion_tokens: Some(2),
                ..ModelStep::default()
            });
        }
        step.response_tap().feed(observation.to_string().as_bytes());
        let number = step.id();
        step.finish(outcome).unwrap();
        number
    }

    fn model(&self, messages: &[Value], message: Value) -> u64 {
        let answer = json!({ "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }] });
        self.step(MODEL_DIALECT, "POST /v1/chat/completions", &json!({ "messages": messages }), &answer, ok())
    }

    fn bash(&self, command: &str, stdout: &str) -> u64 {
        let answer = json!({ "success": true, "message": "", "data": { "stdout": stdout, "stderr": "", "exit_code": 0 } });
        self.step("aio", "POST /v1/bash/exec", &json!({ "command": command }), &answer, ok())
    }

    fn lines(&self, format: Format) -> Vec<Value> {
        let mut out = Vec::new();
        self.recorder.export_as(&tenant(), "t", (format, &Filter::default(), &Annotations::default()), &mut out).unwrap();
        String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Source and message of each step of ATIF.
    fn atif(&self) -> Vec<(String, String)> {
        let steps = self.lines(Format::Atif).remove(0)["steps"].take();
        let text = |step: &Value, field: &str| step[field].as_str().unwrap().to_owned();
        steps.as_array().unwrap().iter().map(|step| (text(step, "source"), text(step, "message"))).collect()
    }

    /// The text of each message of each line, with its role.
    fn messages(&self) -> Vec<Vec<String>> {
        let told = |message: &Value| {
            let call = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap_or_default();
            format!("{}:{}{call}", message["role"].as_str().unwrap(), message["content"].as_str().unwrap_or_default())
        };
        let lines = self.lines(Format::OpenaiMessages);
        lines.iter().map(|line| line["messages"].as_array().unwrap().iter().map(told).collect()).collect()
    }
}

fn ok() -> Outcome {
    Outcome { status: Some(200), result: OutcomeKind::Ok, error: None }
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn said(text: &str) -> Value {
    json!({ "role": "assistant", "content": text })
}

fn called(id: &str, name: &str, arguments: &Value) -> Value {
    let function = json!({ "name": name, "arguments": arguments.to_string() });
    json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": id, "type": "function", "function": function }] })
}

fn result(id: &str, text: &str) -> Value {
    json!({ "role": "tool", "tool_call_id": id, "content": text })
}

#[test]
fn an_observation_is_there_once_as_the_model_saw_it() {
    let t = Trajectory::new();
    let call = called("c", "run", &json!({ "command": "ls" }));
    t.bash("setup", "");
    t.model(&[user("list")], call.clone());
    t.bash("ls", "a\nb\nc");
    // The client shortened it.
    t.model(&[user("list"), call, result("c", "a\nb…")], said("a and b"));
    assert_eq!(t.messages(), [["user:list", r#"assistant:{"command":"ls"}"#, "tool:a\nb…", "assistant:a and b"]]);
    let step = |source: &str, message: &str| (source.to_owned(), message.to_owned());
    assert_eq!(t.atif(), [step("agent", ""), step("user", "list"), step("agent", ""), step("agent", "a and b")]);
    let atif = t.lines(Format::Atif).remove(0);
    assert_eq!(atif["steps"][2]["observation"]["results"][0]["content"], "a\nb…");
    assert_eq!(atif["steps"][2]["observation"]["results"][0]["extra"]["recorded_as"], 3);
    assert_eq!(
        (&atif["steps"][0]["extra"]["recorded_as"], &atif["steps"][0]["tool_calls"][0]["function_name"]),
        (&Value::Null, &json!("bash_exec"))
    );
    assert_eq!(atif["final_metrics"]["total_prompt_tokens"], 6);
    let roles: Vec<Value> =
        t.lines(Format::Sharegpt)[0]["conversations"].as_array().unwrap().iter().map(|turn| turn["from"].clone()).collect();
    assert_eq!(roles, ["human", "function_call", "observation", "gpt"]);
    // Calls of models are no nodes, and are not repeated.
    assert_eq!(t.lines(Format::AgentflowSynthesis)[0]["nodes"].as_array().unwrap().len(), 3);
    let steps = t.recorder.steps(&tenant(), "t", 0, 10).unwrap();
    assert_eq!(steps.iter().filter(|step| replay::skipped(step).is_none()).count(), 2);
}

#[test]
fn the_last_calls_are_answered_by_their_steps() {
    let t = Trajectory::new();
    let function = |name: &str, arguments: &str| json!({ "name": name, "arguments": arguments });
    let calls = json!({ "role": "assistant", "content": "both", "tool_calls": [
        { "id": "a", "type": "function", "function": function("bash_exec", r#"{"command": "other"}"#) },
        { "id": "b", "type": "function", "function": function("run", r#"{"cmd": "pwd"}"#) },
        { "id": "c", "type": "function", "function": function("never", "{}") },
    ]});
    t.model(&[user("go")], calls);
    // By its argument, and not the first one by order or by name.
    t.bash("pwd", "/home");
    t.bash("something", "else");
    let [line] = &t.messages()[..] else { panic!("{:?}", t.messages()) };
    assert_eq!(line[2..], ["tool:else", "tool:/home", "tool:[no answer: none was recorded]"]);
    let atif = t.lines(Format::Atif).remove(0);
    assert_eq!(atif["steps"].as_array().unwrap().len(), 2, "both steps belong to the turn");
    assert_eq!(atif["steps"][1]["observation"]["results"].as_array().unwrap().len(), 2, "nothing is invented");
}

#[test]
fn conversations_and_branches_are_lines() {
    let t = Trajectory::new();
    let start = [json!({ "role": "system", "content": "s" }), user("q")];
    t.model(&start, said("one"));
    // The same request once more, and an agent below in between.
    t.model(&start, said("two"));
    t.model(&[user("sub")], said("done"));
    let on = |answer: &str, question: &str| [&start[..], &[said(answer), user(question)]].concat();
    t.model(&on("one", "and?"), said("one more"));
    t.model(&on("two", "and?"), said("two more"));
    assert_eq!(
        t.messages(),
        [
            vec!["user:sub", "assistant:done"],
            vec!["system:s", "user:q", "assistant:one", "user:and?", "assistant:one more"],
            vec!["system:s", "user:q", "assistant:two", "user:and?", "assistant:two more"],
        ]
    );
    // Each message of the user and the system once for what came before it.
    let told: Vec<String> = t.atif().into_iter().map(|(source, message)| format!("{source}:{message}")).collect();
    let wanted = ["system:s", "user:q", "agent:one", "agent:two", "user:sub", "agent:done"];
    assert_eq!(told[..6], wanted);
    assert_eq!(told[6..], ["user:and?", "agent:one more", "user:and?", "agent:two more"]);
    let rollout = t.lines(Format::AgentflowRollout);
    assert_eq!((rollout.len(), &rollout[0]["trajectory"]["final_answer"]), (1, &json!("two more")));
    assert_eq!((&rollout[0]["trajectory"]["question"], &rollout[0]["trajectory"]["total_turns"]), (&json!("q"), &json!(2)));
}

#[test]
fn a_system_with_a_clock_continues_its_conversation() {
    let t = Trajectory::new();
    let system = |time: &str| json!({ "role": "system", "content": time });
    t.model(&[system("1:00"), user("q")], said("a"));
    t.model(&[system("1:01"), user("q"), said("a"), user("more")], said("b"));
    assert_eq!(t.messages(), [["system:1:01", "user:q", "assistant:a", "user:more", "assistant:b"]]);
    let told: Vec<String> = t.atif().into_iter().map(|(source, message)| format!("{source}:{message}")).collect();
    assert_eq!(told, ["system:1:00", "user:q", "agent:a", "system:1:01", "user:more", "agent:b"]);
}

#[test]
fn a_failed_call_leaves_no_gap_and_no_second_line() {
    let t = Trajectory::new();
    let error = |status: u16| Outcome { status: Some(status), result: OutcomeKind::Error, error: Some("no".to_owned()) };
    let body = json!({ "error": { "message": "no" } });
    let fail = |messages: &[Value], status| {
        t.step(MODEL_DIALECT, "POST /v1/chat/completions", &json!({ "messages": messages }), &body, error(status));
    };
    fail(&[user("q")], 429);
    fail(&[user("q")], 429);
    t.model(&[user("q")], said("a"));
    fail(&[user("q"), said("a"), user("more")], 403);
    assert_eq!(t.messages(), [["user:q", "assistant:a", "user:more"]]);
    let told: Vec<String> = t.atif().into_iter().map(|(source, message)| format!("{source}:{message}")).collect();
    assert_eq!(told, ["user:q", "agent:", "agent:", "agent:a", "user:more", "agent:"]);
    assert_eq!(t.lines(Format::Atif)[0]["steps"][5]["extra"]["error"], "no");
}

#[test]
fn hostile_bodies_export() {
    let t = Trajectory::new();
    for body in [
        json!({ "messages": 3 }),
        json!({ "messages": [null, 1, "x", [], { "role": 7 }, { "role": "tool" }, { "role": "assistant", "tool_calls": [1, {}] }] }),
        json!({ "input": [{ "type": "function_call" }, { "type": 1 }, null], "tools": [null, {}, { "name": 1, "parameters": {} }] }),
        json!({ "system": {}, "prompt": [[1, 2]], "previous_response_id": "x" }),
        json!([1]),
    ] {
        for answer in [
            json!({ "choices": [{}] }),
            json!({ "output": [null] }),
            json!({ "content": [1, { "type": "tool_use" }] }),
            json!("x"),
        ] {
            t.step(MODEL_DIALECT, "POST /v1/chat/completions", &body, &answer, ok());
        }
    }
    t.bash("x", "");
    for format in Format::ALL {
        assert!(!t.lines(format).is_empty(), "{format:?}");
    }
}
