//! The connection to the X server: a separate thread runs one job at a time, because each waits for answers.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;
use tokio::sync::oneshot;
use tokio::time::timeout;
use x11rb::connection::Connection;
use x11rb::errors::{ConnectError, ConnectionError, ReplyError, ReplyOrIdError};
use x11rb::protocol::xproto::{ConnectionExt, EventMask, Window};
use x11rb::rust_connection::{DefaultStream, RustConnection};

use super::keyboard::Keyboard;
use super::ping::Pings;

/// Maximum jobs that wait for the thread; further ones are refused.
const MAX_JOBS: usize = 256;
/// Timeout of a job, including its time in the queue. After that, the X server counts as hung.
const JOB_TIME: Duration = Duration::from_secs(20);

#[derive(Debug, Error)]
pub enum ScreenError {
    #[error("the X server has ended")]
    Gone,
    #[error("the X server did not answer within {} s", JOB_TIME.as_secs())]
    Hung,
    #[error("{MAX_JOBS} actions wait for the screen already")]
    TooMany,
    #[error("the X server refused: {0}")]
    Refused(String),
    #[error("{x}, {y} is outside of the screen, which is {width}x{height}")]
    Outside { x: i64, y: i64, width: u16, height: u16 },
    #[error("there is no key {0:?}")]
    NoKey(String),
    #[error("{0:?} can't be typed")]
    NoCharacter(char),
    #[error("the screen can't be {width}x{height}; it can be {known}")]
    NoSize { width: u32, height: u32, known: String },
    #[error("there is no window {0}")]
    NoWindow(u32),
    #[error("the window {0} is minimised")]
    Minimised(u32),
    #[error("there is no window manager")]
    NoManager,
    #[error("the picture could not be written: {0}")]
    NoPicture(String),
    #[error("no program gave the clipboard's content in time")]
    NoClipboard,
    #[error("the clipboard holds more than {} bytes", super::clipboard::MAX_TEXT)]
    LongClipboard,
}

impl From<ConnectionError> for ScreenError {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::IoError(_) | ConnectionError::UnknownError => Self::Gone,
            error => Self::Refused(error.to_string()),
        }
    }
}

impl From<ReplyError> for ScreenError {
    fn from(error: ReplyError) -> Self {
        match error {
            ReplyError::ConnectionError(error) => error.into(),
            ReplyError::X11Error(error) => Self::Refused(format!("{:?}", error.error_kind)),
        }
    }
}

impl From<ReplyOrIdError> for ScreenError {
    fn from(error: ReplyOrIdError) -> Self {
        match error {
            ReplyOrIdError::X11Error(error) => Self::Refused(format!("{:?}", error.error_kind)),
            ReplyOrIdError::ConnectionError(error) => error.into(),
            ReplyOrIdError::IdsExhausted => Self::Gone,
        }
    }
}

/// The state that a job works on.
#[derive(Debug)]
pub struct Screen {
    pub(super) connection: RustConnection,
    pub(super) root: Window,
    pub(super) keyboard: Keyboard,
    pub(super) pings: Pings,
}

impl Screen {
    fn over(stream: UnixStream) -> Result<Self, ConnectError> {
        let (stream, _) = DefaultStream::from_unix_stream(stream)?;
        let connection = RustConnection::connect_to_stream(stream, 0)?;
        let setup = connection.setup();
        let root = setup.roots.first().ok_or(ConnectError::InvalidScreen)?.root;
        let keyboard = Keyboard::new(setup.min_keycode, setup.max_keycode);
        Ok(Self { connection, root, keyboard, pings: Pings::default() })
    }

    /// Waits until the X server has processed all requests.
    pub(super) fn finish(&self) -> Result<(), ScreenError> {
        self.connection.get_input_focus()?.reply()?;
        // Events of this connection are not used, and must not accumulate.
        while self.connection.poll_for_event()?.is_some() {}
        Ok(())
    }

