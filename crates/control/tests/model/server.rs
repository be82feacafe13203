//! One life of a server, from its start to its end or its crash: does the steps, and compares it with the model.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::FakeEngine;
use arenite_control::store::{self, RecordKind, Store};
use arenite_control::tenants::Denied;
use arenite_control::usage::{UsageGroup, UsageQuery};
use arenite_control::{Control, ControlConfig, ControlError, InProgress, Lease, Sandbox};
use arenite_engine::FoundState;
use arenite_model::{SandboxId, SandboxName, SandboxState, TenantId};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::events::Followed;
use crate::op::{GROUPS, Op, Step, TENANTS};
use crate::perform::{perform, tenant_id};
use crate::state::{Bound, KEPT, MAX_SANDBOXES, Model, Outcome, Rivals, group_text};
use crate::support::cluster::{Cluster, url};

/// A server that does not answer for this long is stuck. Real time: the servers' own time stands still.
const PATIENCE: Duration = Duration::from_secs(20);
/// Waits are longer by this, so that no deadline is met exactly: timers may be late by a millisecond.
const BEYOND: Duration = Duration::from_millis(7);

thread_local! {
    /// The time of the test at an instant.
    static TIME: Cell<Option<(Timestamp, Instant)>> = const { Cell::new(None) };
    /// A task panicked.
    pub(crate) static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// The host's clock, as the servers read it.
fn time() -> Timestamp {
    let (then, instant) = TIME.get().expect("the time of the test is set");
    then + instant.elapsed()
}

/// Where a server keeps its data.
pub(crate) struct ServerHome<'a> {
    pub(crate) dir: tempfile::TempDir,
    /// With the name of a database in it.
    pub(crate) cluster: Option<(&'a Cluster, String)>,
}

impl ServerHome<'_> {
    /// Opens the store, which a killed server may just be leaving.
    async fn open(&self) -> Result<Arc<dyn Store>, String> {
        // The wait for the other session takes time.
        tokio::time::resume();
        let opened = tokio::time::timeout(PATIENCE, self.open_free()).await;
        tokio::time::pause();
        opened.map_err(|_| "the store of the killed server does not get free".to_owned())?
    }

    async fn open_free(&self) -> Result<Arc<dyn Store>, String> {
        let address = match &self.cluster {
            Some((cluster, database)) => {
                self.wait_for_sessions(cluster, database).await;
                Some(url(cluster.dir(), database).parse().map_err(|error| format!("{error:?}"))?)
            }
            None => None,
        };
        loop {
            match store::open(self.dir.path(), address.as_ref()).await {
                Err(ControlError::StoreInUse { .. }) => tokio::time::sleep(Duration::from_millis(1)).await,
                opened => return opened.map_err(|error| error.to_string()),
            }
        }
    }

    async fn wait_for_sessions(&self, cluster: &Cluster, database: &str) {
        let client = cluster.client().await;
        loop {
            let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1";
            if client.query_one(others, &[&database]).await.is_ok_and(|row| row.get::<_, i64>(0) == 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn config(&self) -> ControlConfig {
        let mut config = ControlConfig::new(self.dir.path().to_owned(), "base".parse().expect("an image"));
        config.tenants = true;
        config.host_clock = time;
        config.lost_keep = KEPT;
        config.limits.max_sandboxes = MAX_SANDBOXES;
        config.limits.max_concurrent_creates = 64;
        config.pools = vec![("base".to_owned(), 2)];
        config
    }
}

/// How a life of a server ended.
pub(crate) enum Ended {
    /// All steps are done.
    Finished,
    Stopped(Stopped),
}

pub(crate) struct Stopped {
    /// What ran when it was killed, with the answers that came before.
    during: Vec<(Bound, Option<Outcome>)>,
    /// When these began.
    begun: Timestamp,
    down: Duration,
    is_rebooted: bool,
    in_order: bool,
}

pub(crate) struct Server {
    control: Arc<Control>,
    store: Arc<dyn Store>,
    engine: Arc<FakeEngine>,
    leases: Vec<(u8, Lease)>,
    followed: Followed,
}

/// Waits in real time, while other tasks run.
async fn pause(time: Duration) {
    // A closed runtime ends the test anyway.
    let _ = tokio::task::spawn_blocking(move || std::thread::sleep(time)).await;
}

/// The result of work that takes none of the servers' time.
async fn patiently<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let begun = std::time::Instant::now();
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            () = pause(Duration::from_millis(20)) => {}
        }
        if begun.elapsed() > PATIENCE {
            return Err("an operation does not end".to_owned());
        }
    }
}

