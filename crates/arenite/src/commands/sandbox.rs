//! `create`, `ls`, `inspect`, `set`, `rm`, `pause`, `resume`, `start`: the life of sandboxes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::process::ExitCode;

use arenite_model::{SandboxName, VolumeMount};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::environment;
use super::pull_bar::PullBar;
use crate::cli::{CreateArgs, Idle, LsArgs, NamesArgs, Pause, PauseArgs, RmArgs, SandboxInspectArgs, Server, SetArgs};
use crate::client::{Client, read_answer};
use crate::failure::{Failure, Outcome};
use crate::output::{Cell, Entries, Form, View};
use crate::{output, wire};

pub(super) const SANDBOXES: &str = "/api/v2/sandboxes";

pub(crate) async fn create(args: CreateArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let request = wire::Create {
        name: args.name.map(String::from),
        template: args.template,
        image: args.image.map(String::from),
        snapshot: args.snapshot.map(String::from),
        restart_processes: args.restart_processes.then_some(true),
        env: environment(&args.env)?,
        secrets: args.secret.into_iter().map(String::from).collect(),
        args: args.args,
        image_command: args.image_command,
        workdir: args.workdir,
        hostname: args.hostname,
        labels: labels(&args.label)?,
        resources: wire::Resources {
            memory_bytes: args.memory.map(|s| s.0),
            cpu_millis: args.cpu,
            pids: args.pids,
            disk_bytes: args.disk.map(|s| s.0),
            shm_bytes: args.shm.map(|s| s.0),
        },
        network: super::network::request(args.network, &args.allow, &args.deny)?,
        tier: args.tier,
        volumes: args.volume.iter().map(|text| volume(text)).collect::<Result<_, _>>()?,
        ports: args.port,
        timeout_seconds: args.timeout.map(|t| t.0.as_secs()),
        idle_timeout_seconds: args.idle_timeout.map(|t| t.0.as_secs()),
        idle_policy: args.idle_policy.map(idle_policy),
        disk_after_seconds: args.disk_after.map(|t| t.0.as_secs()),
        disk_under_pressure: args.disk_under_pressure.then_some(true),
        checkpoint: args.auto_checkpoint.then_some("auto"),
        client_tag: args.client_tag,
        group: args.group.map(String::from),
        count: args.count,
        min: args.min,
    };
    let mut bar = PullBar::default();
    let answer = client.post_watched::<Value>(SANDBOXES, &request, &mut |progress| bar.show(progress)).await;
    bar.end();
    let answer = answer?;
    if args.format.json {
        output::json(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    if request.count.is_some() {
        show_several(&read_answer(answer)?);
        return Ok(ExitCode::SUCCESS);
    }
    let sandbox: wire::Sandbox = read_answer(answer)?;
    let took: f64 = sandbox.stages.iter().map(|s| s.ms).sum();
    // The name alone on stdout, so that NAME=$(arenite create) works.
    output::line(&sandbox.name);
    let path = sandbox.urls.get("path").cloned().unwrap_or_else(|| format!("{}/sandbox/{}/", client.server(), sandbox.name));
    eprintln!(
        "made {} of {} in {took:.0} ms, tier {}, isolated by {}",
        sandbox.id,
        sandbox.spec.image,
        sandbox.tier,
        sandbox.isolation.join(", ")
    );
    eprintln!("its API is at {path}; a shell: arenite exec {}", sandbox.name);
    if let Some(deadline) = &sandbox.deadline {
        eprintln!("it ends in {}", ends_in(deadline, Timestamp::now()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses labels, each `KEY=VALUE`.
pub(super) fn labels(words: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    words.iter().map(|word| label(word)).collect()
}

/// Parses `KEY=VALUE`.
fn label(word: &str) -> Result<(String, String), Failure> {
    match word.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(Failure::new(format!("the label {word:?} has no value")).hint("write --label KEY=VALUE").exit_code(2)),
    }
}

fn idle_policy(policy: Idle) -> &'static str {
    match policy {
        Idle::Delete => "delete",
        Idle::Pause => "pause",
        Idle::Freeze => "freeze",
        Idle::Disk => "disk",
    }
}

pub(crate) async fn set(args: SetArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let set = labels(&args.label)?.into_iter().map(|(key, value)| (key, Some(value)));
    let mut labels: BTreeMap<String, Option<String>> = set.collect();
    labels.extend(args.unlabel.into_iter().map(|key| (key, None)));
    let change = wire::Change {
        labels,
        timeout_seconds: args.timeout.map(|t| t.0.as_secs()),
        expires_in_seconds: args.expires_in.map(|t| t.0.as_secs()),
        idle_timeout_seconds: args.idle_timeout.map(|t| t.0.as_secs()),
        idle_policy: args.idle_policy.map(idle_policy),
        disk_after_seconds: args.disk_after.map(|t| t.0.as_secs()),
        disk_under_pressure: args.disk_under_pressure,
    };
    let path = format!("{SANDBOXES}/{}", args.sandbox);
    let mut changed = None;
    if change != wire::Change::default() {
        changed = Some(client.patch::<Value>(&path, &change).await?);
    }
    if let Some(extend) = args.extend {
        let seconds = json!({ "seconds": extend.0.as_secs() });
        changed = Some(client.post::<Value>(&format!("{path}/extend"), &seconds).await?);
    }
    // The arguments have at least one change.
    let changed = changed.unwrap_or_default();
    if args.format.json {
        output::json(&changed);
        return Ok(ExitCode::SUCCESS);
    }
    output::line(&args.sandbox);
    let now = Timestamp::now();
    let end = changed["expires_at"].as_str().and_then(|end| end.parse::<Timestamp>().ok());
    eprintln!("its lifetime {}", end.map_or("is unlimited".to_owned(), |end| format!("ends in {}", output::distance(now, end))));
    Ok(ExitCode::SUCCESS)
}

/// Prints the names alone to stdout.
pub(super) fn show_several(created: &wire::Created) {
    for sandbox in &created.sandboxes {
        output::line(&sandbox.name);
    }
    eprintln!("made {} of {} sandboxes", created.sandboxes.len(), created.requested);
    for error in &created.errors {
        eprintln!("number {} could not be made: {}", error.index, output::harmless(&error.message));
    }
}

/// Parses `NAME:PATH`, with `:ro` for read-only, and a directory of the volume after its name.
fn volume(text: &str) -> Result<VolumeMount, Failure> {
    let (rest, read_only) = text.strip_suffix(":ro").map_or((text, false), |rest| (rest, true));
    match rest.split_once(':') {
        Some((volume, path)) if path.starts_with('/') => {
            let (name, sub_path) = volume.split_once('/').map_or((volume, None), |(name, below)| (name, Some(below.to_owned())));
            Ok(VolumeMount { name: name.to_owned(), path: path.to_owned(), read_only, sub_path, volume_id: None })
        }
        _ => Err(Failure::new(format!("{text:?} is no volume"))
            .hint(
                "write --volume NAME[/DIRECTORY]:PATH[:ro], such as data:/home/gem/data, with the name of a volume (arenite volume \
                 ls), or of a directory that arenite serve --volume declares",
            )
            .exit_code(2)),
    }
}

pub(crate) async fn ls(args: LsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let query = args.query();
    let path = if query.is_empty() { SANDBOXES.to_owned() } else { format!("{SANDBOXES}?{query}") };
    let fetch = async || {
        let mut list: Value = client.get_all(&path, "sandboxes").await?;
        if let (Some(sandboxes), false) = (list["sandboxes"].as_array_mut(), args.newest) {
            sort(sandboxes);
        }
        Ok(list)
    };
    let mut form = args.output.form();
    if args.quiet {
        form.form = Form::Name;
    }
    let empty = if query.is_empty() {
        "there are no sandboxes; make one with: arenite create NAME"
    } else {
        "there are no such sandboxes"
    };
    form.show(Entries::named("sandboxes"), fetch, |answer| view(empty, answer)).await
}

/// The running ones first, and of each state the newest.
fn sort(sandboxes: &mut [Value]) {
    const ORDER: [&str; 4] = ["running", "creating", "paused", "deleting"];
    let place = |sandbox: &Value| ORDER.iter().position(|state| sandbox["state"] == *state).unwrap_or(ORDER.len());
    let created = |sandbox: &Value| sandbox["created_at"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    sandboxes.sort_by_cached_key(|sandbox| (place(sandbox), Reverse(created(sandbox))));
}

fn view(empty: &str, answer: Value) -> Result<View, Failure> {
    let list: wire::Sandboxes = read_answer(answer)?;
    if list.sandboxes.is_empty() {
        return Ok(View::empty(empty));
    }
    let now = Timestamp::now();
    let mut header = vec!["name", "state", "image", "tier", "created", "used", "ends in", "id"];
    // Without a column, a cell is dropped.
    if list.sandboxes.iter().any(|sandbox| sandbox.node.is_some()) {
        header.push("node");
    }
    let mut rows = output::table(&header).long(&["image"]).leave_out(&["id", "tier", "used"]);
    for sandbox in &list.sandboxes {
        let ago = |at: Timestamp| format!("{} ago", output::distance(at, now));
        rows.add_row::<Cell>(vec![
            sandbox.name.clone().into(),
            output::state(sandbox.state_and_kind()),
            sandbox.spec.image.clone().into(),
            output::harmless(&sandbox.tier).into(),
            ago(sandbox.created_at).into(),
            sandbox.last_used_at.map_or("-".to_owned(), ago).into(),
            sandbox.deadline.as_ref().map_or("-".to_owned(), |end| ends_in(end, now)).into(),
            sandbox.id.clone().into(),
            sandbox.node.clone().unwrap_or_default().into(),
        ]);
    }
    let reason = |sandbox: &wire::Sandbox| {
        let reason = output::harmless(sandbox.reason.as_ref()?);
        let kind = sandbox.died.as_ref().map_or_else(String::new, |died| format!(" ({})", output::harmless(&died.reason)));
        Some(format!("{}: {reason}{kind}", sandbox.name))
    };
    Ok(View { lines: list.sandboxes.iter().filter_map(reason).collect(), ..rows.into() })
}

pub(crate) async fn inspect(args: SandboxInspectArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let mut found = Vec::with_capacity(args.sandboxes.len());
    for name in &args.sandboxes {
        found.push(client.get::<Value>(&format!("{SANDBOXES}/{name}")).await?);
    }
    args.output.selected().unwrap_or(Form::Json).show_objects(found, "name")
}

pub(crate) async fn rm(args: RmArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let mut names: Vec<String> = args.sandboxes.into_iter().map(String::from).collect();
    if args.all {
        let list: wire::Sandboxes = client.get_all(SANDBOXES, "sandboxes").await?;
        names.extend(list.sandboxes.into_iter().map(|s| s.name));
        if !args.force && !names.is_empty() {
            output::confirm(&format!("delete all {} sandboxes, with their files: {}", names.len(), some_of(&names)))?;
        }
    }
    each(names, async |name| match client.delete(&format!("{SANDBOXES}/{name}")).await {
        Err(failure) if args.force && failure.status() == Some(404) => Ok(()),
        other => other,
    })
    .await
}

/// The remaining time, such as `9m`, with the cause and effect unless it is simply the timeout.
fn ends_in(deadline: &wire::Deadline, now: Timestamp) -> String {
    let left = output::distance(now, deadline.at);
    match (deadline.reason.as_str(), deadline.action.as_str()) {
        ("idle", "pause") => format!("{left} (pauses when idle)"),
        ("idle", "disk") => format!("{left} (pauses to disk when idle)"),
        ("paused", _) => format!("{left} (pauses to disk)"),
        ("idle", _) => format!("{left} if idle"),
        _ => left,
    }
}

/// The first names of a list that may be long.
fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 10;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown} and {} more", names.len() - SHOWN) } else { shown }
}

pub(crate) async fn pause(args: PauseArgs) -> Outcome {
    let kind = match args.kind {
        Pause::Freeze => "freeze",
        Pause::Disk => "disk",
    };
    change_each(&args.server, args.sandboxes, "pause", &json!({ "kind": kind })).await
}

pub(crate) async fn resume(args: NamesArgs) -> Outcome {
    transition(args, "resume").await
}

pub(crate) async fn start(args: NamesArgs) -> Outcome {
    transition(args, "start").await
}

async fn transition(args: NamesArgs, verb: &str) -> Outcome {
    change_each(&args.server, args.sandboxes, verb, &json!({})).await
}

async fn change_each(server: &Server, sandboxes: Vec<SandboxName>, verb: &str, request: &Value) -> Outcome {
    let client = Client::connect_to(server)?;
    let names = sandboxes.into_iter().map(String::from).collect();
    each(names, async |name| client.post::<Value>(&format!("{SANDBOXES}/{name}/{verb}"), request).await.map(drop)).await
}

/// Applies an operation to every sandbox, prints those that succeeded, and continues after a failure.
pub(super) async fn each(names: Vec<String>, act: impl AsyncFn(&str) -> Result<(), Failure>) -> Outcome {
    let mut code = ExitCode::SUCCESS;
    for name in names {
        match act(&name).await {
            Ok(()) => output::line(name),
            // Without a server, every other name would fail in the same way.
            Err(failure) if failure.status().is_none() => return Err(failure),
            Err(failure) => code = failure.report(),
        }
    }
    Ok(code)
}
