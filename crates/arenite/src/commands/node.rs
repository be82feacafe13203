//! `node ls`: the servers of a cluster.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::Value;

use crate::cli::{NodeCommand, NodeLsArgs};
use crate::client::Client;
use crate::config::values::Size;
use crate::failure::Outcome;
use crate::{output, wire};

const NODES: &str = "/api/v2/nodes";

pub(crate) async fn run(command: NodeCommand) -> Outcome {
    match command {
        NodeCommand::Ls(args) => ls(args).await,
    }
}

async fn ls(args: NodeLsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    if args.format.json {
        output::json(&client.get_all::<Value>(NODES, "nodes").await?);
        return Ok(ExitCode::SUCCESS);
    }
    let list: wire::Nodes = client.get_all(NODES, "nodes").await?;
    if list.nodes.is_empty() {
        eprintln!("the server is not a node of a cluster");
        return Ok(ExitCode::SUCCESS);
    }
    let now = Timestamp::now();
    let mut rows = output::table(&["name", "state", "sandboxes", "free memory", "free disk", "started", "renewed", "version"]);
    for node in &list.nodes {
        rows.add_row(vec![
            node.name.clone(),
            node.state.clone(),
            node.sandboxes.to_string(),
            Size(node.memory_available_bytes).short(),
            Size(node.disk_available_bytes).short(),
            format!("{} ago", output::distance(node.started_at, now)),
            format!("{} ago", output::distance(node.renewed_at, now)),
            output::harmless(&node.version),
        ]);
    }
    output::rows(&rows);
    Ok(ExitCode::SUCCESS)
}
