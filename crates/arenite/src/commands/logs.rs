//! `logs`: the output of a sandbox's main command, or its guest's log.

use std::process::ExitCode;

use arenite_model::SandboxName;
use futures_util::StreamExt;

use super::exec::{Command, Input};
use crate::cli::LogsArgs;
use crate::client::{Client, encoded};
use crate::failure::{Attempt, Failure, Outcome};
use crate::output;

pub(crate) async fn logs(args: LogsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let file = if args.guest { "/var/log/arenite/guest.log" } else { "/var/log/arenite/main.log" };
    if args.follow {
        // -F waits for a log that does not exist yet.
        let start = args.tail.map_or_else(|| "+1".to_owned(), |lines| lines.to_string());
        let line = format!("exec tail -n {start} -F {file} 2>/dev/null");
        return Command::new(args.sandbox.as_str(), line).stream(&client, Input::Closed).await;
    }
    let path = format!("/sandbox/{}/v1/file/download?path={}", args.sandbox, encoded(file));
    let mut log = match client.download(&path).await {
        Ok(log) => log,
        Err(failure) if failure.status() == Some(404) && exists(&client, &args.sandbox).await? => {
            let what =
                if args.guest { "its guest has written no log" } else { "it has no main command whose output could be logged" };
            eprintln!("there is nothing to show for {}: {what}", args.sandbox);
            return Ok(ExitCode::SUCCESS);
        }
        Err(failure) => return Err(failure),
    };
    let mut last = args.tail.map(LastLines::new);
    while let Some(piece) = log.next().await {
        let piece = piece.attempt(|| "the log broke off".into())?;
        match &mut last {
            Some(last) => last.add(&piece),
            None => output::bytes(&piece),
        }
    }
    if let Some(mut last) = last {
        last.cut();
        output::bytes(&last.bytes);
    }
    Ok(ExitCode::SUCCESS)
}

/// Most bytes of last lines that are kept.
const MAX_TAIL: usize = 64 << 20;

/// The last lines of what is added.
struct LastLines {
    lines: u64,
    bytes: Vec<u8>,
    /// The bytes are cut to the last lines when they reach this number, which is twice what remained before.
    cut_at: usize,
}

impl LastLines {
    fn new(lines: u64) -> Self {
        Self { lines, bytes: Vec::new(), cut_at: 0 }
    }

    fn add(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        if self.bytes.len() >= self.cut_at {
            self.cut();
            self.cut_at = (self.bytes.len() * 2).max(1 << 20);
        }
    }

    fn cut(&mut self) {
        if self.lines == 0 {
            return self.bytes.clear();
        }
        let mut left = self.lines;
        // The line break at the end belongs to the last line.
        let end = self.bytes.len() - usize::from(self.bytes.ends_with(b"\n"));
        let before = self.bytes[..end].iter().rposition(|byte| {
            left -= u64::from(*byte == b'\n' && left > 0);
            left == 0
        });
        let start = before.map_or(0, |at| at + 1).max(self.bytes.len().saturating_sub(MAX_TAIL));
        self.bytes.drain(..start);
    }
}

async fn exists(client: &Client, sandbox: &SandboxName) -> Result<bool, Failure> {
    match client.get::<serde_json::Value>(&format!("/api/v2/sandboxes/{sandbox}")).await {
        Ok(_) => Ok(true),
        Err(failure) if failure.status() == Some(404) => Ok(false),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept() {
        for (lines, expected) in [(0, ""), (1, "c\n"), (2, "b\nc\n"), (9, "a\nb\nc\n")] {
            let mut last = LastLines::new(lines);
            "a\nb\nc\n".bytes().for_each(|byte| last.add(&[byte]));
            last.cut();
            assert_eq!(String::from_utf8_lossy(&last.bytes), expected, "{lines}");
        }
    }
}
