//! Detects whether a person acts over a WebSocket, or only watches.
//!
//! The pages of the desktop and of the terminal open one as soon as they are shown. That is not a step until a key or a button is
//! pressed or a text is sent. Unknown input counts as an action.

/// One direction of a WebSocket, from its client.
pub(crate) struct Watch {
    frames: Frames,
    what: What,
}

enum What {
    Desktop(Desktop),
    /// The first bytes of the current message.
    Terminal(Vec<u8>),
}

impl Watch {
    /// A watch for a path of a sandbox; none if its messages can't be interpreted.
    pub(super) fn for_path(path: &str) -> Option<Self> {
        let what = match path.strip_suffix('/').unwrap_or(path) {
            "/websockify" => What::Desktop(Desktop::default()),
            "/v1/shell/ws" => What::Terminal(Vec::new()),
            _ => return None,
        };
        Some(Self { frames: Frames::default(), what })
    }

    /// Processes the next bytes from the client, after its handshake. True: they contain an action.
    pub(super) fn is_act(&mut self, bytes: &[u8]) -> bool {
        let what = &mut self.what;
        let mut acts = false;
        self.frames.feed(bytes, |piece, is_end| {
            acts |= match what {
                What::Desktop(desktop) => desktop.is_act(piece),
                What::Terminal(message) => is_input(message, piece, is_end),
            };
        });
        acts
    }
}

