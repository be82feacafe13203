//! Reads trees breadth first, so that nodes near the root are included even if there are too many. Many nodes are requested at
//! once, because sequential calls would take too long.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::tree::{AccessibilityTree, AccessibleNode, NodeValue, ScreenBox, Slot, assemble, place, states};
use crate::desktop::bus::{self, BusCall, BusError, BusReply, Connection, Malformed, Writer, of_bus};
use crate::desktop::service::DesktopError;
use crate::desktop::windows::Window;
use arenite_guest_runtime::Runtime;

/// Maximum trees that are read concurrently; further calls wait.
const MAX_READERS: usize = 4;
/// Timeout for a whole tree; the answer has what was read by then.
const TIME: Duration = Duration::from_secs(20);
/// Timeout for a program to answer; a silent program gets no more calls.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum programs that are asked.
const MAX_PROGRAMS: usize = 256;
/// Nodes that are requested at once.
const AT_ONCE: usize = 32;
/// Calls that are sent at once.
const MAX_CALLS: usize = 256;
/// Maximum children of a node that are read.
const MAX_CHILDREN: usize = 1000;
/// Maximum characters of a name, a description, or a role.
const MAX_NAME: usize = 1000;
/// Maximum characters of a field's content.
const MAX_VALUE: i32 = 2000;
/// Maximum bytes of all texts in an answer.
const MAX_TEXTS: usize = 4 << 20;
/// Maximum bytes of a node's path.
const MAX_PATH: usize = 1024;

const LAUNCHER: &str = "org.a11y.Bus";
const REGISTRY: &str = "org.a11y.atspi.Registry";
/// The path of every program's root node.
const ROOT: &str = "/org/a11y/atspi/accessible/root";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const ACCESSIBLE: &str = "org.a11y.atspi.Accessible";
const COMPONENT: &str = "org.a11y.atspi.Component";
const TEXT: &str = "org.a11y.atspi.Text";
const VALUE: &str = "org.a11y.atspi.Value";
/// The calls per node that [`Walk::look`] starts with.
const FIRST_CALLS: usize = 6;

static READERS: Semaphore = Semaphore::const_new(MAX_READERS);

/// The requested part of the desktop's trees.
#[derive(Debug, Clone)]
pub(in crate::desktop) struct Wanted {
    /// `None`: all programs.
    pub(in crate::desktop) window: Option<Window>,
    /// Levels below the root.
    pub(in crate::desktop) depth: u32,
    pub(in crate::desktop) nodes: u32,
}

/// A node's address: its program's name on the bus, and its path in the program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct NodeRef {
    program: String,
    path: String,
}

/// What was read about a node: the node, and references to its children.
type Look = (AccessibleNode, Vec<NodeRef>);

struct Walk {
    bus: Connection,
    deadline: Instant,
    /// Programs that did not answer in time.
    silent: HashSet<String>,
    /// Remaining bytes for texts.
    room: usize,
    is_truncated: bool,
}

/// Reads the wanted trees. `bus_place` is the socket file of the desktop's bus.
pub(in crate::desktop) async fn read(
    runtime: &Runtime,
    bus_place: &str,
    wanted: &Wanted,
) -> Result<AccessibilityTree, DesktopError> {
    let _turn = READERS.acquire().await.expect("the semaphore is never closed");
    let mut session = bus::connect(runtime, bus_place).await?;
    let launch = BusCall {
        destination: LAUNCHER.to_owned(),
        path: "/org/a11y/bus".to_owned(),
        interface: LAUNCHER,
        member: "GetAddress",
        signature: "",
        body: Writer::default(),
        starts: true,
    };
    let answer = session.one(launch).await?;
    let address = answer.values("s").and_then(|mut values| values.text().map(str::to_owned)).map_err(BusError::from)?;
    let file = bus::file_of(&address).ok_or_else(|| BusError::Refused(format!("it names {address:?}, which is no file")))?;
    let bus = bus::connect(runtime, &file).await?;
    let deadline = Instant::now() + TIME;
    let mut walk = Walk { bus, deadline, silent: HashSet::new(), room: MAX_TEXTS, is_truncated: false };
    let programs = walk.programs().await?;
    let roots = match &wanted.window {
        Some(window) => vec![walk.find(&programs, window).await?.ok_or(DesktopError::NoTree(window.id))?],
        None => programs.iter().map(|(program, _)| root_of(program)).collect(),
    };
    let slots = walk.grow(roots, wanted, &programs).await?;
    let nodes = slots.len();
    let mut trees = assemble(slots);
    let tree = match &wanted.window {
        Some(window) => trees.pop().ok_or(DesktopError::NoTree(window.id))?,
        None => AccessibleNode { role: "desktop frame".to_owned(), children: trees, ..AccessibleNode::default() },
    };
    let silent = programs.iter().filter(|(program, _)| walk.silent.contains(program)).map(|(_, pid)| *pid).collect();
    Ok(AccessibilityTree { tree, nodes, truncated: walk.is_truncated, silent })
}

