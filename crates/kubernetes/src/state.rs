//! What the cluster says about pods: a view of each, kept up to date by a watch.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_model::{Death, DeathReason, SandboxId};
use futures_util::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, Event as KubeEvent, Pod, PodStatus};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::Api;
use crate::pod::CONTAINER;
use crate::record::sandbox_of;

/// How long a failing watch is not yet a problem of the server's health.
const WATCH_GRACE: Duration = Duration::from_secs(10);
/// Reasons for which a container waits and that don't pass by themselves.
const STUCK: [&str; 9] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
];

/// A pod as the engine needs it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodView {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) phase: Phase,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Phase {
    /// It has not started. Why not, if Kubernetes says so.
    Waiting(Option<Obstacle>),
    /// Its main container runs, and it has this address.
    Running(IpAddr),
    Ended(Death),
}

/// Why a pod does not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obstacle {
    /// Kubernetes' reason and message.
    pub(crate) text: String,
    pub(crate) kind: ObstacleKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObstacleKind {
    /// No node fits; one that is added may.
    Unschedulable,
    /// A volume can't be attached or mounted. It is tried again.
    Mount,
    /// Its image or its configuration.
    Container,
}

/// The pods of an installation.
#[derive(Default)]
pub(crate) struct Pods {
    views: Mutex<HashMap<SandboxId, PodView>>,
    changed: watch::Sender<()>,
    /// Since when the watch fails, and why.
    problem: Mutex<Option<(Instant, String)>>,
}

/// A pod ended or is gone.
pub(crate) struct PodEnd {
    pub(crate) id: SandboxId,
    pub(crate) uid: String,
    pub(crate) death: Death,
}

