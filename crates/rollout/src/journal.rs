//! The journal: what a run has done, in an append-only file that stays readable after the runner is killed.
//!
//! The first line identifies the run by its tasks and command. Each attempt then has a line when it starts, written before its
//! process does, and one when it ends. A line counts once it is on the disk; a torn last line is cut off.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::error::RolloutError;
use crate::outcome::End;

/// The journal's format; a run with another is not continued.
const FORMAT: u32 = 1;
const FILE: &str = "journal.jsonl";
const LOCK: &str = "lock";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    Run {
        format: u32,
        version: String,
        run: String,
        tasks: String,
        command: String,
        at: Timestamp,
    },
    /// Another process continues the run.
    Resumed {
        version: String,
        at: Timestamp,
    },
    Start {
        task: usize,
        id: String,
        attempt: u32,
        worker_id: String,
        at: Timestamp,
    },
    End {
        task: usize,
        attempt: u32,
        #[serde(flatten)]
        end: End,
    },
    /// A worker's end was reported to the server later than at its end.
    Disconnected {
        task: usize,
        attempt: u32,
    },
}

/// An attempt, as recorded in the journal.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) number: u32,
    pub(crate) worker_id: String,
    pub(crate) started_at: Timestamp,
    /// Its end, without the result; none if the runner died before.
    pub(crate) end: Option<End>,
    /// Position and length of its end's line, in bytes.
    place: (u64, usize),
}

/// The recorded history of a run.
#[derive(Debug)]
pub(crate) struct History {
    /// The run's name, which is part of its workers' ids.
    pub(crate) run: String,
    pub(crate) begun_at: Timestamp,
    /// Time in which a runner was active, in milliseconds: the time between two runners is not counted.
    pub(crate) wall_ms: u64,
    /// The attempts at each task, by the task's index in the file.
    pub(crate) tasks: BTreeMap<usize, Vec<Attempt>>,
}

impl History {
    /// The attempt that finished a task, and its end.
    pub(crate) fn decided(&self, task: usize) -> Option<(&Attempt, &End)> {
        let attempts = self.tasks.get(&task)?;
        attempts.iter().rev().find_map(|attempt| Some((attempt, attempt.end.as_ref().filter(|end| end.is_final)?)))
    }
}

/// The journal of this process's run. No other process writes it: this one holds the directory's lock.
pub(crate) struct Journal {
    dir: PathBuf,
    lines: mpsc::Sender<(Vec<u8>, oneshot::Sender<io::Result<()>>)>,
}

/// Locks the directory for this process.
pub(crate) async fn lock(dir: &Path) -> Result<File, RolloutError> {
    std::fs::create_dir_all(dir).map_err(RolloutError::io("make", dir))?;
    let path = dir.join(LOCK);
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(RolloutError::io("open", &path))?;
    // A runner that was just killed may have a child that was about to become an agent, and still has the runner's files.
    for _ in 0..20 {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::WouldBlock) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(std::fs::TryLockError::Error(source)) => return Err(RolloutError::Io { what: "lock", path, source }),
        }
    }
    Err(RolloutError::InUse { path: dir.to_owned() })
}

/// Reads a directory's journal; none if there is no journal.
pub(crate) fn read(dir: &Path) -> Result<Option<(History, Line)>, RolloutError> {
    let path = dir.join(FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(RolloutError::Io { what: "read", path, source }),
    };
    let mut header = None;
    let mut history: Option<History> = None;
    let mut began = Timestamp::UNIX_EPOCH;
    let mut last = began;
    let mut offset = 0;
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let bad = |why: String| RolloutError::BadJournal { path: path.clone(), line: index + 1, why };
        let place = (offset as u64, line.len());
        offset += line.len();
        let whole = line.last() == Some(&b'\n');
        let parsed = match serde_json::from_slice::<Line>(line) {
            Ok(parsed) if whole => parsed,
            Err(error) if offset < bytes.len() => return Err(bad(error.to_string())),
            // An incomplete line of a runner that died.
            _ => break,
        };
        let Some(history) = &mut history else {
            let Line::Run { format, run, at, .. } = &parsed else { return Err(bad("it should say whose run it is".into())) };
            if *format != FORMAT {
                return Err(bad(format!("its form is {format}, and not {FORMAT}: another version wrote it")));
            }
            (began, last) = (*at, *at);
            history = Some(History { run: run.clone(), begun_at: *at, wall_ms: 0, tasks: BTreeMap::new() });
            header = Some(parsed);
            continue;
        };
        match parsed {
            Line::Run { .. } => return Err(bad("a second run begins".into())),
            Line::Resumed { at, .. } => {
                history.wall_ms += crate::milliseconds(began, last);
                (began, last) = (at, at);
            }
            Line::Start { task, attempt, worker_id, at, .. } => {
                last = at;
                let attempts = history.tasks.entry(task).or_default();
                attempts.push(Attempt { number: attempt, worker_id, started_at: at, end: None, place });
            }
            Line::End { task, attempt, mut end, .. } => {
                last = end.at;
                end.result = None;
                let attempts = history.tasks.entry(task).or_default();
                let ended = attempts.iter_mut().find(|known| known.number == attempt);
                let ended = ended.ok_or_else(|| bad(format!("attempt {attempt} ends that never started")))?;
                (ended.end, ended.place) = (Some(end), place);
            }
            Line::Disconnected { task, attempt } => {
                let attempts = history.tasks.entry(task).or_default();
                let end = attempts.iter_mut().find(|known| known.number == attempt).and_then(|known| known.end.as_mut());
                if let Some(end) = end {
                    end.disconnected = true;
                }
            }
        }
    }
    let Some((mut history, header)) = history.zip(header) else { return Ok(None) };
    history.wall_ms += crate::milliseconds(began, last);
    Ok(Some((history, header)))
}

