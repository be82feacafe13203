//! Descriptions of routes, and the OpenAPI document with them.

use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use crate::lists::MAX_PAGE;
use crate::query::{self, Query};
use crate::routes::Route;

pub(crate) type Schemas = Vec<(String, RefOr<Schema>)>;
/// Adds a type's schemas, and returns its name.
pub(crate) type SchemaOf = fn(&mut Schemas) -> String;

/// A route's description in an OpenAPI document.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation {
    id: &'static str,
    summary: &'static str,
    tag: &'static str,
    query: &'static [Query],
    takes: Option<SchemaOf>,
    /// An example of this body, as JSON.
    example: Option<&'static str>,
    /// Content types of its body, if that is not JSON.
    takes_content: &'static [&'static str],
    /// Fields that the body may have beside its own.
    takes_also: Option<SchemaOf>,
    answers: Answers,
    /// The `data` of an answer in an envelope.
    data: Option<SchemaOf>,
    /// It answers 207 if only some of several calls succeeded.
    partial: bool,
    /// It takes an `Idempotency-Key`.
    is_keyed: bool,
    /// It takes an `If-Match`.
    is_versioned: bool,
    /// Content types of other answers with the same status, which the query asks for.
    also: &'static [&'static str],
    /// The usual size of its answers' pages, if it is a list.
    page_size: Option<usize>,
}

const LIMIT: Query = ("limit", "integer", "The most entries of the page");
const CURSOR: Query = ("cursor", "string", "`next_cursor` of the page before");

#[derive(Debug, Clone, Copy)]
enum Answers {
    Json(u16, SchemaOf),
    /// Bytes with this content type.
    Content(&'static str),
    /// Status 204.
    Nothing,
}

pub(crate) fn schema_of<T: ToSchema>(schemas: &mut Schemas) -> String {
    T::schemas(schemas);
    let name = T::name().into_owned();
    schemas.push((name.clone(), T::schema()));
    name
}

impl Operation {
    /// An operation with bytes as its answer.
    pub(crate) const fn new(tag: &'static str, id: &'static str, summary: &'static str) -> Self {
        let (query, also, answers) = (&[], &[], Answers::Content("application/octet-stream"));
        Self {
            id,
            summary,
            tag,
            query,
            takes: None,
            example: None,
            takes_content: &[],
            takes_also: None,
            answers,
            data: None,
            partial: false,
            is_keyed: false,
            is_versioned: false,
            also,
            page_size: None,
        }
    }

    /// Its JSON body, which may be left out if no field is required.
    pub(crate) const fn takes<T: ToSchema>(self) -> Self {
        Self { takes: Some(schema_of::<T>), ..self }
    }

    /// Its body of bytes.
    pub(crate) const fn receives(self, content_types: &'static [&'static str]) -> Self {
        Self { takes_content: content_types, ..self }
    }

    pub(crate) const fn takes_also<T: ToSchema>(self) -> Self {
        Self { takes_also: Some(schema_of::<T>), ..self }
    }

    pub(crate) const fn query(self, query: &'static [Query]) -> Self {
        Self { query, ..self }
    }

    pub(crate) const fn answers<T: ToSchema>(self, status: u16) -> Self {
        Self { answers: Answers::Json(status, schema_of::<T>), ..self }
    }

    /// An answer with status 200 in the envelope `E`.
    pub(crate) const fn envelops<E: ToSchema, T: ToSchema>(self) -> Self {
        Self { data: Some(schema_of::<T>), ..self.answers::<E>(200) }
    }

    /// A list, which is read in pages (`crate::lists`). `page_size` applies without a `limit`.
    pub(crate) const fn paged(self, page_size: usize) -> Self {
        Self { page_size: Some(page_size), ..self }
    }

    pub(crate) fn page_size(&self) -> Option<usize> {
        self.page_size
    }

    /// The parameters of its query.
    pub(crate) fn parameters(&self) -> Vec<Query> {
        let of_page = if self.page_size.is_some() { &[LIMIT, CURSOR][..] } else { &[] };
        self.query.iter().chain(of_page).copied().collect()
    }

    pub(crate) const fn partial(self) -> Self {
        Self { partial: true, ..self }
    }

    pub(crate) const fn keyed(self) -> Self {
        Self { is_keyed: true, ..self }
    }

    pub(crate) const fn versioned(self) -> Self {
        Self { is_versioned: true, ..self }
    }

