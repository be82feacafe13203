//! Output of a process outside its channels.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// The most bytes kept.
const MAX_SAID: usize = 4 << 10;

/// The last output of a process, to explain why it failed.
#[derive(Debug, Clone, Default)]
pub struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).trim().to_owned()
    }

    pub fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Reads output until the process has closed the pipe.
    pub async fn listen(self, pipe: Receiver) {
        self.listen_for(pipe, |_| {}).await;
    }

    /// The same. Passes the kept text to `heard` after each piece.
    pub async fn listen_for(self, mut pipe: Receiver, mut heard: impl FnMut(&[u8])) {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut buffer).await {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(&buffer[..n]);
            let excess = kept.len().saturating_sub(MAX_SAID);
            kept.drain(..excess);
            heard(&kept);
        }
    }
}

/// Formats the output as the end of an error message.
pub fn told(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!("; it said: {said}") }
}
