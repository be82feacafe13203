//! `/api/v1/trajectories/{id}/annotations`: notes, labels and ratings of a trajectory and its steps. They are in the store beside the
//! record, which never changes.
//!
//! An answer with one annotation has its version as `ETag`, and a change takes it as `If-Match`.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use arenite_control::annotations::{AnnotationChange, AnnotationFilter, NewAnnotation};
use arenite_control::{Control, ControlError};
use arenite_model::{Annotation, AnnotationId, AnnotationLabel, ErrorCode, Rating, TenantId};
use arenite_trajectory::{Annotations, Format, Recorder, Summary};
use axum::body::Body;
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::audit;
use crate::changes::{given, tagged, versions};
use crate::exchange::{Answered, Exchange};
use crate::idempotency::{self, Begun};
use crate::lists::PageQuery;
use crate::path::query_pairs;
use crate::query::Query;
use crate::refusal::{Refusal, json_response};
use crate::trajectories::{blocking, recorded};

/// How a list selects trajectories by their annotations.
pub(crate) const ANNOTATED: Query = ("annotated", "boolean", "`true`: only trajectories with annotations");
pub(crate) const LABEL: Query = (
    "label",
    "string[]",
    "Only trajectories with this label on them or on one of their steps; repeatable, then with all of them",
);
pub(crate) const MIN_RATING: Query =
    ("min_rating", "integer", "Only trajectories with at least this mean rating of the whole trajectory, from 1 to 5");

/// A new annotation. It needs a text, a label, or a rating.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CreateAnnotation {
    /// The number of the step that it is about; absent: the whole trajectory.
    step: Option<u64>,
    /// Plain text, at most 8 KiB.
    text: String,
    /// At most 16: lower-case letters, digits and inner `.`, `_`, `:`, `/`, `-`.
    labels: BTreeSet<AnnotationLabel>,
    /// From 1, the worst, to 5, the best.
    rating: Option<Rating>,
}

/// Changes of an annotation. Absent fields stay as they are.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ChangeAnnotation {
    text: Option<String>,
    /// All labels that it has from then on.
    labels: Option<BTreeSet<AnnotationLabel>>,
    /// Null: it does not rate any more.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<Rating>)]
    rating: Option<Option<Rating>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnnotationList {
    trajectory: String,
    annotations: Vec<Annotation>,
    /// `cursor` of the next page; null at the end.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedAnnotation {
    id: AnnotationId,
    removed: bool,
}

/// How many annotations were removed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedAnnotations {
    trajectory: String,
    removed: u64,
}

pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    let (_, tenant, trajectory) = recorded(exchange).await?;
    let step = exchange.query("step").and_then(|text| text.parse::<u64>().ok());
    let mut all = exchange.gateway.control.annotations(&tenant, &trajectory).await?;
    all.retain(|annotation| step.is_none() || annotation.step == step);
    let position = |one: &Annotation| (one.created_at.as_microsecond(), one.id.to_string());
    let (annotations, next_cursor) = PageQuery::read(exchange)?.take(all, position)?;
    Ok(json_response(StatusCode::OK, &AnnotationList { trajectory, annotations, next_cursor }))
}

pub(crate) async fn get(exchange: &mut Exchange) -> Answered {
    let (_, tenant, trajectory) = recorded(exchange).await?;
    let found = exchange.gateway.control.annotation(&tenant, &trajectory, &id(exchange)?).await?;
    Ok(shown(StatusCode::OK, &found))
}

pub(crate) async fn create(exchange: &mut Exchange) -> Answered {
    let (recorder, tenant, trajectory) = recorded(exchange).await?;
    refuse_agents(exchange)?;
    let (CreateAnnotation { step, text, labels, rating }, arguments) = exchange.json().await?;
    if let Some(step) = step {
        check_step(recorder, (tenant.clone(), trajectory.clone()), step).await?;
    }
    let key = match idempotency::begin(exchange, &arguments, 1).await? {
        Begun::Create(key) => key,
        Begun::Replay(answer) => return Ok(idempotency::replay(answer)),
    };
    let since = idempotency::note(key.as_ref()).await?;
    let control = Arc::clone(&exchange.gateway.control);
    let author = exchange.context.principal.actor();
    let new = NewAnnotation { step, text, labels, rating, author };
    let object = trajectory.clone();
    let created = Box::pin(async move {
        if let Some(since) = since {
            // An earlier attempt may have been cut off after it was written.
            let is_left = |one: &Annotation| {
                let same = (one.step, &one.text, &one.labels, one.rating, &one.author);
                one.created_at >= since && same == (new.step, &new.text, &new.labels, new.rating, &new.author)
            };
            if let Some(left) = control.annotations(&tenant, &trajectory).await?.into_iter().find(is_left) {
                return Ok(left);
            }
        }
        Ok(control.annotate(&tenant, &trajectory, new).await?)
    });
    let created = audit::change_with(exchange, "annotation.create", object, created).await;
    let created = created.map(|annotation| (StatusCode::CREATED, json!(annotation)));
    let (status, body) = idempotency::settle(key, created).await?;
    Ok(tagged(json_response(status, &body), &body))
}

