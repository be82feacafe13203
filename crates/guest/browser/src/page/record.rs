//! Recordings of the page, without the browser's toolbars, by the image's ffmpeg.
//!
//! ```text
//!  Chromium ──a picture at every change──► the latest ──at every tick──► ffmpeg ──► mp4, webm, or gif
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use utoipa::ToSchema;

use super::super::files::place;
use super::picture::Format;
use super::types::{RecordAction, RecordRequest};
use super::{PageError, Work};
use crate::BrowserService;
use crate::service::BrowserError;
use arenite_guest_cdp::Events;
use arenite_guest_desktop::desktop::{DesktopError, ffmpeg_command, h264_arguments};
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{self, Command, Exit, OwnedProcess, Said, ScratchDir, told};
use arenite_guest_runtime::workers::Kind;

/// Maximum length of a recording, which then stops.
const MAX_DURATION: Duration = Duration::from_secs(3600);
/// Default length of a recording in one call.
const ONCE: Duration = Duration::from_secs(10);
/// Maximum frames per second.
const MAX_FPS: i64 = 60;
/// Timeout for ffmpeg to finish the file.
const END: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum RecordStatus {
    #[default]
    Idle,
    Recording,
    Paused,
    Stopped,
}

#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(super) struct Recorded {
    status: RecordStatus,
    save_path: Option<String>,
    /// Seconds of the video.
    duration: f64,
    file_size_bytes: Option<u64>,
}

/// The sandbox's one recording of a page, and the result of the last one.
#[derive(Debug, Default)]
pub(crate) struct Recordings(tokio::sync::Mutex<Recording>);

#[derive(Debug, Default)]
enum Recording {
    #[default]
    None,
    Running(Running),
    Done(Recorded),
}

#[derive(Debug)]
struct Running {
    path: String,
    wanted: watch::Sender<RecordStatus>,
    /// Seconds of video so far.
    length: watch::Receiver<f64>,
    task: JoinHandle<Result<f64, PageError>>,
}

impl Running {
    fn told(&self) -> Recorded {
        let status = *self.wanted.borrow();
        Recorded { status, save_path: Some(self.path.clone()), duration: *self.length.borrow(), file_size_bytes: None }
    }
}

impl Recordings {
    /// Whether a recording runs; it may be paused.
    pub(crate) fn is_running(&self) -> bool {
        // If the lock is held, a call is running.
        self.0.try_lock().is_ok_and(|recording| matches!(&*recording, Recording::Running(running) if !running.task.is_finished()))
    }

    pub(super) async fn act(&self, service: &Arc<BrowserService>, request: RecordRequest) -> Result<Recorded, PageError> {
        let mut recording = self.0.lock().await;
        if let Recording::Running(running) = &mut *recording
            && running.task.is_finished()
        {
            *recording = Recording::Done(ended(&service.runtime, running).await?);
        }
        match (request.action, &mut *recording) {
            (RecordAction::Once | RecordAction::Start, Recording::Running(_)) => {
                Err(PageError::Bad("a recording runs already: stop it first".to_owned()))
            }
            (RecordAction::Once | RecordAction::Start, _) => {
                let running = begin(service, &request).await?;
                let told = running.told();
                *recording = Recording::Running(running);
                if request.action == RecordAction::Start {
                    return Ok(told);
                }
                let Recording::Running(running) = &mut *recording else { return Ok(told) };
                let done = ended(&service.runtime, running).await;
                *recording = done.as_ref().map_or(Recording::None, |done| Recording::Done(done.clone()));
                done
            }
            (RecordAction::Pause, Recording::Running(running)) => {
                running.wanted.send_replace(RecordStatus::Paused);
                Ok(running.told())
            }
            (RecordAction::Resume, Recording::Running(running)) => {
                running.wanted.send_replace(RecordStatus::Recording);
                Ok(running.told())
            }
            (RecordAction::Stop, Recording::Running(running)) => {
                running.wanted.send_replace(RecordStatus::Stopped);
                let done = ended(&service.runtime, running).await;
                *recording = done.as_ref().map_or(Recording::None, |done| Recording::Done(done.clone()));
                done
            }
            (RecordAction::Status, Recording::Running(running)) => Ok(running.told()),
            // It may have ended by itself.
            (RecordAction::Status | RecordAction::Stop, Recording::Done(done)) => Ok(done.clone()),
            (RecordAction::Status, Recording::None) => Ok(Recorded::default()),
            (RecordAction::Pause | RecordAction::Resume | RecordAction::Stop, _) => {
                Err(PageError::Failed("no recording runs".to_owned()))
            }
        }
    }
}

