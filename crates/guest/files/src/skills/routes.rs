//! The skills service in AIO's wire format.

use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, OpenApi, ToSchema};

use super::dependencies::DependencyCommandResult;
use super::registry::SkillMetadata;
use super::service::{self, SkillError};
use super::upload;
use crate::confined::ConfinedError;
use crate::skills::Skills;
use arenite_guest_runtime::http::{ApiError, Envelope, Form, QueryArgs, Reply, ok, ok_message};

/// The service's routes, under `/v1`.
pub fn router(state: Arc<Skills>) -> Router {
    Router::new()
        // The archive streams to disk and is bounded there.
        .route("/v1/skills/register", post(register).layer(DefaultBodyLimit::disable()))
        .route("/v1/skills/metadatas", get(metadatas))
        .route("/v1/skills", delete(clear))
        .route("/v1/skills/{name}", delete(remove))
        .route("/v1/skills/{name}/content", get(content))
        .with_state(state)
}

/// The service's part of the OpenAPI document.
#[derive(OpenApi)]
#[openapi(paths(register, metadatas, clear, remove, content), components(schemas(DependencyCommandResult)))]
#[derive(Debug)]
pub struct SkillsApi;

#[derive(Debug, ToSchema)]
#[schema(as = Body_register_skills)]
#[expect(dead_code, reason = "describes the multipart body in the OpenAPI document")]
pub(super) struct RegisterBody {
    #[schema(format = Binary)]
    file: Option<String>,
    path: Option<String>,
    name: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SkillRegistrationResult {
    /// How many were found.
    count: usize,
    /// Those that were found.
    #[schema(required = false)]
    registered: Vec<SkillMetadata>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SkillMetadataCollection {
    /// By name.
    #[schema(required = false)]
    skills: Vec<SkillMetadata>,
}

/// The skills that were registered before.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ClearedSkills {
    count: usize,
    names: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SkillContentResult {
    /// The skill's name.
    name: String,
    /// Its directory.
    path: String,
    /// SKILL.md without its front matter.
    content: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct NamesQuery {
    /// Names of skills, between commas. Default: all.
    #[param(nullable)]
    names: Option<String>,
}

impl From<SkillError> for ApiError {
    fn from(error: SkillError) -> Self {
        let status = match &error {
            SkillError::Unknown(_) => StatusCode::NOT_FOUND,
            // Not the caller's fault, or not certainly.
            SkillError::Unreadable(ConfinedError::Crashed(_) | ConfinedError::Spawn(_) | ConfinedError::Io(_)) => {
                StatusCode::FAILED_DEPENDENCY
            }
            _ => StatusCode::BAD_REQUEST,
        };
        let hint = error.hint();
        let reply = Self::new(status, error.to_string());
        match hint {
            Some(hint) => reply.hint(hint),
            None => reply,
        }
    }
}

/// Registers the skills in a directory (`path`), or those in an archive (`file`), which is unpacked there.
#[utoipa::path(post, path = "/v1/skills/register", tag = "skills", operation_id = "register_skills",
    request_body(content = RegisterBody, content_type = "multipart/form-data"),
    responses((status = 200, body = Envelope<SkillRegistrationResult>)))]
async fn register(State(skills): State<Arc<Skills>>, request: Request) -> Response {
    service::preload(&skills).await;
    let parts = match Form::from_request(request).await {
        Ok(parts) => parts,
        Err(refusal) => return refusal,
    };
    let upload = match upload::read(parts).await {
        Ok(upload) => upload,
        Err(answer) => return answer,
    };
    match service::register(&skills, upload).await {
        Ok(registered) => {
            let failed = registered.iter().flat_map(|s| &s.dependency_commands).any(|c| !c.success);
            let hint = failed.then(|| "some of what the skills depend on was not installed: see dependency_commands".to_owned());
            let message = Some(format!("Registered {} skills", registered.len()));
            let data = Some(SkillRegistrationResult { count: registered.len(), registered });
            Envelope { success: true, message, data, hint }.into_response()
        }
        Err(error) => ApiError::from(error).into_response(),
    }
}

/// Registered skills, with what their front matter says.
#[utoipa::path(get, path = "/v1/skills/metadatas", tag = "skills", operation_id = "list_skills_metadata", params(NamesQuery),
    responses((status = 200, body = Envelope<SkillMetadataCollection>)))]
async fn metadatas(State(skills): State<Arc<Skills>>, QueryArgs(query): QueryArgs<NamesQuery>) -> Reply<SkillMetadataCollection> {
    service::preload(&skills).await;
    let names = query.names.as_deref().map(|n| n.split(',').map(str::trim).filter(|n| !n.is_empty()).collect::<Vec<_>>());
    ok(SkillMetadataCollection { skills: skills.list(names.as_deref().filter(|n| !n.is_empty())) })
}

/// Forgets all skills; their files stay.
#[utoipa::path(delete, path = "/v1/skills", tag = "skills", operation_id = "clear_skills",
    responses((status = 200, body = Envelope<ClearedSkills>)))]
async fn clear(State(skills): State<Arc<Skills>>) -> Reply<ClearedSkills> {
    service::preload(&skills).await;
    let names = skills.clear();
    ok_message(ClearedSkills { count: names.len(), names }, "The skills are registered no more; their files stay")
}

/// Forgets a skill; its files stay.
#[utoipa::path(delete, path = "/v1/skills/{name}", tag = "skills", operation_id = "delete_skill",
    params(("name" = String, Path)), responses((status = 200, body = Envelope<SkillMetadata>)))]
async fn remove(State(skills): State<Arc<Skills>>, Path(name): Path<String>) -> Reply<SkillMetadata> {
    service::preload(&skills).await;
    let removed = skills.remove(&name).ok_or(SkillError::Unknown(name))?;
    ok_message(removed, "The skill is registered no more; its files stay")
}

/// What a skill tells an agent to do: its SKILL.md without the front matter.
#[utoipa::path(get, path = "/v1/skills/{name}/content", tag = "skills", operation_id = "get_skill_content",
    params(("name" = String, Path)), responses((status = 200, body = Envelope<SkillContentResult>)))]
async fn content(State(skills): State<Arc<Skills>>, Path(name): Path<String>) -> Reply<SkillContentResult> {
    service::preload(&skills).await;
    let (skill, content) = service::content(&skills, &name).await?;
    ok(SkillContentResult { name: skill.name, path: skill.path, content })
}
