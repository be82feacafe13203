//! The servers of a cluster: `/api/v2/nodes`, and requests that one passes on to another.

mod listener;
mod pass;
mod trajectories;

use std::net::TcpListener;
use std::sync::Arc;

use arenite_channel::Identity;
use http::StatusCode;

use crate::api::types::NodeList;
use crate::exchange::{Answered, Exchange};
use crate::lists::PageQuery;
use crate::refusal::json_response;

pub(crate) use listener::accept;
pub(crate) use pass::{Passed, Peers, pass_on};
pub(crate) use trajectories::{Theirs, list as list_trajectories};

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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::harness::Harness;

    #[tokio::test]
    async fn a_server_without_a_cluster_has_no_nodes() {
        let server = Harness::new().await;
        let answer = server.call("GET", "/api/v2/nodes", Value::Null).await;
        assert_eq!(answer.json, json!({ "nodes": [], "next_cursor": null }));
    }
}
