//! `usage`: what sandboxes used.

use std::process::ExitCode;

use futures_util::StreamExt;
use serde_json::Value;

use crate::cli::UsageArgs;
use crate::client::{Client, encoded};
use crate::config::values::Size;
use crate::failure::{Attempt, Outcome};
use crate::{output, wire};

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
    if args.format.json {
        output::json(&client.get::<Value>(&path).await?);
        return Ok(ExitCode::SUCCESS);
    }
    let report: wire::UsageReport = client.get(&path).await?;
    let mut rows = output::table(&["tenant", "of", "core hours", "GiB hours", "disk GiB hours", "sent", "received", "calls"]);
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
        ]);
    }
    output::rows(&rows);
    if report.truncated {
        eprintln!("there are more rows: name a shorter range with --since and --until, or another --group");
    }
    Ok(ExitCode::SUCCESS)
}
