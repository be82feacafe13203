//! The task of a session. See the diagram in [`super`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::marks::Marks;
use super::posix::Letterbox;
use super::pty::Pty;
use super::run::Run;
use super::service::SESSION_TIMEOUT;
use super::service::ShellService;
use super::session::{Message, NotOpened, Session};
use super::stop::Stop;
use super::types::ShellStatus;
use super::viewers::Viewers;
use arenite_guest_runtime::process::{self, Budget, Child, Exit, Moment};
use arenite_guest_runtime::saved;

mod ending;
mod handover;

/// The most queued commands. Further ones are refused.
pub(super) const MAX_QUEUED: usize = 256;
/// The most typed bytes that no program has read. More are refused.
const MAX_TYPED: usize = 1 << 20;
/// The most typed bytes searched for the name of a command.
const MAX_TYPED_LINE: usize = 4096;
const READ_BUFFER: usize = 8 << 10;
/// Time for the user's own start-up files. Then a shell without them is tried.
const BOOT_PATIENCE: Duration = Duration::from_secs(60);
/// Time for an idle shell to answer. Then it is replaced. Generous, since the machine may be busy and variables get lost.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);
/// If ^C brought no prompt, it is typed again: a shell that is drawing its line sees it only with the next key.
const CLEAR_AGAIN: Duration = Duration::from_millis(250);
/// How long the terminal must be quiet after ^C before a command goes to it.
const SETTLE: Duration = Duration::from_millis(30);
const MAX_SETTLE: Duration = Duration::from_secs(1);
/// The most attempts for a command that its shell never read, and for a shell that ends at its start.
const ATTEMPTS: u32 = 3;
/// The most shells of one session with remembered left-over processes, which end with the session.
const MAX_MARKERS: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No shell runs. The next need starts one.
    Down,
    Booting,
    Idle,
    /// ^C was typed at the prompt, which may hold half a line.
    Clearing,
    /// The prompt came back; more may follow.
    Settling,
    Asking,
    Starting,
    Running,
    /// A line typed by a viewer or `write` runs.
    Typed,
}

pub(super) struct Actor {
    service: Arc<ShellService>,
    session: Arc<Session>,
    messages: mpsc::Receiver<Message>,
    budget: Arc<Budget>,
    stage: Stage,
    /// The deadline of the stage.
    stage_ends: Option<Instant>,
    /// When ^C was last typed to clear the prompt.
    cleared: Instant,
    pty: Option<Pty>,
    child: Option<Child>,
    marks: Option<Marks>,
    /// How the shell gets its commands, if it is not bash.
    letterbox: Option<Letterbox>,
    /// Marks of the processes of all shells that this session had, newest last.
    markers: VecDeque<String>,
    /// Start the next shell without the user's start-up files.
    plain: bool,
    failures: u32,
    keep_links: bool,
    /// The command that is being handed over or runs.
    current: Option<Arc<Run>>,
    attempts: u32,
    /// The pieces that the shell gets, one for each G mark.
    pieces: VecDeque<String>,
    /// The value of `$?` after the last command.
    exit_code: i32,
    /// The moment before the current command started.
    since: Moment,
    stop: Option<Stop>,
    /// Signals are being sent to a command's processes. No other command may start meanwhile.
    killing: Option<JoinHandle<()>>,
    /// Bytes to type, and the number already typed.
    outbox: Vec<u8>,
    sent: usize,
    /// Input that arrived while a command is handed over.
    held: Vec<u8>,
    /// Input arrived at this prompt, or ahead of it.
    dirty: bool,
    typed_ahead: bool,
    /// The last input.
    typed: Vec<u8>,
    viewers: Viewers,
    buffer: Vec<u8>,
}

enum Event {
    Output(usize),
    Written(usize),
    Exit(Exit),
    Message(Option<Message>),
    Killed,
    Time,
}

impl Actor {
    pub(super) fn new(
        service: Arc<ShellService>,
        session: Arc<Session>,
        messages: mpsc::Receiver<Message>,
        budget: Arc<Budget>,
        keep_links: bool,
    ) -> Self {
        Self {
            service,
            session,
            messages,
            budget,
            stage: Stage::Down,
            stage_ends: None,
            cleared: Instant::now(),
            pty: None,
            child: None,
            marks: None,
            letterbox: None,
            markers: VecDeque::new(),
            plain: false,
            failures: 0,
            keep_links,
            current: None,
            attempts: 0,
            pieces: VecDeque::new(),
            exit_code: 0,
            since: Moment::now(),
            stop: None,
            killing: None,
            outbox: Vec::new(),
            sent: 0,
            held: Vec::new(),
            dirty: false,
            typed_ahead: false,
            typed: Vec::new(),
            viewers: Viewers::default(),
            buffer: vec![0; READ_BUFFER],
        }
    }

