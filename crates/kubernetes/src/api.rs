//! Calls of the cluster's API: what the engine needs of it, with retries and its errors.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use arenite_engine::EngineError;
use arenite_model::{SandboxId, with_sources};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod, Secret};
use kube::api::{Api as KubeApi, DeleteParams, ListParams, ObjectList, Patch, PatchParams, PostParams, Preconditions};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Status;
use kube::{Client, Config};
use tokio::time::{Instant, sleep, timeout};

use crate::claims::Claims;
use crate::record::Record;
use crate::{INSTALLATION, object_name};

/// The audience of pods' tokens.
pub(crate) const AUDIENCE: &str = "arenite";
/// Where a review names the pod of a token.
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
/// Time for one attempt.
const ATTEMPT: Duration = Duration::from_secs(15);
/// Time for all attempts of a call. An API server restarts in less.
const LIMIT: Duration = Duration::from_secs(40);
const PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(3);
/// The time after which callers retry when the API server does not answer.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Objects of one page of a list.
const PAGE: u32 = 500;

/// The objects of one installation.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) pods: KubeApi<Pod>,
    pub(crate) events: KubeApi<Event>,
    pub(crate) volumes: KubeApi<PersistentVolumeClaim>,
    secrets: KubeApi<Secret>,
    reviews: KubeApi<TokenReview>,
    pub(crate) claims: Claims,
    installation: String,
    pub(crate) namespace: String,
}

/// Names the step of an error.
pub(crate) fn at(stage: &str, source: std::io::Error) -> EngineError {
    EngineError::Stage { stage: stage.to_owned(), source, hint: None }
}

pub(crate) fn failed(
    stage: &str,
    reason: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    hint: Option<&str>,
) -> EngineError {
    EngineError::Stage { stage: stage.to_owned(), source: std::io::Error::other(reason), hint: hint.map(str::to_owned) }
}

