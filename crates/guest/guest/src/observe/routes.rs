//! Observation in AIO's wire format.

use axum::Router;
use axum::body::Body as Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use std::sync::Arc;
use tokio_util::io::ReaderStream;
use utoipa::{IntoParams, OpenApi};

use super::service::{self, ObserveError};
use super::types::*;
use crate::observe::Observer;
use arenite_guest_runtime::http::{ApiError, Body, Envelope, QueryArgs, Reply, ok};

/// The service's routes, under `/v1`.
pub fn router(state: Arc<Observer>) -> Router {
    Router::new()
        .route("/v1/sandbox/observe/status", get(status))
        .route("/v1/sandbox/observe/live", get(live))
        .route("/v1/sandbox/observe/start", post(start))
        .route("/v1/sandbox/observe/stop", post(stop))
        .route("/v1/sandbox/observe/export", post(export))
        .route("/v1/sandbox/observe/reports", get(reports))
        .route("/v1/sandbox/observe/reports/{report_id}", get(download).delete(delete))
        .with_state(state)
}

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(status, live, start, stop, export, reports, download, delete))]
pub struct ObserveApi;

impl From<ObserveError> for ApiError {
    fn from(error: ObserveError) -> Self {
        let status = match error {
            ObserveError::Running(_) | ObserveError::NotRunning => StatusCode::CONFLICT,
            ObserveError::NoSession(_) | ObserveError::NoReport(_) => StatusCode::NOT_FOUND,
            ObserveError::Invalid(_) => StatusCode::BAD_REQUEST,
            ObserveError::Io(_) | ObserveError::Look(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        ApiError::new(status, error.to_string())
    }
}

/// Whether an observation runs, and since when.
#[utoipa::path(get, path = "/v1/sandbox/observe/status", tag = "sandbox",
    operation_id = "observe_status_v1_sandbox_observe_status_get", responses((status = 200, body = Envelope<ObservationStatus>)))]
async fn status(State(observer): State<Arc<Observer>>) -> Reply<ObservationStatus> {
    ok(observer.status())
}

fn ten() -> i64 {
    10
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct LiveQuery {
    /// Processes, the largest first; 100 at most.
    #[serde(default = "ten")]
    #[param(default = 10, required = false)]
    top_rows: i64,
}

/// What the sandbox uses now, and its largest processes.
#[utoipa::path(get, path = "/v1/sandbox/observe/live", tag = "sandbox", params(LiveQuery),
    operation_id = "observe_live_v1_sandbox_observe_live_get", responses((status = 200, body = Envelope<ObservationLiveSnapshot>)))]
async fn live(State(observer): State<Arc<Observer>>, QueryArgs(query): QueryArgs<LiveQuery>) -> Reply<ObservationLiveSnapshot> {
    ok(service::live(&observer, query.top_rows).await?)
}

/// Begins to observe what the sandbox uses.
#[utoipa::path(post, path = "/v1/sandbox/observe/start", tag = "sandbox", request_body = ObserveStartRequest,
    operation_id = "observe_start_v1_sandbox_observe_start_post", responses((status = 200, body = Envelope<ObservationStartResult>)))]
async fn start(State(observer): State<Arc<Observer>>, Body(request): Body<ObserveStartRequest>) -> Reply<ObservationStartResult> {
    ok(service::start(&observer, request)?)
}

/// Ends an observation.
#[utoipa::path(post, path = "/v1/sandbox/observe/stop", tag = "sandbox", request_body = ObserveStopRequest,
    operation_id = "observe_stop_v1_sandbox_observe_stop_post", responses((status = 200, body = Envelope<ObservationStopResult>)))]
async fn stop(State(observer): State<Arc<Observer>>, Body(request): Body<ObserveStopRequest>) -> Reply<ObservationStopResult> {
    ok(service::stop(&observer, request.session_id).await?)
}

/// Writes what was observed to a report.
#[utoipa::path(post, path = "/v1/sandbox/observe/export", tag = "sandbox", request_body = ObserveExportRequest,
    operation_id = "observe_export_v1_sandbox_observe_export_post",
    responses((status = 200, body = Envelope<ObservationExportResult>)))]
async fn export(
    State(observer): State<Arc<Observer>>,
    Body(request): Body<ObserveExportRequest>,
) -> Reply<ObservationExportResult> {
    ok(service::export(&observer, request).await?.into())
}

/// All reports.
#[utoipa::path(get, path = "/v1/sandbox/observe/reports", tag = "sandbox",
    operation_id = "observe_reports_v1_sandbox_observe_reports_get",
    responses((status = 200, body = Envelope<Vec<ObservationReportInfo>>)))]
async fn reports(State(observer): State<Arc<Observer>>) -> Reply<Vec<ObservationReportInfo>> {
    ok(service::list(&observer))
}

/// A report: lines of JSON, in gzip.
#[utoipa::path(get, path = "/v1/sandbox/observe/reports/{report_id}", tag = "sandbox", params(("report_id" = String, Path)),
    operation_id = "observe_report_download_v1_sandbox_observe_reports__report_id__get",
    responses((status = 200, content_type = "application/gzip", body = Vec<u8>)))]
async fn download(State(observer): State<Arc<Observer>>, Path(report_id): Path<String>) -> Result<Response, ApiError> {
    let info = service::report(&observer, &report_id)?;
    let file = tokio::fs::File::open(&info.path).await.map_err(ObserveError::Io)?;
    let length = file.metadata().await.map_err(ObserveError::Io)?.len();
    let headers = [
        (header::CONTENT_TYPE, "application/gzip".to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{report_id}.jsonl.gz\"")),
    ];
    Ok((headers, Bytes::from_stream(ReaderStream::new(file))).into_response())
}

/// Deletes a report.
#[utoipa::path(delete, path = "/v1/sandbox/observe/reports/{report_id}", tag = "sandbox", params(("report_id" = String, Path)),
    operation_id = "observe_report_delete_v1_sandbox_observe_reports__report_id__delete",
    responses((status = 200, body = Envelope<ObservationReportInfo>)))]
async fn delete(State(observer): State<Arc<Observer>>, Path(report_id): Path<String>) -> Reply<ObservationReportInfo> {
    ok(service::delete(&observer, &report_id)?)
}