/// All orders of a few things.
fn orders(number: usize) -> Vec<Vec<usize>> {
    match number {
        0 => vec![Vec::new()],
        _ => orders(number - 1)
            .into_iter()
            .flat_map(|order| {
                (0..number).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, number - 1);
                    order
                })
            })
            .collect(),
    }
}

impl Server {
    /// Starts a server on what the one before left.
    async fn start(
        home: &ServerHome<'_>,
        engine: &Arc<FakeEngine>,
        model: &mut Model,
        before: Option<&Stopped>,
    ) -> Result<Self, String> {
        let store = home.open().await?;
        let rows = store.load().await.map_err(|error| error.to_string())?;
        model.begin_step();
        if let Some(stopped) = before {
            model.reconcile(&rows, engine, &records(&*store).await?, &stopped.during, stopped.begun, stopped.is_rebooted)?;
            model.reconcile_groups(&groups(&*store).await?, &stopped.during)?;
            if !stopped.in_order {
                model.crash(stopped.is_rebooted, &stopped.during);
            }
            if stopped.is_rebooted {
                engine.reboot();
            }
            model.now += stopped.down;
        }
        TIME.set(Some((model.now, Instant::now())));
        let running: Arc<FakeEngine> = Arc::clone(engine);
        let started = patiently(Control::start_with(home.config(), running, Arc::clone(&store))).await?;
        let control = started.map_err(|error| format!("the server does not start: {error}"))?;
        let followed = Followed::new(control.read_events(None), &rows);
        let server = Self { control, store, engine: Arc::clone(engine), leases: Vec::new(), followed };
        match before {
            Some(stopped) => model.restart(stopped.is_rebooted),
            None => {
                for tenant in 0..TENANTS.len() as u8 {
                    let tenants = server.control.tenants().expect("tenants are on");
                    tenants.create(tenant_id(tenant)).await.map_err(|error| error.to_string())?;
                }
            }
        }
        // Timers that are due at once, such as that of the first sample, also need some time.
        server.wait(0).await?;
        model.now = time();
        model.reap();
        Ok(server)
    }

    /// Does a step, and returns the model that agrees with the server, or how its life ended.
    async fn step(&mut self, model: &mut Model, step: &Step, number: usize) -> Result<Option<Stopped>, String> {
        model.begin_step();
        self.engine.yield_at_points(number % 4);
        let faults = match step {
            Step::One(op) => {
                let bound = model.bind(op);
                self.do_alone(&bound, model, &Rivals::default()).await?;
                0
            }
            Step::Faulty(op, point, times) => {
                let bound = model.bind(op);
                self.engine.fail(*point, *times);
                self.do_alone(&bound, model, &Rivals { ops: Vec::new(), faults: *times }).await?;
                self.engine.heal();
                *times
            }
            Step::Together(ops) => {
                let bounds: Vec<Bound> = ops.iter().map(|op| model.bind(op)).collect();
                let tasks: Vec<_> =
                    bounds.iter().map(|bound| tokio::spawn(perform(Arc::clone(&self.control), bound.clone()))).collect();
                let mut outcomes = Vec::new();
                for task in tasks {
                    let (outcome, _lease) = patiently(task).await?.map_err(|error| format!("an operation panicked: {error}"))?;
                    outcomes.push(outcome);
                }
                *model = self.agree(model, &bounds, &outcomes).await?;
                return Ok(None);
            }
            Step::Crash { during, moments, down, reboot } => {
                let (begun, during) = (time(), self.interrupt(model, during, *moments).await);
                model.now = time();
                let (down, is_rebooted) = (Duration::from_secs(*down), *reboot);
                return Ok(Some(Stopped { during, begun, down, is_rebooted, in_order: false }));
            }
            Step::Restart { down } => {
                patiently(self.control.stop(false)).await?;
                let (down, during, begun) = (Duration::from_secs(*down), Vec::new(), time());
                return Ok(Some(Stopped { during, begun, down, is_rebooted: false, in_order: true }));
            }
        };
        *model = self.settle(vec![model.clone()], faults).await?;
        Ok(None)
    }

