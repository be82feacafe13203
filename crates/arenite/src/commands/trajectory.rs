//! `trajectory ls|show|export`: the recorded steps. `replay` is in a separate folder.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;

use arenite_trajectory::{FailureClass, StepResult, Verification};
use futures_util::StreamExt;
use serde_json::Value;

use super::annotations;
use crate::cli::{
    Annotated, TrajectoryCommand, TrajectoryExportArgs, TrajectoryLsArgs, TrajectoryShowArgs, TrajectoryVerifyArgs,
};
use crate::client::{Client, encoded, read_answer};
use crate::config::values::Size;
use crate::failure::{Attempt, Failure, NOT_FOUND, Outcome};
use crate::names::nearest;
use crate::output::{Entries, View};
use crate::{output, wire};

pub(super) const TRAJECTORIES: &str = "/api/v1/trajectories";

pub(crate) async fn run(command: TrajectoryCommand) -> Outcome {
    match command {
        TrajectoryCommand::Ls(args) => ls(args).await,
        TrajectoryCommand::Show(args) => show(args).await,
        TrajectoryCommand::Export(args) => export(args).await,
        TrajectoryCommand::Verify(args) => verify(args).await,
        TrajectoryCommand::Annotate(args) => annotations::annotate(args).await,
        TrajectoryCommand::Annotations(args) => annotations::list(args).await,
        TrajectoryCommand::Unannotate(args) => annotations::remove(args).await,
        TrajectoryCommand::Replay(args) => super::replay::replay(args).await,
    }
}

async fn ls(args: TrajectoryLsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let wanted = [("worker", &args.worker), ("task", &args.task)];
    let wanted = wanted.iter().filter_map(|(key, value)| Some(format!("{key}={}", encoded(value.as_deref()?))));
    let failed = args.failed.then(|| "failed=true".to_owned());
    let query: Vec<String> = wanted.chain(failed).chain(args.annotated.query()).collect();
    let path = format!("{TRAJECTORIES}?{}", query.join("&"));
    let fetch = async || client.get_all(&path, "trajectories").await;
    let entries = Entries { list: "trajectories", names: &["trajectory"] };
    let empty = if query.is_empty() { "nothing has been recorded yet" } else { "no trajectory fits" };
    args.output.form().show(entries, fetch, |answer| view(empty, answer)).await
}

fn view(empty: &str, answer: Value) -> Result<View, Failure> {
    let mut list: wire::Trajectories = read_answer(answer)?;
    let warnings: Vec<String> = list.warnings.iter().map(|warning| format!("warning: {}", output::harmless(warning))).collect();
    let note = (!warnings.is_empty()).then(|| warnings.join("\n"));
    if list.trajectories.is_empty() {
        return Ok(View::empty(note.map_or_else(|| empty.to_owned(), |note| format!("{note}\n{empty}"))));
    }
    list.trajectories.sort_by_key(|item| Reverse(item.last_at));
    let now = jiff::Timestamp::now();
    let workers = list.trajectories.iter().any(|item| item.worker.is_some());
    let mut head = vec!["trajectory", "sandbox", "steps", "size", "first", "last", ""];
    let failed = list.trajectories.iter().any(|item| item.failures.is_some_and(|failures| failures.steps > 0));
    if failed {
        head.insert(3, "failed");
    }
    if workers {
        head.splice(2..2, ["worker", "task"]);
    }
    let annotated = list.trajectories.iter().any(|item| item.annotations.is_some());
    if annotated {
        head.splice(head.len() - 1..head.len() - 1, ["rating", "labels"]);
    }
    let mut rows = output::table(&head).leave_out(&["first", "size"]);
    for item in &list.trajectories {
        let mut row = vec![
            item.trajectory.clone(),
            item.sandbox_name.clone(),
            item.steps.to_string(),
            Size(item.bytes).short(),
            format!("{} ago", output::distance(item.first_at, now)),
            format!("{} ago", output::distance(item.last_at, now)),
            match (item.archived, item.ended) {
                (true, _) => "archived".to_owned(),
                (false, true) => "ended".to_owned(),
                (false, false) => String::new(),
            },
        ];
        if failed {
            row.insert(3, item.failures.map_or_else(String::new, |failures| failures.steps.to_string()));
        }
        if workers {
            let told = [&item.worker, &item.task].map(|text| output::harmless(text.as_deref().unwrap_or_default()));
            row.splice(2..2, told);
        }
        if annotated {
            row.splice(row.len() - 1..row.len() - 1, annotations::cells(item.annotations.as_ref()));
        }
        rows.add_row(row);
    }
    Ok(View { note, ..rows.into() })
}

