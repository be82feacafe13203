//! An engine without a kernel: sandboxes are entries in a map. It replaces the real engine in tests of control and the gateway
//! that concern everything around an engine: order, races, refusals, crashes.
//!
//! It outlives the control that uses it, as real sandboxes outlive the server. To test recovery, pass the same one to a new
//! control.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_engine::{
    BoundSecret, ClusterVolumes, Connection, Created, Ended, Engine, EngineError, Found, FoundState, HostCapacity, Quarantined,
    Recovery, Remains, Row, Storage, Usage,
};
use arenite_model::{Death, DeathReason, NetworkPolicy, SandboxId, SandboxSpec};
use async_trait::async_trait;
use tokio::io::DuplexStream;
use tokio::sync::{Notify, broadcast};

use crate::fake_cluster::FakeCluster;

/// The guest's side of a dial: receives the sandbox's id and its end of the connection.
pub type Guest = Arc<dyn Fn(SandboxId, DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Where tests can make the engine fail, wait or halt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    Reserve,
    Prepare,
    Adopt,
    /// Before anything of the sandbox is created.
    BeforeCreate,
    /// The sandbox exists, and control has not received the answer.
    AfterCreate,
    BeforeDestroy,
    /// The sandbox is gone, and control has not received the answer.
    AfterDestroy,
    Pause,
    Resume,
    Stop,
    /// Its processes have ended, and control has not received the answer.
    AfterStop,
    Restart,
    Dial,
    Activity,
    Recover,
    UpdateRow,
}

/// A call to the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineCall {
    Reserve(SandboxId),
    Prepare(SandboxId),
    Adopt(SandboxId),
    Create(SandboxId),
    Destroy(SandboxId),
    Pause(SandboxId),
    Resume(SandboxId),
    Stop(SandboxId),
    Restart(SandboxId),
    Dial(SandboxId),
    SetNetwork(SandboxId),
    Recover(Vec<SandboxId>),
    Close,
}

#[derive(Debug, Clone)]
enum Live {
    Running,
    Paused,
    /// Paused to its disk.
    Stopped,
    /// Only its disk is left.
    Lost(Death),
    /// Prepared and never used: removed at the next start.
    Unused,
    /// Without a record or any other explanation.
    Strange,
}

#[derive(Default)]
struct State {
    live: BTreeMap<SandboxId, Live>,
    specs: HashMap<SandboxId, SandboxSpec>,
    memos: HashMap<SandboxId, String>,
    calls: Vec<EngineCall>,
    delays: HashMap<Point, Duration>,
    failures: HashMap<Point, usize>,
    halts: HashMap<Point, Arc<Notify>>,
    yields: usize,
    capacity: Option<HostCapacity>,
    problems: Vec<String>,
    guest: Option<Guest>,
    usage: HashMap<SandboxId, Usage>,
    /// Work in sandboxes that continues without a call.
    working: HashMap<SandboxId, String>,
    volumes: Option<Arc<Storage>>,
    cluster_volumes: Option<Arc<dyn ClusterVolumes>>,
    secrets: HashMap<SandboxId, Vec<BoundSecret>>,
}

/// A fake [`Engine`]; see the module's documentation.
pub struct FakeEngine {
    state: Mutex<State>,
    ended: broadcast::Sender<Ended>,
    creating: AtomicUsize,
    most_creating: AtomicUsize,
    prepares: AtomicBool,
    stops: AtomicBool,
}

