//! A step while its call is under way: both directions feed it, and whoever sees the end concludes it.

use std::sync::{Arc, Mutex, PoisonError};

use arenite_trajectory::{OpenStep, Outcome, OutcomeKind};

/// A call's step; none for calls that are not steps. Dropped without an outcome it is recorded as aborted.
#[derive(Clone, Default)]
pub(crate) struct Record(Option<Arc<Mutex<Option<OpenStep>>>>);

impl Record {
    pub(crate) fn of(step: OpenStep) -> Self {
        Self(Some(Arc::new(Mutex::new(Some(step)))))
    }

    fn with(&self, act: impl FnOnce(&mut OpenStep)) {
        if let Some(step) = &self.0
            && let Some(step) = step.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
        {
            act(step);
        }
    }

    pub(crate) fn feed_request(&self, bytes: &[u8]) {
        self.with(|step| step.request_tap().feed(bytes));
    }

    pub(crate) fn feed_response(&self, bytes: &[u8]) {
        self.with(|step| step.response_tap().feed(bytes));
    }

    fn take(&self) -> Option<OpenStep> {
        self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The answer came to its end.
    pub(crate) fn answered(&self, status: u16) {
        let result = if status >= 400 { OutcomeKind::Error } else { OutcomeKind::Ok };
        self.conclude(Outcome { status: Some(status), result, error: None });
    }

    /// The sandbox could not be reached, or its answer broke off.
    pub(crate) fn failed(&self, status: Option<u16>, why: impl Into<String>) {
        self.conclude(Outcome { status, result: OutcomeKind::Failed, error: Some(why.into()) });
    }

    /// The client left, or broke its request off.
    pub(crate) fn aborted(&self, why: impl Into<String>) {
        let result = OutcomeKind::Aborted;
        self.conclude(Outcome { status: None, result, error: Some(why.into()) });
    }

    fn conclude(&self, outcome: Outcome) {
        let Some(step) = self.take() else { return };
        let number = step.id();
        // The call was made, and its intent is on record: its answer is not kept from the caller.
        if let Err(error) = step.finish(outcome) {
            tracing::error!(step = number, %error, "the outcome of a step could not be recorded");
        }
    }

    /// For a drop: whatever is still open is concluded now, as aborted, even if the other direction lives on.
    pub(crate) fn abandon(&self) {
        drop(self.take());
    }
}
