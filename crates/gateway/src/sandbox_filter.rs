//! Which sandboxes a list has, and in which order.

use arenite_control::{ListOrder, Sandbox};
use arenite_model::{GroupName, ImageName, NodeName, SandboxId, SandboxState};
use jiff::Timestamp;

use crate::path::query_pairs;
use crate::query::Query;
use crate::refusal::Refusal;
use crate::routes::FOLLOW;

/// The parameters of a list of sandboxes.
pub(crate) const PARAMETERS: &[Query] = &[
    FOLLOW,
    ("state", "creating|running|paused|deleting|failed|lost[]", "Only sandboxes in this state; repeatable, then in one of them"),
    (
        "label",
        "string[]",
        "Only sandboxes with this label, as `KEY=VALUE` or `KEY` for any value; repeatable, then with all of them",
    ),
    ("template", "string", "Only sandboxes of this template"),
    ("image", "string", "Only sandboxes of this image"),
    ("group", "string", "Only sandboxes of this group"),
    ("node", "string", "Only sandboxes of this node; without a cluster, none has one"),
    ("tenant", "string", "Sandboxes of this tenant instead of the caller's; for operators"),
    ("client_tag", "string", "Only sandboxes with this client tag"),
    ("parent", "string", "Only sandboxes that the agent in this one created, by its id"),
    ("name_prefix", "string", "Only sandboxes with a name that starts with this"),
    (
        "search",
        "string",
        "Only sandboxes with all of these words in their name, id, image, state, template, group, or labels, in any case",
    ),
    ("created_after", "date-time", "Only sandboxes that were created after this time, in RFC 3339"),
    ("created_before", "date-time", "Only sandboxes that were created before this time, in RFC 3339"),
    ("order", "oldest|newest", "Which ones are first; `oldest` by default"),
];

/// All that is given applies.
#[derive(Debug, Default)]
pub(crate) struct SandboxFilter {
    pub(crate) order: ListOrder,
    /// Empty: all.
    states: Vec<SandboxState>,
    /// All of them are needed. None: with any value.
    labels: Vec<(String, Option<String>)>,
    template: Option<String>,
    image: Option<ImageName>,
    group: Option<GroupName>,
    node: Option<NodeName>,
    client_tag: Option<String>,
    parent: Option<SandboxId>,
    name_prefix: Option<String>,
    /// Words in lower case; all of them are needed.
    search: Vec<String>,
    created_after: Option<Timestamp>,
    created_before: Option<Timestamp>,
}

impl SandboxFilter {
    /// Reads a query that [`crate::query::check`] has checked.
    pub(crate) fn read(query: Option<&str>) -> Result<Self, Refusal> {
        let mut filter = Self::default();
        let time = |name: &str, text: &str| {
            text.parse().map(Some).map_err(|_| Refusal::bad_request(format!("{name} is no time in RFC 3339")))
        };
        for (name, value) in query_pairs(query.unwrap_or_default()) {
            match name.as_str() {
                "state" => filter.states.push(value.parse().map_err(Refusal::bad_request)?),
                "label" => filter.labels.push(match value.split_once('=') {
                    Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
                    None => (value, None),
                }),
                "template" => filter.template = Some(value),
                "image" => filter.image = Some(value.parse()?),
                "group" => filter.group = Some(value.parse()?),
                "node" => filter.node = Some(value.parse()?),
                "client_tag" => filter.client_tag = Some(value),
                "parent" => filter.parent = Some(value.parse()?),
                "name_prefix" => filter.name_prefix = Some(value),
                "search" => filter.search = value.to_lowercase().split_whitespace().map(str::to_owned).collect(),
                "created_after" => filter.created_after = time(&name, &value)?,
                "created_before" => filter.created_before = time(&name, &value)?,
                "order" if value == "newest" => filter.order = ListOrder::NewestFirst,
                _ => {}
            }
        }
        Ok(filter)
    }

