//! Recordings of the whole screen, by the image's ffmpeg.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use super::announced::Announced;
use super::ffmpeg::{ffmpeg_command, h264_arguments};
use super::service::{DesktopError, DesktopService};
use crate::vm::Film;
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::http::{lenient, optional_within, within};
use arenite_guest_runtime::process::{self, OwnedProcess, ScratchDir, Signal};
use arenite_guest_runtime::workers::Kind;

/// Timeout for ffmpeg to finish the file.
const END: Duration = Duration::from_secs(20);
const WHAT: &str = "the recording";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DisplayRecordAction {
    Start,
    Stop,
    Status,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct DisplayRecordRequest {
    pub action: DisplayRecordAction,
    /// The file. Absent: `/tmp/recordings/recording_{time}.mp4`. Its extension selects the format.
    pub save_path: Option<String>,
    /// Number of frames each second.
    #[serde(default = "usual_fps", deserialize_with = "within::<_, 1, 30>")]
    #[schema(default = 5, exclusive_minimum = 0, maximum = 30)]
    pub fps: i64,
    /// The amount of detail that is left out: 0 is none, 51 the most.
    #[serde(default = "usual_crf", deserialize_with = "within::<_, 0, 51>")]
    #[schema(default = 28, minimum = 0, maximum = 51)]
    pub crf: i64,
    /// Seconds after which it stops by itself.
    #[serde(default = "usual_duration", deserialize_with = "positive")]
    #[schema(default = 600.0, exclusive_minimum = 0)]
    pub max_duration: f64,
    /// Approximate bytes of the file after which it stops by itself. Absent: no limit.
    #[serde(default, deserialize_with = "optional_within::<_, 1, { i64::MAX }>")]
    #[schema(minimum = 1)]
    pub max_bytes: Option<i64>,
    /// Size of the video in pixels. Absent: the screen's. Odd sizes are made even.
    #[serde(default, deserialize_with = "optional_within::<_, 1, 8192>")]
    #[schema(exclusive_minimum = 0)]
    pub width: Option<i64>,
    #[serde(default, deserialize_with = "optional_within::<_, 1, 8192>")]
    #[schema(exclusive_minimum = 0)]
    pub height: Option<i64>,
}

fn usual_fps() -> i64 {
    5
}

fn usual_crf() -> i64 {
    28
}

fn usual_duration() -> f64 {
    600.0
}

/// Parses a number above 0; refuses others as FastAPI does.
pub fn positive<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let number: f64 = lenient(deserializer)?;
    if number > 0.0 { Ok(number) } else { Err(serde::de::Error::custom("Input should be greater than 0")) }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DisplayRecordStatus {
    #[default]
    Idle,
    Recording,
    Stopped,
}

#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct DisplayRecordResult {
    pub status: DisplayRecordStatus,
    pub save_path: Option<String>,
    /// Seconds since the start, or from start to end.
    pub duration: f64,
    pub file_size_bytes: Option<u64>,
}

/// The one recording, and the result of the last one.
#[derive(Debug, Default)]
pub(super) enum Recording {
    #[default]
    None,
    Running {
        process: OwnedProcess,
        path: String,
        begun: Instant,
        limit: Duration,
    },
    Done(DisplayRecordResult),
}

impl DesktopService {
    /// Whether a recording runs.
    pub fn is_recording(&self) -> bool {
        // If the lock is held, a call is running.
        let Ok(mut recording) = self.recording.try_lock() else { return false };
        match &mut *recording {
            Recording::Running { process, .. } => !process.has_ended(),
            Recording::None | Recording::Done(_) => false,
        }
    }

    /// Starts or stops the recording, or returns its state.
    pub async fn record(self: &Arc<Self>, request: &DisplayRecordRequest) -> Result<DisplayRecordResult, DesktopError> {
        let mut recording = self.recording.lock().await;
        if request.action == DisplayRecordAction::Start {
            if let Recording::Running { process, .. } = &mut *recording
                && !process.has_ended()
            {
                return Err(DesktopError::RecordsAlready);
            }
            *recording = begin(self, request).await?;
        }
        if let Recording::Running { process, path, begun, limit } = &mut *recording {
            if request.action == DisplayRecordAction::Stop && !process.has_ended() {
                process.signal_group(Signal::INT);
                drop(timeout(END, process.wait()).await);
            }
            let ended = process.has_ended();
            let result = DisplayRecordResult {
                status: if ended { DisplayRecordStatus::Stopped } else { DisplayRecordStatus::Recording },
                save_path: Some(path.clone()),
                duration: begun.elapsed().min(*limit).as_secs_f64(),
                file_size_bytes: size(&self.runtime, path).await,
            };
            if ended {
                *recording = Recording::Done(result.clone());
            }
            return Ok(result);
        }
        match &*recording {
            Recording::Done(result) => Ok(result.clone()),
            _ => Ok(DisplayRecordResult::default()),
        }
    }
}

