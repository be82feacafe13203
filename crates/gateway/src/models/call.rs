//! One call of a model.

use std::sync::Arc;
use std::time::Duration;

use arenite_control::models::{ModelCall, ModelRoute, ModelSubject, ModelUse};
use arenite_model::ErrorCode;
use arenite_trajectory::{Intent, ModelStep, OpenStep, Outcome, OutcomeKind, TrajectoryError};
use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response};
use http_body_util::{BodyExt, Limited};

use super::answer::{self, CallRecord};
use super::request::{Asked, Endpoint};
use super::subject::{self, ModelPath};
use super::{refuse, upstream};
use crate::exchange::{Answered, Exchange};
use crate::gateway::Gateway;
use crate::proxy;
use crate::refusal::Refusal;

/// Largest answer of a call that uses nothing, in bytes: a list of models, or a count of tokens.
const MAX_PLAIN: usize = 8 << 20;

pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    let path = exchange.path.decoded.clone();
    let unknown = || Refusal::not_found("there is no such path of a model route").hint("docs/MODELS.md lists the paths");
    let path = ModelPath::parse(&path).ok_or_else(unknown)?;
    let absent = || arenite_control::ControlError::NoModelRoute { name: path.route.chars().take(80).collect() };
    let name = path.route.parse().map_err(|_| absent())?;
    let route = exchange.gateway.control.model_route(exchange.context.tenant(), &name).await?;
    let endpoint = Endpoint::find(route.spec.dialect, &exchange.parts.method, path.endpoint)?;
    let subject = subject::find(exchange, &path).await?;
    let body = exchange.take_body();
    let read = proxy::read_whole(&exchange.gateway, &exchange.parts, body).await;
    let (body, held) = read.map_err(|refusal| Refusal { hint: None, ..refusal })?;
    if endpoint == Endpoint::Plain {
        return plain(exchange, &route, path.endpoint, body).await;
    }
    let asked = Asked::read(&body)?;
    let model = asked.model()?;
    let budget = subject.budget();
    let call = ModelCall {
        route: &route,
        model,
        subject: budget.as_ref().map(|(key, label)| ModelSubject { key, label }),
        sandbox: subject.sandbox(),
        expected: asked.expected(endpoint, &body),
    };
    let admitted = exchange.gateway.control.admit_model_call(call).await;
    let step = match subject.intent(exchange, path.endpoint) {
        Some(intent) => match begin(&exchange.gateway, intent, &body).await {
            Ok(step) => Some(step),
            Err(refusal) => {
                // It is not made.
                if let Ok(permit) = admitted {
                    permit.settle(&ModelUse::default());
                }
                return Err(refusal);
            }
        },
        None => None,
    };
    let permit = match admitted {
        Ok(permit) => permit,
        Err(error) => return Err(record_refusal(step, &route, model, error.into()).await),
    };
    let asking = asked.asking_for_usage(endpoint, &body);
    let hides_usage = asking.is_some();
    let mut record = CallRecord::new(step, permit, route.clone(), model, asked.is_stream());
    let sent = upstream::send(&exchange.gateway, &route, &exchange.parts, path.endpoint, asking.unwrap_or(body)).await;
    drop(held);
    let upstream::Answer { head, connection } =
        sent.inspect_err(|refusal| record.fail(Some(refusal.status.as_u16()), refusal.message.clone()))?;
    let is_events = has_events(head.headers().get(CONTENT_TYPE));
    record.begin_answer(head.status().as_u16(), is_events, endpoint, hides_usage);
    Ok(to_client(head, |incoming| answer::body(incoming, connection, record)))
}

/// Passes a call on that uses nothing and is no step. Its answer is small.
async fn plain(exchange: &Exchange, route: &ModelRoute, endpoint: &str, body: Bytes) -> Answered {
    let answer = upstream::send(&exchange.gateway, route, &exchange.parts, endpoint, body).await?;
    let (parts, incoming) = answer.head.into_parts();
    let read = Limited::new(incoming, MAX_PLAIN).collect();
    let time = Duration::from_secs(route.spec.timeout_seconds.into());
    let read = tokio::time::timeout(time, read).await.map_err(|_| upstream::late("does not end its answer", time))?;
    let body = read.map_err(|error| upstream::failed(format!("its answer broke off, or is too large: {error}")))?.to_bytes();
    Ok(to_client(Response::from_parts(parts, body), Body::from))
}

/// The head for the client, in which nothing of the upstream has power over this server's pages.
fn to_client<B>(answer: Response<B>, body: impl FnOnce(B) -> Body) -> Response<Body> {
    let (parts, incoming) = answer.into_parts();
    let mut answer = Response::new(body(incoming));
    *answer.status_mut() = parts.status;
    *answer.headers_mut() = upstream::to_client(&parts.headers);
    answer.headers_mut().insert(CONTENT_SECURITY_POLICY, proxy::SANDBOXED);
    answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

fn has_events(kind: Option<&HeaderValue>) -> bool {
    kind.and_then(|kind| kind.to_str().ok()).is_some_and(|kind| kind.trim_start().starts_with("text/event-stream"))
}

/// Records the intent, off the async threads: requests repeat whole conversations.
async fn begin(gateway: &Arc<Gateway>, intent: Intent, body: &Bytes) -> Result<OpenStep, Refusal> {
    let (gateway, body) = (Arc::clone(gateway), body.clone());
    let begun = tokio::task::spawn_blocking(move || gateway.recorder.begin_with_body(intent, &body)).await;
    let begun = begun.map_err(|error| Refusal::new(ErrorCode::Internal, format!("recording failed: {error}")))?;
    let step = begun.map_err(|error: TrajectoryError| proxy::unrecorded(error))?;
    tracing::Span::current().record("step", step.id());
    Ok(step)
}

/// Records a call that was refused for its model, its rate, or a budget.
async fn record_refusal(step: Option<OpenStep>, route: &ModelRoute, model: &str, refusal: Refusal) -> Refusal {
    let Some(mut step) = step else { return refusal };
    if let Ok(body) = refuse(&refusal).into_body().collect().await {
        step.response_tap().is_payload();
        step.response_tap().feed(&body.to_bytes());
    }
    step.set_model(ModelStep { route: route.name.to_string(), model: model.to_owned(), ..ModelStep::default() });
    let error = Some(refusal.message.clone());
    let ended = step.finish(Outcome { status: Some(refusal.status.as_u16()), result: OutcomeKind::Error, error });
    if let Err(error) = ended {
        tracing::error!(%error, "the outcome of a step could not be recorded");
    }
    refusal
}