    /// The name of its order, for cursors.
    pub(crate) fn order_name(&self) -> &'static str {
        match self.order {
            ListOrder::OldestFirst => "oldest",
            ListOrder::NewestFirst => "newest",
        }
    }

    /// `own_node` is the node of sandboxes that name none.
    pub(crate) fn selects(&self, sandbox: &Sandbox, own_node: Option<&NodeName>) -> bool {
        fn fits<T: PartialEq>(wanted: Option<&T>, found: Option<&T>) -> bool {
            wanted.is_none() || wanted == found
        }
        let (spec, provenance) = (&sandbox.spec, &sandbox.provenance);
        let has_label = |(key, value): &(String, Option<String>)| {
            spec.labels.get(key).is_some_and(|found| value.as_ref().is_none_or(|value| value == found))
        };
        (self.states.is_empty() || self.states.contains(&sandbox.state))
            && self.labels.iter().all(has_label)
            && fits(self.template.as_ref(), sandbox.template.as_ref())
            && fits(self.image.as_ref(), Some(&spec.image))
            && fits(self.group.as_ref(), provenance.group.as_ref())
            && fits(self.node.as_ref(), sandbox.node.as_ref().or(own_node))
            && fits(self.client_tag.as_ref(), provenance.client_tag.as_ref())
            && fits(self.parent.as_ref(), provenance.ancestors.last())
            && self.name_prefix.as_ref().is_none_or(|prefix| sandbox.name.as_str().starts_with(prefix.as_str()))
            && sandbox.is_created_between(self.created_after, self.created_before)
            && self.finds(sandbox)
    }

    fn finds(&self, sandbox: &Sandbox) -> bool {
        if self.search.is_empty() {
            return true;
        }
        let spec = &sandbox.spec;
        let group = sandbox.provenance.group.as_ref().map_or("", GroupName::as_str);
        let template = sandbox.template.as_deref().unwrap_or_default();
        let facts = [sandbox.name.as_str(), sandbox.id.as_str(), spec.image.as_str(), sandbox.state.as_str(), template, group];
        let labels = spec.labels.iter().map(|(key, value)| format!("{key}={value}"));
        let text = facts.map(str::to_owned).into_iter().chain(labels).collect::<Vec<_>>().join("\n").to_lowercase();
        self.search.iter().all(|word| text.contains(word))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::harness::Harness;

    #[test]
    fn each_state_can_be_selected() {
        let (_, kind, _) = PARAMETERS[1];
        let states = SandboxState::ALL.map(SandboxState::as_str).join("|");
        assert_eq!(kind, format!("{states}[]"));
    }

    async fn names(server: &Harness, query: &str) -> Vec<String> {
        let list = server.call("GET", &format!("/api/v2/sandboxes?{query}"), Value::Null).await;
        assert_eq!(list.status, 200, "{query}: {}", list.text);
        list.json["sandboxes"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    }

    #[tokio::test]
    async fn every_filter_selects() {
        let server = Harness::new().await;
        server.call("POST", "/api/v2/groups", json!({ "name": "g", "ttl_seconds": 600 })).await;
        for body in [
            json!({ "name": "a-1", "labels": { "team": "red", "note": "x=y" }, "client_tag": "t" }),
            json!({ "name": "a-2", "labels": { "team": "blue" }, "group": "g" }),
            json!({ "name": "b-1", "image": "other", "labels": { "team": "red" } }),
        ] {
            let made = server.call("POST", "/api/v2/sandboxes", body).await;
            assert_eq!(made.status, 201, "{}", made.text);
            // Their times differ, so that they can be told apart by time.
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        server.call("POST", "/api/v2/sandboxes/a-2/pause", Value::Null).await;
        let middle = server.call("GET", "/api/v2/sandboxes/a-2", Value::Null).await.json;
        let (at, id) = (middle["created_at"].as_str().unwrap(), middle["id"].as_str().unwrap());
        for (query, expected) in [
            ("", vec!["a-1", "a-2", "b-1"]),
            ("order=newest", vec!["b-1", "a-2", "a-1"]),
            ("state=paused", vec!["a-2"]),
            ("state=paused&state=running", vec!["a-1", "a-2", "b-1"]),
            ("state=lost", vec![]),
            ("label=team", vec!["a-1", "a-2", "b-1"]),
            ("label=team%3Dred", vec!["a-1", "b-1"]),
            ("label=team=red&label=note", vec!["a-1"]),
            ("label=note=x=y", vec!["a-1"]),
            ("label=note=x", vec![]),
            ("template=default", vec!["a-1", "a-2"]),
            ("image=other", vec!["b-1"]),
            ("group=g", vec!["a-2"]),
            ("client_tag=t", vec!["a-1"]),
            ("node=other", vec![]),
            ("name_prefix=a-", vec!["a-1", "a-2"]),
            ("search=B-", vec!["b-1"]),
            ("search=TEAM=red", vec!["a-1", "b-1"]),
            ("search=other+running", vec!["b-1"]),
            ("search=paused%20g%20a-", vec!["a-2"]),
            ("search=a-1+other", vec![]),
            ("search=+", vec!["a-1", "a-2", "b-1"]),
            (&format!("search={}", &id[..8]), vec!["a-2"]),
            (&format!("created_after={at}"), vec!["b-1"]),
            (&format!("created_before={at}"), vec!["a-1"]),
            (&format!("parent={id}"), vec![]),
            ("label=team=red&state=running&order=newest", vec!["b-1", "a-1"]),
        ] {
            assert_eq!(names(&server, query).await, expected, "{query}");
        }
        for bad in [
            "state=on",
            "label=a&lable=b",
            "image=NO",
            "group=No",
            "node=No",
            "parent=a-2",
            "created_after=1",
            "order=up",
            "limit=0",
            "limit=1001",
            "cursor=x",
            "follow=true&state=running",
        ] {
            let answer = server.call("GET", &format!("/api/v2/sandboxes?{bad}"), Value::Null).await;
            assert_eq!((answer.status, &answer.json["code"]), (400, &json!("invalid_request")), "{bad}: {}", answer.text);
        }
    }

    #[tokio::test]
    async fn a_page_has_its_own_sandboxes_alone() {
        let server = Harness::new().await;
        for index in 0..5 {
            server.call("POST", "/api/v2/sandboxes", json!({ "name": format!("x-{index}"), "labels": { "n": "1" } })).await;
        }
        for (order, first) in [("oldest", "x-0"), ("newest", "x-4")] {
            let mut seen = Vec::new();
            let mut cursor = String::new();
            loop {
                let path = format!("/api/v2/sandboxes?limit=2&order={order}&label=n{cursor}");
                let page = server.call("GET", &path, Value::Null).await.json;
                let found = page["sandboxes"].as_array().unwrap();
                assert!(found.len() <= 2);
                seen.extend(found.iter().map(|one| one["name"].as_str().unwrap().to_owned()));
                let Some(next) = page["next_cursor"].as_str() else { break };
                cursor = format!("&cursor={next}");
                let other = if order == "newest" { "oldest" } else { "newest" };
                let mixed = server.call("GET", &format!("/api/v2/sandboxes?order={other}{cursor}"), Value::Null).await;
                assert_eq!(mixed.status, 400, "{}", mixed.text);
            }
            assert_eq!((seen.len(), seen[0].as_str()), (5, first));
            seen.dedup();
            assert_eq!(seen.len(), 5);
        }
    }
}
