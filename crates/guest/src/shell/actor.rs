//! The task of a session. See the diagram in [`super`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};

use super::bash::{self, Shell};
use super::driver;
use super::marks::{Mark, Token};
use super::pty::Pty;
use super::run::{Phase, Run};
use super::service::SESSION_TIMEOUT;
use super::session::{Message, Session, shown};
use super::stop::{self, Means, Stop};
use super::types::ShellStatus;
use super::viewers::Viewers;
use crate::SharedGuest;
use crate::process::{self, Budget, Child, Exit, Moment};

/// Commands that wait for their turn; the next is refused.
pub(super) const MAX_QUEUED: usize = 256;
/// Bytes typed that no program has read; more are refused.
const MAX_TYPED: usize = 1 << 20;
const READ_BUFFER: usize = 8 << 10;
/// For the user's own start-up files; then a shell without them is tried.
const BOOT_PATIENCE: Duration = Duration::from_secs(60);
/// For an idle shell to answer; then it is replaced. Generous, since the machine may be busy and variables get lost.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);
/// When ^C brought no prompt, it is typed again: a shell that is just drawing its line sees one only with the next key.
const CLEAR_AGAIN: Duration = Duration::from_millis(250);
/// How long the terminal must be quiet after ^C before a command goes to it.
const SETTLE: Duration = Duration::from_millis(30);
const MAX_SETTLE: Duration = Duration::from_secs(1);
/// How often a command that its shell never read is tried again, and a shell that ends at its start.
const ATTEMPTS: u32 = 3;
/// Shells of one session whose left-over processes are remembered, to end them with the session.
const MAX_MARKERS: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// There is no shell; the next need starts one.
    Down,
    Booting,
    Idle,
    /// ^C was typed at the prompt, where half a line may stand.
    Clearing,
    /// The prompt came back; more may be on its way.
    Settling,
    Asking,
    Starting,
    Running,
    /// A line runs that somebody typed.
    Typed,
}

pub(super) struct Actor {
    guest: SharedGuest,
    session: Arc<Session>,
    messages: mpsc::Receiver<Message>,
    budget: Arc<Budget>,
    stage: Stage,
    /// When the stage has lasted too long.
    stage_ends: Option<Instant>,
    /// When ^C was last typed to clear the prompt.
    cleared: Instant,
    pty: Option<Pty>,
    child: Option<Child>,
    marks: Option<super::marks::Marks>,
    /// Marks of the processes of all shells that this session had, the newest last.
    markers: VecDeque<String>,
    /// Start the next shell without the user's start-up files.
    plain: bool,
    failures: u32,
    keep_links: bool,
    /// The one that is being handed over or runs.
    current: Option<Arc<Run>>,
    attempts: u32,
    /// What the shell gets once it has said G.
    body: String,
    /// What the last command left in `$?`.
    exit_code: i32,
    /// Before the current command began.
    since: Moment,
    stop: Option<Stop>,
    /// Signals are being sent to a command's processes. No other command may begin meanwhile.
    killing: Option<JoinHandle<()>>,
    /// To be typed, and how much of it has been.
    outbox: Vec<u8>,
    sent: usize,
    /// Typed by somebody while a command is handed over.
    held: Vec<u8>,
    /// Somebody typed at this prompt, or ahead of it.
    dirty: bool,
    typed_ahead: bool,
    /// What was typed at this prompt.
    typed: Vec<u8>,
    viewers: Viewers,
    buffer: Vec<u8>,
}

