//! `events`: what happens to sandboxes.

use std::process::ExitCode;

use futures_util::StreamExt;
use serde_json::Value;

use crate::cli::EventsArgs;
use crate::client::{Client, encoded};
use crate::failure::{Attempt, Failure, Outcome};
use crate::output::Form;
use crate::{output, wire};

const EVENTS: &str = "/api/v2/events";
/// Longest line of the stream, in bytes. Labels of a sandbox have 64 KiB at most.
const MAX_LINE: usize = 1 << 20;

pub(crate) async fn events(args: EventsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let form = args.output.form();
    let mut filter = String::new();
    let kinds = args.kind.iter().map(|kind| ("type", kind.as_str()));
    let sandboxes = args.sandbox.iter().map(|name| ("sandbox", name.as_str()));
    let labels = args.label.iter().map(|label| ("label", label.as_str()));
    for (name, value) in kinds.chain(sandboxes).chain(labels) {
        filter += &format!("&{name}={}", encoded(value));
    }
    let mut after = args.after;
    loop {
        let continued = after.as_ref().map_or_else(String::new, |after| format!("&after={}", encoded(after)));
        let page: wire::Events = client.get(&format!("{EVENTS}?limit=1000{filter}{continued}")).await?;
        if page.gap {
            eprintln!("{MISSING}");
        }
        page.events.iter().try_for_each(|event| show(event, &form))?;
        let is_end = page.events.is_empty();
        after = Some(page.next_after);
        if is_end {
            break;
        }
    }
    if args.follow {
        let after = after.unwrap_or_default();
        follow(&client, &format!("{EVENTS}?follow=true{filter}&after={}", encoded(&after)), &form).await?;
    }
    Ok(ExitCode::SUCCESS)
}

const MISSING: &str = "events are missing here: the server does not have them any more";

async fn follow(client: &Client, path: &str, form: &Form) -> Result<(), Failure> {
    let mut stream = client.download(path).await?;
    let (mut rest, mut kind) = (Vec::new(), String::new());
    while let Some(piece) = stream.next().await {
        rest.extend_from_slice(&piece.attempt(|| "the events broke off".into())?);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(name) = line.strip_prefix("event: ") {
                name.trim_end().clone_into(&mut kind);
            } else if let Some(data) = line.strip_prefix("data: ") {
                match kind.as_str() {
                    "gap" => eprintln!("{MISSING}"),
                    "server_stopping" => return Err(Failure::new("the server is stopping")),
                    _ => show(&serde_json::from_str(data).attempt(|| "an event is not understood".into())?, form)?,
                }
            }
        }
        if rest.len() > MAX_LINE {
            return Err(Failure::new("the server sent a line that is too long"));
        }
    }
    Err(Failure::new("the server ended the stream of events"))
}

fn show(event: &Value, form: &Form) -> Result<(), Failure> {
    match form {
        Form::Table => {}
        Form::Json => {
            output::line(event);
            return Ok(());
        }
        Form::Name | Form::Template(_) => return form.show_objects(vec![event.clone()], "id").map(drop),
    }
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str);
    let (at, kind) = (text("/at").unwrap_or("-"), text("/type").unwrap_or("-"));
    let reason = text("/reason").map_or_else(String::new, |reason| format!("  {}", output::harmless(reason)));
    let name = output::harmless(text("/sandbox/name").unwrap_or("-"));
    output::line(format_args!("{at}  {kind:<22}  {name}{reason}"));
    Ok(())
}
