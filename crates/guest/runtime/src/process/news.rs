//! Sends a process's output line by line while it runs.

use tokio::sync::mpsc;

/// Bytes that wait for a slow listener. Older ones are dropped.
const MAX_WAITING: usize = 64 << 10;

/// Sends finished lines to a listener. Never waits: the answer has the whole output.
#[derive(Debug)]
pub struct News {
    to: mpsc::Sender<String>,
    waiting: Vec<u8>,
}

impl News {
    pub fn new(to: &mpsc::Sender<String>) -> Self {
        Self { to: to.clone(), waiting: Vec::new() }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
        if let Some(end) = self.waiting.iter().rposition(|b| *b == b'\n')
            && let Ok(place) = self.to.try_reserve()
        {
            place.send(String::from_utf8_lossy(&self.waiting[..end]).into_owned());
            self.waiting.drain(..=end);
        }
        let over = self.waiting.len().saturating_sub(MAX_WAITING);
        self.waiting.drain(..over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_when_they_are_finished_and_somebody_listens() {
        let (to, mut from) = mpsc::channel(1);
        let mut news = News::new(&to);
        news.push(b"a");
        assert!(from.try_recv().is_err());
        news.push(b"b\nc\nd");
        news.push(b"e\n");
        assert_eq!(from.try_recv().unwrap(), "ab\nc");
        // The channel was full when the line was finished.
        news.push(&[b'x'; 2 * MAX_WAITING]);
        assert_eq!(from.try_recv().unwrap(), "de");
        news.push(b"\n");
        assert_eq!(from.try_recv().unwrap().len(), MAX_WAITING);
    }
}