/// Which processes of a command a signal is for.
enum Whom {
    /// Those in the foreground, and what it started besides; its shell gets ^C.
    Everyone,
    /// The command is over.
    LeftBehind,
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
        guest: SharedGuest,
        session: Arc<Session>,
        messages: mpsc::Receiver<Message>,
        budget: Arc<Budget>,
        keep_links: bool,
    ) -> Self {
        Self {
            guest,
            session,
            messages,
            budget,
            stage: Stage::Down,
            stage_ends: None,
            cleared: Instant::now(),
            pty: None,
            child: None,
            marks: None,
            markers: VecDeque::new(),
            plain: false,
            failures: 0,
            keep_links,
            current: None,
            attempts: 0,
            body: String::new(),
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
        self.guest.shell.forget(&self.session);
        self.end_everything();
        if let Some((all_processes, reply)) = closing {
            self.kill_shells(all_processes).await;
            // Whoever asked may have left.
            let _ = reply.send(());
        } else {
            self.kill_shells(false).await;
        }
    }

    /// Returns when the session shall end: by itself, or because somebody asked.
    async fn serve(&mut self) -> Option<(bool, oneshot::Sender<()>)> {
        loop {
            match self.next().await {
                Event::Output(0) => {
                    // Nobody has the terminal open: the shell's end is about to be reported.
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
                    if self.stage == Stage::Starting {
                        // A long command takes a while; as long as its shell reads, all is well.
                        self.enter(Stage::Starting, Some(ANSWER_PATIENCE));
                    }
                    if self.sent >= self.outbox.len() {
                        self.outbox.clear();
                        self.outbox.shrink_to(READ_BUFFER);
                        self.sent = 0;
                    }
                }
                Event::Exit(exit) => self.shell_ended(exit),
                Event::Killed => self.killing = None,
                Event::Message(Some(Message::Close {
                    all_processes,
                    reply,
                })) => return Some((all_processes, reply)),
                Event::Message(Some(message)) => self.message(message),
                Event::Message(None) => return None,
                Event::Time => {
                    if self.time() {
                        return None;
                    }
                }
            }
            if self.stage == Stage::Down && self.needs_shell() && self.start_shell().await.is_err()
            {
                return None;
            }
            self.start_next();
            self.publish();
        }
    }

    async fn next(&mut self) -> Event {
        let deadline = self.deadline();
        let Self {
            pty,
            child,
            killing,
            messages,
            buffer,
            outbox,
            sent,
            ..
        } = self;
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
        self.session.state().last_used + SESSION_TIMEOUT
    }

    fn needs_shell(&mut self) -> bool {
        let waiting = !self.session.state().queue.is_empty();
        waiting || !self.held.is_empty() || self.viewers.count() > 0
    }

    fn message(&mut self, message: Message) {
        match message {
            // The command is in the queue already; `serve` looks there after each message.
            Message::Look => {}
            Message::Type { bytes, reply } => {
                let accepted = self.type_in(&bytes);
                if let Some(reply) = reply {
                    // Whoever asked may have left.
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
                    // Whoever asked may have left.
                    let _ = reply.send(());
                }
            }
            Message::Resize { columns, rows } => {
                if let Some(pty) = &self.pty {
                    pty.resize(columns, rows);
                }
            }
            Message::Attach(viewer) => {
                // Refused: its channel closes, which is what the viewer sees.
                self.viewers.attach(viewer);
            }
            Message::Close { .. } => unreachable!("`serve` takes it"),
        }
    }

    /// Types what a person or `write` sent; false: nobody reads what was typed before.
    fn type_in(&mut self, bytes: &[u8]) -> bool {
        let waiting = self.outbox.len() - self.sent + self.held.len();
        if waiting + bytes.len() > MAX_TYPED {
            return false;
        }
        match self.stage {
            Stage::Idle => {
                self.dirty = true;
                self.typed.extend_from_slice(bytes);
                self.typed.truncate(4096);
                self.outbox.extend_from_slice(bytes);
            }
            Stage::Running | Stage::Typed => {
                self.typed_ahead = true;
                self.outbox.extend_from_slice(bytes);
            }
            _ => self.held.extend_from_slice(bytes),
        }
        true
    }

    fn release_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            self.type_in(&held);
        }
    }

    /// Hands the next command to the shell, if both are ready.
    fn start_next(&mut self) {
        if self.stage != Stage::Idle {
            return;
        }
        {
            let queue = &mut self.session.state().queue;
            // Some may have been withdrawn.
            queue.retain(|run| run.phase() == Phase::Queued);
            if queue.is_empty() {
                return;
            }
        }
        let (Some(pty), Some(child)) = (&self.pty, &self.child) else {
            return;
        };
        let in_foreground = pty.foreground().map(|group| group.as_raw_nonzero().get());
        if in_foreground.is_some_and(|group| group != child.pid) {
            // Somebody's program runs though the shell did not say so. Its end brings a prompt.
            return;
        }
        if self.dirty {
            self.clear_prompt();
            return;
        }
        let run = {
            let mut state = self.session.state();
            let run = state.queue.pop_front();
            state.current.clone_from(&run);
            run
        };
        let Some(run) = run else {
            return;
        };
        let dir = run.dir.as_ref().map(|(dir, keep)| (dir.as_str(), *keep));
        let letter = driver::letter(dir, &run.command, self.exit_code);
        self.outbox.extend_from_slice(letter.line.as_bytes());
        self.body = letter.body;
        self.current = Some(run);
        self.enter(Stage::Asking, Some(ANSWER_PATIENCE));
    }

    fn clear_prompt(&mut self) {
        self.outbox.push(0x03);
        self.cleared = Instant::now();
        self.dirty = false;
        self.typed.clear();
        self.enter(Stage::Clearing, Some(CLEAR_AGAIN));
    }

    fn enter(&mut self, stage: Stage, limit: Option<Duration>) {
        self.stage = stage;
        self.stage_ends = limit.map(|limit| Instant::now() + limit);
    }

    fn feed(&mut self, bytes: &[u8]) {
        let Some(mut marks) = self.marks.take() else {
            return;
        };
        marks.feed(bytes, |token| match token {
            Token::Text(text) => self.text(text),
            Token::Mark(mark) => self.mark(mark),
        });
        self.marks = Some(marks);
    }

    fn text(&mut self, text: &[u8]) {
        match self.stage {
            Stage::Down | Stage::Booting | Stage::Asking | Stage::Starting => return,
            // Not for ever: a background job may print on and on.
            Stage::Settling if self.cleared.elapsed() < MAX_SETTLE => {
                self.enter(Stage::Settling, Some(SETTLE));
            }
            Stage::Running | Stage::Typed => {
                if let Some(run) = &self.current {
                    run.push(text);
                }
            }
            Stage::Idle | Stage::Clearing | Stage::Settling => {}
        }
        self.viewers.show(text);
    }

    fn mark(&mut self, mark: Mark) {
        match (mark, self.stage) {
            (Mark::Go, Stage::Asking) => {
                self.since = Moment::now();
                let body = std::mem::take(&mut self.body);
                self.outbox.extend_from_slice(body.as_bytes());
                self.enter(Stage::Starting, Some(ANSWER_PATIENCE));
            }
            (Mark::Start, Stage::Starting) => self.begin_run(),
            (Mark::Typed, Stage::Idle) => self.begin_typed(),
            (Mark::Prompt { exit_code, dir }, stage) => {
                self.session.state().working_dir = dir;
                self.prompt(exit_code, stage);
            }
            _ => {}
        }
    }

    fn begin_run(&mut self) {
        self.enter(Stage::Running, None);
        self.attempts = 0;
        let Some(run) = self.current.clone() else {
            return;
        };
        let text = shown(&run.command).replace('\n', "\r\n");
        self.viewers.show(text.as_bytes());
        self.viewers.show(b"\r\n");
        run.begin();
        self.release_held();
        if let Some(stop) = &mut self.stop {
            stop.next = Some((Means::Interrupt, Instant::now()));
        }
    }

    fn begin_typed(&mut self) {
        self.dirty = false;
        let typed = std::mem::take(&mut self.typed);
        let line = String::from_utf8_lossy(&typed);
        let line = line.trim_matches(|c: char| c.is_control() || c.is_whitespace());
        let run = Run::new(line.to_owned(), None, None, &self.budget);
        run.begin();
        self.session.state().current = Some(Arc::clone(&run));
        self.current = Some(run);
        self.session.touch();
        self.enter(Stage::Typed, None);
    }

    fn prompt(&mut self, exit_code: i32, stage: Stage) {
        match stage {
            Stage::Running | Stage::Typed => {
                self.exit_code = exit_code;
                self.dirty = std::mem::take(&mut self.typed_ahead);
                let status = match &self.stop {
                    Some(stop) => stop.status,
                    None => ShellStatus::Completed,
                };
                if self.stop.is_some() {
                    // What it left behind is a part of it.
                    self.signal_command(Signal::KILL, Whom::LeftBehind);
                    // A signal may still be on its way to the shell, and must not meet the next command.
                    self.cleared = Instant::now();
                    self.enter(Stage::Settling, Some(SETTLE));
                } else {
                    self.enter(Stage::Idle, None);
                }
                self.finish(status, Some(exit_code), None);
                self.since = Moment::now();
            }
            Stage::Booting => {
                self.failures = 0;
                self.since = Moment::now();
                self.enter(Stage::Idle, None);
                self.release_held();
            }
            Stage::Clearing | Stage::Settling => self.enter(Stage::Settling, Some(SETTLE)),
            // The line was read without its function running: something else was in the way.
            Stage::Asking => {
                self.put_back();
                self.clear_prompt();
            }
            // ^C while the command was being read. Its rest may still be in the terminal.
            Stage::Starting => {
                self.outbox.clear();
                self.sent = 0;
                let status = match &self.stop {
                    Some(stop) => stop.status,
                    None => ShellStatus::Terminated,
                };
                self.finish(status, None, Some("interrupted before it began".to_owned()));
                self.clear_prompt();
            }
            Stage::Idle | Stage::Down => {}
        }
    }

    /// The current command was not read by the shell: it goes back to the queue's head, or ends after some attempts.
    fn put_back(&mut self) {
        self.body.clear();
        self.attempts += 1;
        if self.attempts < ATTEMPTS && self.stop.is_none() {
            let mut state = self.session.state();
            state.current = None;
            if let Some(run) = self.current.take() {
                state.queue.push_front(run);
            }
        } else {
            self.attempts = 0;
            let status = match &self.stop {
                Some(stop) => stop.status,
                None => ShellStatus::Terminated,
            };
            self.finish(status, None, Some("not started: the shell did not answer".to_owned()));
        }
    }

    fn finish(&mut self, status: ShellStatus, exit_code: Option<i32>, hint: Option<String>) {
        if let Some(run) = self.current.take() {
            run.end(status, exit_code, hint);
            self.session.ended(&run);
        }
        if let Some(stop) = self.stop.take() {
            for reply in stop.replies {
                // Whoever asked may have left.
                let _ = reply.send(());
            }
        }
    }

    fn begin_stop(&mut self, status: ShellStatus) -> &mut Stop {
        let has_begun = matches!(self.stage, Stage::Running | Stage::Typed);
        let stop = self.stop.get_or_insert_with(|| Stop::new(status));
        if has_begun && stop.next.is_none() {
            stop.next = Some((Means::Interrupt, Instant::now()));
        }
        stop
    }

    /// Does what is due. True: the session is unused and ends.
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

    /// What was typed while the prompt was cleared for a command comes after that command.
    fn release_held_at_prompt(&mut self) {
        if self.session.state().queue.is_empty() {
            self.release_held();
        }
    }

    fn apply(&mut self, means: Means) {
        match means {
            Means::Interrupt => {
                if let Some(pty) = &self.pty {
                    pty.interrupt();
                }
            }
            Means::Terminate => self.signal_command(Signal::TERM, Whom::Everyone),
            Means::Kill => self.signal_command(Signal::KILL, Whom::Everyone),
            Means::KillShell => self.kill_shell(),
        }
    }

    fn signal_command(&mut self, signal: Signal, whom: Whom) {
        let (Some(pty), Some(child)) = (&self.pty, &self.child) else {
            return;
        };
        let command = stop::Target {
            shell: child.pid,
            marker: child.marker.clone(),
            foreground: match whom {
                Whom::Everyone => pty.foreground().map(|group| group.as_raw_nonzero().get()),
                Whom::LeftBehind => None,
            },
            since: self.since,
        };
        let before = self.killing.take();
        self.killing = Some(tokio::spawn(async move {
            if let Some(before) = before {
                // It only sends signals; should it panic, that is over too.
                drop(before.await);
            }
            drop(spawn_blocking(move || command.send(signal)).await);
        }));
    }

    fn replace_shell(&self) {
        let (id, stage) = (&self.session.id, self.stage);
        tracing::warn!(id, ?stage, "a shell does not answer and is replaced");
        self.kill_shell();
    }

    fn kill_shell(&self) {
        if let Some(child) = &self.child {
            process::send(&[child.pid], Signal::KILL);
        }
    }

    /// The shell's process is gone; what it was doing ends with it.
    fn shell_ended(&mut self, exit: Exit) {
        self.child = None;
        if let Some(pty) = self.pty.take() {
            let mut buffer = std::mem::take(&mut self.buffer);
            // Bounded: what is in the terminal now. A background job may go on printing.
            for _ in 0..64 {
                match pty.read_now(&mut buffer) {
                    0 => break,
                    n => self.feed(&buffer[..n]),
                }
            }
            self.buffer = buffer;
        }
        self.outbox.clear();
        self.sent = 0;
        (self.dirty, self.typed_ahead) = (false, false);
        self.typed.clear();
        match self.stage {
            Stage::Running | Stage::Typed => self.end_with_shell(exit),
            Stage::Asking | Stage::Starting => self.put_back(),
            Stage::Booting => {
                self.failures += 1;
                self.plain = true;
            }
            Stage::Down | Stage::Idle | Stage::Clearing | Stage::Settling => {}
        }
        self.exit_code = 0;
        self.enter(Stage::Down, None);
        self.viewers.show(b"\r\n[the shell has ended]\r\n");
    }

    fn end_with_shell(&mut self, exit: Exit) {
        const NEW_SHELL: &str = "the session goes on with a new shell in the same directory; variables, functions and options are gone";
        if let Some(stop) = &self.stop {
            let status = stop.status;
            let hint = format!("it could only be stopped by ending its shell; {NEW_SHELL}");
            self.finish(status, None, Some(hint));
            return;
        }
        if let Some(run) = &self.current {
            run.ends_with_exit();
        }
        match exit {
            Exit::Code(code) => {
                let hint = format!("the command ended its shell; {NEW_SHELL}");
                self.finish(ShellStatus::Completed, Some(code), Some(hint));
            }
            Exit::Signal(signal) => {
                let hint = format!("the shell was killed by signal {signal}; {NEW_SHELL}");
                self.finish(ShellStatus::Terminated, None, Some(hint));
            }
        }
    }

    async fn start_shell(&mut self) -> Result<(), String> {
        if self.failures >= ATTEMPTS {
            return Err(format!("{ATTEMPTS} shells in a row ended at their start"));
        }
        let dir = self.session.state().working_dir.clone();
        let started = bash::start(&self.guest, &dir, self.keep_links, self.plain).await;
        let shell = started.map_err(|e| {
            tracing::warn!(error = %e, "could not start a shell");
            e.to_string()
        })?;
        let Shell {
            pty,
            child,
            marks,
            dir,
        } = shell;
        self.markers.push_back(child.marker.clone());
        if self.markers.len() > MAX_MARKERS {
            self.markers.pop_front();
        }
        {
            let mut state = self.session.state();
            state.working_dir = dir;
            state.shell = Some(child.pid);
        }
        (self.pty, self.child, self.marks) = (Some(pty), Some(child), Some(marks));
        self.outbox.extend_from_slice(driver::FIRST_LINE.as_bytes());
        self.enter(Stage::Booting, Some(BOOT_PATIENCE));
        Ok(())
    }

    /// Puts where others look what they may see.
    fn publish(&mut self) {
        let viewers = self.viewers.count();
        let mut state = self.session.state();
        state.viewers = viewers;
        state.shell = self.child.as_ref().map(|c| c.pid);
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

    /// Ends the shell, or all processes of all shells that this session had.
    async fn kill_shells(&mut self, all_processes: bool) {
        let leader = self.child.as_ref().map(|c| c.pid);
        if !all_processes {
            self.kill_shell();
            return;
        }
        let markers = std::mem::take(&mut self.markers);
        let killing = spawn_blocking(move || {
            let newest = markers.len().saturating_sub(1);
            for (at, marker) in markers.iter().enumerate() {
                let leader = leader.filter(|_| at == newest);
                process::kill_members(leader, marker, Signal::KILL);
            }
        });
        if let Err(error) = killing.await {
            tracing::error!(%error, "could not end a session's processes");
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
        // It only sends signals; should it panic, that is over too.
        Some(job) => drop(job.await),
        None => std::future::pending().await,
    }
}