pub(crate) async fn change(exchange: &mut Exchange) -> Answered {
    let (_, tenant, trajectory) = recorded(exchange).await?;
    refuse_agents(exchange)?;
    let id = id(exchange)?;
    let (ChangeAnnotation { text, labels, rating }, _) = exchange.json().await?;
    let versions = versions(&exchange.parts)?;
    let change = AnnotationChange { text, labels, rating, versions, author: exchange.context.principal.actor() };
    let (control, object) = (Arc::clone(&exchange.gateway.control), format!("{trajectory}/{id}"));
    let changed = Box::pin(async move { Ok(control.change_annotation(&tenant, &trajectory, &id, change).await?) });
    let changed = audit::change_with(exchange, "annotation.change", object, changed).await?;
    Ok(shown(StatusCode::OK, &changed))
}

pub(crate) async fn remove(exchange: &mut Exchange) -> Answered {
    let (_, tenant, trajectory) = recorded(exchange).await?;
    refuse_agents(exchange)?;
    let id = id(exchange)?;
    let versions = versions(&exchange.parts)?;
    let (control, object) = (Arc::clone(&exchange.gateway.control), format!("{trajectory}/{id}"));
    let removed = Box::pin(async move { Ok(control.remove_annotation(&tenant, &trajectory, &id, versions.as_deref()).await?) });
    let Annotation { id, .. } = audit::change_with(exchange, "annotation.remove", object, removed).await?;
    Ok(json_response(StatusCode::OK, &RemovedAnnotation { id, removed: true }))
}

/// Removes all of a trajectory. Its record may be gone: this is how its annotations go, too.
pub(crate) async fn remove_all(exchange: &mut Exchange) -> Answered {
    let (tenant, trajectory, gone) = match recorded(exchange).await {
        Ok((_, tenant, trajectory)) => (tenant, trajectory, None),
        Err(refusal) if refusal.code == ErrorCode::NotFound && !exchange.context.principal.is_bound() => {
            (exchange.context.tenant().clone(), exchange.param("id").to_owned(), Some(refusal))
        }
        Err(refusal) => return Err(refusal),
    };
    refuse_agents(exchange)?;
    let (control, id) = (Arc::clone(&exchange.gateway.control), trajectory.clone());
    let removed = Box::pin(async move {
        match (control.remove_annotations(&tenant, &id).await?, gone) {
            (0, Some(refusal)) => Err(refusal),
            (removed, _) => Ok(removed),
        }
    });
    let removed = audit::change_with(exchange, "annotation.remove_all", trajectory.clone(), removed).await?;
    Ok(json_response(StatusCode::OK, &RemovedAnnotations { trajectory, removed }))
}

fn shown(status: StatusCode, annotation: &Annotation) -> Response<Body> {
    let body = json!(annotation);
    tagged(json_response(status, &body), &body)
}

/// The annotation in the path. What is no id names none.
fn id(exchange: &Exchange) -> Result<AnnotationId, Refusal> {
    let given = exchange.param("annotation");
    given.parse().map_err(|_| ControlError::NoAnnotation { id: given.chars().take(80).collect() }.into())
}

/// Annotations judge what an agent did, so no agent writes its own.
fn refuse_agents(exchange: &Exchange) -> Result<(), Refusal> {
    match exchange.context.principal.inside {
        Some(_) => Err(Refusal::new(ErrorCode::Forbidden, "an agent can't annotate trajectories with the token of its sandbox")
            .hint("use a key")),
        None => Ok(()),
    }
}

