//! Arguments and results; their JSON is AIO's.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ObservationMode {
    Off,
    Guardrail,
    Capture,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ObserveStartMode {
    Guardrail,
    #[default]
    Capture,
}

impl From<ObserveStartMode> for ObservationMode {
    fn from(mode: ObserveStartMode) -> Self {
        match mode {
            ObserveStartMode::Guardrail => Self::Guardrail,
            ObserveStartMode::Capture => Self::Capture,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct ObservationCgroupSnapshot {
    /// 100 is one core. Null until there are two readings.
    pub cpu_usage_pct: Option<f64>,
    #[schema(default = 0)]
    pub cpu_usage_usec: u64,
    pub cpu_nr_periods: Option<u64>,
    pub cpu_nr_throttled: Option<u64>,
    pub cpu_throttled_usec: Option<u64>,
    #[schema(default = 0)]
    pub mem_current_bytes: u64,
    pub mem_max_bytes: Option<u64>,
    pub mem_usage_pct: Option<f64>,
    pub oom: Option<u64>,
    pub oom_kill: Option<u64>,
    pub memory_anon_bytes: Option<u64>,
    pub memory_file_bytes: Option<u64>,
    pub memory_shmem_bytes: Option<u64>,
    pub memory_slab_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ObservationDiskSnapshot {
    pub path: String,
    pub used_bytes: u64,
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub usage_pct: f64,
    pub inode_used: Option<u64>,
    pub inode_total: Option<u64>,
    pub inode_usage_pct: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ObservationProcessSnapshot {
    pub pid: i32,
    pub user: String,
    pub comm: String,
    pub rss_bytes: u64,
    pub rss_mib: f64,
    /// 100 is one core. Null until there are two readings.
    pub cpu_pct: Option<f64>,
    pub threads: Option<u64>,
    pub fds: Option<u64>,
    pub state: Option<String>,
    pub uptime_sec: Option<f64>,
    pub ppid: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ObservationEvent {
    #[schema(value_type = String, format = DateTime)]
    pub ts: Timestamp,
    /// `memory_high`, `oom_kill`, `cpu_throttled`, `disk_high`, `started`, `stopped`, `truncated`.
    #[serde(rename = "type")]
    pub kind: String,
    #[schema(default = "")]
    pub message: String,
    #[schema(value_type = Object)]
    pub data: Map<String, Value>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ObservationLiveSnapshot {
    #[schema(value_type = String, format = DateTime)]
    pub captured_at: Timestamp,
    pub mode: ObservationMode,
    pub cgroup: ObservationCgroupSnapshot,
    pub disk: Vec<ObservationDiskSnapshot>,
    /// The largest first.
    pub top_processes: Vec<ObservationProcessSnapshot>,
    pub recent_events: Vec<ObservationEvent>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ObservationStatus {
    pub mode: ObservationMode,
    pub running: bool,
    pub session_id: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ends_at: Option<Timestamp>,
    pub interval_seconds: Option<f64>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_sample_at: Option<Timestamp>,
    pub runtime_dir: Option<String>,
    #[schema(default = 0)]
    pub report_count: usize,
}

fn yes() -> bool {
    true
}

fn key<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    const LONGEST: usize = 128;
    let key = Option::<String>::deserialize(deserializer)?;
    match key.as_ref().is_some_and(|key| key.chars().count() > LONGEST) {
        true => Err(serde::de::Error::custom(format!("String should have at most {LONGEST} characters"))),
        false => Ok(key),
    }
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct ObserveStartRequest {
    #[serde(default)]
    #[schema(default = "capture")]
    pub mode: ObserveStartMode,
    /// A key chosen by the caller: a call with the same key gets the same session.
    #[serde(default, deserialize_with = "key")]
    #[schema(max_length = 128)]
    pub idempotency_key: Option<String>,
    /// Seconds after which it ends by itself.
    pub duration_seconds: Option<i64>,
    /// Seconds from one sample to the next.
    pub interval_seconds: Option<f64>,
    /// Sample the processes too.
    pub include_processes: Option<bool>,
    /// Sample the disk too.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub include_disk: bool,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ObservationStartResult {
    pub session_id: String,
    pub mode: ObservationMode,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ends_at: Option<Timestamp>,
    pub interval_seconds: f64,
    pub runtime_dir: String,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct ObserveStopRequest {
    /// Absent: the one that runs.
    pub session_id: Option<String>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ObservationStopResult {
    pub session_id: String,
    pub stopped: bool,
    pub report_ready: bool,
}

fn manual() -> String {
    "manual".to_owned()
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct ObserveExportRequest {
    /// A key chosen by the caller: a call with the same key gets the same report.
    #[serde(default, deserialize_with = "key")]
    #[schema(max_length = 128)]
    pub idempotency_key: Option<String>,
    /// Absent: the session that runs, else the last one.
    pub session_id: Option<String>,
    /// Why, for the report's list.
    #[serde(default = "manual")]
    #[schema(default = "manual")]
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ObservationReportInfo {
    pub report_id: String,
    pub session_id: Option<String>,
    #[schema(default = "manual")]
    pub reason: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    pub path: String,
    pub size_bytes: u64,
}

/// The same report, under its name in the export's answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ObservationExportResult {
    pub report_id: String,
    pub session_id: Option<String>,
    #[schema(default = "manual")]
    pub reason: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    pub path: String,
    pub size_bytes: u64,
}

impl From<ObservationReportInfo> for ObservationExportResult {
    fn from(info: ObservationReportInfo) -> Self {
        let ObservationReportInfo { report_id, session_id, reason, created_at, path, size_bytes } = info;
        Self { report_id, session_id, reason, created_at, path, size_bytes }
    }
}