impl Pods {
    fn views(&self) -> MutexGuard<'_, HashMap<SandboxId, PodView>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn problem_lock(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, id: &SandboxId) -> Option<PodView> {
        self.views().get(id).cloned()
    }

    /// Why the watch fails, if it has for a while.
    pub(crate) fn problem(&self) -> Option<String> {
        let problem = self.problem_lock().clone();
        problem.filter(|(since, _)| since.elapsed() > WATCH_GRACE).map(|(_, why)| why)
    }

    /// Waits until `check` answers for a sandbox's pod. `check` gets None while the cluster has not shown the pod, or no longer
    /// has it.
    pub(crate) async fn wait<T>(&self, id: &SandboxId, mut check: impl FnMut(Option<&PodView>) -> Option<T>) -> T {
        let mut changes = self.changed.subscribe();
        loop {
            let answer = check(self.views().get(id));
            if let Some(answer) = answer {
                return answer;
            }
            // The sender is `self`.
            let _ = changes.changed().await;
        }
    }

    /// What a create was answered, before the watch shows it.
    pub(crate) fn learn(&self, id: &SandboxId, pod: &Pod) {
        if let Some(view) = view_of(pod) {
            // The watch may have been faster, and know more.
            self.views().entry(id.clone()).or_insert(view);
        }
    }

    fn put(&self, pod: &Pod) -> Option<PodEnd> {
        let (id, mut view) = (sandbox_of(&pod.metadata)?, view_of(pod)?);
        let end = match &view.phase {
            Phase::Ended(death) => Some(PodEnd { id: id.clone(), uid: view.uid.clone(), death: death.clone() }),
            _ => None,
        };
        let mut views = self.views();
        // An event may have named it before the pod's status does.
        if let (Phase::Waiting(None), Some(before)) = (&view.phase, views.get(&id).filter(|before| before.uid == view.uid))
            && matches!(before.phase, Phase::Waiting(Some(Obstacle { kind: ObstacleKind::Mount | ObstacleKind::Container, .. })))
        {
            view.phase = before.phase.clone();
        }
        views.insert(id, view);
        drop(views);
        self.changed.send_replace(());
        end
    }

    /// A container could not be started, or a volume not be mounted, says the cluster.
    fn learn_failure(&self, event: &KubeEvent) {
        let (Some(uid), Some(message)) = (&event.involved_object.uid, &event.message) else { return };
        let kind = match event.reason.as_deref() {
            Some("Failed") => ObstacleKind::Container,
            Some("FailedAttachVolume" | "FailedMount") => ObstacleKind::Mount,
            _ => return,
        };
        let may_learn = |phase: &Phase| match phase {
            Phase::Waiting(obstacle) => obstacle.as_ref().is_none_or(|obstacle| obstacle.kind == ObstacleKind::Mount),
            Phase::Running(_) | Phase::Ended(_) => false,
        };
        let mut views = self.views();
        let waiting = |view: &&mut PodView| view.uid == *uid && may_learn(&view.phase);
        let Some(view) = views.values_mut().find(waiting) else { return };
        view.phase = Phase::Waiting(Some(Obstacle { text: message.clone(), kind }));
        drop(views);
        self.changed.send_replace(());
    }

    /// Follows events of containers that don't start and of volumes that can't be mounted. A pod's status says the former up to
    /// ten seconds later, so without the right to read events, creates only fail later.
    pub(crate) async fn follow_failures(self: Arc<Self>, api: Api) {
        let config = watcher::Config::default().fields("involvedObject.kind=Pod,type=Warning");
        let events = watch_objects(api.events, config).default_backoff().applied_objects();
        pin_mut!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.learn_failure(&event),
                Err(error) => tracing::debug!(%error, "the watch of the cluster's events failed, and is repeated"),
            }
        }
    }

    fn remove(&self, id: &SandboxId, uid: &str) -> Option<PodEnd> {
        let mut views = self.views();
        let view = views.get(id).filter(|view| view.uid == uid)?.clone();
        views.remove(id);
        drop(views);
        self.changed.send_replace(());
        let death = match view.phase {
            Phase::Ended(death) => death,
            _ => deleted(),
        };
        Some(PodEnd { id: id.clone(), uid: view.uid, death })
    }

    /// Follows the cluster's pods. Ends of pods go to `ended`.
    pub(crate) async fn follow(self: Arc<Self>, api: Api, ended: impl Fn(PodEnd) + Send) {
        let config = watcher::Config::default().labels(&api.selector());
        let events = watch_objects(api.pods.clone(), config).default_backoff();
        pin_mut!(events);
        // What a list has shown so far.
        let mut listed: Option<HashMap<SandboxId, String>> = None;
        while let Some(event) = events.next().await {
            match event {
                Err(error) => {
                    tracing::warn!(%error, "the watch of the cluster's pods failed, and is repeated");
                    self.problem_lock().get_or_insert_with(|| (Instant::now(), error.to_string()));
                    continue;
                }
                Ok(Event::Init) => listed = Some(HashMap::new()),
                Ok(Event::InitApply(pod)) => {
                    if let (Some(listed), Some(id), Some(uid)) = (&mut listed, sandbox_of(&pod.metadata), &pod.metadata.uid) {
                        listed.insert(id, uid.clone());
                    }
                    self.put(&pod).into_iter().for_each(&ended);
                }
                Ok(Event::InitDone) => {
                    let listed = listed.take().unwrap_or_default();
                    let known: Vec<_> = self.views().iter().map(|(id, view)| (id.clone(), view.uid.clone())).collect();
                    let gone = known.into_iter().filter(|(id, uid)| listed.get(id) != Some(uid));
                    gone.filter_map(|(id, uid)| self.remove(&id, &uid)).for_each(&ended);
                }
                Ok(Event::Apply(pod)) => self.put(&pod).into_iter().for_each(&ended),
                Ok(Event::Delete(pod)) => {
                    if let (Some(id), Some(uid)) = (sandbox_of(&pod.metadata), &pod.metadata.uid) {
                        // Its last state says how it ended.
                        let _ = self.put(&pod);
                        self.remove(&id, uid).into_iter().for_each(&ended);
                    }
                }
            }
            *self.problem_lock() = None;
        }
    }
}