    async fn do_alone(&mut self, bound: &Bound, model: &mut Model, rivals: &Rivals) -> Result<(), String> {
        match &bound.op {
            Op::Wait(seconds) => {
                self.wait(*seconds).await?;
                // The reaper tries again after a second if another change of a sandbox is in progress.
                pause(Duration::from_millis(1)).await;
                self.wait(1).await?;
            }
            Op::Release(tenant) => self.leases.retain(|(of, _)| of != tenant),
            Op::End(target) => {
                let alive =
                    model.owned_by(target.tenant).find(|held| Some(&held.row.name) == bound.name.as_ref() && held.is_alive());
                if let Some(held) = alive {
                    self.engine.end(&held.row.id, "the test ended it");
                }
            }
            _ => {}
        }
        let (outcome, lease) = patiently(perform(Arc::clone(&self.control), bound.clone())).await?;
        self.leases.extend(lease.map(|lease| (bound.op.tenant().expect("a lease has one"), lease)));
        model.now = time();
        model.apply(bound, &outcome, rivals)
    }

    /// Moves the time. What the server writes by itself is written before: a write in the middle would take too long.
    async fn wait(&self, seconds: u64) -> Result<(), String> {
        for _ in 0..6 {
            self.store.check().await.map_err(|error| format!("the store failed: {error}"))?;
            tokio::task::yield_now().await;
        }
        tokio::time::advance(Duration::from_secs(seconds) + BEYOND).await;
        Ok(())
    }

    /// Starts operations, and leaves them after some moments.
    async fn interrupt(&self, model: &Model, during: &[Op], moments: u32) -> Vec<(Bound, Option<Outcome>)> {
        let bounds: Vec<Bound> = during.iter().map(|op| model.bind(op)).collect();
        let mut tasks = Vec::new();
        for bound in &bounds {
            if let Op::Wait(seconds) = bound.op {
                // Its failure is that of the next start.
                let _ = self.wait(seconds).await;
            }
            tasks.push(tokio::spawn(perform(Arc::clone(&self.control), bound.clone())));
        }
        for moment in 0..moments {
            tokio::task::yield_now().await;
            if moment % 4 == 3 {
                pause(Duration::from_micros(30)).await;
            }
        }
        let mut left = Vec::new();
        for (bound, task) in bounds.into_iter().zip(tasks) {
            let outcome = if task.is_finished() { task.await.ok().map(|(outcome, _)| outcome) } else { None };
            left.push((bound, outcome));
        }
        left
    }

    /// Finds an order of concurrent operations that explains their answers and what they left.
    async fn agree(&mut self, model: &Model, bounds: &[Bound], outcomes: &[Outcome]) -> Result<Model, String> {
        let (mut explained, mut reasons) = (Vec::new(), BTreeSet::new());
        for order in orders(bounds.len()) {
            let mut tried = model.clone();
            let done = order.iter().try_for_each(|at| {
                let others = bounds.iter().enumerate().filter(|(other, _)| other != at).map(|(_, bound)| bound.clone());
                let rivals = Rivals { ops: others.collect(), faults: 0 };
                tried
                    .apply(&bounds[*at], &outcomes[*at], &rivals)
                    .map_err(|reason| format!("{order:?}: operation {at}: {reason}"))
            });
            match done {
                Ok(()) => explained.push(tried),
                Err(reason) => drop(reasons.insert(reason)),
            }
        }
        if explained.is_empty() {
            let reasons: Vec<String> = reasons.into_iter().collect();
            return Err(format!("no order explains the answers {outcomes:?}:\n{}", reasons.join("\n")));
        }
        self.settle(explained, 0).await
    }