async fn size(runtime: &Runtime, path: &str) -> Option<u64> {
    let path = path.to_owned();
    let look = move |_: &_| std::fs::metadata(&path).map(|meta| meta.len()).map_err(|e| Failure::io(e, &path));
    runtime.workers.run(Kind::Brief, &runtime.user, look).await.ok()
}

/// Creates the file's directory, with the rights of the user.
async fn make_room(runtime: &Runtime, path: &str) -> Result<(), DesktopError> {
    let Some(dir) = Path::new(path).parent().map(Path::to_owned) else { return Ok(()) };
    let make = move |_: &_| std::fs::create_dir_all(&dir).map_err(|e| Failure::io(e, &dir.display().to_string()));
    let made = runtime.workers.run(Kind::Brief, &runtime.user, make).await;
    made.map_err(|failure| DesktopError::Io { what: WHAT, source: io::Error::other(failure.to_string()) })
}

async fn begin(service: &Arc<DesktopService>, request: &DisplayRecordRequest) -> Result<Recording, DesktopError> {
    let program = service.runtime.locate("ffmpeg").ok_or(DesktopError::NoRecorder)?;
    let source = Source::open(service, request.fps).await?;
    let path = match request.save_path.as_deref().filter(|path| !path.is_empty()) {
        Some(path) => service.runtime.absolute(path).display().to_string(),
        None => format!("/tmp/recordings/recording_{}.mp4", jiff::Zoned::now().strftime("%Y%m%d_%H%M%S")),
    };
    make_room(&service.runtime, &path).await?;
    let (width, height) = source.size;
    let limit = process::seconds(request.max_duration);
    let side = |wanted: Option<i64>, own: u16| (wanted.unwrap_or(own.into()).max(2) / 2 * 2).to_string();
    let scale = format!("scale={}:{}", side(request.width, width), side(request.height, height));
    let limit_text = limit.as_secs_f64().to_string();
    let (crf, file) = (request.crf.to_string(), format!("file:{path}"));
    let mut argv = ffmpeg_command(program);
    argv.extend(source.input.iter().cloned());
    if let Some(most) = request.max_bytes {
        argv.extend(["-fs".to_owned(), most.to_string()]);
    }
    argv.extend(["-t", &limit_text, "-vf", &scale].map(str::to_owned));
    argv.extend(h264_arguments(&crf).map(str::to_owned));
    // The first line of progress confirms that it works.
    argv.extend(["-progress", "pipe:1", "-stats_period", "0.2", &file].map(str::to_owned));
    let process = spawn(&service.runtime, source, argv).await?;
    Ok(Recording::Running { process, path, begun: Instant::now(), limit })
}

/// The source of a recording.
struct Source {
    size: (u16, u16),
    /// ffmpeg's input arguments.
    input: Vec<String>,
    screen: Recorded,
}

enum Recorded {
    /// ffmpeg reads the display itself.
    Display(String),
    /// ffmpeg receives pictures of the VM's screen.
    Vm(Film),
}

impl Source {
    async fn open(service: &Arc<DesktopService>, fps: i64) -> Result<Self, DesktopError> {
        if service.vm.is_there()? {
            let vm = service.vm.ready().await?;
            let film = Film { size: vm.size().await?, vm, fps };
            return Ok(Self { size: film.size, input: film.input(), screen: Recorded::Vm(film) });
        }
        let desktop = service.get().await?;
        let size = desktop.run(|screen| screen.size()).await?;
        let display = desktop.display().to_owned();
        let area = format!("{}x{}", size.0, size.1);
        let input = ["-f", "x11grab", "-framerate", &fps.to_string(), "-video_size", &area, "-i", &display].map(str::to_owned);
        Ok(Self { size, input: input.into(), screen: Recorded::Display(display) })
    }
}

async fn spawn(runtime: &Runtime, source: Source, argv: Vec<String>) -> Result<OwnedProcess, DesktopError> {
    let at = |source: io::Error| DesktopError::Io { what: WHAT, source };
    let dir = ScratchDir::new(&runtime.user).map_err(at)?;
    let mut env = Vec::new();
    let stdin = match source.screen {
        Recorded::Display(display) => {
            env.push(("DISPLAY".to_owned(), display));
            process::dev_null().map_err(at)?
        }
        Recorded::Vm(film) => {
            let (stdin, input) = process::input_pipe(&runtime.user).map_err(at)?;
            // It ends with ffmpeg or the VM.
            tokio::spawn(film.run(input));
            stdin
        }
    };
    let cwd = runtime.default_dir().display().to_string();
    Announced { what: WHAT, argv, env, cwd, stdin, dir }.start(runtime).await
}
