//! Captures an agent's output in a file up to a limit: its start and its end.

use std::collections::VecDeque;
use std::path::Path;

use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// Bytes kept of the start, and of the end.
pub(crate) const KEPT: usize = 1 << 20;
/// Bytes of the end that are searched for a result.
pub(crate) const LOOKED_AT: usize = 64 << 10;

/// The end of an agent's output.
#[derive(Debug, Default)]
pub(crate) struct Tail(VecDeque<u8>);

/// Reads to the end, even if the file fails: an agent must not hang because the disk is full.
pub(crate) async fn keep(mut output: impl AsyncRead + Unpin, path: &Path) -> Tail {
    let mut file = File::create(path).await.ok();
    let (mut written, mut left_out) = (0, 0);
    // Two buffers: the end for the file, and the end that is searched for a result, which may be within the start.
    let (mut end, mut tail) = (VecDeque::new(), VecDeque::new());
    let mut piece = vec![0; 64 << 10];
    while let Ok(read @ 1..) = output.read(&mut piece).await {
        let bytes = &piece[..read];
        push(&mut tail, bytes, LOOKED_AT);
        let (first, rest) = bytes.split_at(bytes.len().min(KEPT - written));
        written += first.len();
        save(&mut file, first).await;
        left_out += push(&mut end, rest, KEPT);
    }
    if left_out > 0 {
        save(&mut file, format!("\n[… {left_out} bytes left out …]\n").as_bytes()).await;
    }
    let (first, second) = end.as_slices();
    save(&mut file, first).await;
    save(&mut file, second).await;
    if let Some(mut file) = file {
        drop(file.flush().await);
    }
    Tail(tail)
}

/// Appends, keeps the last `most` bytes and returns the number of dropped bytes.
fn push(end: &mut VecDeque<u8>, bytes: &[u8], most: usize) -> usize {
    end.extend(bytes);
    let over = end.len().saturating_sub(most);
    end.drain(..over);
    over
}

async fn save(file: &mut Option<File>, bytes: &[u8]) {
    if let Some(open) = file
        && open.write_all(bytes).await.is_err()
    {
        *file = None;
    }
}

impl Tail {
    pub(crate) fn text(&self) -> String {
        let (first, second) = self.0.as_slices();
        String::from_utf8_lossy(&[first, second].concat()).trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn beginning_and_end_are_kept_and_the_middle_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut long = vec![b'a'; KEPT];
        long.extend(vec![b'b'; 12345]);
        long.extend(vec![b'c'; KEPT]);
        let tail = keep(&long[..], &path).await;
        assert_eq!(tail.text(), "c".repeat(LOOKED_AT));
        let kept = std::fs::read_to_string(&path).unwrap();
        let expected = format!("{}\n[… 12345 bytes left out …]\n{}", "a".repeat(KEPT), "c".repeat(KEPT));
        assert!(kept == expected, "{} bytes", kept.len());
        // Output that just fits is not cut.
        let long = vec![b'x'; 2 * KEPT];
        keep(&long[..], &path).await;
        assert_eq!(std::fs::read(&path).unwrap(), long);
    }
}