/// Reads results from a journal that is no longer written.
pub(crate) struct Results(File, PathBuf);

impl Results {
    pub(crate) fn open(dir: &Path) -> Result<Self, RolloutError> {
        let path = dir.join(FILE);
        Ok(Self(File::open(&path).map_err(RolloutError::io("open", &path))?, path))
    }

    /// The result of an attempt's agent.
    pub(crate) fn read(&mut self, attempt: &Attempt) -> Result<Option<Value>, RolloutError> {
        let (offset, length) = attempt.place;
        let mut line = vec![0; length];
        let read = self.0.seek(SeekFrom::Start(offset)).and_then(|_| self.0.read_exact(&mut line));
        read.map_err(RolloutError::io("read", &self.1))?;
        match serde_json::from_slice(&line) {
            Ok(Line::End { end, .. }) => Ok(end.result),
            _ => Ok(None),
        }
    }
}

/// Creates a journal, or opens an existing one and returns its history.
pub(crate) fn open(dir: &Path, digest: &str, command: &str) -> Result<(Journal, History), RolloutError> {
    let path = dir.join(FILE);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let at = Timestamp::now();
    let other = |what| RolloutError::OtherRun { path: dir.to_owned(), what };
    let (history, line) = match read(dir)? {
        Some((history, header)) => {
            let Line::Run { tasks, command: known, .. } = header else { unreachable!("the header is such a line") };
            if tasks != digest {
                return Err(other("other tasks"));
            }
            if known != command {
                return Err(other("another --agent"));
            }
            (history, Line::Resumed { version, at })
        }
        None => {
            let mut random = [0u8; 4];
            getrandom::fill(&mut random).map_err(RolloutError::Random)?;
            let run = format!("{:08x}", u32::from_be_bytes(random));
            let line = Line::Run {
                format: FORMAT,
                version,
                run: run.clone(),
                tasks: digest.to_owned(),
                command: command.to_owned(),
                at,
            };
            (History { run, begun_at: at, wall_ms: 0, tasks: BTreeMap::new() }, line)
        }
    };
    let mut file =
        OpenOptions::new().read(true).append(true).create(true).open(&path).map_err(RolloutError::io("open", &path))?;
    let written = cut_torn_line(&mut file).and_then(|()| file.write_all(&bytes_of(&line))).and_then(|()| file.sync_all());
    // The file's name has to be on the disk too.
    let written = written.and_then(|()| File::open(dir)?.sync_all());
    written.map_err(RolloutError::io("write", &path))?;
    let (lines, waiting) = mpsc::channel();
    std::thread::Builder::new()
        .name("journal".into())
        .spawn(move || write(file, &waiting))
        .map_err(RolloutError::io("write", &path))?;
    Ok((Journal { dir: dir.to_owned(), lines }, history))
}

fn cut_torn_line(file: &mut File) -> io::Result<()> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    let mut keep = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let start = bytes[..keep.saturating_sub(1)].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    if serde_json::from_slice::<Line>(&bytes[start..keep]).is_err() {
        keep = start;
    }
    if keep < bytes.len() { file.set_len(keep as u64) } else { Ok(()) }
}

fn bytes_of(line: &Line) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).expect("lines have text keys only");
    bytes.push(b'\n');
    bytes
}