    pub(crate) const fn also(self, content_types: &'static [&'static str]) -> Self {
        Self { also: content_types, ..self }
    }

    /// A successful answer has no content.
    pub(crate) const fn answers_nothing(self) -> Self {
        Self { answers: Answers::Nothing, ..self }
    }

    /// An example of its body, as JSON.
    pub(crate) const fn example(self, body: &'static str) -> Self {
        Self { example: Some(body), ..self }
    }

    pub(crate) const fn sends(self, content_type: &'static str) -> Self {
        Self { answers: Answers::Content(content_type), ..self }
    }

    fn json(&self, route: &Route, schemas: &mut Schemas) -> Value {
        let path = route.pattern.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
        let mut parameters: Vec<Value> =
            path.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })).collect();
        parameters.extend(self.parameters().iter().map(query::described));
        if let Some(size) = self.page_size
            && let Some(limit) = parameters.iter_mut().find(|parameter| parameter["name"] == "limit")
        {
            limit["schema"] = json!({ "type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": size });
        }
        if self.is_keyed {
            parameters.push(json!({
                "name": "Idempotency-Key", "in": "header", "required": false, "schema": { "type": "string", "maxLength": 255 },
                "description": "Chosen by the client for this create; a repeat within a day with the same key and body gets the same answer",
            }));
        }
        if self.is_versioned {
            parameters.push(json!({
                "name": "If-Match", "in": "header", "required": false, "schema": { "type": "string" },
                "description": "The `ETag` of an earlier answer: if what it describes has changed since, the answer is 412",
            }));
        }
        let (status, description, mut content) = match self.answers {
            Answers::Json(status, schema) => {
                let mut answer = reference(&schema(schemas));
                if let Some(data) = self.data {
                    answer = json!({ "allOf": [answer, { "properties": { "data": reference(&data(schemas)) } }] });
                }
                (status, "Done", json!({ "application/json": { "schema": answer } }))
            }
            Answers::Content(kind) => (200, "The content", json!({ kind: {} })),
            Answers::Nothing => (204, "Done", json!({})),
        };
        for kind in self.also {
            content[*kind] = json!({});
        }
        let error = (route.surface.error)(schemas);
        let refused =
            json!({ "description": "Refused", "content": { route.surface.error_content: { "schema": reference(&error) } } });
        let mut operation = json!({
            "tags": [self.tag],
            "summary": self.summary,
            "operationId": self.id,
            "parameters": parameters,
            "responses": {
                status.to_string(): { "description": description, "content": content },
                "4XX": refused,
                "5XX": refused,
            },
        });
        if self.partial {
            operation["responses"]["207"] = json!({ "description": "Partly done", "content": content });
        }
        if let Some(takes) = self.takes {
            let mut body = reference(&takes(schemas));
            let required = schemas
                .last()
                .is_some_and(|(_, schema)| matches!(schema, RefOr::T(Schema::Object(object)) if !object.required.is_empty()));
            if let Some(also) = self.takes_also {
                body = json!({ "allOf": [body, reference(&also(schemas))] });
            }
            operation["requestBody"] = json!({ "required": required, "content": { "application/json": { "schema": body } } });
            if let Some(example) = self.example.and_then(|text| serde_json::from_str::<Value>(text).ok()) {
                operation["requestBody"]["content"]["application/json"]["example"] = example;
            }
        }
        if !self.takes_content.is_empty() {
            let bytes = json!({ "schema": { "type": "string", "format": "binary" } });
            let content: Map<String, Value> = self.takes_content.iter().map(|kind| ((*kind).to_owned(), bytes.clone())).collect();
            operation["requestBody"] = json!({ "required": true, "content": content });
        }
        operation
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// A type that has no other fields can't be the base of one with more. There, the reference becomes a copy that allows them.
fn open_bases(schemas: &mut Map<String, Value>) {
    let closed: Map<String, Value> = schemas
        .iter()
        .filter(|(_, schema)| schema["additionalProperties"] == false)
        .map(|(name, schema)| (name.clone(), schema.clone()))
        .collect();
    for base in schemas.values_mut().filter_map(|schema| schema.get_mut("allOf")?.as_array_mut()).flatten() {
        let name = base["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
        if let Some(Value::Object(mut copy)) = name.and_then(|name| closed.get(name)).cloned() {
            copy.remove("additionalProperties");
            *base = Value::Object(copy);
        }
    }
}

/// The document of routes with a description.
pub(crate) fn document<'a>(
    info: Value,
    tags: &[(&str, &str)],
    routes: impl Iterator<Item = (&'a Route, &'a Operation)>,
) -> Value {
    let (mut paths, mut schemas) = (Map::new(), Schemas::new());
    for (route, operation) in routes {
        let path = paths.entry(route.pattern).or_insert_with(|| json!({}));
        for method in route.methods.unwrap_or_default() {
            path[method.as_str().to_ascii_lowercase()] = operation.json(route, &mut schemas);
        }
    }
    // Structs with text keys: always JSON.
    let mut schemas: Map<String, Value> =
        schemas.into_iter().map(|(name, schema)| (name, serde_json::to_value(schema).unwrap_or_default())).collect();
    open_bases(&mut schemas);
    let tags: Vec<Value> = tags.iter().map(|(name, description)| json!({ "name": name, "description": description })).collect();
    json!({ "openapi": "3.1.0", "info": info, "tags": tags, "paths": paths, "components": { "schemas": schemas } })
}