fn root_of(program: &str) -> NodeRef {
    NodeRef { program: program.to_owned(), path: ROOT.to_owned() }
}

/// Whether a text is a unique name as the bus assigns it: the bus disconnects clients that use invalid names.
fn is_given_name(name: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    name.len() <= 255 && name.strip_prefix(':').is_some_and(|parts| parts.contains('.') && parts.split('.').all(is_part))
}

fn call(place: &NodeRef, interface: &'static str, member: &'static str, signature: &'static str, body: Writer) -> BusCall {
    BusCall { destination: place.program.clone(), path: place.path.clone(), interface, member, signature, body, starts: false }
}

fn plain(place: &NodeRef, member: &'static str) -> BusCall {
    call(place, ACCESSIBLE, member, "", Writer::default())
}

fn get(place: &NodeRef, interface: &str, property: &str) -> BusCall {
    let mut body = Writer::default();
    body.text(interface);
    body.text(property);
    call(place, PROPERTIES, "Get", "ss", body)
}

fn number(answer: &BusReply) -> Result<i32, Malformed> {
    answer.property("i")?.i32()
}

fn texts(answer: &BusReply) -> Result<Vec<String>, Malformed> {
    answer.values("as")?.list(4, |reader| reader.text().map(str::to_owned))
}

fn extents(answer: &BusReply) -> Result<[i32; 4], Malformed> {
    let mut values = answer.values("(iiii)")?;
    Ok([values.i32()?, values.i32()?, values.i32()?, values.i32()?])
}

fn child(answer: &BusReply) -> Result<NodeRef, Malformed> {
    let mut values = answer.values("(so)")?;
    let (program, path) = (values.text()?, values.text()?);
    if !is_given_name(program) || path.len() > MAX_PATH || path.ends_with("/null") {
        return Err(Malformed);
    }
    Ok(NodeRef { program: program.to_owned(), path: path.to_owned() })
}

