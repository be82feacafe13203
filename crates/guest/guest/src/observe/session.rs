//! One observation from its start to its end.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::sample::{self, Earlier, Sample, Wanted};
use super::types::{ObservationEvent, ObservationMode, ObservationStartResult};
use crate::observe::Observer;
use arenite_guest_runtime::workers::{Kind, WorkError};

/// The most bytes of one session's file. Beyond it, samples are no longer stored.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// The most events kept for `live`.
const MAX_EVENTS: usize = 100;
/// The threshold for memory and disk, in percent.
const HIGH: f64 = 90.0;

#[derive(Debug)]
struct Recorded {
    file: File,
    bytes: u64,
    last_sample_at: Option<Timestamp>,
    samples: u64,
    events: VecDeque<ObservationEvent>,
    /// The kinds of trouble in the last sample: each is reported when it starts.
    trouble: Vec<&'static str>,
    last: Option<Sample>,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) start: ObservationStartResult,
    pub(super) key: Option<String>,
    pub(super) file: PathBuf,
    pub(super) stop: CancellationToken,
    recorded: Mutex<Recorded>,
}

impl Session {
    pub(super) fn begin(start: ObservationStartResult, key: Option<String>, dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let path = dir.join(format!("{}.jsonl", start.session_id));
        let recorded = Recorded {
            file: File::create(&path)?,
            bytes: 0,
            last_sample_at: None,
            samples: 0,
            events: VecDeque::new(),
            trouble: Vec::new(),
            last: None,
        };
        let session = Self { start, key, file: path, stop: CancellationToken::new(), recorded: Mutex::new(recorded) };
        let data = serde_json::to_value(&session.start).unwrap_or_default();
        session.event("started", "the observation began", data);
        Ok(session)
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn last_sample_at(&self) -> Option<Timestamp> {
        self.lock().last_sample_at
    }

    pub(super) fn samples(&self) -> u64 {
        self.lock().samples
    }

    pub(super) fn events(&self) -> Vec<ObservationEvent> {
        self.lock().events.iter().cloned().collect()
    }

    pub(super) fn event(&self, kind: &str, message: &str, data: Value) {
        let data = match data {
            Value::Object(data) => data,
            _ => Map::new(),
        };
        let event = ObservationEvent { ts: Timestamp::now(), kind: kind.to_owned(), message: message.to_owned(), data };
        let mut recorded = self.lock();
        recorded.write("event", &event);
        if recorded.events.len() == MAX_EVENTS {
            recorded.events.pop_front();
        }
        recorded.events.push_back(event);
    }

    /// Records a sample and the trouble that it shows.
    fn note(&self, sample: Sample) {
        let (troubles, full) = {
            let mut recorded = self.lock();
            recorded.last_sample_at = Some(sample.ts);
            recorded.samples += 1;
            let troubles = troubles(&sample, recorded.last.as_ref());
            let new: Vec<_> = troubles.iter().filter(|(kind, ..)| !recorded.trouble.contains(kind)).cloned().collect();
            recorded.trouble = troubles.into_iter().map(|(kind, ..)| kind).collect();
            let was_full = recorded.is_full();
            // A guardrail stores only samples with new trouble.
            if self.start.mode == ObservationMode::Capture || !new.is_empty() {
                recorded.write("sample", &sample);
            }
            recorded.last = Some(sample);
            (new, !was_full && recorded.is_full())
        };
        for (kind, message, data) in troubles {
            self.event(kind, &message, data);
        }
        if full {
            tracing::warn!(session = self.start.session_id, "an observation is as long as it may be");
        }
    }

    /// Samples until it is stopped or its time is over. Call it in a task.
    pub(super) async fn run(self: Arc<Self>, observer: Arc<Observer>, wanted: Wanted) {
        let interval = Duration::from_secs_f64(self.start.interval_seconds);
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let end = async {
            match self.start.ends_at {
                Some(end) => {
                    let left = end.duration_since(Timestamp::now());
                    tokio::time::sleep(Duration::try_from(left).unwrap_or_default()).await;
                }
                None => std::future::pending().await,
            }
        };
        let work = async {
            let mut earlier: Option<Earlier> = None;
            loop {
                ticks.tick().await;
                let (shared, wanted) = (observer.clone(), wanted.clone());
                let look = move |_: &_| Ok::<_, WorkError>(sample::take(shared.counters(), &wanted, earlier.as_ref()));
                match observer.runtime.workers.run(Kind::Brief, &observer.runtime.root_user, look).await {
                    Ok((sample, now)) => {
                        self.note(sample);
                        earlier = Some(now);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a sample could not be taken");
                        earlier = None;
                    }
                }
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = end => observer.over(&self).await,
            () = work => {}
        }
    }
}

impl Recorded {
    fn is_full(&self) -> bool {
        self.bytes >= MAX_FILE_BYTES
    }

    fn write(&mut self, kind: &str, what: &impl serde::Serialize) {
        if self.is_full() {
            return;
        }
        let mut line = json!({ kind: what }).to_string();
        line.push('\n');
        self.bytes += line.len() as u64;
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            tracing::warn!(%error, "an observation could not be written");
        }
    }
}

/// The trouble in a sample: its kind, a message, and the numbers.
fn troubles(sample: &Sample, last: Option<&Sample>) -> Vec<(&'static str, String, Value)> {
    let mut found = Vec::new();
    let (now, before) = (&sample.cgroup, last.map(|last| &last.cgroup));
    if let Some(share) = now.mem_usage_pct.filter(|share| *share >= HIGH) {
        found.push(("memory_high", format!("memory is used to {share} %"), json!({ "mem_usage_pct": share })));
    }
    let more = |now: Option<u64>, before: Option<u64>| {
        now.zip(before).map(|(now, before)| now.saturating_sub(before)).filter(|n| *n > 0)
    };
    if let Some(killed) = more(now.oom_kill, before.and_then(|b| b.oom_kill)) {
        found.push(("oom_kill", format!("{killed} processes were killed for want of memory"), json!({ "killed": killed })));
    }
    if let Some(throttled) = more(now.cpu_throttled_usec, before.and_then(|b| b.cpu_throttled_usec)) {
        found.push((
            "cpu_throttled",
            format!("the CPU limit held work up for {throttled} µs"),
            json!({ "throttled_usec": throttled }),
        ));
    }
    if let Some(disk) = sample.disk.iter().find(|disk| disk.usage_pct >= HIGH) {
        let (path, share) = (&disk.path, disk.usage_pct);
        found.push(("disk_high", format!("{path} is used to {share} %"), json!({ "path": path, "usage_pct": share })));
    }
    found
}