async fn show(args: TrajectoryShowArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let id = find(&client, &args.trajectory).await?;
    let chosen = chosen(args.chosen.origin.as_deref(), args.result.as_deref(), args.class.as_deref());
    let path = format!("{TRAJECTORIES}/{}?after={}&limit={}{chosen}", encoded(&id), args.after, args.limit);
    let entries = Entries { list: "steps", names: &["step"] };
    args.output.form().show(client.get(&path).await?, entries, |answer| steps_view(&args.trajectory, answer))
}

pub(super) fn steps_view(trajectory: &str, answer: Value) -> Result<View, Failure> {
    let page: wire::Steps = read_answer(answer)?;
    let header = ["step", "at (UTC)", "origin", "action", "arguments", "outcome", "status", "result", "class", "ms"];
    let mut rows = output::table(&header)
        .long(&["action", "arguments", "result"])
        .leave_out(&["class", "status", "at (UTC)", "origin", "ms", "outcome"]);
    for step in &page.steps {
        rows.add_row(vec![
            step.step.to_string().into(),
            step.started_at.strftime("%Y-%m-%d %H:%M:%S").to_string().into(),
            step.origin.clone().into(),
            output::harmless(&step.action).into(),
            gist(step.arguments.as_ref()).into(),
            output::state(step.outcome.as_deref().unwrap_or("under way")),
            step.status.map_or("-".to_owned(), |status| status.to_string()).into(),
            result(step.result.as_ref()).into(),
            step.class.map_or("-", FailureClass::name).into(),
            step.duration_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}")).into(),
        ]);
    }
    let note = page.next_after.map(|next| format!("there is more: arenite trajectory show {trajectory} --after {next}"));
    Ok(View { note, ..rows.into() })
}

/// The query parameters that select steps.
fn chosen(origin: Option<&str>, result: Option<&str>, class: Option<&str>) -> String {
    let pairs = [("origin", origin), ("result", result), ("class", class)];
    pairs.into_iter().filter_map(|(name, value)| Some(format!("&{name}={}", encoded(value?)))).collect()
}

/// The result of a call, in one or two words.
fn result(result: Option<&StepResult>) -> String {
    match result {
        None => "-".to_owned(),
        Some(StepResult::Succeeded) => "succeeded".to_owned(),
        Some(StepResult::Failed(failure)) => {
            const MOST: usize = 40;
            let told = output::harmless(&failure.to_string());
            let short: String = told.chars().take(MOST).collect();
            format!("failed: {short}{}", if short.len() < told.len() { "…" } else { "" })
        }
    }
}

