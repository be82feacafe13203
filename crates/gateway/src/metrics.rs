//! `/metrics`: server metrics in Prometheus' text format.
//!
//! Series are bounded: routes are constants of the program, statuses a fixed list, and no client input becomes a label.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use arenite_control::MeasuredSandbox;
use arenite_engine::Usage;
use arenite_model::SandboxState;
use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};

use crate::exchange::{Answered, Exchange};
use crate::tls::Certificates;

/// Upper ends of the histogram's buckets, in microseconds: from a proxied call's overhead to a long wait.
const BUCKETS: [u64; 16] = [
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    120_000_000,
];
/// Statuses that have a separate series; all others share one.
const STATUSES: [u16; 28] = [
    101, 200, 201, 202, 204, 206, 304, 307, 400, 401, 403, 404, 405, 408, 409, 411, 413, 415, 416, 421, 422, 424, 429, 431, 500,
    501, 502, 504,
];
/// The most routes counted separately. Routes are constants of this program, so this limit is only a safeguard.
const MAX_ROUTES: usize = 512;
/// The most sandboxes with separate series: those that were called most recently.
const MAX_SANDBOXES: usize = 100;

/// The dialect that answered a request, and its route.
type RouteKey = (&'static str, &'static str);

#[derive(Default)]
struct Series {
    statuses: [AtomicU64; STATUSES.len()],
    other: AtomicU64,
    buckets: [AtomicU64; BUCKETS.len()],
    micros: AtomicU64,
    count: AtomicU64,
}

/// The gateway's counters. The rest of `/metrics` comes from control and the recorder.
#[derive(Default)]
pub(crate) struct Metrics {
    routes: RwLock<BTreeMap<RouteKey, Arc<Series>>>,
    pub(crate) in_flight: AtomicU64,
    pub(crate) inside_steps: AtomicU64,
    pub(crate) inside_refused: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) guest_dials: AtomicU64,
    pub(crate) guest_reused: AtomicU64,
}

impl Metrics {
    /// Counts one answered request.
    pub(crate) fn observe(&self, route: RouteKey, status: u16, took: Duration) {
        let Some(series) = self.series(route) else {
            return;
        };
        let one = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        one(STATUSES.iter().position(|known| *known == status).map_or(&series.other, |at| &series.statuses[at]));
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if let Some(at) = BUCKETS.iter().position(|end| micros <= *end) {
            one(&series.buckets[at]);
        }
        series.micros.fetch_add(micros, Ordering::Relaxed);
        one(&series.count);
    }

    fn series(&self, route: RouteKey) -> Option<Arc<Series>> {
        let known = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = known.get(&route) {
            return Some(Arc::clone(series));
        }
        drop(known);
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        if routes.len() >= MAX_ROUTES && !routes.contains_key(&route) {
            return None;
        }
        Some(Arc::clone(routes.entry(route).or_default()))
    }

