//! The servers of a cluster: `/api/v2/nodes`, and requests that one passes on to another.

mod calls;
mod create;
mod forks;
mod listener;
mod pass;
mod states;
mod trajectories;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use arenite_channel::Identity;
use arenite_control::nodes::MAX_DEADLINE;
use arenite_model::NodeName;
use http::StatusCode;

use crate::api::types::{DrainNode, NodeList, Nothing};
use crate::audit;
use crate::exchange::{Answered, Exchange};
use crate::lists::PageQuery;
use crate::refusal::{Refusal, json_response};

pub(crate) use calls::{call_guest, create, delete};
pub(crate) use forks::fork_elsewhere;
pub(crate) use listener::accept;
pub(crate) use pass::{Passed, Peers, pass_on};
pub(crate) use states::{bring_snapshot, call, drop_copies, remove_snapshot};
pub(crate) use trajectories::{Theirs, list as list_of_nodes};

/// The node that a server is.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Proves to other nodes which one it is.
    pub keys: Identity,
    /// Where it accepts their connections.
    pub listener: Arc<TcpListener>,
}

pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    let all = exchange.gateway.control.nodes().await?;
    let (nodes, next_cursor) = PageQuery::read(exchange)?.take(all, |node| node.name.to_string())?;
    Ok(json_response(StatusCode::OK, &NodeList { nodes, next_cursor }))
}

pub(crate) async fn drain(exchange: &mut Exchange) -> Answered {
    let name = named(exchange)?;
    let (DrainNode { deadline_seconds }, _) = exchange.json().await?;
    let deadline = deadline_seconds.map(Duration::from_secs);
    if deadline.is_some_and(|deadline| deadline > MAX_DEADLINE) {
        let most = MAX_DEADLINE.as_secs();
        return Err(Refusal::bad_request(format!("deadline_seconds is at most {most}, which is 30 days")));
    }
    let (control, object) = (Arc::clone(&exchange.gateway.control), name.to_string());
    let drained = Box::pin(async move { Ok(control.drain_node(&name, deadline).await?) });
    Ok(json_response(StatusCode::OK, &audit::change_with(exchange, "node.drain", object, drained).await?))
}

pub(crate) async fn uncordon(exchange: &mut Exchange) -> Answered {
    let name = named(exchange)?;
    exchange.json::<Nothing>().await?;
    let (control, object) = (Arc::clone(&exchange.gateway.control), name.to_string());
    let uncordoned = Box::pin(async move { Ok(control.uncordon_node(&name).await?) });
    Ok(json_response(StatusCode::OK, &audit::change_with(exchange, "node.uncordon", object, uncordoned).await?))
}

fn named(exchange: &Exchange) -> Result<NodeName, Refusal> {
    Ok(exchange.param("name").parse()?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::harness::Harness;

    #[tokio::test]
    async fn a_server_without_a_cluster_has_no_nodes() {
        let server = Harness::new().await;
        let answer = server.call("GET", "/api/v2/nodes", Value::Null).await;
        assert_eq!(answer.json, json!({ "nodes": [], "next_cursor": null }));
        for (path, body, status) in [
            ("red/drain", json!({}), 404),
            ("red/uncordon", json!({}), 404),
            ("RED!/drain", json!({}), 400),
            ("red/drain", json!({ "deadline_seconds": 2_592_001 }), 400),
            ("red/drain", json!({ "deadline": 1 }), 400),
        ] {
            let answer = server.call("POST", &format!("/api/v2/nodes/{path}"), body).await;
            assert_eq!(answer.status, status, "{path}: {}", answer.text);
        }
        // It has no labels, either.
        let selected = json!({ "node_selector": { "zone": "a" } });
        let answer = server.call("POST", "/api/v2/sandboxes", selected).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
    }
}
