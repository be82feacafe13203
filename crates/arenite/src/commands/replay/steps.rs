use std::collections::VecDeque;

use arenite_trajectory::{Body, SessionEvent, Step};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Deserialize;

use crate::client::{Client, encoded};
use crate::failure::{Attempt, Failure};

const PAGE: u32 = 50;
/// Maximum size of a body that is read, in bytes: more than the recorder keeps by default.
const MAX_BODY: usize = 64 << 20;

#[derive(Deserialize)]
struct Page {
    steps: Vec<Step>,
    #[serde(default)]
    next_after: Option<u64>,
}

#[derive(Deserialize)]
struct Sessions {
    sessions: Vec<SessionEvent>,
}

/// Steps of a trajectory in order, read a page at a time.
pub(super) struct Steps<'a> {
    client: &'a Client,
    base: String,
    read: VecDeque<Step>,
    /// The start of the next page; none after the last.
    next: Option<u64>,
    origin: String,
    until: u64,
}

impl<'a> Steps<'a> {
    /// Those after a step, up to another.
    pub(super) async fn fetch(
        client: &'a Client,
        trajectory: &str,
        after: u64,
        until: Option<u64>,
        origin: &str,
    ) -> Result<Self, Failure> {
        let base = format!("/api/v1/trajectories/{}", encoded(trajectory));
        let (origin, until) = (encoded(origin), until.unwrap_or(u64::MAX));
        let mut steps = Self { client, base, read: VecDeque::new(), next: Some(after), origin, until };
        steps.fill().await?;
        Ok(steps)
    }

    async fn fill(&mut self) -> Result<(), Failure> {
        let Some(after) = self.next else { return Ok(()) };
        let page: Page = self.client.get(&format!("{}?after={after}&limit={PAGE}&origin={}", self.base, self.origin)).await?;
        self.next = page.next_after;
        self.read.extend(page.steps);
        Ok(())
    }

    /// The first steps, with any cause.
    pub(super) async fn first(&self) -> Result<Vec<Step>, Failure> {
        Ok(self.client.get::<Page>(&format!("{}?limit={PAGE}", self.base)).await?.steps)
    }

    /// Starts and ends of sessions, in order.
    pub(super) async fn sessions(&self) -> Result<Vec<SessionEvent>, Failure> {
        Ok(self.client.get_all::<Sessions>(&format!("{}/sessions", self.base), "sessions").await?.sessions)
    }

    pub(super) async fn next(&mut self) -> Result<Option<Step>, Failure> {
        while self.read.is_empty() && self.next.is_some() {
            self.fill().await?;
        }
        Ok(self.read.pop_front().filter(|step| step.step <= self.until))
    }

    /// The bytes of a body, inside or outside the record.
    pub(super) async fn body(&self, step: u64, which: &str, body: Option<&Body>) -> Result<Bytes, Failure> {
        Ok(match body {
            None => Bytes::new(),
            Some(Body::Json(raw)) => Bytes::copy_from_slice(raw.get().as_bytes()),
            Some(Body::Text(text) | Body::Base64(text)) => Bytes::copy_from_slice(text.as_bytes()),
            Some(Body::Blob(_)) => self.read(&format!("{}/steps/{step}/{which}", self.base)).await?,
        })
    }

    /// A body outside the record, by its hash.
    pub(super) async fn blob(&self, blake3: &str) -> Result<Bytes, Failure> {
        self.read(&format!("{}/blobs/{blake3}", self.base)).await
    }

    async fn read(&self, path: &str) -> Result<Bytes, Failure> {
        let mut pieces = self.client.download(path).await?;
        let mut whole = Vec::new();
        while let Some(piece) = pieces.next().await {
            whole.extend_from_slice(&piece.attempt(|| format!("{path} broke off"))?);
            if whole.len() > MAX_BODY {
                return Err(Failure::new(format!("{path} has more than {MAX_BODY} bytes")));
            }
        }
        Ok(whole.into())
    }
}