impl FakeEngine {
    /// Whether it may prepare anything ahead.
    pub fn prepares(&self) -> bool {
        self.prepares.load(Ordering::Acquire)
    }

    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            ended: broadcast::channel(1024).0,
            creating: AtomicUsize::new(0),
            most_creating: AtomicUsize::new(0),
            prepares: AtomicBool::new(true),
            stops: AtomicBool::new(true),
        })
    }

    /// What [`Engine::set_secrets`] set last for a sandbox.
    pub fn secrets(&self, id: &SandboxId) -> Vec<BoundSecret> {
        self.state().secrets.get(id).cloned().unwrap_or_default()
    }

    /// Forgets secrets, as the process of a real engine does at its end.
    pub fn forget_secrets(&self) {
        self.state().secrets.clear();
    }

    /// From now on, it can't pause sandboxes to their disks.
    pub fn refuse_stops(&self) {
        self.stops.store(false, Ordering::Release);
    }

    /// Delays every pass of this point by this time.
    pub fn delay(&self, point: Point, time: Duration) {
        self.state().delays.insert(point, time);
    }

    /// Lets other tasks run this many times at every point. Unlike a delay, it takes no time.
    pub fn yield_at_points(&self, times: usize) {
        self.state().yields = times;
    }

    /// The next `times` passes of this point fail.
    pub fn fail(&self, point: Point, times: usize) {
        self.state().failures.insert(point, times);
    }

    /// Halts every caller that reaches this point, for good. The returned `Notify` is notified when a caller does.
    pub fn halt(&self, point: Point) -> Arc<Notify> {
        Arc::clone(self.state().halts.entry(point).or_default())
    }

    /// Starts work of a client in a sandbox, or ends it.
    pub fn work(&self, id: &SandboxId, what: Option<&str>) {
        let mut state = self.state();
        match what {
            Some(what) => drop(state.working.insert(id.clone(), what.to_owned())),
            None => drop(state.working.remove(id)),
        }
    }

    /// Removes delays, failures and halts. Callers that are already halted stay halted.
    pub fn heal(&self) {
        let mut state = self.state();
        state.delays.clear();
        state.failures.clear();
        state.halts.clear();
    }

    /// Serves the guests' side of dials. Without it, connections are closed at once.
    pub fn serve<F, Fut>(&self, guest: F)
    where
        F: Fn(SandboxId, DuplexStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.state().guest = Some(Arc::new(move |id, stream| Box::pin(guest(id, stream))));
    }

    /// Where tenants' volumes are from now on. Without it, there are none.
    pub fn keep_volumes(&self, storage: Arc<Storage>) {
        self.state().volumes = Some(storage);
    }

    /// The cluster that has tenants' volumes from now on.
    pub fn keep_cluster_volumes(&self, cluster: Arc<FakeCluster>) {
        self.state().cluster_volumes = Some(cluster);
    }

    pub fn set_capacity(&self, capacity: HostCapacity) {
        self.state().capacity = Some(capacity);
    }

    /// What the sandbox's counters read from now on.
    pub fn set_usage(&self, id: &SandboxId, usage: Usage) {
        self.state().usage.insert(id.clone(), usage);
    }

    pub fn set_problems(&self, problems: &[&str]) {
        self.state().problems = problems.iter().map(|problem| (*problem).to_owned()).collect();
    }

    /// Ends the sandbox's guest, as if by itself.
    pub fn end(&self, id: &SandboxId, reason: &str) {
        self.end_by(id, Death::with_message(DeathReason::GuestFailed, reason));
    }

    /// The same, in a given way.
    pub fn end_by(&self, id: &SandboxId, death: Death) {
        self.state().live.insert(id.clone(), Live::Lost(death.clone()));
        // An error only means that no control runs.
        let _ = self.ended.send(Ended { id: id.clone(), death });
    }

    /// Reports the end of the sandbox's processes, and changes nothing.
    pub fn announce_end(&self, id: &SandboxId) {
        let _ = self.ended.send(Ended { id: id.clone(), death: Death::new(DeathReason::Unknown) });
    }

    /// Restarts the host: processes are gone, disks stay.
    pub fn reboot(&self) {
        for live in self.state().live.values_mut().filter(|live| !matches!(live, Live::Stopped)) {
            *live = Live::Lost(Death::new(DeathReason::HostLost));
        }
    }

    /// Adds a sandbox that was prepared and never used.
    pub fn leak(&self) -> SandboxId {
        self.put(Live::Unused)
    }

    /// Adds a sandbox without any explanation.
    pub fn put_strange(&self) -> SandboxId {
        self.put(Live::Strange)
    }

    /// Makes a sandbox's record unreadable.
    pub fn lose_record(&self, id: &SandboxId) {
        let mut state = self.state();
        state.live.insert(id.clone(), Live::Strange);
        state.memos.remove(id);
    }

    fn put(&self, live: Live) -> SandboxId {
        let id = SandboxId::random();
        self.state().live.insert(id.clone(), live);
        id
    }

    pub fn calls(&self) -> Vec<EngineCall> {
        self.state().calls.clone()
    }

    /// The ids of all sandboxes with anything left.
    pub fn ids(&self) -> Vec<SandboxId> {
        self.state().live.keys().cloned().collect()
    }

    /// The state in which a restarted server would find the sandbox.
    pub fn found(&self, id: &SandboxId) -> Option<FoundState> {
        self.state().live.get(id).and_then(found_state)
    }

    /// Whether the sandbox waits in a pool.
    pub fn is_pooled(&self, id: &SandboxId) -> bool {
        let state = self.state();
        state.live.contains_key(id) && !state.memos.contains_key(id)
    }

    pub fn is_running(&self, id: &SandboxId) -> bool {
        matches!(self.state().live.get(id), Some(Live::Running))
    }

    pub fn spec(&self, id: &SandboxId) -> Option<SandboxSpec> {
        self.state().specs.get(id).cloned()
    }

    /// The highest number of concurrent creates so far.
    pub fn most_creating(&self) -> usize {
        self.most_creating.load(Ordering::SeqCst)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn pass(&self, point: Point) -> Result<(), EngineError> {
        let (delay, fails, halt, yields) = {
            let mut state = self.state();
            let fails = match state.failures.get_mut(&point) {
                Some(left) if *left > 0 => {
                    *left -= 1;
                    true
                }
                _ => false,
            };
            (state.delays.get(&point).copied(), fails, state.halts.get(&point).cloned(), state.yields)
        };
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        if let Some(halt) = halt {
            halt.notify_one();
            std::future::pending::<()>().await;
        }
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        if fails {
            return Err(EngineError::Stage {
                stage: format!("{point:?}"),
                source: io::Error::other("the fake engine was told to fail"),
                hint: None,
            });
        }
        Ok(())
    }

    fn change(&self, id: &SandboxId, to: Live) -> Result<(), EngineError> {
        match self.state().live.get_mut(id) {
            Some(live) if !matches!(live, Live::Lost(_) | Live::Stopped) => {
                *live = to;
                Ok(())
            }
            _ => Err(EngineError::NotFound { id: id.clone() }),
        }
    }
}

