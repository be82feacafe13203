//! `trajectory ls|show|export`: the recorded steps.

use std::io::Write;
use std::process::ExitCode;

use futures_util::StreamExt;
use serde_json::Value;

use crate::cli::{ExportFormat, TrajectoryCommand, TrajectoryExportArgs, TrajectoryLsArgs, TrajectoryShowArgs};
use crate::client::{Client, encoded};
use crate::config::values::Size;
use crate::failure::{Attempt, Failure, Outcome};
use crate::{output, wire};

const TRAJECTORIES: &str = "/api/v1/trajectories";

pub(crate) async fn run(command: TrajectoryCommand) -> Outcome {
    match command {
        TrajectoryCommand::Ls(args) => ls(args).await,
        TrajectoryCommand::Show(args) => show(args).await,
        TrajectoryCommand::Export(args) => export(args).await,
    }
}

async fn ls(args: TrajectoryLsArgs) -> Outcome {
    let client = Client::of(&args.server)?;
    if args.format.json {
        output::json(&client.get::<Value>(TRAJECTORIES).await?);
        return Ok(ExitCode::SUCCESS);
    }
    let list: wire::Trajectories = client.get(TRAJECTORIES).await?;
    if list.trajectories.is_empty() {
        eprintln!("nothing has been recorded yet");
        return Ok(ExitCode::SUCCESS);
    }
    let now = jiff::Timestamp::now();
    let mut rows = output::table(&["trajectory", "sandbox", "steps", "size", "first", "last", ""]);
    for item in &list.trajectories {
        rows.add_row([
            item.trajectory.clone(),
            item.sandbox_name.clone(),
            item.steps.to_string(),
            Size(item.bytes).short(),
            format!("{} ago", output::distance(item.first_at, now)),
            format!("{} ago", output::distance(item.last_at, now)),
            if item.ended { "ended".to_owned() } else { String::new() },
        ]);
    }
    output::rows(&rows);
    Ok(ExitCode::SUCCESS)
}

async fn show(args: TrajectoryShowArgs) -> Outcome {
    let client = Client::of(&args.server)?;
    let id = find(&client, &args.trajectory).await?;
    let path = format!("{TRAJECTORIES}/{}?after={}&limit={}", encoded(&id), args.after, args.limit);
    if args.format.json {
        output::json(&client.get::<Value>(&path).await?);
        return Ok(ExitCode::SUCCESS);
    }
    let page: wire::Steps = client.get(&path).await?;
    let mut rows = output::table(&["step", "at (UTC)", "dialect", "action", "arguments", "outcome", "status", "ms"]);
    for step in &page.steps {
        rows.add_row(vec![
            step.step.to_string().into(),
            step.started_at.strftime("%Y-%m-%d %H:%M:%S").to_string().into(),
            step.dialect.clone().into(),
            output::harmless(&step.action).into(),
            gist(step.arguments.as_ref()).into(),
            output::state(step.outcome.as_deref().unwrap_or("under way")),
            step.status.map_or("-".to_owned(), |status| status.to_string()).into(),
            step.duration_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}")).into(),
        ]);
    }
    output::rows(&rows);
    if let Some(next) = page.next_after {
        eprintln!("there is more: arenite trajectory show {} --after {next}", args.trajectory);
    }
    Ok(ExitCode::SUCCESS)
}

/// The start of what was asked, for a table's cell.
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
    let client = Client::of(&args.server)?;
    let ExportFormat::Jsonl = args.format;
    let ids = match &args.trajectory {
        Some(wanted) => vec![find(&client, wanted).await?],
        None => client.get::<wire::Trajectories>(TRAJECTORIES).await?.trajectories.into_iter().map(|t| t.trajectory).collect(),
    };
    let mut file = match &args.output {
        Some(path) => {
            Some(std::io::BufWriter::new(std::fs::File::create(path).attempt(|| format!("could not write {}", path.display()))?))
        }
        None => None,
    };
    for id in ids {
        let mut lines = client.download(&format!("{TRAJECTORIES}/{}?format=jsonl", encoded(&id))).await?;
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

/// The id of a trajectory given by its id or its sandbox's name; the latest of several.
async fn find(client: &Client, wanted: &str) -> Result<String, Failure> {
    let list: wire::Trajectories = client.get(TRAJECTORIES).await?;
    let of_id = list.trajectories.iter().find(|t| t.trajectory == wanted);
    let latest = || list.trajectories.iter().filter(|t| t.sandbox_name == wanted).max_by_key(|t| t.last_at);
    of_id.or_else(latest).map(|t| t.trajectory.clone()).ok_or_else(|| {
        Failure::new(format!(
            "nothing was recorded for {wanted:?}: it is neither a trajectory's id nor the name of a sandbox with steps"
        ))
        .hint("see what there is with: arenite trajectory ls")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gist_is_one_short_harmless_line() {
        let gist = |value| gist(Some(&value));
        assert_eq!(gist(serde_json::json!({"json": {"command": "ls\n\u{1b}[2J"}})), "ls\u{fffd}\u{fffd}[2J");
        assert_eq!(gist(serde_json::json!({"text": "ä".repeat(100)})).chars().count(), 61);
        assert_eq!(gist(serde_json::json!(null)), "");
    }
}
