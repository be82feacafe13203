//! `trajectory annotate`, `annotations` and `unannotate`: notes, labels and ratings of trajectories.

use std::io::Read;
use std::process::ExitCode;

use arenite_model::{Annotation, AnnotationSummary};
use serde_json::{Map, Value, json};

use super::trajectory::{TRAJECTORIES, find};
use crate::cli::{TrajectoryAnnotateArgs, TrajectoryAnnotationsArgs, TrajectoryUnannotateArgs};
use crate::client::{Client, encoded, read_answer};
use crate::failure::{Attempt, Failure, NOT_FOUND, Outcome};
use crate::output::{Entries, View};
use crate::{output, wire};

/// The most bytes of a note that are read from standard input: more than the server takes.
const MAX_INPUT: u64 = 64 << 10;

pub(super) async fn annotate(args: TrajectoryAnnotateArgs) -> Outcome {
    let mut body = Map::new();
    if let Some(step) = args.step {
        body.insert("step".to_owned(), json!(step));
    }
    if let Some(note) = args.note {
        body.insert("text".to_owned(), Value::String(if note == "-" { standard_input()? } else { note }));
    }
    if !args.label.is_empty() {
        body.insert("labels".to_owned(), json!(args.label));
    }
    if let Some(rating) = args.rating {
        body.insert("rating".to_owned(), json!(rating));
    }
    for what in &args.clear {
        let (field, nothing) = match what.as_str() {
            "note" => ("text", json!("")),
            "labels" => ("labels", json!([])),
            _ => ("rating", Value::Null),
        };
        if body.insert(field.to_owned(), nothing).is_some() {
            return Err(Failure::new(format!("--clear {what} and a new value exclude each other")).exit_code(2));
        }
    }
    if body.is_empty() || args.edit.is_none() && body.keys().all(|field| field == "step") {
        return Err(Failure::new("there is nothing to annotate with")
            .hint("give a --note, a --label or a --rating")
            .exit_code(2));
    }
    let client = Client::connect_to(&args.server)?;
    let path = path(&find(&client, &args.trajectory).await?);
    let annotation: Annotation = match &args.edit {
        Some(id) => client.patch(&format!("{path}/{id}"), &body).await?,
        None => client.post(&path, &body).await?,
    };
    if args.format.json {
        output::json(&json!(annotation));
    } else {
        output::line(&annotation.id);
    }
    Ok(ExitCode::SUCCESS)
}

fn standard_input() -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin().take(MAX_INPUT).read_to_string(&mut text).attempt(|| "could not read standard input".into())?;
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    Ok(text)
}

pub(super) async fn list(args: TrajectoryAnnotationsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let id = find(&client, &args.trajectory).await?;
    let step = args.step.map_or_else(String::new, |step| format!("?step={step}"));
    let path = format!("{}{step}", path(&id));
    let fetch = async || client.get_all(&path, "annotations").await;
    args.output.form().show(Entries { list: "annotations", names: &["id"] }, fetch, view).await
}

fn view(answer: Value) -> Result<View, Failure> {
    let list: wire::Annotations = read_answer(answer)?;
    if list.annotations.is_empty() {
        return Ok(View::empty("there are no annotations; add one with: arenite trajectory annotate ID --rating 4"));
    }
    let now = jiff::Timestamp::now();
    let mut rows = output::table(&["id", "step", "rating", "labels", "note", "author", "changed"]).long(&["note", "labels"]);
    for one in &list.annotations {
        let labels: Vec<&str> = one.labels.iter().map(AsRef::as_ref).collect();
        rows.add_row(vec![
            one.id.to_string(),
            one.step.map_or("all".to_owned(), |step| step.to_string()),
            one.rating.map_or("-".to_owned(), |rating| u8::from(rating).to_string()),
            labels.join(", "),
            output::harmless(&one.text.split_whitespace().collect::<Vec<_>>().join(" ")),
            output::harmless(one.changed_by.as_ref().or(one.author.as_ref()).map_or("-", String::as_str)),
            format!("{} ago", output::distance(one.changed_at, now)),
        ]);
    }
    Ok(rows.into())
}

pub(super) async fn remove(args: TrajectoryUnannotateArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let (id, unknown) = match find(&client, &args.trajectory).await {
        // Its record may be gone.
        Err(failure) if args.all && failure.code() == NOT_FOUND => (args.trajectory, Some(failure)),
        found => (found?, None),
    };
    if args.all {
        let removed: Value = match (client.delete_with(&path(&id)).await, unknown) {
            (Err(failure), Some(unknown)) if failure.code() == NOT_FOUND => return Err(unknown),
            (removed, _) => removed?,
        };
        output::line(format_args!("removed {} annotations", removed["removed"]));
    }
    for annotation in args.ids {
        client.delete(&format!("{}/{annotation}", path(&id))).await?;
        output::line(annotation);
    }
    Ok(ExitCode::SUCCESS)
}

fn path(trajectory: &str) -> String {
    format!("{TRAJECTORIES}/{}/annotations", encoded(trajectory))
}

/// The rating and the labels of a trajectory in a table.
pub(super) fn cells(summary: Option<&AnnotationSummary>) -> [String; 2] {
    let Some(summary) = summary else { return Default::default() };
    let labels: Vec<&str> = summary.labels.iter().map(AsRef::as_ref).collect();
    [summary.rating.map_or_else(String::new, |rating| format!("{rating:.1}")), labels.join(", ")]
}