/// Messages of the terminal are JSON with their type first: all except these contain typed input.
fn is_input(message: &mut Vec<u8>, piece: &[u8], is_end: bool) -> bool {
    const SILENT: [&[u8]; 3] = [br#"{"type":"resize""#, br#"{"type":"pong""#, br#"{"type":"ping""#];
    const LONGEST: usize = 16;
    let is_judged = message.len() >= LONGEST;
    message.extend(piece.iter().take(LONGEST.saturating_sub(message.len())));
    let acts = !is_judged && (is_end || message.len() >= LONGEST) && !SILENT.iter().any(|silent| message.starts_with(silent));
    if is_end {
        message.clear();
    }
    acts
}

/// Frames of a WebSocket's client, unmasked.
#[derive(Default)]
struct Frames {
    head: Vec<u8>,
    left: u64,
    mask: [u8; 4],
    at: usize,
    is_control: bool,
    is_final: bool,
}

impl Frames {
    /// Calls `see` with each piece of a message, and whether it is the last.
    fn feed(&mut self, mut bytes: &[u8], mut see: impl FnMut(&[u8], bool)) {
        while !bytes.is_empty() {
            if self.left == 0 {
                self.head.push(bytes[0]);
                bytes = &bytes[1..];
                if self.read_head() && self.left == 0 && !self.is_control {
                    see(&[], self.is_final);
                }
                continue;
            }
            let count = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            let (piece, rest) = bytes.split_at(count);
            self.left -= count as u64;
            if !self.is_control {
                let clear: Vec<u8> = piece.iter().zip(self.at..).map(|(byte, at)| byte ^ self.mask[at % 4]).collect();
                see(&clear, self.is_final && self.left == 0);
            }
            self.at += count;
            bytes = rest;
        }
    }

    /// Whether the head is complete.
    fn read_head(&mut self) -> bool {
        let [first, second, rest @ ..] = &self.head[..] else { return false };
        let wide = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let masked = if second & 0x80 == 0 { 0 } else { 4 };
        if rest.len() < wide + masked {
            return false;
        }
        let length = rest[..wide].iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        self.left = if wide == 0 { u64::from(second & 0x7f) } else { length };
        self.mask = rest[wide..].try_into().unwrap_or_default();
        (self.is_control, self.is_final) = (first & 8 != 0, first & 0x80 != 0);
        self.at = 0;
        self.head.clear();
        true
    }
}

/// A viewer's messages to a desktop, in the format of RFB 3.8.
#[derive(Default)]
struct Desktop {
    held: Vec<u8>,
    /// Bytes of a message that need not be parsed.
    skip: usize,
    phase: Phase,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Phase {
    #[default]
    Version,
    Security,
    Init,
    Messages,
    /// The rest can't be interpreted.
    Lost,
}

impl Desktop {
    fn is_act(&mut self, bytes: &[u8]) -> bool {
        let mut acts = false;
        for byte in bytes {
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.held.push(*byte);
            acts |= self.read();
        }
        acts
    }

    fn read(&mut self) -> bool {
        let held = &self.held[..];
        let at = |index: usize| held.get(index).copied().map_or(0, usize::from);
        let two = |index: usize| at(index) << 8 | at(index + 1);
        // The length of the message, as far as it is known, and whether it is an action.
        let (length, acts) = match self.phase {
            Phase::Version => (12, false),
            // 1 means no authentication.
            Phase::Security => (1, at(0) != 1),
            Phase::Init => (1, false),
            Phase::Messages => match at(0) {
                0 => (20, false),
                2 if held.len() < 4 => return false,
                2 => (4 + 4 * two(2), false),
                3 | 150 => (10, false),
                // A key, and whether it is pressed.
                4 => (8, at(1) != 0),
                // The pressed buttons.
                5 => (6, at(1) != 0),
                6 if held.len() < 12 && (held.len() < 8 || at(4) & 0x80 != 0) => return false,
                6 => clipboard(held),
                248 if held.len() < 9 => return false,
                248 => (9 + at(8), false),
                255 if held.len() < 2 => return false,
                255 if at(1) == 0 => (12, two(2) != 0),
                _ => (0, true),
            },
            Phase::Lost => (1, true),
        };
        if length == 0 || self.phase == Phase::Security && acts {
            (self.phase, self.held) = (Phase::Lost, Vec::new());
            return true;
        }
        // Long messages are lists of encodings.
        if held.len() < length.min(32) {
            return false;
        }
        self.skip = length.saturating_sub(held.len());
        self.held.clear();
        self.phase = match self.phase {
            Phase::Version => Phase::Security,
            Phase::Security => Phase::Init,
            Phase::Init => Phase::Messages,
            other => other,
        };
        acts
    }
}

/// Length of a clipboard message in bytes, and whether it offers or contains a text. A negative length marks the extended form,
/// in which flags follow: viewers announce with it what they support as soon as they connect, and ask for what a program has
/// copied.
fn clipboard(held: &[u8]) -> (usize, bool) {
    const CAPABILITIES: u32 = 1 << 24;
    const NOTIFY_OR_PROVIDE: u32 = 3 << 27;
    let number = |at: usize| held.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes);
    let length = number(4).cast_signed();
    let acts = length >= 0 || (number(8) & CAPABILITIES == 0 && number(8) & NOTIFY_OR_PROVIDE != 0);
    ((length.unsigned_abs() as usize).saturating_add(8), acts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame as a browser sends it.
    fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [7, 99, 200, 3];
        let mut frame = vec![0x80 | opcode];
        match payload.len() {
            short @ 0..=125 => frame.push(0x80 | short as u8),
            long => {
                frame.push(0x80 | 126);
                frame.extend((long as u16).to_be_bytes());
            }
        }
        frame.extend(mask);
        frame.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
        frame
    }

    fn acts(path: &str, frames: &[Vec<u8>]) -> Vec<bool> {
        let whole: Vec<bool> = {
            let mut watch = Watch::for_path(path).unwrap();
            frames.iter().map(|frame| watch.is_act(frame)).collect()
        };
        // However the bytes are split.
        let mut watch = Watch::for_path(path).unwrap();
        let mut byte_by_byte = |frame: &Vec<u8>| {
            let mut acts = false;
            for byte in frame {
                acts |= watch.is_act(&[*byte]);
            }
            acts
        };
        let cut: Vec<bool> = frames.iter().map(&mut byte_by_byte).collect();
        assert_eq!(whole, cut);
        whole
    }

    #[test]
    fn a_terminal_is_looked_at_until_something_is_typed() {
        let text = |json: &str| frame(1, json.as_bytes());
        let frames = [
            text(r#"{"type":"resize","data":{"cols":80,"rows":24}}"#),
            text(r#"{"type":"pong","data":{"timestamp":1}}"#),
            frame(9, b"ping"),
            text(r#"{"type":"input","data":"l"}"#),
            text(r#"{"type":"pong","data":{"timestamp":2}}"#),
            text("{}"),
        ];
        assert_eq!(acts("/v1/shell/ws", &frames), [false, false, false, true, false, true]);
    }

    #[test]
    fn a_desktop_is_looked_at_until_a_key_or_a_button_goes_down() {
        let binary = |bytes: &[u8]| frame(2, bytes);
        let mut encodings = vec![2, 0, 0, 40];
        encodings.extend([0; 160]);
        let frames = [
            binary(b"RFB 003.008\n"),
            binary(&[1]),
            binary(&[1]),
            binary(&[&[0; 20][..], &encodings].concat()),
            binary(&[3, 1, 0, 0, 0, 0, 5, 0, 3, 0]),
            binary(&[5, 0, 0, 9, 0, 9]),
            binary(&[4, 0, 0, 0, 0, 0, 0, 65]),
            // The viewer's capabilities for the extended clipboard, and a request for a text that was copied inside.
            binary(&[6, 0, 0, 0, 255, 255, 255, 248, 0x1f, 0, 0, 1, 0, 0, 0, 0]),
            binary(&[6, 0, 0, 0, 255, 255, 255, 252, 2, 0, 0, 1]),
            binary(&[5, 1, 0, 9, 0, 9]),
            binary(&[4, 1, 0, 0, 0, 0, 0, 65]),
            binary(&[255, 0, 0, 1, 0, 0, 0, 65, 0, 0, 0, 30]),
            binary(&[6, 0, 0, 0, 0, 0, 0, 1, 65]),
            binary(&[6, 0, 0, 0, 255, 255, 255, 252, 8, 0, 0, 1]),
            binary(&[5, 0, 0, 9, 0, 9]),
            binary(&[6, 0, 0, 0, 255, 255, 255, 248, 16, 0, 0, 1, 1, 2, 3, 4]),
        ];
        let wanted = [[false; 9].as_slice(), &[true, true, true, true, true, false, true]].concat();
        assert_eq!(acts("/websockify", &frames), wanted);
        // With a password, or without RFB, nothing counts as watching.
        assert_eq!(acts("/websockify", &[binary(b"RFB 003.008\n"), binary(&[2]), binary(&[0; 16])]), [false, true, true]);
        assert!(Watch::for_path("/cdp").is_none());
    }
}
