//! Follows the events of a server: each is a step of the state machine, and their end is the current state.

use std::collections::{HashMap, HashSet};

use arenite_control::{Event, EventKind, EventReader, NoEvent, Sandbox};
use arenite_model::{SandboxId, SandboxState};

pub(crate) struct Followed {
    reader: EventReader,
    states: HashMap<SandboxId, SandboxState>,
    /// Sandboxes with a row at the start and without an event since.
    unseen: HashSet<SandboxId>,
}

impl Followed {
    /// `rows` are in the store before the start; `reader` has all events since.
    pub(crate) fn new(reader: EventReader, rows: &[Sandbox]) -> Self {
        let states = rows.iter().map(|row| (row.id.clone(), row.state)).collect();
        Self { reader, states, unseen: rows.iter().map(|row| row.id.clone()).collect() }
    }

    /// Reads what has happened.
    pub(crate) fn read(&mut self) -> Result<(), String> {
        loop {
            match self.reader.try_recv() {
                Ok(event) => self.follow(&event)?,
                Err(NoEvent::Yet) => return Ok(()),
                Err(NoEvent::Missed(missed)) => return Err(missed.to_string()),
            }
        }
    }

    fn follow(&mut self, event: &Event) -> Result<(), String> {
        use SandboxState::{Creating, Deleting, Failed, Lost, Paused, Running};
        let before = self.states.get(&event.id).copied();
        let is_unseen = self.unseen.remove(&event.id);
        let is_right = match (event.kind, before, event.state) {
            (EventKind::Creating, None, Some(Creating)) => true,
            (EventKind::Claimed, Some(Creating), Some(Creating)) => true,
            (EventKind::Created, Some(Creating), Some(Running)) => true,
            (EventKind::CreateFailed, Some(Creating), None) => true,
            // The row of a claim says so before the sandbox is claimed, and the server ended in between.
            (EventKind::CreateFailed, Some(Running), None) => is_unseen,
            (EventKind::Paused, Some(Running), Some(Paused)) => true,
            (EventKind::Resumed, Some(Paused), Some(Running)) => true,
            (EventKind::Died, Some(Running | Paused), Some(Failed | Lost)) => true,
            (EventKind::Died, Some(Failed), Some(Lost)) => true,
            (EventKind::Started, Some(Failed | Lost), Some(Running)) => true,
            (EventKind::Deleting, Some(Creating | Running | Paused | Failed | Lost), Some(Deleting)) => true,
            (EventKind::Deleted, Some(Deleting), None) => true,
            (EventKind::Changed | EventKind::Extended, before, after) => before == after && after.is_some(),
            _ => false,
        };
        if !is_right {
            return Err(format!("sandbox {} was {before:?}, and an event says {event:?}", event.name));
        }
        match event.state {
            Some(state) => drop(self.states.insert(event.id.clone(), state)),
            None => drop(self.states.remove(&event.id)),
        }
        Ok(())
    }

    /// Compares the end of the history with the sandboxes.
    pub(crate) fn check(&self, seen: &[Sandbox]) -> Result<(), String> {
        let now: HashMap<SandboxId, SandboxState> = seen.iter().map(|row| (row.id.clone(), row.state)).collect();
        if now == self.states {
            return Ok(());
        }
        Err(format!("the events say {:?}, and the sandboxes are {now:?}", self.states))
    }
}