/// None: not a pod that the API server stored.
pub(crate) fn view_of(pod: &Pod) -> Option<PodView> {
    let uid = pod.metadata.uid.clone()?;
    let phase = match pod.status.as_ref().map_or(Phase::Waiting(None), phase_of) {
        // Its guest exits when it is asked to.
        Phase::Ended(death) if death.reason == DeathReason::Exit && pod.metadata.deletion_timestamp.is_some() => {
            Phase::Ended(deleted())
        }
        phase => phase,
    };
    let name = pod.metadata.name.clone().unwrap_or_default();
    Some(PodView { name, uid, phase })
}

fn deleted() -> Death {
    Death::with_message(DeathReason::Killed, "its pod was deleted from the cluster")
}

fn phase_of(status: &PodStatus) -> Phase {
    let all = || {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten())
    };
    let main = status.container_statuses.iter().flatten().find(|one| one.name == CONTAINER);
    let state = main.and_then(|one| one.state.as_ref());
    if let Some(ContainerState { terminated: Some(ended), .. }) = state {
        return Phase::Ended(death_of(status, Some(ended)));
    }
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        let ended = all().find_map(|one| one.state.as_ref()?.terminated.as_ref().filter(|ended| ended.exit_code != 0));
        return Phase::Ended(death_of(status, ended));
    }
    let is_running = state.is_some_and(|state| state.running.is_some());
    if let (true, Some(ip)) = (is_running, status.pod_ip.as_ref().and_then(|ip| ip.parse().ok())) {
        return Phase::Running(ip);
    }
    let stuck = all().find_map(|one| {
        let waiting = one.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().filter(|reason| STUCK.contains(reason))?;
        Some(Obstacle { text: text_of(reason, waiting.message.as_deref()), kind: ObstacleKind::Container })
    });
    let unschedulable = || {
        let condition = status.conditions.iter().flatten().find(|one| one.type_ == "PodScheduled" && one.status == "False")?;
        let reason = condition.reason.as_deref().filter(|reason| *reason == "Unschedulable")?;
        Some(Obstacle { text: text_of(reason, condition.message.as_deref()), kind: ObstacleKind::Unschedulable })
    };
    Phase::Waiting(stuck.or_else(unschedulable))
}

fn text_of(reason: &str, message: Option<&str>) -> String {
    message.map_or_else(|| reason.to_owned(), |message| format!("{reason}: {message}"))
}

