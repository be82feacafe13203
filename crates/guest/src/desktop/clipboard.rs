//! The clipboard. X11 has no place for it: whoever copied something gives it to whoever pastes. So what is copied here
//! is given by a thread with a connection of its own, until a program copies something else.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use x11rb::connection::Connection;
use x11rb::protocol::Event;
use x11rb::protocol::xproto::{
    Atom, AtomEnum, ConnectionExt as _, CreateWindowAux, EventMask, PropMode, SELECTION_NOTIFY_EVENT, SelectionNotifyEvent,
    SelectionRequestEvent, WindowClass,
};
use x11rb::rust_connection::{DefaultStream, RustConnection};
use x11rb::wrapper::ConnectionExt as _;

use super::screen::{Screen, ScreenError};

/// Bytes of a text: it goes in one message, and the X server has no larger ones.
pub(super) const MAX_TEXT: usize = 1 << 20;
/// For a program to give what it copied.
const PATIENCE: Duration = Duration::from_secs(3);

x11rb::atom_manager! {
    Names: NamesCookie {
        CLIPBOARD,
        TARGETS,
        UTF8_STRING,
        TEXT,
        MIME: b"text/plain;charset=utf-8",
        PLAIN: b"text/plain",
        INCR,
        ARENITE_CLIPBOARD,
    }
}

/// Copies a text, over a fresh connection. It is given until a program copies something else or the X server ends.
pub(super) fn copy(stream: UnixStream, text: &str) -> Result<(), ScreenError> {
    let refused = |error: &dyn std::fmt::Display| ScreenError::Refused(error.to_string());
    let (stream, _) = DefaultStream::from_unix_stream(stream).map_err(|e| refused(&e))?;
    let connection = RustConnection::connect_to_stream(stream, 0).map_err(|e| refused(&e))?;
    let names = Names::new(&connection)?.reply()?;
    let window = hidden_window(&connection)?;
    let text = text.to_owned();
    connection.set_selection_owner(window, names.CLIPBOARD, x11rb::CURRENT_TIME)?;
    connection.sync()?;
    let serve = move || {
        while let Ok(event) = connection.wait_for_event() {
            let served = match event {
                Event::SelectionRequest(request) => answer(&connection, &names, &request, &text),
                Event::SelectionClear(_) => return,
                _ => Ok(()),
            };
            if matches!(served, Err(ScreenError::Gone)) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("clipboard".to_owned()).spawn(serve).map_err(|e| refused(&e))?;
    Ok(())
}

fn hidden_window(connection: &RustConnection) -> Result<u32, ScreenError> {
    let root = connection.setup().roots.first().ok_or(ScreenError::Gone)?.root;
    let window = connection.generate_id()?;
    let look = CreateWindowAux::new().event_mask(EventMask::PROPERTY_CHANGE);
    connection.create_window(0, window, root, -10, -10, 1, 1, 0, WindowClass::INPUT_ONLY, 0, &look)?;
    Ok(window)
}

fn answer(connection: &RustConnection, names: &Names, request: &SelectionRequestEvent, text: &str) -> Result<(), ScreenError> {
    let texts: [Atom; 5] = [names.UTF8_STRING, names.MIME, names.PLAIN, names.TEXT, AtomEnum::STRING.into()];
    // Old programs leave the place out.
    let place = if request.property == x11rb::NONE { request.target } else { request.property };
    let told = if request.target == names.TARGETS {
        let targets: Vec<Atom> = texts.into_iter().chain([names.TARGETS]).collect();
        connection.change_property32(PropMode::REPLACE, request.requestor, place, AtomEnum::ATOM, &targets)?;
        place
    } else if texts.contains(&request.target) {
        connection.change_property8(PropMode::REPLACE, request.requestor, place, request.target, text.as_bytes())?;
        place
    } else {
        x11rb::NONE
    };
    let notice = SelectionNotifyEvent {
        response_type: SELECTION_NOTIFY_EVENT,
        sequence: 0,
        time: request.time,
        requestor: request.requestor,
        selection: request.selection,
        target: request.target,
        property: told,
    };
    connection.send_event(false, request.requestor, EventMask::NO_EVENT, notice)?;
    connection.flush()?;
    Ok(())
}

impl Screen {
    /// The text of the clipboard; empty when nothing was copied.
    pub fn clipboard(&self) -> Result<String, ScreenError> {
        let connection = &self.connection;
        let names = Names::new(connection)?.reply()?;
        if connection.get_selection_owner(names.CLIPBOARD)?.reply()?.owner == x11rb::NONE {
            return Ok(String::new());
        }
        let window = hidden_window(connection)?;
        let place = names.ARENITE_CLIPBOARD;
        connection.convert_selection(window, names.CLIPBOARD, names.UTF8_STRING, place, x11rb::CURRENT_TIME)?;
        connection.flush()?;
        let text = self.pasted(window, place);
        connection.destroy_window(window)?;
        self.finish()?;
        text
    }

    fn pasted(&self, window: u32, place: Atom) -> Result<String, ScreenError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            while let Some(event) = self.connection.poll_for_event()? {
                let Event::SelectionNotify(notice) = event else { continue };
                if notice.requestor != window {
                    continue;
                }
                if notice.property == x11rb::NONE {
                    return Ok(String::new());
                }
                let most = MAX_TEXT as u32 / 4;
                let reply = self.connection.get_property(true, window, place, AtomEnum::ANY, 0, most)?.reply()?;
                return Ok(String::from_utf8_lossy(&reply.value).into_owned());
            }
            let left = deadline.checked_duration_since(Instant::now()).ok_or(ScreenError::NoClipboard)?;
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            // An early return only looks again.
            let _ = poll(&mut [PollFd::new(self.connection.stream(), PollFlags::IN)], Some(&left));
        }
    }
}