async fn check_step(recorder: Recorder, (tenant, id): (TenantId, String), step: u64) -> Result<(), Refusal> {
    let found = blocking(move || match step {
        0 => Ok(None),
        _ => Ok(recorder.steps(&tenant, &id, step - 1, 1)?.pop()),
    });
    match found.await?.filter(|found| found.step == step) {
        Some(_) => Ok(()),
        None => Err(Refusal::bad_request(format!("step: the trajectory has no step {step}"))
            .hint("steps are numbered from 1; leave step out for the whole trajectory")),
    }
}

/// The trajectories that the query selects by their annotations. None: all.
pub(crate) async fn selected(exchange: &Exchange) -> Result<Option<HashSet<String>>, Refusal> {
    let query = exchange.parts.uri.query().unwrap_or_default();
    let labels = query_pairs(query).filter(|(name, _)| name == "label").map(|(_, label)| label.parse());
    let labels: Vec<AnnotationLabel> = labels.collect::<Result<_, _>>()?;
    let min_rating = match exchange.query("min_rating") {
        Some(text) => {
            let rating = text.parse::<u8>().ok().and_then(|number| Rating::try_from(number).ok());
            Some(rating.ok_or_else(|| Refusal::bad_request("min_rating is not from 1 to 5"))?)
        }
        None => None,
    };
    if labels.is_empty() && min_rating.is_none() && exchange.query("annotated").as_deref() != Some("true") {
        return Ok(None);
    }
    let filter = AnnotationFilter { labels, min_rating };
    Ok(Some(exchange.gateway.control.annotated(exchange.context.tenant(), filter).await?.into_iter().collect()))
}

/// Adds to trajectories of a list what their annotations say together.
pub(crate) async fn summarize(exchange: &Exchange, trajectories: &mut [Summary]) -> Result<(), Refusal> {
    // The node that answers the client does that.
    if exchange.passed().is_some() || trajectories.is_empty() {
        return Ok(());
    }
    let ids = trajectories.iter().map(|summary| summary.trajectory.clone()).collect();
    let mut found = exchange.gateway.control.annotation_summaries(exchange.context.tenant(), ids).await?;
    for summary in trajectories {
        summary.annotations = found.remove(&summary.trajectory);
    }
    Ok(())
}