    fn write(&self, page: &mut Page) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner).clone();
        page.family("arenite_http_requests_total", "counter", "Answered requests.");
        for ((api, route), series) in &routes {
            let known = STATUSES.iter().zip(&series.statuses).map(|(status, n)| (status.to_string(), n));
            for (status, counter) in known.chain([("other".to_owned(), &series.other)]) {
                if read(counter) > 0 {
                    page.labelled(
                        "arenite_http_requests_total",
                        &[("api", api), ("route", route), ("status", &status)],
                        read(counter),
                    );
                }
            }
        }
        page.family("arenite_http_request_seconds", "histogram", "Time until an answer begins.");
        for ((api, route), series) in &routes {
            let names = [("api", *api), ("route", *route)];
            let mut below = 0;
            for (end, counter) in BUCKETS.iter().zip(&series.buckets) {
                below += read(counter);
                let end = seconds(*end);
                page.labelled("arenite_http_request_seconds_bucket", &[names[0], names[1], ("le", &end)], below);
            }
            // Read after the buckets, which may grow meanwhile, so that no bucket exceeds the total.
            let count = read(&series.count).max(below);
            page.labelled("arenite_http_request_seconds_bucket", &[names[0], names[1], ("le", "+Inf")], count);
            page.labelled("arenite_http_request_seconds_sum", &names, seconds(read(&series.micros)));
            page.labelled("arenite_http_request_seconds_count", &names, count);
        }
        page.single("arenite_http_requests_in_flight", "gauge", "Requests under way.", read(&self.in_flight));
        page.single("arenite_http_request_bytes_total", "counter", "Bytes of bodies sent to guests.", read(&self.bytes_in));
        page.single(
            "arenite_http_response_bytes_total",
            "counter",
            "Bytes of bodies that came from guests.",
            read(&self.bytes_out),
        );
        page.single("arenite_guest_dials_total", "counter", "Connections made to guests.", read(&self.guest_dials));
        page.single("arenite_guest_reused_total", "counter", "Calls on a connection that was there.", read(&self.guest_reused));
        page.single(
            "arenite_inside_steps_total",
            "counter",
            "Steps made by processes inside sandboxes.",
            read(&self.inside_steps),
        );
        page.single(
            "arenite_inside_steps_refused_total",
            "counter",
            "Steps from inside that were malformed, too long or could not be recorded.",
            read(&self.inside_refused),
        );
    }
}

pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    let gateway = &exchange.gateway;
    let mut page = Page::default();
    page.family("arenite_build_info", "gauge", "Which program this is.");
    let profile = if cfg!(debug_assertions) { "checked" } else { "release" };
    let build = [("version", env!("CARGO_PKG_VERSION")), ("commit", gateway.config.commit), ("profile", profile)];
    page.labelled("arenite_build_info", &build, 1);
    page.single("arenite_uptime_seconds", "gauge", "Time since the start.", gateway.started.elapsed().as_secs());
    gateway.metrics.write(&mut page);
    let (waiting, admitted) = gateway.connections.counts();
    page.family("arenite_http_connections", "gauge", "Open connections: of known callers, and of those who showed nothing yet.");
    for (state, count) in [("admitted", admitted), ("waiting", waiting)] {
        page.labelled("arenite_http_connections", &[("state", state)], count);
    }
    if let Some(certificates) = &gateway.config.tls {
        tls(&mut page, certificates);
    }
    control(&mut page, &gateway.control.counters());
    if let Some(tenants) = gateway.control.tenants() {
        let help = "Refusals that the audit log lacks, since too many came at once.";
        page.single("arenite_audit_dropped_total", "counter", help, tenants.dropped_refusals());
    }
    if let Some(webhooks) = gateway.control.webhooks() {
        let help = "Deliveries to webhooks that wait, also for their next attempt.";
        page.single("arenite_webhook_deliveries_waiting", "gauge", help, webhooks.waiting());
    }
    recorder(&mut page, &gateway.recorder.counters());
    if let Some(archive) = &gateway.config.archive {
        archived(&mut page, &archive.counters());
    }
    process(&mut page);
    host(&mut page);
    if let Ok(capacity) = gateway.control.capacity().await {
        storage(&mut page, &capacity);
    }
    let (usages, more) = gateway.control.usages(MAX_SANDBOXES).await;
    sandboxes(&mut page, &usages, more);
    let mut answer = Response::new(Body::from(page.text));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    Ok(answer)
}

fn tls(page: &mut Page, certificates: &Certificates) {
    if let Some(expires) = certificates.expires() {
        let help = "When the TLS certificate in use expires, in seconds since 1970.";
        page.single("arenite_tls_certificate_expiry_timestamp_seconds", "gauge", help, expires.as_second());
    }
    page.single(
        "arenite_tls_certificate_outdated",
        "gauge",
        "Whether the certificate files changed and can't be used.",
        u8::from(certificates.is_outdated()),
    );
}