/// Waits for the end of a recording.
async fn ended(runtime: &Runtime, running: &mut Running) -> Result<Recorded, PageError> {
    let length =
        (&mut running.task).await.unwrap_or_else(|error| Err(PageError::Failed(format!("the recording broke off: {error}"))))?;
    let path = running.path.clone();
    let look = {
        let path = path.clone();
        move |_: &_| std::fs::metadata(&path).map(|meta| meta.len()).map_err(|error| Failure::io(error, &path))
    };
    let size = runtime.workers.run(Kind::Brief, &runtime.user, look).await?;
    Ok(Recorded { status: RecordStatus::Stopped, save_path: Some(path), duration: length, file_size_bytes: Some(size) })
}

async fn begin(service: &Arc<BrowserService>, request: &RecordRequest) -> Result<Running, PageError> {
    if !(1..=MAX_FPS).contains(&request.fps) {
        return Err(PageError::Bad(format!("fps is from 1 to {MAX_FPS}")));
    }
    let limit = match (request.action, request.duration) {
        (_, Some(seconds)) => process::seconds(seconds).min(MAX_DURATION),
        (RecordAction::Once, None) => ONCE,
        _ => MAX_DURATION,
    };
    let program = service.runtime.locate("ffmpeg").ok_or(BrowserError::Desktop(DesktopError::NoRecorder))?;
    let path = match request.save_path.as_deref().filter(|path| !path.trim().is_empty()) {
        Some(path) => place(&service.runtime, path)?,
        None => {
            let name = format!("page_{}.mp4", jiff::Zoned::now().strftime("%Y%m%d_%H%M%S"));
            service.runtime.user.home.join("recordings").join(name).display().to_string()
        }
    };
    let codec = codec(&path, request.quality)?;
    let work = super::begin(service).await?;
    let first = work.tab.serve(work.screenshot(false, Format::Jpeg, Some(request.quality))).await?;
    let events = work.tab.session().await?.events();
    let cast = json!({"format": "jpeg", "quality": request.quality, "everyNthFrame": 1});
    let _: IgnoredAny = work.tab.call("Page.startScreencast", cast).await?;
    let ffmpeg = match spawn(&service.runtime, program, &path, request.fps, codec).await {
        Ok(ffmpeg) => ffmpeg,
        Err(error) => {
            let _: Result<IgnoredAny, _> = work.tab.call("Page.stopScreencast", json!({})).await;
            return Err(error);
        }
    };
    let wanted = watch::Sender::new(RecordStatus::Recording);
    let (length, told) = watch::channel(0.0);
    let film =
        Film { work, events, ffmpeg, wanted: wanted.subscribe(), length, fps: request.fps, limit, latest: Arc::new(first.file) };
    Ok(Running { path, wanted, length: told, task: tokio::spawn(film.shoot()) })
}

/// ffmpeg's arguments for the format, by the file's extension.
fn codec(path: &str, quality: i64) -> Result<Vec<String>, PageError> {
    let ending = Path::new(path).extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    let even = "scale=trunc(iw/2)*2:trunc(ih/2)*2";
    // 100 is crf 18, 0 is crf 48.
    let crf = (48 - quality * 30 / 100).to_string();
    let arguments: Vec<&str> = match ending.as_str() {
        "mp4" => [["-vf", even, "-c:v", "libx264"].as_slice(), &h264_arguments(&crf), &["-movflags", "+faststart"]].concat(),
        "webm" => vec!["-vf", even, "-c:v", "libvpx", "-deadline", "realtime", "-cpu-used", "8", "-crf", &crf, "-b:v", "4M"],
        "gif" => vec!["-vf", "split[a][b];[a]palettegen=stats_mode=diff[p];[b][p]paletteuse=dither=bayer", "-loop", "0"],
        _ => return Err(PageError::Bad(format!("{path} has to end with .mp4, .webm or .gif"))),
    };
    Ok(arguments.into_iter().map(str::to_owned).collect())
}

#[derive(Debug)]
struct Ffmpeg {
    process: OwnedProcess,
    input: Sender,
    said: Said,
}

