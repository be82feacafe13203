//! `volume create`, `ls`, `inspect`, `set`, `cp` and `rm`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::sandbox::{each, labels};
use crate::cli::{VolumeCommand, VolumeCpArgs, VolumeCreateArgs, VolumeInspectArgs, VolumeLsArgs, VolumeRmArgs, VolumeSetArgs};
use crate::client::{Client, read_answer};
use crate::config::values::Size;
use crate::failure::{Failure, Outcome};
use crate::output::{Entries, Form, View};
use crate::{output, wire};

const VOLUMES: &str = "/api/v2/volumes";

pub(crate) async fn run(command: VolumeCommand) -> Outcome {
    match command {
        VolumeCommand::Create(args) => create(args).await,
        VolumeCommand::Ls(args) => ls(args).await,
        VolumeCommand::Inspect(args) => inspect(args).await,
        VolumeCommand::Set(args) => set(args).await,
        VolumeCommand::Cp(args) => copy(args).await,
        VolumeCommand::Rm(args) => rm(args).await,
    }
}

async fn create(args: VolumeCreateArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let mut request = json!({ "name": args.name, "size_bytes": args.size.map(|size| size.0), "labels": labels(&args.label)? });
    if let Some(bucket) = args.bucket {
        request["bucket"] = bucket.into();
    }
    show(args.format.json, client.post(VOLUMES, &request).await?)
}

async fn copy(args: VolumeCpArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let request = json!({ "name": args.name, "size_bytes": args.size.map(|size| size.0), "labels": labels(&args.label)? });
    show(args.format.json, client.post(&format!("{VOLUMES}/{}/copy", args.source), &request).await?)
}

async fn set(args: VolumeSetArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let mut changes: BTreeMap<String, Option<String>> = BTreeMap::new();
    changes.extend(labels(&args.label)?.into_iter().map(|(key, value)| (key, Some(value))));
    changes.extend(args.unlabel.into_iter().map(|key| (key, None)));
    let request = json!({ "size_bytes": args.size.map(|size| size.0), "labels": changes });
    show(args.format.json, client.patch(&format!("{VOLUMES}/{}", args.name), &request).await?)
}

/// Prints the name to stdout, and what is notable for people.
fn show(as_json: bool, volume: Value) -> Outcome {
    if as_json {
        output::json(&volume);
        return Ok(ExitCode::SUCCESS);
    }
    let volume: wire::Volume = read_answer(volume)?;
    output::line(&volume.name);
    if !volume.size_enforced && volume.bucket.is_none() {
        eprintln!("its size of {} is not enforced: the server has no storage pool", Size(volume.size_bytes));
    }
    Ok(ExitCode::SUCCESS)
}

async fn ls(args: VolumeLsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let fetch = async || client.get_all(VOLUMES, "volumes").await;
    args.output.form().show(Entries::named("volumes"), fetch, view).await
}

fn view(answer: Value) -> Result<View, Failure> {
    let list: wire::Volumes = read_answer(answer)?;
    if list.volumes.is_empty() {
        return Ok(View::empty("there are no volumes; create one with: arenite volume create NAME"));
    }
    let now = Timestamp::now();
    let mut rows = output::table(&["name", "state", "bucket", "used", "size", "sandboxes", "node", "created"]);
    for volume in &list.volumes {
        let size = Size(volume.size_bytes).short();
        rows.add_row(vec![
            volume.name.clone(),
            volume.state.clone(),
            volume.bucket.clone().unwrap_or_else(|| "-".to_owned()),
            volume.used_bytes.map_or_else(|| "-".to_owned(), |used| Size(used).short()),
            match (volume.size_enforced, &volume.bucket) {
                (true, _) => size,
                (false, None) => format!("{size}, not enforced"),
                (false, Some(_)) => "-".to_owned(),
            },
            volume.sandboxes.len().to_string(),
            volume.node.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{} ago", output::distance(volume.created_at, now)),
        ]);
    }
    Ok(rows.into())
}

async fn inspect(args: VolumeInspectArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let mut found = Vec::with_capacity(args.names.len());
    for name in &args.names {
        found.push(client.get::<Value>(&format!("{VOLUMES}/{name}")).await?);
    }
    args.output.selected().unwrap_or(Form::Json).show_objects(found, "name")
}

async fn rm(args: VolumeRmArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let query = if args.force { "?force=true" } else { "" };
    if args.format.json {
        let mut removed = Vec::with_capacity(args.names.len());
        for name in &args.names {
            removed.push(client.delete_with::<Value>(&format!("{VOLUMES}/{name}{query}")).await?);
        }
        output::json(&Value::Array(removed));
        return Ok(ExitCode::SUCCESS);
    }
    let names = args.names.into_iter().map(String::from).collect();
    each(names, async |name| client.delete(&format!("{VOLUMES}/{name}{query}")).await).await
}