    /// Waits until the server agrees with one of the models.
    async fn settle(&mut self, models: Vec<Model>, faults: usize) -> Result<Model, String> {
        let begun = std::time::Instant::now();
        loop {
            let seen = self.control.list_all();
            let rows = self.store.load().await.map_err(|error| format!("the store failed: {error}"))?;
            self.followed.read()?;
            if PANICKED.get() {
                return Err("a task panicked".to_owned());
            }
            let mut reasons = Vec::new();
            for model in &models {
                let mut model = model.clone();
                model.keep_undeleted(&seen, faults);
                match self.compare(&model, &seen, &rows) {
                    Ok(()) => return Ok(model),
                    Err(reason) => reasons.push(reason),
                }
            }
            if begun.elapsed() > PATIENCE / 2 {
                return Err(format!("the server and the model differ: {}", reasons.join("\nor: ")));
            }
            pause(Duration::from_micros(100)).await;
        }
    }

    fn compare(&self, model: &Model, seen: &[Sandbox], rows: &[Sandbox]) -> Result<(), String> {
        let shape = |row: &Sandbox| {
            let above = row.provenance.ancestors.len();
            (row.id.clone(), (row.tenant.clone(), row.name.clone(), row.state, row.expires_at, above))
        };
        let expected: BTreeMap<_, _> = model.sandboxes.values().map(|held| shape(&held.row)).collect();
        for (what, found) in [("sandboxes", seen), ("rows", rows)] {
            let found: BTreeMap<_, _> = found.iter().map(shape).collect();
            if found != expected {
                let missing: Vec<_> = expected.iter().filter(|(id, shape)| found.get(*id) != Some(*shape)).collect();
                let other: Vec<_> = found.iter().filter(|(id, shape)| expected.get(*id) != Some(*shape)).collect();
                return Err(format!("{what}: expected {missing:?}, found {other:?}"));
            }
        }
        self.compare_engine(model)?;
        self.followed.check(seen)?;
        let leases = model.sandboxes.values().map(|held| held.leases).sum();
        let (expected, found) = (InProgress { leases, ..InProgress::default() }, self.control.in_progress());
        if found != expected {
            return Err(format!("in progress: expected {expected:?}, found {found:?}"));
        }
        (0..TENANTS.len() as u8).try_for_each(|tenant| self.compare_tenant(model, tenant))
    }

    fn compare_engine(&self, model: &Model) -> Result<(), String> {
        let mut others: BTreeSet<SandboxId> = self.engine.ids().into_iter().collect();
        for (id, held) in &model.sandboxes {
            let found = self.engine.found(id);
            others.remove(id);
            let is_right = match held.row.state {
                SandboxState::Running => found == Some(FoundState::Running),
                SandboxState::Paused => found == Some(FoundState::Paused),
                SandboxState::Failed | SandboxState::Lost => matches!(found, Some(FoundState::Lost(_))),
                // How far its removal came before it failed is open.
                _ => true,
            };
            if !is_right {
                return Err(format!("the engine has {found:?} of sandbox {} in state {}", held.row.name, held.row.state));
            }
        }
        let pooled = self.control.counters().pooled;
        if others.len() as u64 != pooled {
            return Err(format!("the pools have {pooled} sandboxes, and the engine has these without a row: {others:?}"));
        }
        Ok(())
    }

    fn compare_tenant(&self, model: &Model, tenant: u8) -> Result<(), String> {
        let (id, expected) = (tenant_id(tenant), &model.tenants[usize::from(tenant)]);
        let reserved = self.control.reserved(&id);
        let found = [reserved.sandboxes, reserved.cpu_millis, reserved.memory_bytes, reserved.disk_bytes];
        if found != model.reserved(tenant) {
            return Err(format!("{id} reserves {found:?}, expected {:?}", model.reserved(tenant)));
        }
        if self.control.has_sandboxes(&id) != (found[0] > 0) {
            return Err(format!("{id} has {} sandboxes, and the server keeps something for it", found[0]));
        }
        let groups =
            self.control.groups(&id).into_iter().map(|group| (group.name.to_string(), group.expires_at, group.is_ending));
        let groups: Vec<_> = groups.collect();
        let known: Vec<_> =
            expected.groups.iter().map(|(group, known)| (group_text(*group), known.expires_at, known.is_ending)).collect();
        if groups != known {
            return Err(format!("{id} has the groups {groups:?}, expected {known:?}"));
        }
        let tenants = self.control.tenants().expect("tenants are on");
        if tenants.get(&id).map(|found| found.limits).map_err(|error| error.to_string())? != expected.limits {
            return Err(format!("{id} has other limits than {:?}", expected.limits));
        }
        for key in &expected.keys {
            let is_right = match tenants.authenticate(&key.text) {
                Ok(caller) => {
                    model.accepts(tenant, key) && caller.tenant == id && caller.role == Some(key.role) && !caller.operator
                }
                Err(Denied::Ended(_)) => !model.accepts(tenant, key),
                Err(Denied::Unknown) => false,
            };
            if !is_right {
                return Err(format!("a key of {id} answers {:?}, expected {key:?}", tenants.authenticate(&key.text)));
            }
        }
        Ok(())
    }

