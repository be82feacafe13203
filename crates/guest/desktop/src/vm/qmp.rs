//! QEMU's monitor: one line of JSON per message, in both directions. An answer carries the number of its command; a message
//! without a number is an event.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{broadcast, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Maximum bytes of a received line. The longest are lists of devices, far below.
const MAX_LINE: u64 = 1 << 20;
/// Timeout for QEMU's greeting.
const GREETING: Duration = Duration::from_secs(30);
/// Timeout for the answer to a command. None of ours takes long: long work is a job, with events for its progress.
const ANSWER: Duration = Duration::from_secs(20);
/// Maximum events that wait for a slow listener.
const MAX_EVENTS: usize = 64;

#[derive(Debug, Error)]
pub enum QmpError {
    #[error("QEMU has ended")]
    Gone,
    #[error("QEMU did not answer `{0}` within {seconds} s", seconds = ANSWER.as_secs())]
    Silent(&'static str),
    #[error("QEMU did not greet within {seconds} s", seconds = GREETING.as_secs())]
    NoGreeting,
    #[error("QEMU refused `{command}`: {reason}")]
    Refused { command: &'static str, reason: String },
}

/// An event from QEMU.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) data: Value,
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Result<Value, String>>>>>;

/// A connection after its greeting.
pub(super) struct Qmp {
    writer: tokio::sync::Mutex<Box<dyn AsyncWrite + Send + Unpin>>,
    waiting: Waiting,
    next: AtomicU64,
    events: broadcast::Sender<Event>,
    closed: CancellationToken,
}

impl std::fmt::Debug for Qmp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Qmp")
    }
}

