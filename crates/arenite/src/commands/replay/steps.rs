use std::collections::VecDeque;

use arenite_trajectory::{Body, Step};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Deserialize;

use crate::client::{Client, encoded};
use crate::failure::{Attempt, Failure};

const PAGE: u32 = 50;
/// The most bytes of one body that are read: more than the recorder keeps unless told otherwise.
const MAX_BODY: usize = 64 << 20;

#[derive(Deserialize)]
struct Page {
    steps: Vec<Step>,
}

/// Steps of a trajectory in their order, read a page at a time.
pub(super) struct Steps<'a> {
    client: &'a Client,
    base: String,
    read: VecDeque<Step>,
    last: u64,
    until: u64,
}

impl<'a> Steps<'a> {
    pub(super) async fn of(client: &'a Client, trajectory: &str, until: Option<u64>) -> Result<Self, Failure> {
        let base = format!("/api/v1/trajectories/{}", encoded(trajectory));
        let mut steps = Self { client, base, read: VecDeque::new(), last: 0, until: until.unwrap_or(u64::MAX) };
        steps.fill().await?;
        Ok(steps)
    }

    async fn fill(&mut self) -> Result<(), Failure> {
        let page: Page = self.client.get(&format!("{}?after={}&limit={PAGE}", self.base, self.last)).await?;
        if let Some(last) = page.steps.last() {
            self.last = last.step;
        }
        self.read.extend(page.steps);
        Ok(())
    }

    /// What of it was read already: its first steps, before any was taken.
    pub(super) fn ahead(&self) -> impl Iterator<Item = &Step> {
        self.read.iter()
    }

    pub(super) async fn next(&mut self) -> Result<Option<Step>, Failure> {
        if self.read.is_empty() {
            self.fill().await?;
        }
        Ok(self.read.pop_front().filter(|step| step.step <= self.until))
    }

    /// The bytes of a body, wherever they are kept.
    pub(super) async fn body(&self, step: u64, which: &str, body: Option<&Body>) -> Result<Bytes, Failure> {
        Ok(match body {
            None => Bytes::new(),
            Some(Body::Json(raw)) => Bytes::copy_from_slice(raw.get().as_bytes()),
            Some(Body::Text(text) | Body::Base64(text)) => Bytes::copy_from_slice(text.as_bytes()),
            Some(Body::Blob(_)) => {
                let mut pieces = self.client.download(&format!("{}/steps/{step}/{which}", self.base)).await?;
                let mut whole = Vec::new();
                while let Some(piece) = pieces.next().await {
                    whole.extend_from_slice(&piece.attempt(|| format!("the {which} of step {step} broke off"))?);
                    if whole.len() > MAX_BODY {
                        return Err(Failure::new(format!("the {which} of step {step} has more than {MAX_BODY} bytes")));
                    }
                }
                whole.into()
            }
        })
    }
}