    /// No tenant sees another's sandboxes, whichever way it looks.
    async fn check_isolation(&self, model: &Model) -> Result<(), String> {
        for tenant in 0..TENANTS.len() as u8 {
            let id = tenant_id(tenant);
            let listed = self.control.list(&id).await.map_err(|error| error.to_string())?;
            if listed.len() != model.owned_by(tenant).count() || listed.iter().any(|sandbox| sandbox.tenant != id) {
                return Err(format!("the list of {id} has {listed:?}"));
            }
            for held in model.sandboxes.values() {
                let (own, name): (bool, &SandboxName) = (held.tenant() == tenant, &held.row.name);
                let by_id = self.control.get_by_id(&id, &held.row.id).await.is_ok();
                let by_name = self.control.get(&id, name).await.is_ok_and(|found| found.id == held.row.id);
                let deadline = self.control.next_deadline(&id, &held.row.id).is_some();
                if by_id != own || by_name != own || deadline && !own {
                    return Err(format!("{id} sees sandbox {name} of {}: {by_id} {by_name} {deadline}", held.row.tenant));
                }
            }
        }
        Ok(())
    }

    /// Waits for the samples that follow a start: they have the time without a server.
    async fn wait_for_meters(&self, model: &Model) -> Result<(), String> {
        let usage = Arc::clone(&self.store).usage_store().expect("both stores have usage");
        let begun = std::time::Instant::now();
        loop {
            let meters = usage.meters().await.map_err(|error| error.to_string())?;
            let is_read =
                |id: &SandboxId| meters.iter().any(|meter| meter.subject.as_str() == id.as_str() && meter.at >= model.now);
            let alive = || model.sandboxes.values().filter(|held| held.is_alive());
            if alive().all(|held| is_read(&held.row.id)) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE / 2 {
                return Err(format!("after a start, only {meters:?} are measured"));
            }
            pause(Duration::from_micros(100)).await;
        }
    }

    /// Compares the metered usage with the model's time, and the sums of tenants with those of before.
    async fn check_usage(&self, model: &Model, before: &mut BTreeMap<TenantId, f64>) -> Result<(), String> {
        let read = async |group| {
            let query = UsageQuery { group, limit: 1_000_000, ..UsageQuery::default() };
            self.control.usage_rows(query).await.map_err(|error| error.to_string())
        };
        let (mut found, mut sums) = (BTreeMap::<SandboxId, (f64, usize)>::new(), BTreeMap::<TenantId, f64>::new());
        // Samples may be written in between.
        let earlier = read(UsageGroup::Tenant).await?;
        for row in read(UsageGroup::Sandbox).await? {
            let id = row.sandbox.ok_or("usage without a sandbox")?;
            // Each has a MiB in use.
            let (seconds, calls) = (row.used.memory_gib_seconds * 1024.0, row.used.tool_calls as usize);
            let sum = found.entry(id).or_default();
            *sum = (sum.0 + seconds, sum.1 + calls);
            *sums.entry(row.tenant).or_default() += seconds;
        }
        for held in model.sandboxes.values().chain(&model.gone) {
            let (seconds, calls) = found.get(&held.row.id).copied().unwrap_or_default();
            let ([least, most], [least_calls, most_calls]) = held.metered.bounds(model.now);
            // What ended in a wait may have ended before its last second.
            if seconds < least - 1.02 || seconds > most + 0.01 || !(least_calls..=most_calls).contains(&calls) {
                return Err(format!(
                    "the usage of {} ({}) is {seconds} s and {calls} calls, expected {least} to {most} and {least_calls} to {most_calls}: {held:?}",
                    held.row.name, held.row.id
                ));
            }
        }
        for row in read(UsageGroup::Tenant).await? {
            let seconds = row.used.memory_gib_seconds * 1024.0;
            let sum = sums.get(&row.tenant).copied().unwrap_or_default();
            let least = earlier.iter().find(|earlier| earlier.tenant == row.tenant);
            let least = least.map_or(0.0, |earlier| earlier.used.memory_gib_seconds * 1024.0);
            let last = before.insert(row.tenant.clone(), seconds).unwrap_or_default();
            if sum < least - 0.001 || sum > seconds + 0.001 || least < last - 0.001 {
                return Err(format!("the usage of {} is {seconds}, was {last}, and its sandboxes have {sum}", row.tenant));
            }
        }
        Ok(())
    }
}