fn control(page: &mut Page, counters: &arenite_control::Counters) {
    use SandboxState::{Creating, Deleting, Failed, Lost, Paused, Running};
    page.family("arenite_sandboxes", "gauge", "Sandboxes by state.");
    for state in [Creating, Running, Paused, Deleting, Failed, Lost] {
        let count = counters.sandboxes.iter().find(|(s, _)| *s == state).map_or(0, |(_, n)| *n);
        page.labelled("arenite_sandboxes", &[("state", state.as_str())], count);
    }
    page.family("arenite_sandbox_creates_total", "counter", "Creates by their result.");
    for (result, count) in
        [("ok", counters.creates_ok), ("failed", counters.creates_failed), ("refused", counters.creates_refused)]
    {
        page.labelled("arenite_sandbox_creates_total", &[("result", result)], count);
    }
    page.single(
        "arenite_sandbox_creates_from_pool_total",
        "counter",
        "Creates that took a sandbox made ahead.",
        counters.creates_from_pool,
    );
    page.single("arenite_sandbox_pool", "gauge", "Sandboxes made ahead that wait.", counters.pooled);
    page.single("arenite_sandbox_creating", "gauge", "Creates that the engine works on.", counters.creating);
    page.single("arenite_sandbox_create_queue", "gauge", "Creates that wait for their turn.", counters.queued);
    page.single("arenite_sandbox_deletes_total", "counter", "Sandboxes deleted, for whatever reason.", counters.deleted);
    page.family("arenite_sandbox_reaped_total", "counter", "Sandboxes deleted because a time was up.");
    for (reason, count) in [("timeout", counters.reaped_timeout), ("idle", counters.reaped_idle), ("lost", counters.reaped_lost)]
    {
        page.labelled("arenite_sandbox_reaped_total", &[("reason", reason)], count);
    }
    page.single("arenite_sandbox_idle_pauses_total", "counter", "Sandboxes paused because they were idle.", counters.paused_idle);
    page.single("arenite_sandbox_wakes_total", "counter", "Paused sandboxes woken by a call.", counters.woken);
    page.single("arenite_sandbox_ends_total", "counter", "Sandboxes whose guest ended by itself.", counters.ended);
    page.single("arenite_leases", "gauge", "Calls that hold a sandbox awake.", counters.leases);
}

fn recorder(page: &mut Page, counters: &arenite_trajectory::Counters) {
    for (name, kind, help, value) in [
        ("arenite_trajectory_steps_begun_total", "counter", "Intents written.", counters.steps_begun),
        ("arenite_trajectory_steps_finished_total", "counter", "Outcomes written.", counters.steps_finished),
        ("arenite_trajectory_refused_total", "counter", "Calls refused because they could not be recorded.", counters.refused),
        ("arenite_trajectory_outcomes_lost_total", "counter", "Outcomes that could not be written.", counters.outcomes_lost),
        (
            "arenite_trajectory_bodies_not_kept_total",
            "counter",
            "Bodies of which only hash and length are kept.",
            counters.bodies_not_kept,
        ),
        ("arenite_trajectory_log_bytes", "gauge", "Size of all logs.", counters.logs_bytes),
        ("arenite_trajectory_blob_bytes", "gauge", "Size of all kept bodies.", counters.blobs_bytes),
        ("arenite_trajectory_sync_errors_total", "counter", "Failed syncs to the disk.", counters.sync_errors),
    ] {
        page.single(name, kind, help, value);
    }
}

fn archived(page: &mut Page, counters: &arenite_trajectory::ArchiveCounters) {
    for (name, kind, help, value) in [
        ("arenite_trajectory_archived_total", "counter", "Trajectories stored in the archive.", counters.archived),
        ("arenite_trajectory_archive_failures_total", "counter", "Failed attempts to do so.", counters.failed),
        ("arenite_trajectory_archive_waiting", "gauge", "Trajectories that wait for the archive.", counters.waiting),
        ("arenite_trajectory_dropped_total", "counter", "Local logs removed because they are archived.", counters.dropped),
    ] {
        page.single(name, kind, help, value);
    }
}