    /// Runs until the session is closed.
    pub(super) async fn run(mut self) {
        let opened = self.start_shell().await;
        let failed = opened.is_err();
        self.session.opened.send_replace(Some(opened));
        let closing = if failed { None } else { self.serve().await };
        self.service.forget(&self.session);
        self.end_everything();
        if let Some((all_processes, reply)) = closing {
            self.kill_shells(all_processes).await;
            // The caller may have left.
            let _ = reply.send(());
        } else {
            self.kill_shells(false).await;
        }
    }

    /// Returns when the session must end: by itself, or on request.
    async fn serve(&mut self) -> Option<(bool, oneshot::Sender<()>)> {
        loop {
            match self.next().await {
                Event::Output(0) => {
                    // No process has the terminal open: the shell's end is about to be reported.
                    if let Some(pty) = &mut self.pty {
                        pty.close_input();
                    }
                }
                Event::Output(length) => {
                    let buffer = std::mem::take(&mut self.buffer);
                    self.feed(&buffer[..length]);
                    self.buffer = buffer;
                }
                Event::Written(length) => {
                    self.sent += length;

                    if self.sent >= self.outbox.len() {
                        self.outbox.clear();
                        self.outbox.shrink_to(READ_BUFFER);
                        self.sent = 0;
                    }
                }
                Event::Exit(exit) => self.shell_ended(exit),
                Event::Killed => self.killing = None,
                Event::Message(Some(Message::Close { all_processes, reply })) => return Some((all_processes, reply)),
                Event::Message(Some(message)) => self.message(message),
                Event::Message(None) => return None,
                Event::Time => {
                    if self.time() {
                        return None;
                    }
                }
            }
            if self.stage == Stage::Down
                && self.needs_shell()
                && let Err(reason) = self.start_shell().await
            {
                self.give_up(&reason);
            }
            self.start_next();
            self.publish();
        }
    }

    async fn next(&mut self) -> Event {
        let deadline = self.deadline();
        let Self { pty, child, killing, messages, buffer, outbox, sent, .. } = self;
        let pty = pty.as_ref();
        tokio::select! {
            n = read(pty, buffer) => Event::Output(n),
            n = write(pty, &outbox[*sent..]) => Event::Written(n),
            exit = ended(child) => Event::Exit(exit),
            message = messages.recv() => Event::Message(message),
            () = done(killing) => Event::Killed,
            () = sleep_until(deadline) => Event::Time,
        }
    }

    fn deadline(&self) -> Instant {
        let stop = self.stop.as_ref().and_then(|s| s.next).map(|(_, at)| at);
        [stop, self.hard_deadline(), self.stage_ends]
            .into_iter()
            .flatten()
            .chain([self.unused_until()])
            .min()
            .unwrap_or_else(|| Instant::now() + SESSION_TIMEOUT)
    }

    fn hard_deadline(&self) -> Option<Instant> {
        if self.stop.is_some() {
            return None;
        }
        let run = self.current.as_ref()?;
        run.began()?.checked_add(run.hard_timeout?)
    }

    fn unused_until(&self) -> Instant {
        saved::last_use(self.session.state().last_used) + SESSION_TIMEOUT
    }

    fn needs_shell(&mut self) -> bool {
        let waiting = !self.session.state().queue.is_empty();
        waiting || !self.held.is_empty() || self.viewers.count() > 0
    }

    fn message(&mut self, message: Message) {
        match message {
            // The command is already in the queue, which `serve` checks after each message.
            Message::Look => {}
            Message::Type { bytes, reply } => {
                let accepted = self.type_in(&bytes);
                if let Some(reply) = reply {
                    // The caller may have left.
                    let _ = reply.send(accepted);
                }
            }
            Message::Stop(reply) => {
                if self.current.is_some() {
                    self.begin_stop(ShellStatus::Terminated).replies.push(reply);
                } else {
                    let next = self.session.state().queue.pop_front();
                    if let Some(run) = next {
                        run.end(ShellStatus::Terminated, None, None);
                        self.session.ended(&run);
                    }
                    // The caller may have left.
                    let _ = reply.send(());
                }
            }
            Message::Resize { columns, rows } => {
                if let Some(pty) = &self.pty {
                    pty.resize(columns, rows);
                }
            }
            Message::Attach(viewer) => {
                // If refused, its channel closes, which the viewer sees.
                self.viewers.attach(viewer);
            }
            Message::Close { .. } => unreachable!("`serve` takes it"),
        }
    }