/// Lives one server's life. `at` is the next step.
pub(crate) async fn live(
    home: &ServerHome<'_>,
    engine: &Arc<FakeEngine>,
    model: &mut Model,
    steps: &[Step],
    at: &mut usize,
    before: Option<Stopped>,
    sums: &mut BTreeMap<TenantId, f64>,
) -> Result<Ended, String> {
    let mut server = Server::start(home, engine, model, before.as_ref()).await?;
    *model = server.settle(vec![model.clone()], 0).await.map_err(|reason| format!("after the start: {reason}"))?;
    server.wait_for_meters(model).await?;
    while let Some(step) = steps.get(*at) {
        let stopped = server.step(model, step, *at).await?;
        *at += 1;
        if let Some(stopped) = stopped {
            return Ok(Ended::Stopped(stopped));
        }
        server.check_isolation(model).await?;
        if at.is_multiple_of(20) {
            server.check_usage(model, sums).await?;
        }
    }
    server.check_usage(model, sums).await?;
    patiently(server.control.stop(true)).await?;
    match engine.ids() {
        left if left.is_empty() => Ok(Ended::Finished),
        left => Err(format!("a stop that removes all sandboxes left {left:?}")),
    }
}

fn tenant_of(id: &TenantId) -> Option<u8> {
    TENANTS.iter().position(|tenant| *tenant == id.as_str()).map(|at| at as u8)
}

type Records<T> = BTreeMap<(u8, u8), T>;

/// The idempotency keys in a store: fingerprints, and the bodies of answers.
async fn records(store: &dyn Store) -> Result<Records<(String, Option<String>)>, String> {
    let mut all = BTreeMap::new();
    for record in store.records(RecordKind::Idempotency).await.map_err(|error| error.to_string())? {
        let value: serde_json::Value = serde_json::from_str(&record.value).map_err(|error| error.to_string())?;
        let key = record.id.key.strip_prefix("key-").and_then(|key| key.parse().ok()).ok_or("an unknown key")?;
        let answer = value["answer"]["body"].as_str().map(str::to_owned);
        let fingerprint = value["fingerprint"].as_str().unwrap_or_default().to_owned();
        all.insert((tenant_of(&record.id.tenant).ok_or("a key of an unknown tenant")?, key), (fingerprint, answer));
    }
    Ok(all)
}

/// The groups in a store: their leases in seconds, and whether they are ending.
async fn groups(store: &dyn Store) -> Result<Records<(u64, bool)>, String> {
    let mut all = BTreeMap::new();
    for record in store.records(RecordKind::Group).await.map_err(|error| error.to_string())? {
        let value: serde_json::Value = serde_json::from_str(&record.value).map_err(|error| error.to_string())?;
        let group = (0..GROUPS).find(|group| group_text(*group) == record.id.key).ok_or("an unknown group")?;
        let found = (value["ttl_seconds"].as_u64().unwrap_or_default(), value["is_ending"].as_bool().unwrap_or_default());
        all.insert((tenant_of(&record.id.tenant).ok_or("a group of an unknown tenant")?, group), found);
    }
    Ok(all)
}
