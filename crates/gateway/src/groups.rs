//! `/api/v2/groups`: sandboxes that end together, when their group is deleted or its lease ends.

use std::sync::Arc;
use std::time::Duration;

use arenite_control::Group;
use arenite_model::{ErrorCode, GroupName};
use futures_util::StreamExt;
use http::StatusCode;
use serde_json::json;

use crate::api::types::{CreateGroup, DeletedGroup, GroupInfo, GroupList, RenewGroup};
use crate::api::{DIALECT, PATH};
use crate::audit;
use crate::exchange::{Answered, Exchange};
use crate::gateway::{Context, Gateway};
use crate::idempotency::{self, Begun};
use crate::lifecycle::{self, LifecycleCall};
use crate::lists::PageQuery;
use crate::refusal::{Refusal, json_response};

/// Number of sandboxes that are deleted concurrently.
const AT_ONCE: usize = 8;

fn described(exchange: &Exchange, group: Group) -> GroupInfo {
    let tenant = exchange.context.tenant();
    let sandboxes = exchange.gateway.control.sandboxes_of_group(tenant, &group.name).len();
    let Group { name, created_at, ttl, expires_at, is_ending, .. } = group;
    GroupInfo { name, created_at, ttl_seconds: ttl.as_secs(), expires_at, ending: is_ending, sandboxes }
}

/// The group in the path.
fn named(exchange: &Exchange) -> Result<GroupName, Refusal> {
    Ok(exchange.param("name").parse()?)
}

pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    let groups = exchange.gateway.control.groups(exchange.context.tenant());
    let (groups, next_cursor) = PageQuery::read(exchange)?.take(groups, |group| group.name.to_string())?;
    let groups = groups.into_iter().map(|group| described(exchange, group)).collect();
    Ok(json_response(StatusCode::OK, &GroupList { groups, next_cursor }))
}

pub(crate) async fn get(exchange: &mut Exchange) -> Answered {
    let group = exchange.gateway.control.group(exchange.context.tenant(), &named(exchange)?)?;
    Ok(json_response(StatusCode::OK, &described(exchange, group)))
}

pub(crate) async fn create(exchange: &mut Exchange) -> Answered {
    let (CreateGroup { name, ttl_seconds }, arguments) = exchange.json().await?;
    let missing = |field: &str| Refusal::bad_request(format!("{field} is missing"));
    let name = name.ok_or_else(|| missing("name"))?;
    let ttl = Duration::from_secs(ttl_seconds.ok_or_else(|| missing("ttl_seconds"))?);
    let key = match idempotency::begin(exchange, &arguments, 1).await? {
        Begun::Create(key) => key,
        Begun::Replay(answer) => return Ok(idempotency::replay(answer)),
    };
    let since = idempotency::note(key.as_ref()).await?;
    let (control, tenant) = (&exchange.gateway.control, exchange.context.tenant());
    let left = since.and_then(|since| control.group(tenant, &name).ok().filter(|group| group.created_at >= since));
    let created = match left {
        Some(group) => Ok(group),
        None => {
            let object = name.to_string();
            let created = control.create_group(tenant, name, ttl).await.map_err(Refusal::from);
            audit::record_result(&exchange.gateway, &exchange.context, "group.create", &object, created).await
        }
    };
    let created = created.map(|group| (StatusCode::CREATED, json!(described(exchange, group))));
    let (status, body) = idempotency::settle(key, created).await?;
    Ok(json_response(status, &body))
}

pub(crate) async fn renew(exchange: &mut Exchange) -> Answered {
    let name = named(exchange)?;
    let (RenewGroup { ttl_seconds }, _) = exchange.json().await?;
    let ttl = ttl_seconds.map(Duration::from_secs);
    let group = exchange.gateway.control.renew_group(exchange.context.tenant(), &name, ttl).await?;
    Ok(json_response(StatusCode::OK, &described(exchange, group)))
}

pub(crate) async fn delete(exchange: &mut Exchange) -> Answered {
    let name = named(exchange)?;
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let ended = async move {
        let ended = end(&gateway, &context, &name).await;
        let deleted = audit::record_result(&gateway, &context, "group.delete", name.as_str(), ended).await?;
        Ok(DeletedGroup { name, deleted: true, deleted_sandboxes: deleted })
    };
    let ended = exchange.gateway.run_to_end(ended).await?;
    Ok(json_response(StatusCode::OK, &ended))
}

