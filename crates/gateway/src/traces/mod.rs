//! Traces of requests for a collector of OpenTelemetry: which stages a request had, and how long each took.
//!
//! ```text
//!  POST /v1/**                        gateway, until its answer starts
//!  ├─ lease                           control
//!  ├─ sandbox.create                  control
//!  │  ├─ control.admit, control.store …
//!  │  └─ engine.…                     stages of the engine
//!  └─ guest.call                      gateway
//!     ├─ guest.dial
//!     └─ guest.handler                guest
//! ```
//!
//! A request with `traceparent` continues the caller's trace, and the sandbox gets one in turn. Finished traces wait in a bounded
//! queue, and further ones are dropped: a collector that is slow or gone delays no request.

mod export;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::mpsc;

use crate::outgoing::Target;

pub(crate) use export::run;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// The most spans of a trace; further ones are left out.
const MAX_SPANS: usize = 128;
/// Finished traces that wait for the collector.
const QUEUE: usize = 1_024;

/// Where traces go.
#[derive(Debug, Clone)]
pub struct TraceConfig {
    endpoint: Target,
    /// The share of requests that are traced, from 0 to 1, unless the caller's trace says it.
    sample: f64,
}

impl TraceConfig {
    /// `endpoint`: the URL of a collector for OTLP over HTTP. Without a path, `/v1/traces` is added.
    ///
    /// # Errors
    /// What is wrong with the URL.
    pub fn new(endpoint: &str, sample: f64) -> Result<Self, &'static str> {
        let mut endpoint = Target::parse(endpoint)?;
        if endpoint.path == "/" {
            "/v1/traces".clone_into(&mut endpoint.path);
        }
        Ok(Self { endpoint, sample })
    }
}

/// The traces of a server.
pub(crate) struct Traces {
    /// None: nothing is traced.
    sample: Option<f64>,
    queue: mpsc::Sender<Vec<Span>>,
    /// Until [`run`] takes it.
    finished: Mutex<Option<mpsc::Receiver<Vec<Span>>>>,
    /// By request ids, for parts of the server that know only these.
    open: Mutex<HashMap<String, Weak<Trace>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpanId([u8; 8]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Internal = 1,
    Server = 2,
    Client = 3,
}

/// A finished part of a trace.
#[derive(Debug)]
struct Span {
    trace: [u8; 16],
    id: SpanId,
    parent: Option<SpanId>,
    name: String,
    kind: Kind,
    start: SystemTime,
    end: SystemTime,
    attributes: Vec<(&'static str, String)>,
    error: Option<String>,
}

/// The trace of a request.
#[derive(Debug)]
pub(crate) struct Trace {
    id: [u8; 16],
    /// The caller's span.
    parent: Option<SpanId>,
    /// The request's span.
    root: SpanId,
    started: SystemTime,
    begun: Instant,
    /// None: the request has ended.
    spans: Mutex<Option<Vec<Span>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel's random source answers");
    // An id of zeros is not valid.
    bytes[N - 1] |= u8::from(bytes == [0; N]);
    bytes
}

impl SpanId {
    fn random() -> Self {
        Self(random())
    }
}

/// A caller's trace, from its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parent {
    trace: [u8; 16],
    span: SpanId,
    is_sampled: bool,
}

impl Parent {
    /// None for a header that is not valid, as the specification of Trace Context demands.
    fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let (text, None) = (values.next()?.to_str().ok()?, values.next()) else { return None };
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, length| text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let is_valid = is_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
        if !is_valid || !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?.to_be_bytes();
        let span = SpanId(u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?.to_be_bytes());
        Some(Self { trace, span, is_sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1 })
    }
}

impl Traces {
    pub(crate) fn new(config: Option<&TraceConfig>) -> Self {
        let (queue, finished) = mpsc::channel(QUEUE);
        let sample = config.map(|config| config.sample);
        Self { sample, queue, finished: Mutex::new(Some(finished)), open: Mutex::default() }
    }

    /// Starts the trace of a request. None: it is not traced.
    pub(crate) fn begin(&self, headers: &HeaderMap, request_id: &str) -> Option<OpenTrace<'_>> {
        let sample = self.sample?;
        let parent = Parent::from_headers(headers);
        let id = parent.map_or_else(random, |parent| parent.trace);
        let is_sampled = match parent {
            Some(parent) => parent.is_sampled,
            None => {
                let [.., a, b, c, d] = id;
                f64::from(u32::from_be_bytes([a, b, c, d])) < sample * (f64::from(u32::MAX) + 1.0)
            }
        };
        if !is_sampled {
            return None;
        }
        let trace = Arc::new(Trace {
            id,
            parent: parent.map(|parent| parent.span),
            root: SpanId::random(),
            started: SystemTime::now(),
            begun: Instant::now(),
            spans: Mutex::new(Some(Vec::new())),
        });
        lock(&self.open).insert(request_id.to_owned(), Arc::downgrade(&trace));
        Some(OpenTrace { traces: self, trace, request_id: request_id.to_owned(), summary: None })
    }

    /// The trace of a request that is in progress.
    pub(crate) fn find(&self, request_id: &str) -> Option<Arc<Trace>> {
        self.sample?;
        lock(&self.open).get(request_id)?.upgrade()
    }
}

