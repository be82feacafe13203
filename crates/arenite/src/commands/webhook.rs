//! `webhook`: addresses that get events.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::{
    WebhookCommand, WebhookCreateArgs, WebhookDeliveriesArgs, WebhookLsArgs, WebhookRedeliverArgs, WebhookRmArgs, WebhookTestArgs,
};
use crate::client::{Client, read_answer};
use crate::failure::{Failure, Outcome};
use crate::output::{Entries, View};
use crate::{output, wire};

const WEBHOOKS: &str = "/api/v2/webhooks";

pub(crate) async fn run(command: WebhookCommand) -> Outcome {
    match command {
        WebhookCommand::Create(args) => create(args).await,
        WebhookCommand::Ls(args) => list(args).await,
        WebhookCommand::Rm(args) => remove(args).await,
        WebhookCommand::Test(args) => test(args).await,
        WebhookCommand::Deliveries(args) => deliveries(args).await,
        WebhookCommand::Redeliver(args) => redeliver(args).await,
    }
}

/// Prints the secret alone to stdout, so that SECRET=$(arenite webhook create …) works.
async fn create(args: WebhookCreateArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let created: Value = client.post(WEBHOOKS, &json!({ "url": args.url, "types": args.kind })).await?;
    if args.format.json {
        output::json(&created);
        return Ok(ExitCode::SUCCESS);
    }
    let text = |field: &str| created[field].as_str().unwrap_or_default();
    output::line(text("secret"));
    eprintln!("created the webhook {}; its secret can't be shown again", text("id"));
    Ok(ExitCode::SUCCESS)
}

async fn list(args: WebhookLsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let fetch = async || client.get_all(WEBHOOKS, "webhooks").await;
    args.output.form().show(Entries { list: "webhooks", names: &["id"] }, fetch, view).await
}

fn view(answer: Value) -> Result<View, Failure> {
    let list: wire::Webhooks = read_answer(answer)?;
    if list.webhooks.is_empty() {
        return Ok(View::empty("there are no webhooks; create one with: arenite webhook create URL"));
    }
    let now = Timestamp::now();
    let mut rows = output::table(&["id", "url", "types", "created"]).long(&["url", "types"]);
    for hook in &list.webhooks {
        rows.add_row(vec![
            hook.id.clone(),
            output::harmless(&hook.url),
            if hook.types.is_empty() { "all".to_owned() } else { hook.types.join(", ") },
            format!("{} ago", output::distance(hook.created_at, now)),
        ]);
    }
    Ok(rows.into())
}

async fn remove(args: WebhookRmArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let mut code = ExitCode::SUCCESS;
    for id in args.ids {
        match client.delete(&format!("{WEBHOOKS}/{id}")).await {
            Ok(()) => output::line(id),
            // Without a server, every other id would fail in the same way.
            Err(failure) if failure.status().is_none() => return Err(failure),
            Err(failure) => code = failure.report(),
        }
    }
    Ok(code)
}

async fn test(args: WebhookTestArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let result: Value = client.post(&format!("{WEBHOOKS}/{}/test", args.id), &json!({})).await?;
    let is_delivered = result["delivered"] == true;
    if args.format.json {
        output::json(&result);
    } else if is_delivered {
        output::line(format_args!("delivered in {:.0} ms", result["ms"].as_f64().unwrap_or_default()));
    } else {
        return Err(Failure::new(format!("not delivered: {}", result["error"].as_str().unwrap_or_default())));
    }
    Ok(if is_delivered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn deliveries(args: WebhookDeliveriesArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let state = args.state.map_or_else(String::new, |state| format!("&state={}", state.as_str()));
    let path = format!("{WEBHOOKS}/{}/deliveries?limit={}{state}", args.id, args.limit);
    let fetch = async || client.get(&path).await;
    args.output.form().show(Entries { list: "deliveries", names: &["number"] }, fetch, deliveries_view).await
}

fn deliveries_view(answer: Value) -> Result<View, Failure> {
    let page: wire::Deliveries = read_answer(answer)?;
    let header = ["number", "type", "sandbox", "state", "attempts", "created", "result"];
    let mut rows = output::table(&header).long(&["result"]).leave_out(&["created", "attempts"]);
    for delivery in &page.deliveries {
        let sandbox = delivery.body.pointer("/sandbox/name").and_then(Value::as_str).unwrap_or("-");
        let status = delivery.status.map_or_else(|| "-".to_owned(), |status| status.to_string());
        rows.add_row(vec![
            delivery.number.to_string(),
            delivery.r#type.clone(),
            output::harmless(sandbox),
            delivery.state.clone(),
            delivery.attempts.to_string(),
            delivery.created_at.to_string(),
            delivery.error.as_deref().map_or(status, output::harmless),
        ]);
    }
    Ok(rows.into())
}

async fn redeliver(args: WebhookRedeliverArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    for number in args.numbers {
        client.post::<Value>(&format!("{WEBHOOKS}/{}/deliveries/{number}/redeliver", args.id), &json!({})).await?;
        output::line(number);
    }
    Ok(ExitCode::SUCCESS)
}