impl Api {
    /// Connects with a kubeconfig, or as the pod that this process runs in.
    pub(crate) async fn connect(
        kubeconfig: Option<&Path>,
        namespace: Option<&str>,
        installation: &str,
    ) -> Result<Self, EngineError> {
        let stage = "the cluster's address and credentials";
        let config = match kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| failed(stage, error, None))?;
                let options = KubeConfigOptions::default();
                Config::from_custom_kubeconfig(file, &options).await.map_err(|error| failed(stage, error, None))?
            }
            None => {
                let hint = "run the server in a pod with a service account, or give it a file: --kubeconfig FILE";
                Config::infer().await.map_err(|error| failed(stage, error, Some(hint)))?
            }
        };
        let namespace = namespace.map_or_else(|| config.default_namespace.clone(), str::to_owned);
        let client = Client::try_from(config).map_err(|error| failed(stage, error, None))?;
        let api = Self {
            pods: KubeApi::namespaced(client.clone(), &namespace),
            events: KubeApi::namespaced(client.clone(), &namespace),
            volumes: KubeApi::namespaced(client.clone(), &namespace),
            secrets: KubeApi::namespaced(client.clone(), &namespace),
            claims: Claims::new(client.clone(), &namespace),
            reviews: KubeApi::all(client),
            installation: installation.to_owned(),
            namespace,
        };
        Ok(api)
    }

    /// The selector of this installation's objects.
    pub(crate) fn selector(&self) -> String {
        format!("{INSTALLATION}={}", self.installation)
    }

    /// Creates a record. Returns the uid of its object.
    pub(crate) async fn create_record(&self, record: &Record) -> Result<String, EngineError> {
        let stage = "the sandbox's Secret";
        let secret = record.secret(&self.installation).map_err(|error| at(stage, error.into()))?;
        let params = PostParams::default();
        let created = call(stage, || self.secrets.create(&params, &secret)).await;
        let kept = match created {
            // An earlier attempt may have created it, and lost its answer.
            Err(CallError::Api(status)) if status.code == 409 => {
                let name = object_name(&record.id);
                let found = call(stage, || self.secrets.get(&name)).await.map_err(|error| error.at_stage(stage))?;
                if found.data != secret.data {
                    return Err(failed(stage, "there is another one of its name", None));
                }
                found
            }
            other => other.map_err(|error| error.at_stage(stage))?,
        };
        kept.metadata.uid.ok_or_else(|| failed(stage, "it has no uid", None))
    }

    /// Replaces the content of a record.
    pub(crate) async fn update_record(&self, record: &Record) -> Result<(), EngineError> {
        let stage = "the sandbox's Secret";
        let secret = record.secret(&self.installation).map_err(|error| at(stage, error.into()))?;
        let patch = Patch::Merge(serde_json::json!({"data": secret.data}));
        let (name, params) = (object_name(&record.id), PatchParams::default());
        match call(stage, || self.secrets.patch(&name, &params, &patch)).await {
            Err(CallError::Api(status)) if status.code == 404 => Err(EngineError::NotFound { id: record.id.clone() }),
            other => other.map(drop).map_err(|error| error.at_stage(stage)),
        }
    }

    pub(crate) async fn record(&self, id: &SandboxId) -> Result<Option<Record>, EngineError> {
        let stage = "the sandbox's Secret";
        let name = object_name(id);
        let found = call(stage, || self.secrets.get_opt(&name)).await.map_err(|error| error.at_stage(stage))?;
        Ok(found.and_then(|secret| Record::of_secret(id, &secret)))
    }

    pub(crate) async fn delete_record(&self, id: &SandboxId) -> Result<(), EngineError> {
        let stage = "deleting the sandbox's Secret";
        let (name, params) = (object_name(id), DeleteParams::default());
        ignore_missing(call(stage, || self.secrets.delete(&name, &params)).await.map(drop)).map_err(|error| error.at_stage(stage))
    }

    /// Checks the credentials, the rights and the namespace.
    pub(crate) async fn check(&self) -> Result<(), EngineError> {
        let stage = "the list of the sandboxes' pods";
        let params = ListParams::default().labels(&self.selector()).limit(1);
        call(stage, || self.pods.list(&params)).await.map(drop).map_err(|error| error.at_stage(stage))
    }

    pub(crate) async fn records(&self) -> Result<Vec<Secret>, EngineError> {
        let what = "the sandboxes' Secrets";
        list(what, &self.secrets, &self.selector()).await.map_err(|error| unread(what, &error))
    }

    pub(crate) async fn all_pods(&self) -> Result<Vec<Pod>, EngineError> {
        let what = "the sandboxes' pods";
        list(what, &self.pods, &self.selector()).await.map_err(|error| unread(what, &error))
    }

    /// Creates a pod. One of this name with the same owner is from an earlier attempt.
    pub(crate) async fn create_pod(&self, id: &SandboxId, pod: &Pod) -> Result<Pod, EngineError> {
        let stage = "the sandbox's pod";
        let params = PostParams::default();
        match call(stage, || self.pods.create(&params, pod)).await {
            Err(CallError::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
                let name = object_name(id);
                let found = call(stage, || self.pods.get(&name)).await.map_err(|error| error.at_stage(stage))?;
                let owner = |pod: &Pod| Some(pod.metadata.owner_references.as_ref()?.first()?.uid.clone());
                if owner(&found) == owner(pod) { Ok(found) } else { Err(failed(stage, "there is another one of its name", None)) }
            }
            other => other.map_err(|error| error.at_stage(stage)),
        }
    }

    /// Asks for the end of a pod. Without `grace`, Kubernetes forgets it at once, even if its node can't be reached.
    pub(crate) async fn delete_pod(&self, name: &str, uid: Option<&str>, grace: Option<u32>) -> Result<(), EngineError> {
        let stage = "deleting the sandbox's pod";
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        let params = DeleteParams { grace_period_seconds: Some(grace.unwrap_or(0)), preconditions, ..DeleteParams::default() };
        ignore_missing(call(stage, || self.pods.delete(name, &params)).await.map(drop)).map_err(|error| error.at_stage(stage))
    }

    /// The uid of the pod of a token. None: the token is not valid.
    pub(crate) async fn pod_of_token(&self, token: &str) -> Result<Option<String>, EngineError> {
        let stage = "the review of the pod's token";
        let spec = TokenReviewSpec { audiences: Some(vec![AUDIENCE.to_owned()]), token: token.to_owned() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let params = PostParams::default();
        let reviewed = call(stage, || self.reviews.create(&params, &review)).await.map_err(|error| error.at_stage(stage))?;
        let Some(status) = reviewed.status.filter(|status| status.authenticated == Some(true)) else { return Ok(None) };
        // An API server that does not know audiences answers without any.
        if !status.audiences.unwrap_or_default().iter().any(|audience| audience == AUDIENCE) {
            return Ok(None);
        }
        let mut extra = status.user.and_then(|user| user.extra).unwrap_or_default();
        Ok(extra.remove(POD_UID).and_then(|uids| uids.into_iter().next()))
    }
}

fn unread(what: &str, error: &CallError) -> EngineError {
    EngineError::Look { what: what.to_owned(), source: std::io::Error::other(error.to_string()) }
}

