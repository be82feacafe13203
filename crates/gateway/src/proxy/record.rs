//! The step of a call in progress. Both directions feed it, and the side that sees the end concludes it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arenite_trajectory::{Intent, OpenStep, Outcome, OutcomeKind, Recorder, StepState, Tap, TrajectoryError};

use super::command::Part;
use super::watch::Watch;

/// A call's step; none for calls that are not steps. If dropped without an outcome, it is recorded as aborted.
#[derive(Clone, Default)]
pub(crate) struct Record(Option<Arc<Mutex<State>>>);

enum State {
    Step(OpenStep),
    /// One of the calls of a command of the command line, which is one step.
    Part(Part),
    /// A WebSocket over which a person has only watched so far. The first action starts a step.
    Looking(Box<Looking>),
    Over,
}

struct Looking {
    recorder: Recorder,
    intent: Intent,
    watch: Watch,
}

impl Record {
    fn new(state: State) -> Self {
        Self(Some(Arc::new(Mutex::new(state))))
    }

    pub(crate) fn from_step(step: OpenStep) -> Self {
        Self::new(State::Step(step))
    }

    pub(super) fn of_part(part: Part) -> Self {
        Self::new(State::Part(part))
    }

    pub(super) fn looking(recorder: Recorder, intent: Intent, watch: Watch) -> Self {
        Self::new(State::Looking(Box::new(Looking { recorder, intent, watch })))
    }

    /// Whether its call is a step, or a part of one.
    pub(super) fn is_of_step(&self) -> bool {
        self.0.is_some()
    }

    fn state(&self) -> Option<MutexGuard<'_, State>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// # Errors
    /// Why a person's first action can't be recorded; it must then not be passed on.
    pub(crate) fn feed_request(&self, bytes: &[u8]) -> Result<(), TrajectoryError> {
        let Some(mut state) = self.state() else { return Ok(()) };
        if let State::Looking(looking) = &mut *state
            && looking.watch.is_act(bytes)
        {
            let step = looking.recorder.begin(looking.intent.clone())?;
            *state = State::Step(step);
        }
        match &mut *state {
            State::Step(step) => step.request_tap().feed(bytes),
            State::Part(part) => part.feed_request(bytes),
            State::Looking(_) | State::Over => {}
        }
        Ok(())
    }

    pub(crate) fn feed_response(&self, bytes: &[u8]) {
        match self.state().as_deref_mut() {
            Some(State::Step(step)) => step.response_tap().feed(bytes),
            Some(State::Part(part)) => part.feed_response(bytes),
            _ => {}
        }
    }

    /// Marks the answer as a file or a page, which does not contain the result of the call.
    pub(crate) fn is_payload(&self) {
        let mut state = self.state();
        let tap: Option<&mut Tap> = match state.as_deref_mut() {
            Some(State::Step(step)) => Some(step.response_tap()),
            Some(State::Part(part)) => part.response_tap(),
            _ => None,
        };
        if let Some(tap) = tap {
            tap.is_payload();
        }
    }

    /// Sets the state of the disk around the step.
    pub(super) fn set_state(&self, state: StepState) {
        match self.state().as_deref_mut() {
            Some(State::Step(step)) => step.set_state(state),
            Some(State::Part(part)) => part.set_state(state),
            _ => {}
        }
    }

    fn take(&self) -> State {
        self.state().map_or(State::Over, |mut state| std::mem::replace(&mut *state, State::Over))
    }

    /// Concludes a call with a complete answer.
    pub(crate) fn answered(&self, status: u16) {
        let result = if status >= 400 { OutcomeKind::Error } else { OutcomeKind::Ok };
        self.conclude(Outcome { status: Some(status), result, error: None });
    }

    /// Concludes a call without a complete answer: the sandbox could not be reached, or its answer broke off.
    pub(crate) fn failed(&self, status: Option<u16>, why: impl Into<String>) {
        self.conclude(Outcome { status, result: OutcomeKind::Failed, error: Some(why.into()) });
    }

    /// Concludes a call that its client left or aborted.
    pub(crate) fn aborted(&self, why: impl Into<String>) {
        let result = OutcomeKind::Aborted;
        self.conclude(Outcome { status: None, result, error: Some(why.into()) });
    }

    fn conclude(&self, outcome: Outcome) {
        match self.take() {
            State::Step(step) => finish(step, outcome),
            State::Part(part) => part.end(outcome),
            State::Looking(_) | State::Over => {}
        }
    }

    /// For a drop: concludes a step that is still open as aborted, even if the other direction continues.
    pub(crate) fn abandon(&self) {
        drop(self.take());
    }
}

pub(super) fn finish(step: OpenStep, outcome: Outcome) {
    let number = step.id();
    // The call was made, and its intent is recorded, so its answer still goes to the caller.
    if let Err(error) = step.finish(outcome) {
        tracing::error!(step = number, %error, "the outcome of a step could not be recorded");
    }
}
