//! Checks whether a program has processed its events, like the liveness check of window managers (`_NET_WM_PING`).
//!
//! The X server sends a program all events in one order. A program that answers has therefore processed each earlier key and
//! change of the layout.

use std::time::{Duration, Instant};

use x11rb::connection::Connection;
use x11rb::protocol::Event;
use x11rb::protocol::xproto::{ChangeWindowAttributesAux, ConnectionExt as _, EventMask, Window};

use super::screen::{Screen, ScreenError};
use super::windows::if_there;

/// Timeout for the answer. A program that is busy for longer may lose letters.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause for programs that don't answer pings.
const PAUSE: Duration = Duration::from_millis(60);
/// Maximum protocols that a window supports.
const MAX_PROTOCOLS: u32 = 32;
/// Greater than the numbers that window managers use.
const FIRST: u32 = 1 << 31;

/// State between two pings.
#[derive(Debug, Default)]
pub(super) struct Pings {
    asked: u32,
    /// A program that did not answer: later pings don't wait for it.
    deaf: Option<Window>,
}

impl Screen {
    /// Waits until the active window's program has processed everything that happened so far.
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
        // Answers go to the root window, which sends them to its listeners.
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

    /// Selects the root window's events for this connection.
    pub(super) fn listen(&self, mask: EventMask) -> Result<(), ScreenError> {
        self.connection.change_window_attributes(self.root, &ChangeWindowAttributesAux::new().event_mask(mask))?;
        Ok(())
    }
}
