//! Whether a program has got to what it was sent: window managers ask so whether it lives (`_NET_WM_PING`).
//!
//! The X server sends a program everything in one order: who answers has taken note of each key and each change of the layout
//! before.

use std::time::{Duration, Instant};

use x11rb::connection::Connection;
use x11rb::protocol::Event;
use x11rb::protocol::xproto::{ChangeWindowAttributesAux, ConnectionExt as _, EventMask, Window};

use super::screen::{Screen, ScreenError};
use super::windows::if_there;

/// For the answer. A program that is busy for longer may lose letters.
const PATIENCE: Duration = Duration::from_secs(5);
/// In the place of an answer, of a program that gives none.
const PAUSE: Duration = Duration::from_millis(60);
/// Protocols that a window speaks.
const MAX_PROTOCOLS: u32 = 32;
/// Above the numbers that window managers use for theirs.
const FIRST: u32 = 1 << 31;

/// What is remembered between two questions.
#[derive(Debug, Default)]
pub(super) struct Pings {
    asked: u32,
    /// A program that did not answer: it is not waited for a second time.
    deaf: Option<Window>,
}

impl Screen {
    /// Waits until the program in front has got to everything that happened so far.
    pub(super) fn caught_up(&mut self) -> Result<(), ScreenError> {
        let ping = self.atom("_NET_WM_PING")?;
        let in_front = self.active()?.filter(|window| *window != x11rb::NONE && self.pings.deaf != Some(*window));
        let speaks = |window: &Window| {
            let protocols = if_there(self.numbers(*window, "WM_PROTOCOLS", MAX_PROTOCOLS));
            protocols.map(|protocols| protocols.is_some_and(|protocols| protocols.contains(&ping)))
        };
        let Some(window) = in_front.map(|window| speaks(&window).map(|speaks| speaks.then_some(window))).transpose()?.flatten()
        else {
            std::thread::sleep(PAUSE);
            return Ok(());
        };
        self.pings.asked = self.pings.asked.wrapping_add(1);
        let number = FIRST | self.pings.asked;
        // Answers go to the root window, which tells its listeners.
        self.listen(EventMask::SUBSTRUCTURE_NOTIFY)?;
        self.tell(window, window, "WM_PROTOCOLS", [ping, number, window, 0, 0], EventMask::NO_EVENT)?;
        self.connection.flush()?;
        let deadline = Instant::now() + PATIENCE;
        let mut answered = false;
        while !answered {
            match self.connection.poll_for_event()? {
                Some(Event::ClientMessage(message)) => answered = message.data.as_data32()[..2] == [ping, number],
                Some(_) => {}
                None if self.wait_until(deadline)? => {}
                None => break,
            }
        }
        if !answered {
            self.pings.deaf = Some(window);
        }
        self.listen(EventMask::NO_EVENT)?;
        self.finish()
    }

    /// What the root window tells this connection of.
    pub(super) fn listen(&self, mask: EventMask) -> Result<(), ScreenError> {
        self.connection.change_window_attributes(self.root, &ChangeWindowAttributesAux::new().event_mask(mask))?;
        Ok(())
    }
}