pub(crate) async fn list<K>(what: &str, api: &KubeApi<K>, selector: &str) -> Result<Vec<K>, CallError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut all = Vec::new();
    let mut params = ListParams::default().labels(selector).limit(PAGE);
    loop {
        let page: ObjectList<K> = call(what, || api.list(&params)).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

pub(crate) fn ignore_missing(called: Result<(), CallError>) -> Result<(), CallError> {
    match called {
        Err(CallError::Api(status)) if status.code == 404 => Ok(()),
        // With a precondition: it was replaced, so the one that was meant is gone.
        Err(CallError::Api(status)) if status.code == 409 => Ok(()),
        other => other,
    }
}

/// Why a call failed, after its retries.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("{}", .0.message)]
    Api(Box<Status>),
    #[error("the cluster's API server does not answer: {0}")]
    Unreachable(String),
}

impl CallError {
    pub(crate) fn at_stage(self, stage: &str) -> EngineError {
        self.busy().unwrap_or_else(|| failed(stage, self.to_string(), self.hint()))
    }

    /// The error, if a retry may help.
    pub(crate) fn busy(&self) -> Option<EngineError> {
        let (reason, retry_after) = match self {
            Self::Unreachable(_) => (self.to_string(), RETRY_AFTER),
            Self::Api(status) if is_busy(status) => {
                (format!("the cluster's API server is busy: {self}"), retry_after(status).unwrap_or(RETRY_AFTER))
            }
            Self::Api(status) if status.code == 403 && status.message.contains("exceeded quota") => {
                (format!("the quota of the cluster's namespace: {self}"), Duration::from_secs(30))
            }
            Self::Api(_) => return None,
        };
        Some(EngineError::Busy { reason, retry_after })
    }

    pub(crate) fn hint(&self) -> Option<&'static str> {
        let Self::Api(status) = self else { return None };
        match status.code {
            401 => Some("the server's credentials for the cluster are not valid, or have expired"),
            403 if status.message.contains("PodSecurity") => Some(
                "the namespace's PodSecurity level refuses the pod: see the settings kubernetes_template and docs/KUBERNETES.md",
            ),
            403 => Some("the server's service account lacks a right: see the roles in docs/KUBERNETES.md"),
            404 => Some("the namespace is missing: kubernetes_namespace names one that exists"),
            _ => None,
        }
    }
}

fn is_busy(status: &Status) -> bool {
    matches!(status.code, 429 | 500 | 502 | 503 | 504)
}

fn retry_after(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
}

/// Repeats a call while the API server is away or busy. So `call` must be safe to repeat.
pub(crate) async fn call<T, F>(what: &str, call: impl Fn() -> F) -> Result<T, CallError>
where
    F: Future<Output = kube::Result<T>>,
{
    let end = Instant::now() + LIMIT;
    let mut pause = PAUSE;
    loop {
        let error = match timeout(ATTEMPT, call()).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(kube::Error::Api(status))) => CallError::Api(status),
            Ok(Err(error)) => CallError::Unreachable(with_sources(&error)),
            Err(_) => CallError::Unreachable(format!("no answer within {ATTEMPT:?}")),
        };
        let wait = match &error {
            CallError::Api(status) if !is_busy(status) => return Err(error),
            CallError::Api(status) => retry_after(status).unwrap_or(pause),
            CallError::Unreachable(_) => pause,
        };
        if Instant::now() + wait > end {
            return Err(error);
        }
        tracing::debug!(what, %error, "a call of the cluster's API is repeated");
        sleep(wait).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn status(code: u16, message: &str) -> Box<Status> {
        Box::new(Status { code, message: message.to_owned(), ..Status::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_repeated_until_it_is_answered() {
        let calls = AtomicU32::new(0);
        let done = call("test", || async {
            match calls.fetch_add(1, Ordering::Relaxed) {
                0 => Err(kube::Error::Api(status(429, "slow down"))),
                1 => Err(kube::Error::Service("refused".into())),
                _ => Ok(7),
            }
        });
        assert_eq!(done.await.unwrap(), 7);
        let refused = call("test", || async { Err::<(), _>(kube::Error::Api(status(403, "no"))) }).await;
        assert!(matches!(refused, Err(CallError::Api(status)) if status.code == 403));
        let away = call("test", || async { Err::<(), _>(kube::Error::Service("refused".into())) }).await.unwrap_err();
        assert!(matches!(away.at_stage("pod"), EngineError::Busy { .. }));
    }

    #[test]
    fn errors_say_what_helps() {
        let error = |code, message| CallError::Api(status(code, message)).at_stage("pod");
        assert!(matches!(error(403, "pods \"a\" is forbidden: exceeded quota: q"), EngineError::Busy { .. }));
        assert!(error(403, "pods is forbidden: no right").hint().unwrap().contains("right"));
        assert!(error(403, "violates PodSecurity \"restricted:latest\"").hint().unwrap().contains("PodSecurity"));
        assert!(matches!(error(503, "starting"), EngineError::Busy { .. }));
        assert!(matches!(error(422, "name"), EngineError::Stage { .. }));
    }
}