impl Qmp {
    /// Waits for the greeting, and negotiates no extensions.
    pub(super) async fn over(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Self, QmpError> {
        let mut reader = BufReader::new(reader);
        let greeting = timeout(GREETING, line(&mut reader)).await.map_err(|_| QmpError::NoGreeting)?.ok_or(QmpError::Gone)?;
        if greeting.get("QMP").is_none() {
            return Err(QmpError::Refused { command: "greeting", reason: "this is no monitor".to_owned() });
        }
        let waiting = Waiting::default();
        let (events, _) = broadcast::channel(MAX_EVENTS);
        let closed = CancellationToken::new();
        let (heard, told, ended) = (waiting.clone(), events.clone(), closed.clone());
        tokio::spawn(async move {
            while let Some(message) = line(&mut reader).await {
                hear(message, &heard, &told);
            }
            ended.cancel();
            // Dropping the senders wakes the waiting calls.
            heard.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        let qmp = Self { writer: tokio::sync::Mutex::new(Box::new(writer)), waiting, next: AtomicU64::new(1), events, closed };
        qmp.execute("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    pub(super) fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Executes a command, and waits for its result.
    pub(super) async fn execute(&self, command: &'static str, arguments: Value) -> Result<Value, QmpError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting().insert(id, sender);
        let mut text = json!({"execute": command, "arguments": arguments, "id": id}).to_string();
        text.push('\n');
        let asked = async {
            let mut writer = self.writer.lock().await;
            writer.write_all(text.as_bytes()).await.map_err(|_| QmpError::Gone)?;
            writer.flush().await.map_err(|_| QmpError::Gone)?;
            drop(writer);
            if self.is_closed() {
                return Err(QmpError::Gone);
            }
            match answer.await {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(reason)) => Err(QmpError::Refused { command, reason }),
                Err(_) => Err(QmpError::Gone),
            }
        };
        let outcome = timeout(ANSWER, asked).await.unwrap_or(Err(QmpError::Silent(command)));
        self.waiting().remove(&id);
        outcome
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Result<Value, String>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the next message; `None` if the other side has closed, or sends something else.
async fn line(reader: &mut (impl AsyncBufReadExt + Unpin)) -> Option<Value> {
    let mut bytes = Vec::new();
    reader.take(MAX_LINE).read_until(b'\n', &mut bytes).await.ok()?;
    if bytes.last() != Some(&b'\n') {
        return None;
    }
    serde_json::from_slice(&bytes).ok()
}

fn hear(message: Value, waiting: &Waiting, events: &broadcast::Sender<Event>) {
    if let Some(name) = message.get("event").and_then(Value::as_str) {
        let data = message.get("data").cloned().unwrap_or_default();
        // There may be no listeners.
        let _ = events.send(Event { name: name.to_owned(), data });
        return;
    }
    let Some(id) = message.get("id").and_then(Value::as_u64) else { return };
    let Some(sender) = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id) else { return };
    let outcome = match message.get("error") {
        Some(error) => Err(error.get("desc").and_then(Value::as_str).unwrap_or("it did not say why").to_owned()),
        None => Ok(message.get("return").cloned().unwrap_or_default()),
    };
    // The caller may have given up.
    let _ = sender.send(outcome);
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex, split};

    use super::*;

    /// A QEMU with scripted answers.
    struct FakeQemu {
        reader: BufReader<ReadHalf<DuplexStream>>,
        writer: WriteHalf<DuplexStream>,
    }

    impl FakeQemu {
        async fn say(&mut self, text: &str) {
            self.writer.write_all(text.as_bytes()).await.unwrap();
        }

        async fn asked(&mut self) -> Value {
            line(&mut self.reader).await.unwrap()
        }

        async fn answer(&mut self, rest: &str) -> Value {
            let asked = self.asked().await;
            self.say(&format!("{{\"id\": {}, {rest}}}\r\n", asked["id"])).await;
            asked
        }
    }

    async fn connected() -> (Qmp, FakeQemu) {
        let (ours, theirs) = duplex(4 << 20);
        let (reader, writer) = split(theirs);
        let mut qemu = FakeQemu { reader: BufReader::new(reader), writer };
        let (reader, writer) = split(ours);
        let connecting = tokio::spawn(Qmp::over(reader, writer));
        qemu.say("{\"QMP\": {\"version\": {}, \"capabilities\": [\"oob\"]}}\r\n").await;
        assert_eq!(qemu.answer("\"return\": {}").await["execute"], "qmp_capabilities");
        (connecting.await.unwrap().unwrap(), qemu)
    }

    #[tokio::test]
    async fn answers_find_their_commands_whatever_comes_between() {
        let (qmp, mut qemu) = connected().await;
        let mut events = qmp.events();
        let qmp = Arc::new(qmp);
        let ask = |command: &'static str| {
            let qmp = qmp.clone();
            tokio::spawn(async move { qmp.execute(command, json!({"a": 1})).await })
        };
        let first = ask("query-status");
        let one = qemu.asked().await;
        let second = ask("screendump");
        let two = qemu.asked().await;
        assert_eq!((one["execute"].as_str(), one["arguments"]["a"].as_u64()), (Some("query-status"), Some(1)));
        qemu.say("{\"event\": \"RESET\", \"data\": {\"guest\": true}}\n{\"id\": 999, \"return\": {}}\n").await;
        qemu.say(&format!("{{\"id\": {}, \"error\": {{\"class\": \"GenericError\", \"desc\": \"no room\"}}}}\n", two["id"]))
            .await;
        qemu.say(&format!("{{\"id\": {}, \"return\": {{\"running\": true}}}}\n", one["id"])).await;
        assert_eq!(first.await.unwrap().unwrap()["running"], true);
        let error = second.await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "QEMU refused `screendump`: no room");
        let event = events.recv().await.unwrap();
        assert_eq!((event.name.as_str(), event.data["guest"].as_bool()), ("RESET", Some(true)));
    }

    #[tokio::test]
    async fn the_end_of_qemu_is_the_end_of_what_waits() {
        let (qmp, mut qemu) = connected().await;
        let qmp = Arc::new(qmp);
        let waits = tokio::spawn({
            let qmp = qmp.clone();
            async move { qmp.execute("query-status", json!({})).await }
        });
        qemu.asked().await;
        drop(qemu);
        assert!(matches!(waits.await.unwrap(), Err(QmpError::Gone)));
        qmp.closed.cancelled().await;
        assert!(matches!(qmp.execute("cont", json!({})).await, Err(QmpError::Gone)));
    }

    #[tokio::test]
    async fn a_line_without_end_closes_the_connection() {
        let (qmp, mut qemu) = connected().await;
        qemu.say(&"x".repeat(MAX_LINE as usize + 1)).await;
        qmp.closed.cancelled().await;
    }

    #[tokio::test]
    async fn what_does_not_greet_is_no_qemu() {
        let (ours, mut theirs) = duplex(1 << 10);
        let (reader, writer) = split(ours);
        theirs.write_all(b"{\"hello\": 1}\n").await.unwrap();
        assert!(matches!(Qmp::over(reader, writer).await, Err(QmpError::Refused { .. })));
        let (ours, theirs) = duplex(1 << 10);
        let (reader, writer) = split(ours);
        drop(theirs);
        assert!(matches!(Qmp::over(reader, writer).await, Err(QmpError::Gone)));
    }
}