fn found_state(live: &Live) -> Option<FoundState> {
    match live {
        Live::Running => Some(FoundState::Running),
        Live::Paused => Some(FoundState::Paused),
        Live::Stopped => Some(FoundState::Stopped),
        Live::Lost(death) => Some(FoundState::Lost(death.clone())),
        Live::Unused | Live::Strange => None,
    }
}

/// Counts a create while it is in progress, also if it is dropped midway.
struct Creating<'a>(&'a FakeEngine);

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        self.0.creating.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Engine for FakeEngine {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn reserve(&self) -> Result<SandboxId, EngineError> {
        self.pass(Point::Reserve).await?;
        let id = SandboxId::random();
        self.state().calls.push(EngineCall::Reserve(id.clone()));
        Ok(id)
    }

    async fn create(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        let id = &row.id;
        self.state().calls.push(EngineCall::Create(id.clone()));
        let now = self.creating.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_creating.fetch_max(now, Ordering::SeqCst);
        let _counted = Creating(self);
        self.pass(Point::BeforeCreate).await?;
        {
            let mut state = self.state();
            state.live.insert(id.clone(), Live::Running);
            state.specs.insert(id.clone(), spec.clone());
            state.memos.insert(id.clone(), row.memo.clone());
        }
        if let Err(error) = self.pass(Point::AfterCreate).await {
            self.state().live.remove(id);
            return Err(error);
        }
        Ok(Created {
            tier: spec.tier.unwrap_or_default(),
            isolation: vec!["fake".to_owned()],
            stages: vec![("fake", Duration::from_micros(1))],
        })
    }

    async fn restart(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        let id = &row.id;
        self.state().calls.push(EngineCall::Restart(id.clone()));
        self.pass(Point::Restart).await?;
        let mut state = self.state();
        match state.live.get_mut(id) {
            Some(live @ (Live::Lost(_) | Live::Stopped)) => *live = Live::Running,
            _ => return Err(EngineError::NotFound { id: id.clone() }),
        }
        state.specs.insert(id.clone(), spec.clone());
        Ok(Created { tier: spec.tier.unwrap_or_default(), isolation: vec!["fake".to_owned()], stages: Vec::new() })
    }

    /// It takes any policy, and enforces none.
    fn check_network_policy(&self, _policy: &NetworkPolicy) -> Result<(), EngineError> {
        Ok(())
    }

    async fn set_secrets(&self, id: &SandboxId, secrets: Vec<BoundSecret>) -> Result<(), EngineError> {
        self.state().secrets.insert(id.clone(), secrets);
        Ok(())
    }

    async fn set_network_policy(&self, id: &SandboxId, spec: &SandboxSpec, _close_open: bool) -> Result<(), EngineError> {
        let mut state = self.state();
        state.calls.push(EngineCall::SetNetwork(id.clone()));
        if let Some(known) = state.specs.get_mut(id) {
            known.network_policy.clone_from(&spec.network_policy);
            known.network_floor.clone_from(&spec.network_floor);
        }
        Ok(())
    }

    async fn prepare(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError> {
        self.pass(Point::Prepare).await?;
        let id = SandboxId::random();
        let mut state = self.state();
        state.calls.push(EngineCall::Prepare(id.clone()));
        state.live.insert(id.clone(), Live::Running);
        state.specs.insert(id.clone(), spec.clone());
        Ok(id)
    }

    async fn adopt(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        let id = &row.id;
        self.state().calls.push(EngineCall::Adopt(id.clone()));
        self.pass(Point::Adopt).await?;
        if !self.is_running(id) {
            return Err(EngineError::NotFound { id: id.clone() });
        }
        let mut state = self.state();
        state.specs.insert(id.clone(), spec.clone());
        state.memos.insert(id.clone(), row.memo.clone());
        Ok(Created {
            tier: spec.tier.unwrap_or_default(),
            isolation: vec!["fake".to_owned()],
            stages: vec![("adopt", Duration::from_micros(1))],
        })
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.state().calls.push(EngineCall::Destroy(id.clone()));
        self.pass(Point::BeforeDestroy).await?;
        {
            let mut state = self.state();
            state.live.remove(id);
            state.specs.remove(id);
            state.memos.remove(id);
        }
        self.pass(Point::AfterDestroy).await
    }

    fn keep_prepared(&self, keep: bool) {
        self.prepares.store(keep, Ordering::Release);
    }

    async fn activity(&self, id: &SandboxId) -> Result<Option<String>, EngineError> {
        self.pass(Point::Activity).await?;
        Ok(self.state().working.get(id).cloned())
    }

    async fn pause(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.state().calls.push(EngineCall::Pause(id.clone()));
        self.pass(Point::Pause).await?;
        self.change(id, Live::Paused)
    }

    async fn resume(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.state().calls.push(EngineCall::Resume(id.clone()));
        self.pass(Point::Resume).await?;
        self.change(id, Live::Running)
    }

    fn can_stop(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    async fn stop(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.state().calls.push(EngineCall::Stop(id.clone()));
        self.pass(Point::Stop).await?;
        self.change(id, Live::Stopped)?;
        self.pass(Point::AfterStop).await
    }

    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Connection>, EngineError> {
        self.state().calls.push(EngineCall::Dial(id.clone()));
        self.pass(Point::Dial).await?;
        if !self.is_running(id) {
            return Err(EngineError::NotFound { id: id.clone() });
        }
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let guest = self.state().guest.clone();
        if let Some(guest) = guest {
            tokio::spawn(guest(id.clone(), theirs));
        }
        Ok(Box::new(ours))
    }

    async fn update_row(&self, row: &Row) -> Result<(), EngineError> {
        self.pass(Point::UpdateRow).await?;
        self.state().memos.insert(row.id.clone(), row.memo.clone());
        Ok(())
    }

    async fn has_ended(&self, id: &SandboxId) -> bool {
        !matches!(self.state().live.get(id), Some(Live::Running | Live::Paused))
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, EngineError> {
        let state = self.state();
        let unset = || Usage { memory_bytes: 1 << 20, pids: 1, ..Usage::default() };
        match state.live.get(id) {
            Some(Live::Running | Live::Paused) => Ok(state.usage.get(id).cloned().unwrap_or_else(unset)),
            Some(Live::Stopped) => {
                let disk_bytes = state.usage.get(id).and_then(|usage| usage.disk_bytes);
                Ok(Usage { disk_bytes, ..Usage::default() })
            }
            _ => Err(EngineError::NotFound { id: id.clone() }),
        }
    }

    async fn recover(&self, known: &[Row]) -> Result<Recovery, EngineError> {
        self.state().calls.push(EngineCall::Recover(known.iter().map(|row| row.id.clone()).collect()));
        self.pass(Point::Recover).await?;
        let mut recovery = Recovery::default();
        let mut state = self.state();
        let State { live, memos, .. } = &mut *state;
        live.retain(|id, live| {
            let row = known.iter().find(|row| row.id == *id);
            let memo = memos.get(id).cloned();
            let is_here = !matches!(live, Live::Lost(death) if death.reason == DeathReason::HostLost);
            match found_state(live) {
                Some(_) if memo.is_none() && (row.is_none() || is_here) => {
                    recovery.unclaimed.extend(row.is_some().then(|| id.clone()));
                    recovery.removed.push(format!("sandbox {id}, made ahead, prepared and never used"));
                    return false;
                }
                Some(state) => {
                    // Its record follows its row.
                    if let Some(row) = row {
                        memos.insert(id.clone(), row.memo.clone());
                    }
                    let memo = row.map(|row| row.memo.clone()).or(memo);
                    recovery.found.push(Found { id: id.clone(), state, memo, tier: None, isolation: vec!["fake".to_owned()] });
                }
                None if matches!(live, Live::Unused) => {
                    recovery.removed.push(format!("sandbox {id}, prepared and never used"));
                    return false;
                }
                None => {
                    let (reason, since) = ("it has no record".to_owned(), jiff::Timestamp::UNIX_EPOCH);
                    recovery.quarantined.push(Quarantined { id: id.clone(), reason, since });
                }
            }
            true
        });
        Ok(recovery)
    }

    async fn take_back(&self, row: &Row) -> Result<Found, EngineError> {
        let mut state = self.state();
        let State { live, memos, .. } = &mut *state;
        let live = live.get_mut(&row.id).ok_or_else(|| EngineError::NotFound { id: row.id.clone() })?;
        if matches!(live, Live::Strange) {
            let message = "its record could not be read when it was adopted; its disk is kept";
            *live = Live::Lost(Death::with_message(DeathReason::RecordLost, message));
        }
        memos.insert(row.id.clone(), row.memo.clone());
        let state = found_state(live).expect("it is not strange any more");
        Ok(Found { id: row.id.clone(), state, memo: Some(row.memo.clone()), tier: None, isolation: vec!["fake".to_owned()] })
    }

    async fn remains(&self, id: &SandboxId) -> Result<Remains, EngineError> {
        let state = self.state();
        let live = state.live.get(id);
        Ok(Remains {
            processes: usize::from(matches!(live, Some(Live::Running | Live::Paused | Live::Strange))),
            has_disk: live.is_some(),
            disk_bytes: None,
            has_record: live.is_some_and(|live| found_state(live).is_some()),
        })
    }

    fn ended(&self) -> broadcast::Receiver<Ended> {
        self.ended.subscribe()
    }

    async fn capacity(&self) -> Result<HostCapacity, EngineError> {
        Ok(self.state().capacity.unwrap_or(HostCapacity {
            memory_available_bytes: 64 << 30,
            memory_total_bytes: 64 << 30,
            disk_available_bytes: 1 << 40,
            disk_total_bytes: 1 << 40,
            ..HostCapacity::default()
        }))
    }

    fn volumes(&self) -> Option<Arc<Storage>> {
        self.state().volumes.clone()
    }

    fn cluster_volumes(&self) -> Option<Arc<dyn ClusterVolumes>> {
        self.state().cluster_volumes.clone()
    }

    async fn health(&self) -> Vec<String> {
        self.state().problems.clone()
    }

    async fn close(&self) {
        self.state().calls.push(EngineCall::Close);
    }
}
