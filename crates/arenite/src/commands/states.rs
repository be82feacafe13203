//! `checkpoint`, `history`, `rollback`, `reset NAME`, `diff`, `fork` and `snapshot`: states of sandboxes' disks.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use arenite_model::SandboxName;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::io::ReaderStream;

use super::copy::write_file;
use super::environment;
use super::sandbox::{SANDBOXES, each, labels, show_several};
use super::transfer::Transfer;
use crate::cli::{
    CheckpointArgs, DiffArgs, ForkArgs, HistoryArgs, RollbackArgs, SnapshotCommand, SnapshotCpArgs, SnapshotCreateArgs,
    SnapshotExportArgs, SnapshotFilesArgs, SnapshotImportArgs, SnapshotInspectArgs, SnapshotLsArgs, SnapshotRmArgs,
};
use crate::client::{Client, encoded, read_answer};
use crate::config::values::Size;
use crate::failure::{Attempt, Failure, Outcome};
use crate::output::{Entries, Form, View};
use crate::{output, wire};

const SNAPSHOTS: &str = "/api/v2/snapshots";

pub(crate) async fn checkpoint(args: CheckpointArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let path = format!("{SANDBOXES}/{}/checkpoints", args.sandbox);
    if let Some(checkpoint) = &args.rm {
        let removed: Value = client.delete_with(&format!("{path}/{}", encoded(checkpoint))).await?;
        if args.format.json {
            output::json(&removed)
        } else {
            output::line(checkpoint)
        }
        return Ok(ExitCode::SUCCESS);
    }
    let answer: Value = client.post(&path, &json!({ "note": args.note, "keep_processes": args.keep_processes })).await?;
    if args.format.json {
        output::json(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    let checkpoint: wire::Checkpoint = read_answer(answer)?;
    output::line(checkpoint.number);
    let frozen = checkpoint.frozen_ms.unwrap_or_default();
    let with = match checkpoint.memory_bytes {
        Some(bytes) => format!(" with its processes ({})", Size(bytes).short()),
        None => String::new(),
    };
    eprintln!("sealed {}{with}; the sandbox was frozen for {frozen:.1} ms", checkpoint.id);
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn history(args: HistoryArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let path = format!("{SANDBOXES}/{}/history", args.sandbox);
    let fetch = async || client.get_all(&path, "checkpoints").await;
    let entries = Entries { list: "checkpoints", names: &["number"] };
    args.output.form().show(entries, fetch, |answer| history_view(&args.sandbox, answer)).await
}

fn history_view(sandbox: &SandboxName, answer: Value) -> Result<View, Failure> {
    let history: wire::History = read_answer(answer)?;
    if history.checkpoints.is_empty() {
        return Ok(View::empty(format!("it has no checkpoints; seal one with: arenite checkpoint {sandbox}")));
    }
    let now = Timestamp::now();
    let header = ["", "checkpoint", "id", "from", "disk", "memory", "content", "created", "note"];
    let mut rows = output::table(&header).long(&["note"]).leave_out(&["content", "id", "memory", "from", "created"]);
    for checkpoint in &history.checkpoints {
        let number = |id: &String| history.checkpoints.iter().find(|other| other.id == *id).map(|other| other.number.to_string());
        let from =
            checkpoint.parent.as_ref().map_or_else(|| "beginning".to_owned(), |id| number(id).unwrap_or_else(|| id.clone()));
        rows.add_row(vec![
            if history.head.as_ref() == Some(&checkpoint.id) { "*" } else { "" }.to_owned(),
            checkpoint.number.to_string(),
            checkpoint.id.clone(),
            from,
            size(checkpoint.disk_bytes),
            size(checkpoint.memory_bytes),
            checkpoint.hash.as_deref().and_then(|hash| hash.get(..12)).unwrap_or("-").to_owned(),
            format!("{} ago", output::distance(checkpoint.created_at, now)),
            if checkpoint.auto { "auto".to_owned() } else { output::harmless(checkpoint.note.as_deref().unwrap_or_default()) },
        ]);
    }
    Ok(rows.into())
}

/// A size in a table; none: there is nothing of the kind.
fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| Size(bytes).short())
}

pub(crate) async fn rollback(args: RollbackArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let processes = match (args.restart, args.no_restart) {
        (true, _) => Some("restart"),
        (_, true) => Some("end"),
        _ => None,
    };
    let request = json!({ "to": args.to, "processes": processes });
    let answer = client.post(&format!("{SANDBOXES}/{}/rollback", args.sandbox), &request).await?;
    show_return(args.format.json, &answer)
}

pub(crate) async fn reset(sandbox: &SandboxName, server: &crate::cli::Server) -> Outcome {
    let client = Client::connect_to(server)?;
    let answer = client.post(&format!("{SANDBOXES}/{sandbox}/reset"), &json!({})).await?;
    show_return(false, &answer)
}

fn show_return(as_json: bool, answer: &Value) -> Outcome {
    if as_json {
        output::json(answer);
        return Ok(ExitCode::SUCCESS);
    }
    output::line(answer["sandbox"]["name"].as_str().unwrap_or_default());
    let ended: Vec<String> =
        answer["ended"].as_array().into_iter().flatten().filter_map(Value::as_str).map(output::harmless).collect();
    match ended.is_empty() {
        true => eprintln!("its processes: {}", answer["processes"].as_str().unwrap_or_default()),
        false => eprintln!("its processes: {}; ended: {}", answer["processes"].as_str().unwrap_or_default(), ended.join(", ")),
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn diff(args: DiffArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let (before, after) = (encoded(&args.before), encoded(&args.after));
    let path = format!("{SANDBOXES}/{}/diff?before={before}&after={after}&limit={}", args.sandbox, args.limit);
    args.output.form().show(client.get(&path).await?, Entries { list: "paths", names: &["path"] }, differences_view)
}

fn differences_view(answer: Value) -> Result<View, Failure> {
    let found: wire::Differences = read_answer(answer)?;
    let line = |path: &wire::ChangedPath| {
        let mark = match path.change.as_str() {
            "added" => '+',
            "removed" => '-',
            "attributes" => '=',
            _ => '~',
        };
        let end = if path.kind == "directory" { "/" } else { "" };
        format!("{mark} {}{end}", output::harmless(&path.path))
    };
    let note = found.truncated.then(|| "there are more; see them with --limit".to_owned());
    Ok(View { lines: found.paths.iter().map(line).collect(), note, ..View::default() })
}

pub(crate) async fn fork(args: ForkArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let request = json!({
        "count": args.count,
        "min": args.min,
        "from_checkpoint": args.from_checkpoint,
        "name": args.name,
        "env": environment(&args.env)?,
        "labels": labels(&args.label)?,
        "timeout_seconds": args.timeout.map(|t| t.0.as_secs()),
        "group": args.group,
        "keep_processes": args.keep_processes,
    });
    let answer: Value = client.post(&format!("{SANDBOXES}/{}/fork", args.sandbox), &request).await?;
    if args.format.json {
        output::json(&answer);
    } else {
        show_several(&read_answer(answer)?);
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn snapshot(command: SnapshotCommand) -> Outcome {
    match command {
        SnapshotCommand::Create(args) => create(args).await,
        SnapshotCommand::Ls(args) => ls(args).await,
        SnapshotCommand::Inspect(args) => inspect(args).await,
        SnapshotCommand::Files(args) => files(args).await,
        SnapshotCommand::Cp(args) => copy_out(args).await,
        SnapshotCommand::Export(args) => export(args).await,
        SnapshotCommand::Import(args) => import(args).await,
        SnapshotCommand::Rm(args) => rm(args).await,
    }
}

async fn create(args: SnapshotCreateArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let request = json!({
        "name": args.name,
        "sandbox": args.sandbox,
        "note": args.note,
        "labels": labels(&args.label)?,
        "keep_processes": args.keep_processes,
    });
    let answer: Value = client.post(SNAPSHOTS, &request).await?;
    if args.format.json {
        output::json(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    output::line(&args.name);
    eprintln!("create sandboxes from it with: arenite create NAME --snapshot {}", args.name);
    Ok(ExitCode::SUCCESS)
}

async fn ls(args: SnapshotLsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let fetch = async || client.get_all(SNAPSHOTS, "snapshots").await;
    args.output.form().show(Entries::named("snapshots"), fetch, view).await
}

fn view(answer: Value) -> Result<View, Failure> {
    let list: wire::Snapshots = read_answer(answer)?;
    if list.snapshots.is_empty() {
        return Ok(View::empty("there are no snapshots; create one with: arenite snapshot create SANDBOX NAME"));
    }
    let now = Timestamp::now();
    let mut rows =
        output::table(&["name", "sandbox", "image", "disk", "memory", "created", "note"]).long(&["note"]).leave_out(&["memory"]);
    for snapshot in &list.snapshots {
        rows.add_row(vec![
            snapshot.name.clone(),
            snapshot.sandbox.clone(),
            snapshot.image.clone(),
            size(snapshot.disk_bytes),
            size(snapshot.memory_bytes),
            format!("{} ago", output::distance(snapshot.created_at, now)),
            output::harmless(snapshot.note.as_deref().unwrap_or_default()),
        ]);
    }
    Ok(rows.into())
}

async fn inspect(args: SnapshotInspectArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let mut found = Vec::with_capacity(args.names.len());
    for name in &args.names {
        found.push(client.get::<Value>(&format!("{SNAPSHOTS}/{name}")).await?);
    }
    args.output.selected().unwrap_or(Form::Json).show_objects(found, "name")
}

async fn files(args: SnapshotFilesArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let path = format!("{SNAPSHOTS}/{}/files?path={}", args.name, encoded(&args.path));
    args.output.form().show(client.get_all(&path, "files").await?, Entries::named("files"), files_view)
}

fn files_view(answer: Value) -> Result<View, Failure> {
    let list: wire::Files = read_answer(answer)?;
    let now = Timestamp::now();
    let mut rows = output::table(&["mode", "size", "modified", "name"]);
    for file in &list.files {
        let end = match file.kind.as_str() {
            "directory" => "/",
            "link" => "@",
            _ => "",
        };
        rows.add_row(vec![
            file.mode.clone(),
            if file.kind == "file" { Size(file.size_bytes).short() } else { "-".to_owned() },
            format!("{} ago", output::distance(file.modified_at, now)),
            format!("{}{end}", output::harmless(&file.name)),
        ]);
    }
    Ok(rows.into())
}

async fn copy_out(args: SnapshotCpArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let (name, path) = args.source;
    let (size, content) = client.download_sized(&format!("{SNAPSHOTS}/{name}/content?path={}", encoded(&path))).await?;
    let transfer = Transfer::new("copying", false);
    transfer.expect(size.unwrap_or_default());
    let content = Box::pin(transfer.watch(content));
    let file = path.rsplit('/').next().unwrap_or_default();
    let target = if args.target.is_dir() { args.target.join(file) } else { args.target };
    let written = write_out(content, &target).await;
    transfer.end();
    written
}

async fn export(args: SnapshotExportArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let snapshot: wire::Snapshot = client.get(&format!("{SNAPSHOTS}/{}", args.name)).await?;
    let (size, content) = client.download_sized(&format!("{SNAPSHOTS}/{}/archive", args.name)).await?;
    let transfer = Transfer::new(format!("exporting {}", args.name), args.quiet);
    transfer.expect(size.unwrap_or_default());
    let written = write_out(Box::pin(transfer.watch(content)), &args.output).await;
    transfer.end();
    let written = written?;
    if snapshot.memory_bytes.is_some() {
        eprintln!("its processes are not in the file: sandboxes from it start the main command");
    }
    Ok(written)
}

/// Writes a download to a file, or with - to stdout.
async fn write_out(mut content: impl Stream<Item = io::Result<Bytes>> + Unpin, target: &Path) -> Outcome {
    if target.as_os_str() != "-" {
        write_file(target, content).await?;
        return Ok(ExitCode::SUCCESS);
    }
    while let Some(piece) = content.next().await {
        output::bytes(&piece.attempt(|| "the download broke off".into())?);
    }
    Ok(ExitCode::SUCCESS)
}

async fn import(args: SnapshotImportArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let unreadable = || format!("could not read {}", args.file.display());
    let file = tokio::fs::File::open(&args.file).await.attempt(unreadable)?;
    let size = file.metadata().await.attempt(unreadable)?.len();
    let name = args.name.as_ref().map_or_else(String::new, |name| format!("?name={name}"));
    let transfer = Transfer::new(format!("importing {}", args.file.display()), args.quiet);
    transfer.expect(size);
    let content = transfer.watch(ReaderStream::with_capacity(file, 256 << 10));
    let answer = client.post_file(&format!("{SNAPSHOTS}/import{name}"), size, content).await;
    transfer.end();
    let answer: Value = answer?;
    if args.format.json {
        output::json(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    let snapshot: wire::Snapshot = read_answer(answer)?;
    output::line(&snapshot.name);
    eprintln!("create sandboxes from it with: arenite create NAME --snapshot {}", snapshot.name);
    Ok(ExitCode::SUCCESS)
}

async fn rm(args: SnapshotRmArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let names = args.names.into_iter().map(String::from).collect();
    each(names, async |name| client.delete(&format!("{SNAPSHOTS}/{name}")).await).await
}
