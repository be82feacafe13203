//! The clipboard. X11 does not store its content: the program that copied sends it to the program that pastes. So a thread with a
//! separate connection serves what is copied here, until a program copies something else.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use x11rb::connection::Connection;
use x11rb::protocol::Event;
use x11rb::protocol::xproto::{
    Atom, AtomEnum, ConnectionExt as _, CreateWindowAux, EventMask, PropMode, Property, SELECTION_NOTIFY_EVENT,
    SelectionNotifyEvent, SelectionRequestEvent, WindowClass,
};
use x11rb::rust_connection::{DefaultStream, RustConnection};
use x11rb::wrapper::ConnectionExt as _;

use super::screen::{Screen, ScreenError};

/// Maximum bytes of a text that is copied or pasted.
pub(super) const MAX_TEXT: usize = 8 << 20;
/// Bytes of a text in one message: the X server accepts none that are much larger.
const PIECE: usize = 1 << 20;
/// Timeout for a program to send what it copied, or the next piece.
const PATIENCE: Duration = Duration::from_secs(3);
/// Timeout for all pieces.
const ALL_PIECES: Duration = Duration::from_secs(12);

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

/// Copies a text, over a fresh connection. It is served until a program copies something else or the X server ends.
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

/// Creates an invisible window that reports changes of its properties.
pub(super) fn hidden_window(connection: &RustConnection) -> Result<u32, ScreenError> {
    let root = connection.setup().roots.first().ok_or(ScreenError::Gone)?.root;
    let window = connection.generate_id()?;
    let look = CreateWindowAux::new().event_mask(EventMask::PROPERTY_CHANGE);
    connection.create_window(0, window, root, -10, -10, 1, 1, 0, WindowClass::INPUT_ONLY, 0, &look)?;
    Ok(window)
}

fn answer(connection: &RustConnection, names: &Names, request: &SelectionRequestEvent, text: &str) -> Result<(), ScreenError> {
    let texts: [Atom; 5] = [names.UTF8_STRING, names.MIME, names.PLAIN, names.TEXT, AtomEnum::STRING.into()];
    // Old programs omit the property.
    let place = if request.property == x11rb::NONE { request.target } else { request.property };
    let told = if request.target == names.TARGETS {
        let targets: Vec<Atom> = texts.into_iter().chain([names.TARGETS]).collect();
        connection.change_property32(PropMode::REPLACE, request.requestor, place, AtomEnum::ATOM, &targets)?;
        place
    } else if texts.contains(&request.target) {
        connection.change_property8(PropMode::REPLACE, request.requestor, place, request.target, &[])?;
        // The program is notified after the last piece, so it never sees a part.
        for piece in text.as_bytes().chunks(PIECE) {
            connection.change_property8(PropMode::APPEND, request.requestor, place, request.target, piece)?;
        }
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
    /// The clipboard's text; empty if nothing was copied, or something that is not text.
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
        let bytes = self.pasted(window, &names);
        connection.destroy_window(window)?;
        self.finish()?;
        Ok(String::from_utf8_lossy(&bytes?).into_owned())
    }

    /// Waits for the next event that `wanted` accepts, and returns its result.
    fn event<T>(&self, deadline: Instant, wanted: impl Fn(&Event) -> Option<T>) -> Result<T, ScreenError> {
        loop {
            while let Some(event) = self.connection.poll_for_event()? {
                if let Some(found) = wanted(&event) {
                    return Ok(found);
                }
            }
            if !self.wait_until(deadline)? {
                return Err(ScreenError::NoClipboard);
            }
        }
    }

    fn pasted(&self, window: u32, names: &Names) -> Result<Vec<u8>, ScreenError> {
        let given = self.event(Instant::now() + PATIENCE, |event| match event {
            Event::SelectionNotify(notice) if notice.requestor == window => Some(notice.property),
            _ => None,
        })?;
        if given == x11rb::NONE {
            return Ok(Vec::new());
        }
        let (kind, mut text) = self.taken(window, given, MAX_TEXT)?;
        if kind != names.INCR {
            return Ok(text);
        }
        // Long texts arrive in pieces, each after the previous one was taken. An empty piece ends them.
        text.clear();
        let deadline = Instant::now() + ALL_PIECES;
        loop {
            self.event(deadline.min(Instant::now() + PATIENCE), |event| match event {
                Event::PropertyNotify(changed) => {
                    (changed.window == window && changed.atom == given && changed.state == Property::NEW_VALUE).then_some(())
                }
                _ => None,
            })?;
            let (_, piece) = self.taken(window, given, MAX_TEXT - text.len())?;
            if piece.is_empty() {
                return Ok(text);
            }
            text.extend(piece);
        }
    }

    /// Takes a property's type and bytes, which deletes it.
    fn taken(&self, window: u32, place: Atom, most: usize) -> Result<(Atom, Vec<u8>), ScreenError> {
        // Counted in units of 4 bytes.
        let units = u32::try_from(most.div_ceil(4)).unwrap_or(u32::MAX);
        let reply = self.connection.get_property(true, window, place, AtomEnum::ANY, 0, units)?.reply()?;
        if reply.bytes_after > 0 || reply.value.len() > most {
            return Err(ScreenError::LongClipboard);
        }
        Ok((reply.type_, reply.value))
    }
}