/// Deletes the sandboxes with a step in each one's trajectory, then the group with those that were still being created.
async fn end(gateway: &Arc<Gateway>, context: &Context, name: &GroupName) -> Result<usize, Refusal> {
    let (control, tenant) = (&gateway.control, context.tenant());
    control.close_group(tenant, name).await?;
    let sandboxes = control.sandboxes_of_group(tenant, name);
    let deletions = futures_util::stream::iter(sandboxes).map(|sandbox| {
        let call = LifecycleCall { dialect: DIALECT, action: format!("DELETE {PATH}/groups/{name}"), arguments: None };
        lifecycle::delete(gateway, context, call, sandbox.name, |_| (StatusCode::OK, json!({ "deleted": true })))
    });
    let mut deleted = 0;
    for result in deletions.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await {
        match result {
            Ok(_) => deleted += 1,
            Err(refusal) if refusal.code == ErrorCode::NotFound => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(deleted + control.end_group(tenant, name).await?)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::harness::Harness;

    #[tokio::test]
    async fn a_groups_life_over_the_api() {
        let server = Harness::new().await;
        let group = json!({ "name": "g", "ttl_seconds": 60 });
        let refused = server.call("POST", "/api/v2/sandboxes", json!({ "group": "g" })).await;
        assert_eq!((refused.status, &refused.json["code"]), (404, &json!("not_found")), "{}", refused.text);
        let created = server.call("POST", "/api/v2/groups", group.clone()).await;
        assert_eq!((created.status, &created.json["ending"], &created.json["sandboxes"]), (201, &json!(false), &json!(0)));
        assert_eq!(server.call("POST", "/api/v2/groups", group).await.status, 409);
        let made = server.call("POST", "/api/v2/sandboxes", json!({ "name": "a", "group": "g", "count": 2 })).await;
        assert_eq!((made.status, &made.json["sandboxes"][0]["group"]), (201, &json!("g")), "{}", made.text);
        server.call("POST", "/api/v2/sandboxes", json!({ "name": "b" })).await;
        let list = server.call("GET", "/api/v2/sandboxes?group=g", Value::Null).await.json;
        assert_eq!(list["sandboxes"].as_array().unwrap().len(), 2);
        let renewed = server.call("POST", "/api/v2/groups/g/renew", json!({ "ttl_seconds": 120 })).await.json;
        assert_eq!((&renewed["ttl_seconds"], &renewed["sandboxes"]), (&json!(120), &json!(2)));
        assert!(renewed["expires_at"].as_str() > created.json["expires_at"].as_str());
        let got = server.call("GET", "/api/v2/groups/g", Value::Null).await.json;
        let groups = server.call("GET", "/api/v2/groups", Value::Null).await.json;
        assert_eq!(groups["groups"], json!([got]));

        let deleted = server.call("DELETE", "/api/v2/groups/g", Value::Null).await;
        assert_eq!((deleted.status, &deleted.json["deleted_sandboxes"]), (200, &json!(2)), "{}", deleted.text);
        let left = server.call("GET", "/api/v2/sandboxes", Value::Null).await.json;
        assert_eq!((left["sandboxes"].as_array().unwrap().len(), &left["sandboxes"][0]["name"]), (1, &json!("b")));
        for (method, path) in [("GET", "/api/v2/groups/g"), ("DELETE", "/api/v2/groups/g"), ("POST", "/api/v2/groups/g/renew")] {
            assert_eq!(server.call(method, path, Value::Null).await.status, 404, "{method}");
        }
        // The delete is a step of each sandbox.
        let id = made.json["sandboxes"][0]["id"].as_str().unwrap();
        let page = server.call("GET", &format!("/api/v1/trajectories/{id}"), Value::Null).await.json;
        assert_eq!(page["steps"].as_array().unwrap().last().unwrap()["action"], "DELETE /api/v2/groups/g");
        for bad in [
            json!({ "name": "g" }),
            json!({ "ttl_seconds": 5 }),
            json!({ "name": "G", "ttl_seconds": 5 }),
            json!({ "name": "g", "ttl_seconds": 0 }),
        ] {
            assert_eq!(server.call("POST", "/api/v2/groups", bad.clone()).await.status, 400, "{bad}");
        }
    }
}