/// Writes all waiting lines with one sync: with many workers, the disk would otherwise be the bottleneck.
fn write(mut file: File, waiting: &mpsc::Receiver<(Vec<u8>, oneshot::Sender<io::Result<()>>)>) {
    while let Ok((mut bytes, done)) = waiting.recv() {
        let mut all = vec![done];
        while let Ok((more, done)) = waiting.try_recv() {
            bytes.extend(more);
            all.push(done);
        }
        let written = file.write_all(&bytes).and_then(|()| file.sync_data());
        for done in all {
            let told = written.as_ref().copied().map_err(|error| io::Error::new(error.kind(), error.to_string()));
            drop(done.send(told));
        }
    }
}

impl Journal {
    /// Writes a line; it is on the disk when this returns.
    pub(crate) async fn append(&self, line: &Line) -> Result<(), RolloutError> {
        let path = self.dir.join(FILE);
        let (done, written) = oneshot::channel();
        let gone = || io::Error::other("the journal's writer has ended");
        let sent = self.lines.send((bytes_of(line), done)).map_err(|_| gone());
        let result = match sent {
            Ok(()) => written.await.unwrap_or_else(|_| Err(gone())),
            Err(error) => Err(error),
        };
        result.map_err(RolloutError::io("write", &path))
    }
}

/// Removes what an earlier run left in a directory, its journal first: the rest of an unfinished removal belongs to no run.
pub(crate) fn clear(dir: &Path) -> Result<(), RolloutError> {
    let outputs = crate::results::OUTPUTS.iter().copied();
    for name in [FILE].into_iter().chain(outputs) {
        let path = dir.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(RolloutError::io("remove", &path)(error)),
            _ => {}
        }
    }
    for name in [crate::agent::WORK, crate::agent::LOGS, crate::results::RECORDS] {
        let path = dir.join(name);
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(RolloutError::io("remove", &path)(error)),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Status;

    fn start(task: usize, attempt: u32) -> Line {
        Line::Start { task, id: "x".into(), attempt, worker_id: format!("w-{task}-{attempt}"), at: Timestamp::now() }
    }

    fn end(task: usize, attempt: u32, status: Status, is_final: bool) -> Line {
        let result = Some(serde_json::json!({"of": attempt}));
        let (error, exit_code, duration_ms, at) = (None, Some(0), 1, Timestamp::now());
        let end = End { status, is_final, error, exit_code, result, duration_ms, disconnected: true, at };
        Line::End { task, attempt, end }
    }

    /// A journal of two tasks, the first of them done at its second attempt.
    async fn written(dir: &Path) {
        let (journal, history) = open(dir, "tasks", "true").unwrap();
        assert_eq!((history.run.len(), history.tasks.len()), (8, 0));
        for line in
            [start(0, 1), start(1, 1), end(0, 1, Status::Infrastructure, false), start(0, 2), end(0, 2, Status::Success, true)]
        {
            journal.append(&line).await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_was_written_is_read_again_and_torn_lines_are_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        written(dir.path()).await;
        let path = dir.path().join(FILE);
        let whole = std::fs::read(&path).unwrap();
        for torn in ["", "{\"start\":{\"task\":1,", "\0\0\0\0\n", "{\"start\":{}}\n"] {
            std::fs::write(&path, [&whole, torn.as_bytes()].concat()).unwrap();
            let (_, history) = open(dir.path(), "tasks", "true").unwrap();
            let (deciding, end) = history.decided(0).unwrap();
            assert_eq!((deciding.number, end.status), (2, Status::Success), "{torn:?}");
            assert_eq!(Results::open(dir.path()).unwrap().read(deciding).unwrap(), Some(serde_json::json!({"of": 2})));
            assert!(history.decided(1).is_none() && history.tasks[&1][0].end.is_none());
            let (again, _) = read(dir.path()).unwrap().unwrap();
            assert_eq!(again.tasks.len(), 2);
        }
    }

    #[tokio::test]
    async fn a_line_that_was_changed_is_named_and_not_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        written(dir.path()).await;
        let path = dir.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap().replacen("\"end\"", "\"ende\"", 1);
        std::fs::write(&path, text).unwrap();
        let error = open(dir.path(), "tasks", "true").err().unwrap();
        assert!(error.to_string().starts_with("line 4 of"), "{error}");
    }

    #[tokio::test]
    async fn a_run_that_died_with_its_first_line_is_begun_once_more() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), "{\"run\":{\"form").unwrap();
        let (_, history) = open(dir.path(), "tasks", "true").unwrap();
        assert!(history.tasks.is_empty());
        assert_eq!(read(dir.path()).unwrap().unwrap().0.run, history.run);
        let other = |digest, command| open(dir.path(), digest, command).err().unwrap().to_string();
        assert!(other("others", "true").ends_with("holds a run of other tasks"));
        assert!(other("tasks", "false").ends_with("holds a run of another --agent"));
    }
}