/// What a request's span says.
struct Summary {
    name: String,
    attributes: Vec<(&'static str, String)>,
    error: Option<String>,
}

/// The trace of a request in progress. It is exported when this is dropped.
pub(crate) struct OpenTrace<'a> {
    traces: &'a Traces,
    pub(crate) trace: Arc<Trace>,
    request_id: String,
    /// None: its client left before the answer.
    summary: Option<Summary>,
}

impl OpenTrace<'_> {
    /// Says what the request was and how it ended.
    pub(crate) fn finish(mut self, name: String, attributes: Vec<(&'static str, String)>, error: Option<String>) {
        self.summary = Some(Summary { name, attributes, error });
    }
}

impl Drop for OpenTrace<'_> {
    fn drop(&mut self) {
        lock(&self.traces.open).remove(&self.request_id);
        let left = || Summary { name: "request".to_owned(), attributes: Vec::new(), error: Some("the client left".to_owned()) };
        let Summary { name, attributes, error } = self.summary.take().unwrap_or_else(left);
        let trace = &self.trace;
        let Some(mut spans) = lock(&trace.spans).take() else { return };
        spans.push(Span {
            trace: trace.id,
            id: trace.root,
            parent: trace.parent,
            name,
            kind: Kind::Server,
            start: trace.started,
            end: trace.time(Instant::now()),
            attributes,
            error,
        });
        // Beyond the queue, it is dropped.
        let _ = self.traces.queue.try_send(spans);
    }
}

impl Trace {
    fn time(&self, at: Instant) -> SystemTime {
        match at.checked_duration_since(self.begun) {
            Some(later) => self.started + later,
            None => self.started - self.begun.duration_since(at),
        }
    }

    fn add(&self, span: Span) {
        if let Some(spans) = lock(&self.spans).as_mut().filter(|spans| spans.len() < MAX_SPANS) {
            spans.push(span);
        }
    }

    fn span(&self, parent: SpanId, name: String, start: SystemTime, end: SystemTime) -> Span {
        Span {
            trace: self.id,
            id: SpanId::random(),
            parent: Some(parent),
            name,
            kind: Kind::Internal,
            start,
            end,
            attributes: Vec::new(),
            error: None,
        }
    }

    /// Adds a stage of the request that ends now.
    pub(crate) fn stage(&self, name: &str, since: Instant, error: Option<String>) {
        let span = self.span(self.root, name.to_owned(), self.time(since), self.time(Instant::now()));
        self.add(Span { error, ..span });
    }

    /// Adds the creation of a sandbox with its stages, which ends now. Each stage starts when the one before ends.
    pub(crate) fn creation(&self, since: Instant, sandbox: &str, stages: &[(String, f64)]) {
        const CONTROL: [&str; 3] = ["admit", "reserve", "store"];
        let whole = self.span(self.root, "sandbox.create".to_owned(), self.time(since), self.time(Instant::now()));
        let (whole_id, mut start) = (whole.id, whole.start);
        self.add(Span { attributes: vec![("arenite.sandbox", sandbox.to_owned())], ..whole });
        for (stage, ms) in stages {
            let part = if CONTROL.contains(&stage.as_str()) { "control" } else { "engine" };
            let end = start + Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default();
            self.add(self.span(whole_id, format!("{part}.{stage}"), start, end));
            start = end;
        }
    }

    /// Starts a call to a sandbox, which gets its headers.
    pub(crate) fn call(self: &Arc<Self>, headers: &mut HeaderMap) -> GuestSpans {
        let id = SpanId::random();
        let text = format!("00-{:032x}-{:016x}-01", u128::from_be_bytes(self.id), u64::from_be_bytes(id.0));
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(TRACEPARENT, value);
        }
        GuestSpans { trace: Arc::clone(self), id, begun: Instant::now() }
    }
}

/// A call to a sandbox.
pub(crate) struct GuestSpans {
    trace: Arc<Trace>,
    id: SpanId,
    begun: Instant,
}

impl GuestSpans {
    /// Adds the call, which ends now: its answer has started. `dialled`: when the connection was there. The guest's own time is
    /// in its answer, which comes from the sandbox and proves nothing.
    pub(crate) fn finish(self, sandbox: &str, dialled: Instant, answer: &HeaderMap) {
        let Self { trace, id, begun } = self;
        let (start, dialled, end) = (trace.time(begun), trace.time(dialled), trace.time(Instant::now()));
        let call = trace.span(trace.root, "guest.call".to_owned(), start, end);
        let attributes = vec![("arenite.sandbox", sandbox.to_owned())];
        trace.add(Span { id, kind: Kind::Client, attributes, ..call });
        trace.add(trace.span(id, "guest.dial".to_owned(), start, dialled.clamp(start, end)));
        if let Some(took) = handler_time(answer) {
            let started = end.checked_sub(took).unwrap_or(start).max(start);
            let handler = trace.span(id, "guest.handler".to_owned(), started, end);
            trace.add(Span { kind: Kind::Server, ..handler });
        }
    }
}