impl Walk {
    /// Makes calls. `None` for those without an answer, including those after the deadline.
    async fn ask(&mut self, calls: &[BusCall]) -> Result<Vec<Option<BusReply>>, BusError> {
        let mut answers: Vec<Option<BusReply>> = vec![None; calls.len()];
        let numbered: Vec<(usize, &BusCall)> = calls.iter().enumerate().collect();
        for piece in numbered.chunks(MAX_CALLS) {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.is_truncated = true;
                break;
            }
            let asked: Vec<_> = piece.iter().filter(|(_, call)| !self.silent.contains(&call.destination)).collect();
            let made: Vec<BusCall> = asked.iter().map(|(_, call)| (*call).clone()).collect();
            for ((at, call), answer) in asked.into_iter().zip(self.bus.all(&made, left.min(PATIENCE)).await?) {
                if answer.is_none() {
                    self.silent.insert(call.destination.clone());
                    self.is_truncated = true;
                }
                answers[*at] = answer;
            }
        }
        Ok(answers)
    }

    /// Programs on the bus with their names and processes, except this one and the registry.
    async fn programs(&mut self) -> Result<Vec<(String, u32)>, BusError> {
        let names = texts(&self.bus.bus("ListNames", "", Writer::default()).await?)?;
        let mut names: Vec<String> = names.into_iter().filter(|name| is_given_name(name)).collect();
        self.is_truncated |= names.len() > MAX_PROGRAMS;
        names.truncate(MAX_PROGRAMS);
        let about = |member, name: &str| {
            let mut body = Writer::default();
            body.text(name);
            of_bus(member, "s", body)
        };
        let mut calls = vec![about("GetNameOwner", REGISTRY)];
        calls.extend(names.iter().map(|name| about("GetConnectionUnixProcessID", name)));
        let mut answers = self.ask(&calls).await?.into_iter();
        // There is no registry while it is replaced.
        let registry = answers.next().flatten().and_then(|answer| Some(answer.values("s").ok()?.text().ok()?.to_owned()));
        let pids = answers.map(|answer| answer.and_then(|answer| answer.values("u").ok()?.u32().ok()));
        let found = names.into_iter().zip(pids).filter_map(|(name, pid)| Some((name, pid?)));
        Ok(found.filter(|(name, pid)| *pid != std::process::id() && registry.as_ref() != Some(name)).collect())
    }

    /// Finds the node of a window: in the window's process, by its title or else its position.
    async fn find(&mut self, programs: &[(String, u32)], window: &Window) -> Result<Option<NodeRef>, BusError> {
        let is_wanted = |pid: u32| window.pid.is_none_or(|wanted| wanted == pid);
        let roots: Vec<NodeRef> =
            programs.iter().filter(|(_, pid)| is_wanted(*pid)).map(|(program, _)| root_of(program)).collect();
        let mut frames = Vec::new();
        for pieces in roots.chunks(AT_ONCE) {
            let looks = self.look(pieces, MAX_CHILDREN).await?;
            frames.extend(looks.into_iter().flatten().flat_map(|(_, children)| children));
        }
        frames.truncate(MAX_CHILDREN);
        let mut best: Option<((bool, u32), NodeRef)> = None;
        for pieces in frames.chunks(AT_ONCE) {
            for (frame, look) in pieces.iter().zip(self.look(pieces, 0).await?) {
                let Some((node, _)) = look else { continue };
                let far = (node.name != window.title, distance(node.place, window.place));
                if best.as_ref().is_none_or(|(least, _)| far < *least) {
                    best = Some((far, frame.clone()));
                }
            }
        }
        // What was left out during the search does not count as truncation.
        self.is_truncated = false;
        Ok(best.map(|(_, place)| place))
    }

    /// Reads these nodes and their descendants, each after its parent.
    async fn grow(&mut self, roots: Vec<NodeRef>, wanted: &Wanted, programs: &[(String, u32)]) -> Result<Vec<Slot>, BusError> {
        let most = wanted.nodes as usize;
        let mut slots: Vec<Slot> = Vec::new();
        let mut seen: HashSet<NodeRef> = HashSet::new();
        let mut queue: VecDeque<(NodeRef, Option<usize>, u32)> = VecDeque::new();
        for place in roots {
            self.is_truncated |= queue.len() >= most;
            if queue.len() < most && seen.insert(place.clone()) {
                // All programs are one level below the desktop.
                queue.push_back((place, None, u32::from(wanted.window.is_none())));
            }
        }
        while !queue.is_empty() {
            let batch: Vec<_> = queue.drain(..queue.len().min(AT_ONCE)).collect();
            let nodes: Vec<NodeRef> = batch.iter().map(|(place, ..)| place.clone()).collect();
            // Nodes of the last level are only asked whether they have children.
            let room = most.saturating_sub(slots.len() + queue.len() + batch.len());
            for ((place, parent, level), look) in batch.into_iter().zip(self.look(&nodes, room).await?) {
                let Some((mut node, children)) = look else { continue };
                if place.path == ROOT {
                    node.pid = programs.iter().find(|(program, _)| *program == place.program).map(|(_, pid)| *pid);
                }
                let at = slots.len();
                slots.push((node, parent));
                for child in children {
                    if level >= wanted.depth || slots.len() + queue.len() >= most {
                        self.is_truncated = true;
                        break;
                    }
                    // A node that claims to be its own descendant is included once.
                    if seen.insert(child.clone()) {
                        queue.push_back((child, Some(at), level + 1));
                    }
                }
            }
        }
        Ok(slots)
    }

    /// Inspects nodes, and up to `children` of their children in all. `None` for what is not a node.
    async fn look(&mut self, nodes: &[NodeRef], mut children: usize) -> Result<Vec<Option<Look>>, BusError> {
        let calls = nodes.iter().flat_map(|place| {
            [
                plain(place, "GetRoleName"),
                get(place, ACCESSIBLE, "Name"),
                get(place, ACCESSIBLE, "Description"),
                plain(place, "GetState"),
                plain(place, "GetInterfaces"),
                get(place, ACCESSIBLE, "ChildCount"),
            ]
        });
        let first = self.ask(&calls.collect::<Vec<_>>()).await?;
        let mut looks: Vec<Option<Look>> = Vec::with_capacity(nodes.len());
        // The next calls, and the node that each is about.
        let mut next: Vec<(usize, Ask)> = Vec::new();
        let mut calls = Vec::new();
        for (at, (place, answers)) in nodes.iter().zip(first.chunks(FIRST_CALLS)).enumerate() {
            let Some(node) = self.node(answers) else {
                looks.push(None);
                continue;
            };
            looks.push(Some((node, Vec::new())));
            let value = |index: usize| answers[index].as_ref().ok_or(Malformed);
            let interfaces = value(4).and_then(texts).unwrap_or_default();
            let count = value(5).and_then(number).unwrap_or_default();
            let has = |interface: &str| interfaces.iter().any(|name| name == interface);
            if has(COMPONENT) {
                let mut on_screen = Writer::default();
                on_screen.u32(0);
                next.push((at, Ask::Extents));
                calls.push(call(place, COMPONENT, "GetExtents", "u", on_screen));
            }
            if has(TEXT) {
                next.push((at, Ask::Length));
                calls.push(get(place, TEXT, "CharacterCount"));
            } else if has(VALUE) {
                next.push((at, Ask::Number));
                calls.push(get(place, VALUE, "CurrentValue"));
            }
            let count = usize::try_from(count).unwrap_or_default();
            let taken = count.min(MAX_CHILDREN).min(children);
            self.is_truncated |= taken < count;
            children -= taken;
            for index in 0..taken {
                let mut body = Writer::default();
                body.i32(index as i32);
                next.push((at, Ask::Child));
                calls.push(call(place, ACCESSIBLE, "GetChildAtIndex", "i", body));
            }
        }
        let mut fields = Vec::new();
        for ((at, ask), answer) in next.into_iter().zip(self.ask(&calls).await?) {
            let (Some(answer), Some((node, children))) = (answer, looks[at].as_mut()) else { continue };
            match ask {
                Ask::Child => children.extend(child(&answer)),
                Ask::Extents => node.place = extents(&answer).ok().and_then(|extents| place(&node.states, extents)),
                Ask::Number => {
                    let number = answer.property("d").and_then(|mut value| value.f64()).ok();
                    node.value = number.filter(|number| number.is_finite()).map(NodeValue::Number);
                }
                Ask::Length => fields.extend(number(&answer).ok().filter(|count| *count > 0).map(|count| (at, count))),
            }
        }
        let reads = fields.iter().map(|(at, count)| {
            let mut body = Writer::default();
            body.i32(0);
            body.i32((*count).min(MAX_VALUE));
            call(&nodes[*at], TEXT, "GetText", "ii", body)
        });
        let reads: Vec<BusCall> = reads.collect();
        for ((at, count), answer) in fields.into_iter().zip(self.ask(&reads).await?) {
            let Some(text) = answer.and_then(|answer| Some(answer.values("s").ok()?.text().ok()?.to_owned())) else { continue };
            let text = self.cut(&text, MAX_VALUE as usize);
            self.is_truncated |= count > MAX_VALUE;
            if let Some((node, _)) = looks[at].as_mut()
                && node.name != text
            {
                node.value = Some(NodeValue::Text(text));
            }
        }
        Ok(looks)
    }

    fn node(&mut self, answers: &[Option<BusReply>]) -> Option<AccessibleNode> {
        let answer = |index: usize| answers[index].as_ref().ok_or(Malformed);
        let role = answer(0).ok()?.values("s").ok()?.text().ok()?.to_owned();
        let role = self.cut(&role, MAX_NAME);
        let mut named = |index: usize| {
            let text = answer(index).ok()?.property("s").ok()?.text().ok()?.to_owned();
            Some(self.cut(&text, MAX_NAME))
        };
        let (name, description) = (named(1).unwrap_or_default(), named(2).filter(|text| !text.is_empty()));
        let words = answer(3).and_then(|answer| answer.values("au")?.list(4, |reader| reader.u32()));
        let states = states(&words.unwrap_or_default());
        Some(AccessibleNode { role, name, description, states, ..AccessibleNode::default() })
    }

    /// Cuts a text to the remaining bytes.
    fn cut(&mut self, text: &str, most: usize) -> String {
        let mut cut: String = text.chars().take(most).collect();
        if cut.len() > self.room {
            cut.truncate(cut.floor_char_boundary(self.room));
        }
        self.is_truncated |= cut.len() < text.len();
        self.room -= cut.len();
        cut
    }
}