async fn spawn(runtime: &Runtime, program: String, path: &str, fps: i64, codec: Vec<String>) -> Result<Ffmpeg, PageError> {
    let broken = |error: std::io::Error| PageError::Failed(format!("the recording can't be started: {error}"));
    if let Some(directory) = Path::new(path).parent().map(Path::to_owned) {
        let make = move |_: &_| std::fs::create_dir_all(&directory).map_err(|e| Failure::io(e, &directory.display().to_string()));
        runtime.workers.run(Kind::Brief, &runtime.user, make).await?;
    }
    let mut argv = ffmpeg_command(program);
    let fps = fps.to_string();
    argv.extend(["-f", "image2pipe", "-c:v", "mjpeg", "-framerate", &fps, "-i", "pipe:0"].map(str::to_owned));
    argv.extend(codec);
    argv.push(format!("file:{path}"));
    let (stdin, input) = process::input_pipe(&runtime.user).map_err(broken)?;
    let (output, stderr) = process::output_pipe(&runtime.user).map_err(broken)?;
    let command = Command {
        argv,
        env: runtime.environment(&runtime.user, &[]),
        cwd: runtime.default_dir().display().to_string(),
        user: &runtime.user,
        stdio: [stdin, stderr.try_clone().map_err(broken)?, stderr],
        controlling_tty: false,
    };
    let dir = ScratchDir::new(&runtime.user).map_err(broken)?;
    let child = runtime.processes.spawn(command).await.map_err(|error| PageError::Failed(error.to_string()))?;
    let said = Said::default();
    tokio::spawn(said.clone().listen(output));
    Ok(Ffmpeg { process: OwnedProcess::new(child, dir), input, said })
}

/// A running recording.
struct Film {
    work: Arc<Work>,
    events: Events,
    ffmpeg: Ffmpeg,
    wanted: watch::Receiver<RecordStatus>,
    length: watch::Sender<f64>,
    fps: i64,
    limit: Duration,
    latest: Arc<Vec<u8>>,
}

impl Film {
    /// Writes a picture at every tick, until it is stopped, its tab is gone, or it is long enough. Returns the seconds of video.
    async fn shoot(mut self) -> Result<f64, PageError> {
        let shown = self.pictures().await;
        // The tab may be gone.
        let _: Result<IgnoredAny, _> = self.work.tab.call("Page.stopScreencast", json!({})).await;
        let Film { ffmpeg: Ffmpeg { mut process, input, said }, .. } = self;
        drop(input);
        let failed = |how: String| PageError::Failed(format!("the recording failed ({how}){}", told(&said.text())));
        match timeout(END, process.wait()).await {
            Ok(Exit::Code(0)) => Ok(shown),
            Ok(how) => Err(failed(format!("{how:?}"))),
            Err(_) => Err(failed("it did not end".to_owned())),
        }
    }

    async fn pictures(&mut self) -> f64 {
        let fps = self.fps as f64;
        let most = (self.limit.as_secs_f64() * fps).ceil().max(1.0) as u64;
        let mut ticks = interval(Duration::from_secs_f64(1.0 / fps));
        // The video lasts as long as what it shows, even when the machine is busy.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut count = 0_u64;
        // Pauses are not counted.
        let far = Instant::now() + MAX_DURATION * 2;
        while count < most {
            let status = *self.wanted.borrow();
            if status == RecordStatus::Stopped {
                break;
            }
            tokio::select! {
                _ = ticks.tick() => {
                    if status == RecordStatus::Recording {
                        let latest = self.latest.clone();
                        if self.ffmpeg.input.write_all(&latest).await.is_err() {
                            break;
                        }
                        count += 1;
                        self.length.send_replace(count as f64 / fps);
                    }
                }
                changed = self.wanted.changed() => if changed.is_err() { break },
                event = self.events.next() => match event {
                    Ok(event) if event.method == "Page.screencastFrame" => {
                        #[derive(Deserialize)]
                        #[serde(rename_all = "camelCase")]
                        struct Frame {
                            data: String,
                            session_id: i64,
                        }
                        let Ok(Frame { data, session_id }) = event.read() else { continue };
                        if let Ok(picture) = STANDARD.decode(data) {
                            self.latest = Arc::new(picture);
                        }
                        let tab = self.work.tab.clone();
                        tokio::spawn(async move {
                            let ack = json!({"sessionId": session_id});
                            let _: Result<IgnoredAny, _> = tab.call("Page.screencastFrameAck", ack).await;
                        });
                    }
                    Ok(_) | Err(arenite_guest_cdp::Lost::Behind(_)) => {}
                    Err(arenite_guest_cdp::Lost::Closed) => break,
                },
                () = sleep_until(far) => break,
            }
            if self.work.tab.state().closed {
                break;
            }
        }
        count as f64 / fps
    }
}
