//! `open`: the pages of a sandbox in the browser.

use std::process::{Command, ExitCode, Stdio};

use serde::Deserialize;
use serde_json::{Value, json};

use super::sandbox::SANDBOXES;
use crate::cli::OpenArgs;
use crate::client::{Client, encoded};
use crate::failure::{Failure, Outcome};
use crate::output;

#[derive(Deserialize)]
struct Ticket {
    ticket: String,
    expires_in: u64,
}

pub(crate) async fn open(args: OpenArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    // An address of nothing is not opened.
    client.get::<Value>(&format!("{SANDBOXES}/{}", args.sandbox)).await?;
    let mut address = match args.port {
        Some(port) => format!("{}/sandbox/{}/proxy/{port}/", client.server(), args.sandbox),
        None => format!("{}/sandbox/{}/", client.server(), args.sandbox),
    };
    if args.server.api_key.is_some() {
        let ticket: Ticket = client.post("/tickets", &json!({})).await?;
        address += &format!("?ticket={}", encoded(&ticket.ticket));
        eprintln!("the address signs in with your key, so keep it to yourself; it expires in {} s", ticket.expires_in);
    }
    output::line(&address);
    if !args.print
        && let Err(failure) = browse(&address)
    {
        eprintln!("{}; open the address by hand", failure.whole());
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the browser.
fn browse(address: &str) -> Result<(), Failure> {
    let browser = std::env::var("BROWSER").ok().filter(|browser| !browser.is_empty()).unwrap_or_else(|| "xdg-open".to_owned());
    let mut words = browser.split_whitespace();
    let Some(program) = words.next() else { return Err(Failure::new("$BROWSER names no program")) };
    let mut command = Command::new(program);
    command.args(words).arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // It may run for as long as its window is open, so nobody waits for it.
    command.spawn().map(drop).map_err(|error| Failure::new(format!("{program} could not be started: {error}")))
}