fn death_of(status: &PodStatus, ended: Option<&ContainerStateTerminated>) -> Death {
    // The kubelet's reason for the whole pod, such as Evicted.
    if let Some(reason) = status.reason.as_deref() {
        let text = format!("Kubernetes ended its pod: {}", text_of(reason, status.message.as_deref()));
        return Death::with_message(DeathReason::Killed, text);
    }
    let Some(ended) = ended else { return Death::new(DeathReason::Unknown) };
    if ended.reason.as_deref() == Some("OOMKilled") {
        return Death::new(DeathReason::Oom);
    }
    let status = ended.exit_code;
    let death = match status {
        137 => Death::with_message(DeathReason::Killed, "its guest was killed with SIGKILL"),
        status => Death::with_message(DeathReason::Exit, format!("its guest exited with status {status}")),
    };
    Death { exit_status: Some(status), signal: ended.signal, ..death }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn phase(status: serde_json::Value) -> Phase {
        phase_of(&serde_json::from_value(status).unwrap())
    }

    #[test]
    fn phases_come_from_what_kubernetes_says() {
        let main = |state: serde_json::Value| {
            json!({"phase": "Running", "podIP": "10.0.0.7", "containerStatuses": [{
                "name": CONTAINER, "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state,
            }]})
        };
        assert_eq!(phase(json!({})), Phase::Waiting(None));
        assert_eq!(phase(main(json!({"running": {}}))), Phase::Running("10.0.0.7".parse().unwrap()));
        let Phase::Waiting(Some(obstacle)) =
            phase(main(json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}})))
        else {
            panic!()
        };
        assert_eq!((obstacle.text.as_str(), obstacle.kind), ("ErrImagePull: no such image", ObstacleKind::Container));
        assert_eq!(phase(main(json!({"waiting": {"reason": "ContainerCreating"}}))), Phase::Waiting(None));
        let Phase::Ended(death) = phase(main(json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}))) else { panic!() };
        assert_eq!(death.reason, DeathReason::Oom);
        let Phase::Ended(death) = phase(json!({"phase": "Failed", "reason": "Evicted", "message": "disk"})) else { panic!() };
        assert_eq!(death.message, "Kubernetes ended its pod: Evicted: disk");
        let Phase::Waiting(Some(obstacle)) = phase(json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"},
        ]})) else {
            panic!()
        };
        assert_eq!(obstacle.kind, ObstacleKind::Unschedulable);
    }

    #[test]
    fn an_event_names_an_obstacle_before_the_pods_status() {
        let pods = Pods::default();
        let id = SandboxId::random();
        let pod = |status: serde_json::Value| -> Pod {
            let metadata = json!({"uid": "u", "labels": {crate::SANDBOX: id.as_str()}});
            serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
        };
        let event_of = |uid: &str, reason: &str, message: &str| -> KubeEvent {
            let of = json!({"kind": "Pod", "uid": uid});
            serde_json::from_value(json!({"metadata": {}, "involvedObject": of, "reason": reason, "message": message})).unwrap()
        };
        let event = |uid: &str| event_of(uid, "Failed", "Failed to pull image \"a\"");
        let obstacle = || match pods.get(&id).unwrap().phase {
            Phase::Waiting(obstacle) => obstacle.map(|obstacle| obstacle.text),
            other => panic!("{other:?}"),
        };
        pods.put(&pod(json!({"phase": "Pending"})));
        pods.learn_failure(&event("another"));
        pods.learn_failure(&event_of("u", "BackOff", "Back-off restarting"));
        assert_eq!(obstacle(), None);
        // A mount is tried again, so what follows says more.
        pods.learn_failure(&event_of("u", "FailedMount", "no such device"));
        pods.put(&pod(json!({"phase": "Pending"})));
        assert_eq!(obstacle().as_deref(), Some("no such device"));
        pods.learn_failure(&event("u"));
        assert_eq!(obstacle().as_deref(), Some("Failed to pull image \"a\""));
        // Its status does not say it yet.
        pods.put(&pod(json!({"phase": "Pending"})));
        assert!(obstacle().is_some());
        let running =
            json!({"name": CONTAINER, "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}});
        pods.put(&pod(json!({"phase": "Running", "podIP": "10.0.0.7", "containerStatuses": [running]})));
        pods.learn_failure(&event("u"));
        assert!(matches!(pods.get(&id).unwrap().phase, Phase::Running(_)), "an old event");
    }

    #[test]
    fn a_pod_that_was_scheduled_has_no_obstacle_any_more() {
        let pods = Pods::default();
        let id = SandboxId::random();
        let put = |scheduled: &str| {
            let condition =
                json!({"type": "PodScheduled", "status": scheduled, "reason": "Unschedulable", "message": "no claim"});
            let metadata = json!({"uid": "u", "labels": {crate::SANDBOX: id.as_str()}});
            let status = json!({"phase": "Pending", "conditions": [condition]});
            pods.put(&serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap());
            pods.get(&id).unwrap().phase
        };
        assert!(matches!(put("False"), Phase::Waiting(Some(_))));
        assert_eq!(put("True"), Phase::Waiting(None));
    }

    #[test]
    fn an_older_pod_of_the_same_name_takes_nothing_away() {
        let pods = Pods::default();
        let id = SandboxId::random();
        let pod = |uid: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"uid": uid, "labels": {crate::SANDBOX: id.as_str()}}})).unwrap()
        };
        assert!(pods.put(&pod("new")).is_none());
        assert!(pods.remove(&id, "old").is_none());
        assert_eq!(pods.get(&id).unwrap().uid, "new");
        assert_eq!(pods.remove(&id, "new").unwrap().death.reason, DeathReason::Killed);
        assert_eq!(pods.get(&id), None);
    }
}