async fn verify(args: TrajectoryVerifyArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let ids = ids(&client, args.trajectory.as_deref()).await?;
    let mut all = Vec::new();
    for id in ids {
        all.push(client.get::<Verification>(&format!("{TRAJECTORIES}/{}/verify", encoded(&id))).await?);
    }
    let problems: usize = all.iter().map(|found| found.problems.len()).sum();
    if args.format.json {
        output::json(&serde_json::json!({ "trajectories": all }));
    } else {
        for found in &all {
            for problem in &found.problems {
                let line = problem.line.map_or(String::new(), |line| format!(", line {line}"));
                let step = problem.step.map_or(String::new(), |step| format!(", step {step}"));
                output::line(format_args!("{}{line}{step}: {}", found.trajectory, output::harmless(&problem.what)));
            }
        }
        let sum = |of: fn(&Verification) -> u64| all.iter().map(of).sum::<u64>();
        output::line(format_args!(
            "{} trajectories, {} lines, {} bodies: {}",
            all.len(),
            sum(|found| found.lines),
            sum(|found| found.blobs),
            match problems {
                0 => "all as written".to_owned(),
                1 => "1 problem".to_owned(),
                several => format!("{several} problems"),
            }
        ));
        if sum(|found| found.unchecked) > 0 {
            output::line(format_args!("{} lines are from before lines had checksums", sum(|found| found.unchecked)));
        }
    }
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The start of a call's arguments, for a table's cell.
fn gist(arguments: Option<&Value>) -> String {
    const MOST: usize = 60;
    // A body is tagged with its kind: json, text, blob or base64.
    let inner = match arguments {
        Some(Value::Object(tagged)) if tagged.len() == 1 => tagged.values().next(),
        other => other,
    };
    let text = match inner {
        None | Some(Value::Null) => return String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => {
            let telling = ["command", "file", "path"].iter().find_map(|key| value.get(key)?.as_str());
            telling.map_or_else(|| value.to_string(), str::to_owned)
        }
    };
    let mut gist: String = output::harmless(&text).chars().take(MOST).collect();
    if text.chars().count() > MOST {
        gist.push('…');
    }
    gist
}

async fn export(args: TrajectoryExportArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    if args.trajectory.is_none() && args.format.extension() != "jsonl" {
        return Err(Failure::new(format!("{} is one file for each trajectory, so not for several", args.format.name()))
            .hint("name a trajectory; see what there is with: arenite trajectory ls")
            .exit_code(2));
    }
    let ids = match &args.trajectory {
        Some(_) => ids(&client, args.trajectory.as_deref()).await?,
        None => selected(&client, &args.annotated).await?,
    };
    let annotations = match (args.annotations, args.no_annotations) {
        (true, _) => "&annotations=true",
        (_, true) => "&annotations=false",
        _ => "",
    };
    let mut file = match &args.output {
        Some(path) => {
            Some(std::io::BufWriter::new(std::fs::File::create(path).attempt(|| format!("could not write {}", path.display()))?))
        }
        None => None,
    };
    for id in ids {
        let chosen = chosen(args.chosen.origin.as_deref(), args.result.as_deref(), args.class.as_deref());
        let path = format!("{TRAJECTORIES}/{}/export?format={}{chosen}{annotations}", encoded(&id), args.format.name());
        let mut lines = client.download(&path).await?;
        while let Some(piece) = lines.next().await {
            let piece = piece.attempt(|| "the export broke off".into())?;
            match &mut file {
                Some(file) => file.write_all(&piece).attempt(|| "could not write the export".into())?,
                None => output::bytes(&piece),
            }
        }
    }
    if let Some(mut file) = file {
        file.flush().attempt(|| "could not write the export".into())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All pages of a list. Says what is missing.
async fn list(client: &Client, path: &str) -> Result<wire::Trajectories, Failure> {
    let list: wire::Trajectories = client.get_all(path, "trajectories").await?;
    for warning in &list.warnings {
        eprintln!("warning: {}", output::harmless(warning));
    }
    Ok(list)
}

/// The ids of trajectories that are selected by their annotations, or of all.
async fn selected(client: &Client, annotated: &Annotated) -> Result<Vec<String>, Failure> {
    let list = list(client, &format!("{TRAJECTORIES}?{}", annotated.query().join("&"))).await?;
    Ok(list.trajectories.into_iter().map(|item| item.trajectory).collect())
}

/// The id of the wanted trajectory, or those of all.
async fn ids(client: &Client, wanted: Option<&str>) -> Result<Vec<String>, Failure> {
    if let Some(wanted) = wanted {
        return Ok(vec![find(client, wanted).await?]);
    }
    let list = list(client, TRAJECTORIES).await?;
    Ok(list.trajectories.into_iter().map(|item| item.trajectory).collect())
}

/// The id of a trajectory; [`found`] resolves the name.
pub(super) async fn find(client: &Client, wanted: &str) -> Result<String, Failure> {
    let list = list(client, TRAJECTORIES).await?;
    match found(&list.trajectories, wanted)[..] {
        [id] => Ok(id.to_owned()),
        [] => {
            let meant = nearest(wanted, names(&list.trajectories));
            let meant = meant.map_or_else(String::new, |meant| format!("did you mean \"{meant}\"? "));
            Err(Failure::new(format!(
                "nothing was recorded for {wanted:?}: it is neither a trajectory's id nor the name of a sandbox or a worker with steps"
            ))
            .hint(format!("{meant}see what there is with: arenite trajectory ls"))
            .exit_code(NOT_FOUND))
        }
        ref several => {
            let first = several.iter().take(4).copied().collect::<Vec<_>>().join(", ");
            Err(Failure::new(format!("{wanted:?} is the beginning of {} trajectories: {first}", several.len()))
                .hint("write more of it"))
        }
    }
}

/// The trajectories with a name: the one with that id, else the latest of that sandbox, else of that worker, else the latest of
/// each with a name that starts with it.
fn found<'a>(list: &'a [wire::Summary], wanted: &str) -> Vec<&'a str> {
    let latest = |fits: &dyn Fn(&wire::Summary) -> bool| {
        list.iter().filter(|item| fits(item)).max_by_key(|item| item.last_at).map(|item| item.trajectory.as_str())
    };
    let exactly = |name: &str| {
        latest(&|item| item.trajectory == name)
            .or_else(|| latest(&|item| item.sandbox_name == name))
            .or_else(|| latest(&|item| item.worker.as_deref() == Some(name)))
    };
    // A worker's trajectory has no sandbox's name.
    if wanted.is_empty() {
        return Vec::new();
    }
    if let Some(id) = exactly(wanted) {
        return vec![id];
    }
    let names: BTreeSet<&str> = names(list).filter(|name| name.starts_with(wanted)).collect();
    let ids: BTreeSet<&str> = names.into_iter().filter_map(exactly).collect();
    ids.into_iter().collect()
}

/// The names that trajectories are found by.
fn names(list: &[wire::Summary]) -> impl Iterator<Item = &str> {
    list.iter().flat_map(|item| [Some(&*item.trajectory), Some(&*item.sandbox_name), item.worker.as_deref()]).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trajectories_are_found_by_id_name_worker_and_their_beginnings() {
        let item = |trajectory: &str, sandbox: &str, worker: Option<&str>, minute: u32| {
            let at = format!("2026-01-01T00:{minute:02}:00Z");
            serde_json::from_value(serde_json::json!({
                "trajectory": trajectory, "sandbox_name": sandbox, "worker": worker, "first_at": at, "last_at": at, "steps": 1,
            }))
            .unwrap()
        };
        let list: Vec<wire::Summary> = vec![
            item("sb-1a", "demo", None, 1),
            item("sb-1b", "demo", None, 2),
            item("af-77", "", Some("solver-1"), 3),
            item("af-78", "", Some("solver-1"), 4),
            item("af-99", "", Some("solver-2"), 5),
        ];
        for (wanted, ids) in [
            ("sb-1a", &["sb-1a"][..]),
            ("demo", &["sb-1b"]),
            ("dem", &["sb-1b"]),
            ("solver-1", &["af-78"]),
            ("solver-", &["af-78", "af-99"]),
            ("af-9", &["af-99"]),
            ("sb", &["sb-1a", "sb-1b"]),
            ("x", &[]),
            ("", &[]),
        ] {
            assert_eq!(found(&list, wanted), ids, "{wanted}");
        }
    }

    #[test]
    fn a_gist_is_one_short_harmless_line() {
        let gist = |value| gist(Some(&value));
        assert_eq!(gist(serde_json::json!({"json": {"command": "ls\n\u{1b}[2J"}})), "ls\u{fffd}\u{fffd}[2J");
        assert_eq!(gist(serde_json::json!({"text": "ä".repeat(100)})).chars().count(), 61);
        assert_eq!(gist(serde_json::json!(null)), "");
    }
}
