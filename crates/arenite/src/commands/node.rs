//! `node ls`, `drain` and `uncordon`: the servers of a cluster.

use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::{NodeCommand, NodeDrainArgs, NodeLsArgs, NodeUncordonArgs};
use crate::client::{Client, read_answer};
use crate::config::values::Size;
use crate::failure::{Failure, Outcome};
use crate::output::{Entries, View};
use crate::{output, wire};

const NODES: &str = "/api/v2/nodes";
/// Interval between readings of a node that drains: a node says every two seconds what it has.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) async fn run(command: NodeCommand) -> Outcome {
    match command {
        NodeCommand::Ls(args) => ls(args).await,
        NodeCommand::Drain(args) => drain(args).await,
        NodeCommand::Uncordon(args) => uncordon(args).await,
    }
}

async fn ls(args: NodeLsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let fetch = async || client.get_all(NODES, "nodes").await;
    args.output.form().show(Entries::named("nodes"), fetch, view).await
}

fn view(answer: Value) -> Result<View, Failure> {
    let list: wire::Nodes = read_answer(answer)?;
    if list.nodes.is_empty() {
        return Ok(View::empty("the server is not a node of a cluster"));
    }
    let now = Timestamp::now();
    let mut rows = output::table(&["name", "state", "sandboxes", "free memory", "free disk", "started", "renewed", "version"]);
    for node in &list.nodes {
        rows.add_row(vec![
            node.name.clone(),
            state(node),
            node.sandboxes.to_string(),
            Size(node.memory_available_bytes).short(),
            Size(node.disk_available_bytes).short(),
            format!("{} ago", output::distance(node.started_at, now)),
            format!("{} ago", output::distance(node.renewed_at, now)),
            output::harmless(&node.version),
        ]);
    }
    Ok(rows.into())
}

/// Its state for people, with its drain.
fn state(node: &wire::Node) -> String {
    match node.drain {
        Some(_) => format!("{}, draining", node.state),
        None => node.state.clone(),
    }
}

async fn drain(args: NodeDrainArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let request = json!({ "deadline_seconds": args.deadline.map(|deadline| deadline.0.as_secs()) });
    let node: wire::Node = client.post(&format!("{NODES}/{}/drain", args.name), &request).await?;
    match node.drain.as_ref().and_then(|drain| drain.deadline) {
        Some(deadline) => {
            let left = output::distance(Timestamp::now(), deadline);
            eprintln!("node {} drains; the sandboxes that are left are deleted in {left}", node.name);
        }
        None => eprintln!("node {} drains; its sandboxes run until their own ends", node.name),
    }
    if args.wait { wait(&client, &node.name).await } else { Ok(ExitCode::SUCCESS) }
}

/// Waits until a node that drains has no sandboxes.
async fn wait(client: &Client, name: &str) -> Outcome {
    let mut shown = None;
    loop {
        let list: wire::Nodes = client.get_all(NODES, "nodes").await?;
        let node = list.nodes.iter().find(|node| node.name == name);
        let node = node.ok_or_else(|| Failure::new(format!("node {name} is gone")))?;
        let Some(drain) = &node.drain else {
            return Err(Failure::new(format!("the drain of node {name} was ended")));
        };
        if node.state != "up" {
            return Err(Failure::new(format!("node {name} is {}: it is drained when its server starts", node.state))
                .hint("start its server, and run the command again"));
        }
        // Before that, the number is of the time before the drain.
        if node.renewed_at > drain.since {
            if node.sandboxes == 0 {
                eprintln!("node {name} has no sandboxes");
                return Ok(ExitCode::SUCCESS);
            }
            if shown.replace(node.sandboxes) != Some(node.sandboxes) {
                eprintln!("sandboxes left: {}", node.sandboxes);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn uncordon(args: NodeUncordonArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let node: wire::Node = client.post(&format!("{NODES}/{}/uncordon", args.name), &json!({})).await?;
    eprintln!("node {} gets new sandboxes again", node.name);
    Ok(ExitCode::SUCCESS)
}