    /// Types input from a person or `write`. Returns false if too much earlier input is unread.
    fn type_in(&mut self, bytes: &[u8]) -> bool {
        let waiting = self.outbox.len() - self.sent + self.held.len();
        if waiting + bytes.len() > MAX_TYPED {
            return false;
        }
        let command_waits = !self.session.state().queue.is_empty();
        match self.stage {
            // The input is meant for that command.
            Stage::Idle if command_waits => {
                self.held.extend_from_slice(bytes);
                return true;
            }
            Stage::Idle => self.dirty = true,
            Stage::Running | Stage::Typed => self.typed_ahead = true,
            _ => {
                self.held.extend_from_slice(bytes);
                return true;
            }
        }
        self.outbox.extend_from_slice(bytes);
        self.typed.extend_from_slice(bytes);
        let excess = self.typed.len().saturating_sub(MAX_TYPED_LINE);
        self.typed.drain(..excess);
        // Only bash reports that a typed line starts to run.
        if self.stage == Stage::Idle && self.letterbox.is_some() && bytes.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
            self.begin_typed();
            let (last, lines) = bytes.split_last().map_or((&b'\n', &[][..]), |split| split);
            self.typed_ahead = !matches!(last, b'\r' | b'\n') || lines.iter().any(|byte| matches!(byte, b'\r' | b'\n'));
        }
        true
    }

    fn release_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            self.type_in(&held);
        }
    }

    /// Handles due timers. Returns true if the session is idle and ends.
    fn time(&mut self) -> bool {
        let now = Instant::now();
        if self.hard_deadline().is_some_and(|at| at <= now) {
            self.begin_stop(ShellStatus::HardTimeout);
        }
        if let Some(means) = self.stop.as_mut().and_then(|stop| stop.due(now)) {
            self.apply(means);
        }
        if self.stage_ends.is_some_and(|at| at <= now) {
            self.stage_ends = None;
            match self.stage {
                Stage::Settling if self.killing.is_some() => {
                    self.enter(Stage::Settling, Some(SETTLE));
                }
                Stage::Settling => {
                    self.enter(Stage::Idle, None);
                    self.release_held_at_prompt();
                }
                Stage::Booting => {
                    self.plain = true;
                    self.replace_shell();
                }
                Stage::Clearing if self.cleared.elapsed() < ANSWER_PATIENCE => {
                    self.outbox.push(0x03);
                    self.enter(Stage::Clearing, Some(CLEAR_AGAIN));
                }
                Stage::Clearing | Stage::Asking | Stage::Starting => self.replace_shell(),
                _ => {}
            }
        }
        if self.unused_until() <= now {
            self.session.touch();
            let in_use = self.session.is_busy() || self.viewers.count() > 0;
            let works = self.child.as_ref().is_some_and(|c| process::has_children(c.pid));
            return !in_use && !works;
        }
        false
    }

    /// Input that arrived while the prompt was cleared for a command comes after that command.
    fn release_held_at_prompt(&mut self) {
        if self.session.state().queue.is_empty() {
            self.release_held();
        }
    }

    /// Publishes the state that other tasks may see.
    fn publish(&mut self) {
        self.session.state().shell = self.child.as_ref().map(|c| c.pid);
    }

    /// Ends the queued commands if no shell can be started. The next command tries again.
    fn give_up(&mut self, reason: &NotOpened) {
        self.failures = 0;
        self.held.clear();
        self.viewers = Viewers::default();
        let queue = std::mem::take(&mut self.session.state().queue);
        for run in queue {
            run.end(ShellStatus::Terminated, None, Some(format!("not started: there is no shell: {reason}")));
            self.session.ended(&run);
        }
    }

    /// Ends all commands, and refuses more.
    fn end_everything(&mut self) {
        let queue = {
            let mut state = self.session.state();
            state.closed = true;
            std::mem::take(&mut state.queue)
        };
        let hint = || Some("the session was closed".to_owned());
        self.finish(ShellStatus::Terminated, None, hint());
        for run in queue {
            run.end(ShellStatus::Terminated, None, hint());
        }
    }
}

async fn read(pty: Option<&Pty>, buffer: &mut [u8]) -> usize {
    match pty.filter(|pty| pty.is_open()) {
        Some(pty) => pty.read(buffer).await,
        None => std::future::pending().await,
    }
}

async fn write(pty: Option<&Pty>, bytes: &[u8]) -> usize {
    match pty {
        Some(pty) if !bytes.is_empty() => pty.write(bytes).await,
        _ => std::future::pending().await,
    }
}

async fn ended(child: &mut Option<Child>) -> Exit {
    match child {
        Some(child) => child.wait().await,
        None => std::future::pending().await,
    }
}

async fn done(job: &mut Option<JoinHandle<()>>) {
    match job {
        // It only sends signals; if it panics, it has ended too.
        Some(job) => drop(job.await),
        None => std::future::pending().await,
    }
}
