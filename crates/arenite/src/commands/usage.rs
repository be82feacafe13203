//! `usage`: what sandboxes used.

use std::process::ExitCode;

use futures_util::StreamExt;
use serde_json::Value;

use crate::cli::UsageArgs;
use crate::client::{Client, encoded, read_answer};
use crate::config::values::Size;
use crate::failure::{Attempt, Failure, Outcome};
use crate::output::{Entries, View};
use crate::{output, wire};

/// The columns. All but the first two are numbers.
const COLUMNS: [&str; 12] = [
    "tenant",
    "of",
    "core hours",
    "GiB hours",
    "disk GiB hours",
    "sent",
    "received",
    "calls",
    "model calls",
    "tokens in",
    "tokens out",
    "model cost",
];

pub(crate) async fn usage(args: UsageArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let mut path = format!("/api/v2/usage?group={}", args.group.name());
    let (since, until) = (args.since.map(|time| time.to_string()), args.until.map(|time| time.to_string()));
    let format = args.csv.then(|| "csv".to_owned());
    for (name, value) in [("tenant", args.tenant.map(String::from)), ("since", since), ("until", until), ("format", format)] {
        if let Some(value) = value {
            path += &format!("&{name}={}", encoded(&value));
        }
    }
    if args.csv {
        let mut text = client.download(&path).await?;
        while let Some(piece) = text.next().await {
            output::bytes(&piece.attempt(|| "the answer broke off".into())?);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let entries = Entries { list: "rows", names: &["hour", "name", "template", "tenant"] };
    args.output.form().show(client.get(&path).await?, entries, view)
}

fn view(answer: Value) -> Result<View, Failure> {
    let report: wire::UsageReport = read_answer(answer)?;
    let mut rows = output::table(&COLUMNS).right(&COLUMNS[2..]).leave_out(&["tokens in", "tokens out"]);
    for row in &report.rows {
        let of = row.hour.as_ref().or(row.name.as_ref()).or(row.template.as_ref()).filter(|text| !text.is_empty());
        rows.add_row(vec![
            row.tenant.clone(),
            of.map_or_else(|| "-".to_owned(), |text| output::harmless(text)),
            format!("{:.3}", row.core_seconds / 3600.0),
            format!("{:.3}", row.memory_gib_seconds / 3600.0),
            format!("{:.3}", row.disk_gib_hours),
            Size(row.egress_bytes).short(),
            Size(row.ingress_bytes).short(),
            row.tool_calls.to_string(),
            row.model_calls.to_string(),
            row.model_input_tokens.to_string(),
            row.model_output_tokens.to_string(),
            format!("${:.4}", row.model_cost_usd),
        ]);
    }
    let note = "there are more rows: name a shorter range with --since and --until, or another --group";
    Ok(View { note: report.truncated.then(|| note.to_owned()), ..rows.into() })
}