    /// Waits for an event until the deadline. Returns false once it has passed. An early return only makes the caller check
    /// again.
    pub(super) fn wait_until(&self, deadline: Instant) -> Result<bool, ScreenError> {
        let Some(left) = deadline.checked_duration_since(Instant::now()) else { return Ok(false) };
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(self.connection.stream(), PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(true),
            Err(_) => Err(ScreenError::Gone),
        }
    }

    /// Waits until a condition holds that changes with events of the window manager, or with a window's end. Returns whether it
    /// holds.
    pub(super) fn until(
        &self,
        patience: Duration,
        mut is_so: impl FnMut(&Self) -> Result<bool, ScreenError>,
    ) -> Result<bool, ScreenError> {
        let deadline = Instant::now() + patience;
        self.listen(EventMask::PROPERTY_CHANGE | EventMask::SUBSTRUCTURE_NOTIFY)?;
        let outcome = loop {
            match is_so(self) {
                Ok(false) => {}
                outcome => break outcome,
            }
            // An event during the check is a reason to check again; otherwise, wait for the next event.
            let mut came = false;
            while self.connection.poll_for_event()?.is_some() {
                came = true;
            }
            if !came && !self.wait_until(deadline)? {
                break Ok(false);
            }
        };
        self.listen(EventMask::NO_EVENT)?;
        self.finish()?;
        outcome
    }

    /// The screen's width and height, in pixels.
    pub fn size(&self) -> Result<(u16, u16), ScreenError> {
        let geometry = self.connection.get_geometry(self.root)?.reply()?;
        Ok((geometry.width, geometry.height))
    }
}

type Job = Box<dyn FnOnce(&mut Screen) + Send>;

/// The queue of the thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Hands {
    jobs: SyncSender<Job>,
    /// The thread's connection, to detect whether the other side has closed it.
    stream: UnixStream,
}

impl Hands {
    /// Starts the thread on a fresh connection to the X server.
    pub(super) async fn over(stream: UnixStream) -> Result<Self, ScreenError> {
        let kept = stream.try_clone().map_err(|e| ScreenError::Refused(e.to_string()))?;
        let (jobs, queue) = sync_channel(MAX_JOBS);
        let (ready, made) = oneshot::channel();
        let work = move || match Screen::over(stream) {
            Ok(screen) => {
                // If the receiver was dropped, the queue is already closed.
                let _ = ready.send(Ok(()));
                work(screen, &queue);
            }
            Err(error) => drop(ready.send(Err(ScreenError::Refused(error.to_string())))),
        };
        std::thread::Builder::new().name("screen".to_owned()).spawn(work).map_err(|e| ScreenError::Refused(e.to_string()))?;
        timeout(JOB_TIME, made).await.map_err(|_| ScreenError::Hung)?.map_err(|_| ScreenError::Gone)??;
        Ok(Self { jobs, stream: kept })
    }

    /// Whether the X server has closed the connection, which shows its death earlier than its process does.
    pub(super) fn is_cut(&self) -> bool {
        let mut ends = [PollFd::new(&self.stream, PollFlags::empty())];
        // Without requested events, `poll` reports only hang-ups and errors.
        poll(&mut ends, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Runs a job after the earlier ones. The job runs even if this future is dropped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Screen) -> Result<T, ScreenError> + Send + 'static,
    ) -> Result<T, ScreenError> {
        let (reply, done) = oneshot::channel();
        let job = move |screen: &mut Screen| drop(reply.send(job(screen)));
        self.jobs.try_send(Box::new(job)).map_err(|error| match error {
            TrySendError::Full(_) => ScreenError::TooMany,
            TrySendError::Disconnected(_) => ScreenError::Gone,
        })?;
        timeout(JOB_TIME, done).await.map_err(|_| ScreenError::Hung)?.map_err(|_| ScreenError::Gone)?
    }
}

fn work(mut screen: Screen, queue: &Receiver<Job>) {
    while let Ok(job) = queue.recv() {
        job(&mut screen);
    }
}