/// Further queries about a valid node.
#[derive(Debug, Clone, Copy)]
enum Ask {
    Child,
    Extents,
    /// The length of its text.
    Length,
    /// Its numeric value.
    Number,
}

/// The distance between two boxes; the maximum if one is missing.
fn distance(one: Option<ScreenBox>, other: ScreenBox) -> u32 {
    let Some(one) = one else { return u32::MAX };
    let far =
        [one.x.abs_diff(other.x), one.y.abs_diff(other.y), one.width.abs_diff(other.width), one.height.abs_diff(other.height)];
    far.into_iter().fold(0, u32::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_bus_are_asked() {
        for name in [":1.7", ":1.42.a_b-c"] {
            assert!(is_given_name(name), "{name}");
        }
        let long = format!(":1.{}", "1".repeat(255));
        for name in ["", ":", ":1", "1.7", ":1..7", ":1.7\0", ":1.é", "org.a11y.Bus", ":1.7 ", &long] {
            assert!(!is_given_name(name), "{name}");
        }
    }

    #[test]
    fn the_nearest_window_is_the_one() {
        let at = |x, y| ScreenBox { x, y, width: 100, height: 50 };
        assert!(distance(Some(at(5, 5)), at(4, 5)) < distance(Some(at(50, 5)), at(4, 5)));
        assert!(distance(Some(at(i32::MIN, i32::MAX)), at(0, 0)) <= distance(None, at(0, 0)));
    }
}