/// The kernel's numbers for this process; left out if they are not available.
fn process(page: &mut Page) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let count = |dir: &str| std::fs::read_dir(dir).ok().map(|entries| entries.count() as u64);
    for (name, help, value) in [
        ("process_resident_memory_bytes", "Memory in RAM.", field("VmRSS").map(|kib| kib << 10)),
        // The listing itself holds one.
        ("process_open_fds", "Open descriptors.", count("/proc/self/fd").map(|n| n.saturating_sub(1))),
        ("process_threads", "Threads.", field("Threads")),
    ] {
        if let Some(value) = value {
            page.single(name, "gauge", help, value);
        }
    }
}

/// Numbers for the whole host.
fn host(page: &mut Page) {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let bytes = |name: &str| -> Option<u64> {
        let line = memory.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
    };
    for (name, help, value) in [
        ("arenite_host_memory_bytes", "Memory of the host.", bytes("MemTotal")),
        ("arenite_host_memory_available_bytes", "Memory that programs could still get.", bytes("MemAvailable")),
    ] {
        if let Some(value) = value {
            page.single(name, "gauge", help, value);
        }
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    if let Some(load) = load.split_whitespace().next().and_then(|load| load.parse::<f64>().ok()) {
        page.single("arenite_host_load1", "gauge", "Processes that run or wait, as a mean over a minute.", load);
    }
    if let Ok(cores) = std::thread::available_parallelism() {
        page.single("arenite_host_cpus", "gauge", "Processors that the server may use.", cores);
    }
    // user nice system idle iowait irq softirq steal, in hundredths of a second.
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let modes = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];
    if let Some(times) = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")) {
        page.family("arenite_host_cpu_seconds_total", "counter", "Time of all processors, by what it was used for.");
        for (mode, time) in modes.iter().zip(times.split_whitespace()) {
            if let Ok(time) = time.parse::<f64>() {
                page.labelled("arenite_host_cpu_seconds_total", &[("mode", mode)], time / 100.0);
            }
        }
    }
}

fn storage(page: &mut Page, capacity: &arenite_engine::HostCapacity) {
    page.single("arenite_storage_bytes", "gauge", "Size of the storage pool.", capacity.disk_total_bytes);
    page.single(
        "arenite_storage_available_bytes",
        "gauge",
        "What can still be written: the less of the pool's and the host disk's.",
        capacity.disk_available_bytes,
    );
}

/// Usage of single sandboxes, those that were called most recently.
fn sandboxes(page: &mut Page, usages: &[MeasuredSandbox], more: usize) {
    type Read = fn(&Usage) -> Option<f64>;
    let families: [(&str, &str, &str, Read); 7] = [
        ("memory_bytes", "gauge", "Memory in use, with caches.", |u| Some(u.memory_bytes as f64)),
        ("cpu_seconds_total", "counter", "Processor time.", |u| Some(u.cpu_nanoseconds as f64 / 1e9)),
        ("processes", "gauge", "Processes and threads.", |u| Some(u.pids as f64)),
        ("disk_bytes", "gauge", "Size of the writable layer.", |u| u.disk_bytes.map(|n| n as f64)),
        ("oom_kills_total", "counter", "Processes killed for want of memory.", |u| u.oom_kills.map(|n| n as f64)),
        ("network_received_bytes_total", "counter", "Bytes received.", |u| u.network_received_bytes.map(|n| n as f64)),
        ("network_sent_bytes_total", "counter", "Bytes sent.", |u| u.network_sent_bytes.map(|n| n as f64)),
    ];
    for (name, kind, help, read) in families {
        let name = format!("arenite_sandbox_{name}");
        page.family(&name, kind, help);
        for MeasuredSandbox { sandbox, usage, .. } in usages {
            if let Some(value) = read(usage) {
                let labels =
                    [("sandbox", sandbox.name.as_str()), ("id", sandbox.id.as_str()), ("image", sandbox.spec.image.as_str())];
                page.labelled(&name, &labels, value);
            }
        }
    }
    page.single(
        "arenite_sandboxes_without_series",
        "gauge",
        "Sandboxes beyond those that have series of their own.",
        more as u64,
    );
}