/// How long the guest's handler took, as its answer says.
fn handler_time(answer: &HeaderMap) -> Option<Duration> {
    let text = answer.get(SERVER_TIMING)?.to_str().ok()?;
    let ms: f64 = text.strip_prefix("handler;dur=")?.parse().ok()?;
    Duration::try_from_secs_f64(ms / 1e3).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn traces(sample: f64) -> (Traces, mpsc::Receiver<Vec<Span>>) {
        let traces = Traces::new(Some(&TraceConfig::new("http://127.0.0.1:1", sample).unwrap()));
        let finished = lock(&traces.finished).take().unwrap();
        (traces, finished)
    }

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn parents_are_read_or_ignored() {
        let parent = |text: &str| Parent::from_headers(&headers(&[("traceparent", text)]));
        let read = parent(VALID).unwrap();
        assert_eq!((read.trace[0], read.span.0[7], read.is_sampled), (0x0a, 0x31, true));
        assert!(!parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00").unwrap().is_sampled);
        // A later version may have more parts.
        assert!(parent(&format!("01{}-more", &VALID[2..])).is_some());
        for bad in [
            "",
            "x",
            "00",
            &VALID[..54],
            &format!("{VALID}-more"),
            &format!("ff{}", &VALID[2..]),
            &VALID.to_uppercase(),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert!(parent(bad).is_none(), "{bad:?}");
        }
        let mut twice = headers(&[("traceparent", VALID)]);
        twice.append(TRACEPARENT, VALID.parse().unwrap());
        assert!(Parent::from_headers(&twice).is_none());
    }

    #[test]
    fn the_share_of_traced_requests_is_that_of_the_configuration() {
        let count = |sample: f64| {
            let (traces, _finished) = traces(sample);
            (0..2000).filter(|_| traces.begin(&HeaderMap::new(), "1").is_some()).count()
        };
        assert_eq!((count(0.0), count(1.0)), (0, 2000));
        assert!((300..700).contains(&count(0.25)));
        let none = Traces::new(None);
        assert!(none.begin(&headers(&[("traceparent", VALID)]), "1").is_none() && none.find("1").is_none());
        let (traces, _finished) = traces(0.0);
        assert!(traces.begin(&headers(&[("traceparent", VALID)]), "1").is_some(), "the caller's trace says it");
    }

    #[test]
    fn a_trace_has_its_stages_under_the_callers_span() {
        let (traces, mut finished) = traces(1.0);
        let open = traces.begin(&headers(&[("traceparent", VALID)]), "1").unwrap();
        let trace = traces.find("1").unwrap();
        let begun = Instant::now();
        trace.stage("lease", begun, None);
        trace.creation(begun, "sabcdefghijk", &[("admit".to_owned(), 1.0), ("mount".to_owned(), 2.0)]);
        let mut sent = HeaderMap::new();
        let call = open.trace.call(&mut sent);
        let parent = Parent::from_headers(&sent).unwrap();
        call.finish("sabcdefghijk", Instant::now(), &headers(&[("server-timing", "handler;dur=1e9")]));
        open.finish("GET /x".to_owned(), Vec::new(), None);
        assert!(traces.find("1").is_none());
        let spans = finished.try_recv().unwrap();
        let find = |name: &str| spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{name}"));
        let root = find("GET /x");
        assert_eq!((root.parent, root.trace), (Some(SpanId(0xb7ad_6b71_6920_3331_u64.to_be_bytes())), parent.trace));
        for (child, of) in [
            ("lease", "GET /x"),
            ("sandbox.create", "GET /x"),
            ("control.admit", "sandbox.create"),
            ("engine.mount", "sandbox.create"),
            ("guest.call", "GET /x"),
            ("guest.dial", "guest.call"),
            ("guest.handler", "guest.call"),
        ] {
            let span = find(child);
            assert_eq!(span.parent, Some(find(of).id), "{child}");
            assert!(span.start <= span.end, "{child}");
        }
        assert_eq!(find("guest.call").id, parent.span, "the sandbox continues the call's span");
        assert!(find("guest.handler").start >= find("guest.call").start, "the sandbox can't invent time");
        // It ended before this.
        trace.stage("late", begun, None);
        assert!(lock(&trace.spans).is_none());
    }

    #[test]
    fn a_client_that_leaves_ends_its_trace_and_a_full_queue_drops() {
        let (traces, mut finished) = traces(1.0);
        for _ in 0..2 * QUEUE {
            drop(traces.begin(&HeaderMap::new(), "1"));
        }
        let mut count = 0;
        while let Ok(spans) = finished.try_recv() {
            assert_eq!(spans[0].error.as_deref(), Some("the client left"));
            count += 1;
        }
        assert_eq!(count, QUEUE);
        let open = traces.begin(&HeaderMap::new(), "1").unwrap();
        for _ in 0..1000 {
            open.trace.stage("x", Instant::now(), None);
        }
        drop(open);
        assert_eq!(finished.try_recv().unwrap().len(), MAX_SPANS + 1);
    }
}
