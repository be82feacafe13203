//! `quarantine ls|adopt|rm`: sandboxes that a start could not explain.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::{QuarantineAdoptArgs, QuarantineCommand, QuarantineLsArgs, QuarantineRmArgs};
use crate::client::{Client, read_answer};
use crate::config::values::Size;
use crate::failure::{Failure, Outcome};
use crate::output::{Entries, View};
use crate::{output, wire};

const QUARANTINE: &str = "/api/v2/quarantine";

pub(crate) async fn run(command: QuarantineCommand) -> Outcome {
    match command {
        QuarantineCommand::Ls(args) => ls(args).await,
        QuarantineCommand::Adopt(args) => adopt(args).await,
        QuarantineCommand::Rm(args) => rm(args).await,
    }
}

async fn ls(args: QuarantineLsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let fetch = async || client.get_all(QUARANTINE, "quarantine").await;
    args.output.form().show(Entries { list: "quarantine", names: &["id"] }, fetch, view).await
}

fn view(answer: Value) -> Result<View, Failure> {
    let list: wire::Quarantine = read_answer(answer)?;
    if list.quarantine.is_empty() {
        return Ok(View::empty("no sandbox is in quarantine"));
    }
    let now = Timestamp::now();
    let mut rows = output::table(&["id", "name", "since", "processes", "disk", "adopted it is"]);
    for item in &list.quarantine {
        let disk = match (item.has_disk, item.disk_bytes) {
            (false, _) => "-".to_owned(),
            (true, None) => "yes".to_owned(),
            (true, Some(bytes)) => Size(bytes).short(),
        };
        rows.add_row(vec![
            item.id.clone(),
            item.name.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{} ago", output::distance(item.since, now)),
            item.processes.to_string(),
            disk,
            if item.has_record { "as it was" } else { "lost, with its disk" }.to_owned(),
        ]);
    }
    let reason = |item: &wire::Quarantined| format!("{}: {}", item.id, output::harmless(&item.reason));
    Ok(View { lines: list.quarantine.iter().map(reason).collect(), ..rows.into() })
}

async fn adopt(args: QuarantineAdoptArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let body = args.name.map_or_else(|| json!({}), |name| json!({ "name": name }));
    let path = format!("{QUARANTINE}/{}/adopt", args.id);
    if args.format.json {
        output::json(&client.post::<Value>(&path, &body).await?);
        return Ok(ExitCode::SUCCESS);
    }
    let sandbox: wire::Sandbox = client.post(&path, &body).await?;
    output::line(&sandbox.name);
    match &sandbox.reason {
        Some(reason) => eprintln!("it is {}: {}", sandbox.state, output::harmless(reason)),
        None => eprintln!("it is {}", sandbox.state),
    }
    Ok(ExitCode::SUCCESS)
}

async fn rm(args: QuarantineRmArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let ids: Vec<String> = args.ids.into_iter().map(String::from).collect();
    if !args.force {
        output::confirm(&format!("remove {}, with all processes and files", ids.join(", ")))?;
    }
    let mut removed = Vec::new();
    let mut code = ExitCode::SUCCESS;
    for id in ids {
        match client.delete(&format!("{QUARANTINE}/{id}")).await {
            Ok(()) if args.format.json => removed.push(id),
            Ok(()) => output::line(id),
            // Without a server, every other id would fail in the same way.
            Err(failure) if failure.status().is_none() => return Err(failure),
            Err(failure) => code = failure.report(),
        }
    }
    if args.format.json {
        output::json(&json!({ "deleted": removed }));
    }
    Ok(code)
}