/// Microseconds as seconds, the unit of Prometheus.
fn seconds(micros: u64) -> String {
    format!("{}", micros as f64 / 1e6)
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String does not fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, kind, help);
        self.labelled(name, &[], value);
    }

    /// Label values are constants of this program, or names without characters to escape.
    fn labelled(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.text.push_str(name);
        for (at, (label, word)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{label}=\"{word}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the text format, strictly limited to what this page may contain.
    fn parse(text: &str) -> BTreeMap<String, f64> {
        let mut values = BTreeMap::new();
        let mut family = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let (kind, name, more) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
                match kind {
                    "HELP" => family = name.to_owned(),
                    "TYPE" => assert!(["counter", "gauge", "histogram"].contains(&more) && name == family, "{line}"),
                    _ => panic!("{line}"),
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            assert!(
                name == family || name.strip_prefix(&family).is_some_and(|s| ["_bucket", "_sum", "_count"].contains(&s)),
                "{line}"
            );
            assert_eq!(series.contains('{'), series.ends_with('}'), "{line}");
            assert!(values.insert(series.to_owned(), value.parse().unwrap()).is_none(), "twice: {line}");
        }
        values
    }

    #[test]
    fn what_was_observed_is_in_the_text() {
        let metrics = Metrics::default();
        metrics.observe(("aio", "/v1/bash/exec"), 200, Duration::from_micros(400));
        metrics.observe(("aio", "/v1/bash/exec"), 200, Duration::from_millis(30));
        metrics.observe(("aio", "/v1/bash/exec"), 299, Duration::from_secs(500));
        metrics.observe(("api", "other"), 404, Duration::ZERO);
        metrics.bytes_in.fetch_add(7, Ordering::Relaxed);
        let mut page = Page::default();
        metrics.write(&mut page);
        control(&mut page, &arenite_control::Counters { sandboxes: vec![(SandboxState::Paused, 3)], ..Default::default() });
        recorder(&mut page, &Default::default());
        process(&mut page);
        host(&mut page);
        storage(&mut page, &arenite_engine::HostCapacity { disk_total_bytes: 9, ..Default::default() });
        sandboxes(&mut page, &[], 3);
        let values = parse(&page.text);
        let of = |series: &str| *values.get(series).unwrap_or_else(|| panic!("{series} in {values:?}"));
        assert_eq!(of("arenite_http_requests_total{api=\"aio\",route=\"/v1/bash/exec\",status=\"200\"}"), 2.0);
        assert_eq!(of("arenite_http_requests_total{api=\"aio\",route=\"/v1/bash/exec\",status=\"other\"}"), 1.0);
        assert_eq!(of("arenite_http_request_seconds_bucket{api=\"aio\",route=\"/v1/bash/exec\",le=\"0.0005\"}"), 1.0);
        assert_eq!(of("arenite_http_request_seconds_bucket{api=\"aio\",route=\"/v1/bash/exec\",le=\"120\"}"), 2.0);
        assert_eq!(of("arenite_http_request_seconds_bucket{api=\"aio\",route=\"/v1/bash/exec\",le=\"+Inf\"}"), 3.0);
        assert_eq!(of("arenite_http_request_seconds_count{api=\"api\",route=\"other\"}"), 1.0);
        assert_eq!(of("arenite_http_request_bytes_total"), 7.0);
        assert_eq!(of("arenite_sandboxes{state=\"paused\"}"), 3.0);
        assert_eq!(of("arenite_sandboxes{state=\"running\"}"), 0.0);
        assert!(of("process_resident_memory_bytes") > 1e6);
        assert!(of("arenite_host_memory_bytes") > of("arenite_host_memory_available_bytes"));
        assert!(of("arenite_host_cpu_seconds_total{mode=\"idle\"}") > 0.0);
        assert_eq!((of("arenite_storage_bytes"), of("arenite_sandboxes_without_series")), (9.0, 3.0));
    }
}