/// The annotations of an export.
pub(crate) async fn exported(
    control: &Control,
    (tenant, trajectory): (&TenantId, &str),
    (format, wanted): (Format, Option<bool>),
) -> Result<Annotations, Refusal> {
    if !wanted.unwrap_or_else(|| format.has_place_for_annotations()) {
        return Ok(Annotations::default());
    }
    match control.annotations(tenant, trajectory).await {
        Ok(all) => Ok(Annotations::new(all)),
        Err(ControlError::NoAnnotations) => Ok(Annotations::default()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use http::header::ETAG;
    use serde_json::{Value, json};

    use crate::harness::{Harness, TestResponse};

    /// A sandbox with two steps of its trajectory: its creation and a change.
    async fn annotated() -> (Harness, String) {
        let server = Harness::new().await;
        let made = server.call("POST", "/api/v2/sandboxes", json!({ "name": "x" })).await.json;
        server.call("PATCH", "/api/v2/sandboxes/x", json!({ "labels": { "a": "b" } })).await;
        let path = format!("/api/v1/trajectories/{}/annotations", made["id"].as_str().unwrap());
        (server, path)
    }

    async fn add(server: &Harness, path: &str, body: Value) -> Value {
        let added = server.call("POST", path, body).await;
        assert_eq!(added.status, 201, "{}", added.text);
        added.json
    }

    fn refused(answer: &TestResponse, status: u16, said: &str) {
        assert_eq!(answer.status, status, "{said}: {}", answer.text);
        assert!(answer.text.contains(said), "{said}: {}", answer.text);
    }

    #[tokio::test]
    async fn annotations_are_added_changed_and_removed() {
        let (server, path) = annotated().await;
        let body = json!({ "step": 2, "text": "<b>why</b>", "labels": ["b", "a", "b"], "rating": 2 });
        let added = server.call("POST", &path, body).await;
        let one = &added.json;
        assert_eq!(
            (added.status, &one["labels"], &one["revision"], &one["author"]),
            (201, &json!(["a", "b"]), &json!(1), &Value::Null)
        );
        let (id, tag) = (one["id"].as_str().unwrap(), added.headers[ETAG].to_str().unwrap().to_owned());
        assert_eq!(tag, format!("\"{id}-1\""));
        add(&server, &path, json!({ "rating": 5 })).await;
        let this = format!("{path}/{id}");
        assert_eq!(server.call("GET", &this, Value::Null).await.json, *one);
        let of_step = server.call("GET", &format!("{path}?step=2"), Value::Null).await.json;
        assert_eq!((of_step["annotations"].as_array().unwrap().len(), &of_step["annotations"][0]), (1, one));
        // Pages have each once.
        let first = server.call("GET", &format!("{path}?limit=1"), Value::Null).await.json;
        let cursor = first["next_cursor"].as_str().unwrap();
        let second = server.call("GET", &format!("{path}?limit=1&cursor={cursor}"), Value::Null).await.json;
        assert_eq!((&first["annotations"][0], &second["annotations"][0]["rating"]), (one, &json!(5)));
        assert_eq!(second["next_cursor"], Value::Null);
        // What is absent stays, and null takes the rating away.
        let changed = server.call("PATCH", &this, json!({ "rating": null, "labels": [] })).await;
        assert_eq!(
            (&changed.json["rating"], &changed.json["labels"], &changed.json["text"]),
            (&Value::Null, &json!([]), &one["text"])
        );
        assert_eq!(changed.headers[ETAG], format!("\"{id}-2\""));
        // Of two writers, the second one is refused.
        let late = server.call_with("PATCH", &this, &[("if-match", &tag)], json!({ "text": "mine" })).await;
        refused(&late, 412, "read it again");
        refused(&server.call_with("DELETE", &this, &[("if-match", &tag)], json!({})).await, 412, "has changed");
        assert_eq!(server.call("GET", &this, Value::Null).await.json["text"], one["text"]);
        // The record is as it was.
        let verified = server.call("GET", &path.replace("annotations", "verify"), Value::Null).await.json;
        assert_eq!(verified["problems"], json!([]));
        assert_eq!(server.call("DELETE", &this, Value::Null).await.json, json!({ "id": id, "removed": true }));
        for (method, body) in [("GET", Value::Null), ("PATCH", json!({ "text": "x" })), ("DELETE", Value::Null)] {
            refused(&server.call(method, &this, body).await, 404, "there is no annotation");
        }
        assert_eq!(server.call("DELETE", &path, Value::Null).await.json["removed"], 1);
    }

    #[tokio::test]
    async fn bad_annotations_are_refused() {
        let (server, path) = annotated().await;
        let many: Vec<String> = (0..17).map(|n| format!("l{n}")).collect();
        for (body, said) in [
            (json!({}), "needs a text, a label, or a rating"),
            (json!({ "text": "  \n" }), "needs a text"),
            (json!({ "text": "x".repeat(8193) }), "8193 bytes"),
            (json!({ "text": "a\u{1b}[31m" }), "U+001B"),
            (json!({ "text": "a\u{0}" }), "U+0000"),
            (json!({ "text": 7 }), "text: invalid type"),
            (json!({ "text": null }), "text: invalid type"),
            (json!({ "labels": "good" }), "labels: invalid type"),
            (json!({ "labels": ["Good"] }), "label \\\"Good\\\" is not valid"),
            (json!({ "labels": [""] }), "lower-case letters"),
            (json!({ "labels": ["x".repeat(64)] }), "1 to 63"),
            (json!({ "labels": [1] }), "labels[0]"),
            (json!({ "labels": many }), "17 labels"),
            (json!({ "rating": 0 }), "rating 0 is not from 1 to 5"),
            (json!({ "rating": 6 }), "rating 6 is not from 1 to 5"),
            (json!({ "rating": -1 }), "rating: invalid value"),
            (json!({ "rating": 4.5 }), "rating: invalid type"),
            (json!({ "rating": "5" }), "rating: invalid type"),
            (json!({ "rating": 1, "step": 0 }), "no step 0"),
            (json!({ "rating": 1, "step": 3 }), "no step 3"),
            (json!({ "rating": 1, "step": u64::MAX }), "no step 18446744073709551615"),
            (json!({ "rating": 1, "step": -1 }), "step: invalid value"),
            (json!({ "rating": 1, "step": "1" }), "step: invalid type"),
            (json!({ "rating": 1, "author": "me" }), "unknown field `author`"),
            (json!([1]), "not a JSON object"),
        ] {
            refused(&server.call("POST", &path, body).await, 400, said);
        }
        refused(&server.bytes("POST", &path, b"{".to_vec()).await, 400, "not JSON");
        assert_eq!(server.call("GET", &path, Value::Null).await.json["annotations"], json!([]));
        let this = format!("{path}/{}", add(&server, &path, json!({ "text": "a" })).await["id"].as_str().unwrap());
        for (body, said) in [
            (json!({ "text": "" }), "needs a text, a label, or a rating"),
            (json!({ "step": 1 }), "unknown field `step`"),
            (json!({ "rating": 9 }), "rating 9"),
        ] {
            refused(&server.call("PATCH", &this, body).await, 400, said);
        }
        refused(&server.call_with("PATCH", &this, &[("if-match", "1")], json!({ "text": "b" })).await, 400, "If-Match");
        assert_eq!(server.call("GET", &this, Value::Null).await.json["revision"], 1);
        refused(&server.call("GET", &format!("{path}?stp=1"), Value::Null).await, 400, "unknown query parameter");
        refused(&server.call("GET", &format!("{path}?step=x"), Value::Null).await, 400, "step");
        refused(&server.call("GET", &format!("{path}/nope"), Value::Null).await, 404, "there is no annotation");
        for (method, body) in [("GET", Value::Null), ("POST", json!({ "rating": 1 }))] {
            let path = "/api/v1/trajectories/s00000000000/annotations";
            refused(&server.call(method, path, body).await, 404, "s00000000000");
        }
        refused(&server.call("PUT", &this, json!({})).await, 405, "GET");
    }

    #[tokio::test]
    async fn lists_select_trajectories_by_their_annotations() {
        let (server, path) = annotated().await;
        let other = server.call("POST", "/api/v2/sandboxes", json!({ "name": "y" })).await.json["id"].clone();
        add(&server, &path, json!({ "step": 1, "labels": ["good"] })).await;
        add(&server, &path, json!({ "rating": 4 })).await;
        add(&server, &path, json!({ "rating": 5 })).await;
        let id = path.split('/').nth(4).unwrap().to_owned();
        for (query, wanted) in [
            ("", 2),
            ("?annotated=true", 1),
            ("?annotated=false", 2),
            ("?label=good", 1),
            ("?label=good&min_rating=4", 1),
            ("?label=good&label=bad", 0),
            ("?min_rating=5", 0),
        ] {
            let found = server.call("GET", &format!("/api/v1/trajectories{query}"), Value::Null).await.json;
            assert_eq!(found["trajectories"].as_array().unwrap().len(), wanted, "{query}: {found}");
        }
        let all = server.call("GET", "/api/v1/trajectories", Value::Null).await.json;
        let find = |id: &Value| all["trajectories"].as_array().unwrap().iter().find(|one| one["trajectory"] == *id).unwrap();
        assert_eq!(find(&json!(id))["annotations"], json!({ "count": 3, "labels": ["good"], "rating": 4.5 }));
        assert!(find(&other).get("annotations").is_none());
        for (query, said) in
            [("min_rating=0", "from 1 to 5"), ("min_rating=x", "min_rating"), ("label=A", "label"), ("annotated=1", "annotated")]
        {
            refused(&server.call("GET", &format!("/api/v1/trajectories?{query}"), Value::Null).await, 400, said);
        }
    }

    #[tokio::test]
    async fn exports_have_annotations_unless_they_are_not_wanted() {
        let (server, path) = annotated().await;
        add(&server, &path, json!({ "step": 1, "labels": ["good"] })).await;
        add(&server, &path, json!({ "text": "whole", "rating": 4 })).await;
        for (query, has) in [
            ("format=jsonl", true),
            ("format=atif", true),
            ("format=atif&annotations=false", false),
            ("format=openai-messages", false),
            ("format=openai-messages&annotations=true", true),
            ("format=sharegpt", false),
            ("format=sharegpt&annotations=true", true),
        ] {
            let path = path.replace("annotations", &format!("export?origin=all&{query}"));
            let text = server.call("GET", &path, Value::Null).await.text;
            assert_eq!((text.contains("\"good\""), text.contains("\"whole\"")), (has, has), "{query}: {text}");
        }
        let refusal = server.call("GET", &path.replace("annotations", "export?annotations=1"), Value::Null).await;
        refused(&refusal, 400, "annotations");
    }

    #[tokio::test]
    async fn a_repeat_with_the_same_key_adds_one() {
        let (server, path) = annotated().await;
        let send = || server.call_with("POST", &path, &[("idempotency-key", "k")], json!({ "text": "a" }));
        let (first, again) = (send().await, send().await);
        assert_eq!((first.status, &first.json), (201, &again.json));
        let all = server.call("GET", &path, Value::Null).await.json;
        assert_eq!(all["annotations"].as_array().unwrap().len(), 1);
    }
}
