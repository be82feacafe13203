//! Which call of a model continues which, and which recorded steps are the tools that it called.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value};

use super::chat::{ChatMessage, Role};
use super::shapes::{self, ChatRequest};
use crate::TrajectoryError;
use crate::export::call::{Content, ExportedCall, Names, tool};
use crate::export::shown::{TEXT, shown};
use crate::export::source::Source;
use crate::export::tree::Tree;

/// The most calls of a model with tools that were not answered yet; the oldest are given up.
const MAX_OPEN: usize = 64;
/// Shorter arguments don't tell which call a step belongs to.
const MIN_ARGUMENT: usize = 3;
const NO_RESULT: &str = "[no answer: none was recorded]";

/// A call of a model, without its messages.
pub(in crate::export) struct ModelTurn {
    pub(in crate::export) step: u64,
    has_answer: bool,
    /// Of all its messages in order, except those of the system.
    request: u64,
    /// The same with its answer.
    after: u64,
    answer: u64,
    /// The turn that it names as the one before, instead of repeating the messages.
    previous: Option<usize>,
    /// The turn with the last answer among its messages.
    parent: Option<usize>,
    /// Places of messages that no earlier request had.
    pub(in crate::export) fresh: Vec<usize>,
    calls: Vec<CallKey>,
    /// The first request that has its answer, and the place of the message after it.
    next: Option<(u64, usize)>,
}

/// A tool call of a model, and the step that carried it out.
struct CallKey {
    id: String,
    name: String,
    arguments: Vec<u64>,
    step: Option<u64>,
}

/// All calls of models of a trajectory.
#[derive(Default)]
pub(in crate::export) struct Conversations {
    turns: Vec<ModelTurn>,
    by_step: BTreeMap<u64, usize>,
    /// Turns with an answer, by their requests.
    by_request: HashMap<u64, Vec<usize>>,
    /// By the ids of their answers.
    by_id: HashMap<String, usize>,
    /// Of messages with all that were before them.
    seen: HashSet<u64>,
    /// Turns with tool calls that no later request answers.
    open: Vec<usize>,
    /// Steps that carried out tool calls.
    claimed: HashSet<u64>,
}

/// A whole conversation.
pub(in crate::export) struct Transcript {
    pub(in crate::export) messages: Vec<ChatMessage>,
    pub(in crate::export) tools: Vec<Value>,
    /// The calls of models in it.
    pub(in crate::export) turns: usize,
}

impl Conversations {
    /// Reads all bodies once.
    pub(in crate::export) fn read(source: &mut Source<'_>, tree: &Tree) -> Result<Self, TrajectoryError> {
        let mut all = Self::default();
        for number in tree.all_numbers() {
            let Some(call) = source.call(number)? else { continue };
            if call.is_model() { all.add_turn(&call) } else { all.add_tool(&call) }
        }
        Ok(all)
    }

    pub(in crate::export) fn turn(&self, step: u64) -> Option<&ModelTurn> {
        self.turns.get(*self.by_step.get(&step)?)
    }

    /// Whether a step carried out a tool call of a model.
    pub(in crate::export) fn is_claimed(&self, step: u64) -> bool {
        self.claimed.contains(&step)
    }

    fn add_turn(&mut self, call: &ExportedCall<'_>) {
        let index = self.turns.len();
        let ChatRequest { messages, previous, .. } = shapes::request(&call.arguments);
        let answer = answer_of(call);
        if messages.is_empty() && answer.is_none() {
            // An embedding.
            return;
        }
        let previous = previous.and_then(|id| self.by_id.get(&id).copied());
        let mut chain = previous.map_or(0, |turn| self.turns[turn].after);
        let (mut current, mut parent, mut fresh) = (previous, previous, Vec::new());
        if let Some(turn) = previous {
            self.continue_turn(turn, call.step.step, 0);
        }
        for (place, message) in messages.iter().enumerate() {
            let next = message.fingerprint(chain);
            let echoed = (message.role == Role::Assistant).then(|| self.echoed(chain, message)).flatten();
            if let Some(turn) = echoed {
                self.continue_turn(turn, call.step.step, place + 1);
                (current, parent) = (Some(turn), Some(turn));
            } else {
                current = current.filter(|turn| self.turns[*turn].has_call(message));
                if current.is_none() && !self.seen.contains(&next) {
                    fresh.push(place);
                }
            }
            self.seen.insert(next);
            // The system's text may have a clock, and differ in each request of a conversation.
            if message.role != Role::System {
                chain = next;
            }
        }
        let after = answer.as_ref().map_or(chain, |answer| answer.message.fingerprint(chain));
        let calls: Vec<CallKey> = answer.iter().flat_map(|answer| &answer.message.calls).map(CallKey::new).collect();
        if !calls.is_empty() {
            self.open.push(index);
            if self.open.len() > MAX_OPEN {
                self.open.remove(0);
            }
        }
        if let Some(answer) = &answer {
            self.by_request.entry(chain).or_default().push(index);
            if let Some(id) = &answer.id {
                self.by_id.insert(id.clone(), index);
            }
        }
        let own = answer.as_ref().map_or(0, |answer| answer.message.fingerprint(0));
        self.by_step.insert(call.step.step, index);
        self.turns.push(ModelTurn {
            step: call.step.step,
            has_answer: answer.is_some(),
            request: chain,
            after,
            answer: own,
            previous,
            parent,
            fresh,
            calls,
            next: None,
        });
    }

    /// The turn with this message as its answer: one with the same request, and if there are several, with the same answer.
    fn echoed(&self, request: u64, message: &ChatMessage) -> Option<usize> {
        let turns = self.by_request.get(&request)?;
        let own = message.fingerprint(0);
        turns.iter().rev().find(|turn| self.turns[**turn].answer == own).or(turns.last()).copied()
    }

    fn continue_turn(&mut self, turn: usize, step: u64, place: usize) {
        self.turns[turn].next.get_or_insert((step, place));
        self.open.retain(|open| *open != turn);
    }

    /// Finds the tool call that a step carries out.
    fn add_tool(&mut self, call: &ExportedCall<'_>) {
        let name = plain(&tool(&call.step.action));
        let arguments = hashes(&call.arguments);
        let turns = &self.turns;
        let find = |turn: &usize, fits: &dyn Fn(&CallKey) -> bool| {
            turns[*turn].calls.iter().position(|key| key.step.is_none() && fits(key)).map(|call| (*turn, call))
        };
        let newest = |fits: &dyn Fn(&CallKey) -> bool| self.open.iter().rev().find_map(|turn| find(turn, fits));
        let found = newest(&|key| key.arguments.iter().any(|hash| arguments.contains(hash)))
            .or_else(|| newest(&|key| key.name == name))
            .or_else(|| find(self.open.last()?, &|_| true));
        let Some((turn, at)) = found else { return };
        self.turns[turn].calls[at].step = Some(call.step.step);
        self.claimed.insert(call.step.step);
    }

    /// The last turns of conversations, in order.
    pub(in crate::export) fn leaves(&self) -> Vec<&ModelTurn> {
        // Of repeated requests that failed, the last one counts, and none if one succeeded.
        let failed: HashMap<u64, u64> =
            self.turns.iter().filter(|turn| !turn.has_answer).map(|turn| (turn.request, turn.step)).collect();
        let is_last = |turn: &&ModelTurn| match turn.has_answer {
            true => turn.next.is_none(),
            false => !self.by_request.contains_key(&turn.request) && failed.get(&turn.request) == Some(&turn.step),
        };
        self.turns.iter().filter(is_last).collect()
    }

    /// A conversation up to a turn, with the results of its last calls.
    pub(in crate::export) fn transcript(&self, source: &mut Source<'_>, turn: &ModelTurn) -> Result<Transcript, TrajectoryError> {
        let mut chain = vec![turn];
        while let Some(previous) = chain.last().and_then(|turn| turn.previous) {
            chain.push(&self.turns[previous]);
        }
        let mut transcript = Transcript { messages: Vec::new(), tools: Vec::new(), turns: self.turns_to(turn) };
        for turn in chain.into_iter().rev() {
            let Some(call) = source.call(turn.step)? else { continue };
            let mut request = shapes::request(&call.arguments);
            transcript.messages.append(&mut request.messages);
            if !request.tools.is_empty() {
                transcript.tools = request.tools;
            }
            transcript.messages.extend(answer_of(&call).map(|answer| answer.message));
        }
        for (id, text) in self.results(source, turn, true)? {
            transcript.messages.push(ChatMessage::of_tool(id, Some(text)));
        }
        Ok(transcript)
    }

    /// The answers of models on the way to a turn, with its own.
    pub(in crate::export) fn turns_to(&self, turn: &ModelTurn) -> usize {
        let before = std::iter::successors(turn.parent, |turn| self.turns[*turn].parent);
        before.count() + usize::from(turn.has_answer)
    }

    /// The recorded steps on the way to a turn: its own, those of the turns before, and those that carried out their tool calls.
    pub(in crate::export) fn steps_to(&self, turn: &ModelTurn) -> BTreeSet<u64> {
        let turns = std::iter::successors(Some(turn), |turn| turn.parent.map(|parent| &self.turns[parent]));
        turns.flat_map(|turn| turn.steps_of_calls().map(|(_, step)| step).chain([turn.step])).collect()
    }

    /// The results of a turn's tool calls by their ids: from the request that has them, otherwise from the steps.
    pub(in crate::export) fn results(
        &self,
        source: &mut Source<'_>,
        turn: &ModelTurn,
        answers_all: bool,
    ) -> Result<Vec<(String, String)>, TrajectoryError> {
        let mut seen = HashMap::new();
        if let Some((step, place)) = turn.next
            && !turn.calls.is_empty()
            && let Some(call) = source.call(step)?
        {
            let messages = shapes::request(&call.arguments).messages.into_iter().skip(place);
            for message in messages.take_while(|message| turn.has_call(message)) {
                seen.entry(message.call_id.unwrap_or_default()).or_insert(message.text.unwrap_or_default());
            }
        }
        let mut results = Vec::new();
        for key in &turn.calls {
            let recorded = match (seen.remove(&key.id), key.step) {
                (Some(text), _) => Some(text),
                (None, Some(step)) => source.call(step)?.map(|call| shown(&call, TEXT)),
                (None, None) => None,
            };
            let text = recorded.or_else(|| answers_all.then(|| NO_RESULT.to_owned()));
            results.extend(text.map(|text| (key.id.clone(), text)));
        }
        Ok(results)
    }
}

impl ModelTurn {
    /// Whether a message is the result of one of its calls.
    fn has_call(&self, message: &ChatMessage) -> bool {
        message.role == Role::Tool && self.calls.iter().any(|key| Some(&key.id) == message.call_id.as_ref())
    }

    /// Tool calls by their ids, with the steps that carried them out.
    pub(in crate::export) fn steps_of_calls(&self) -> impl Iterator<Item = (&str, u64)> {
        self.calls.iter().filter_map(|key| Some((key.id.as_str(), key.step?)))
    }
}

impl CallKey {
    fn new(call: &super::chat::ChatCall) -> Self {
        Self { id: call.id.clone(), name: plain(&call.name), arguments: hashes(&call.object()), step: None }
    }
}

/// The message of an answer, also of one that broke off.
pub(in crate::export) fn answer_of(call: &ExportedCall<'_>) -> Option<shapes::ChatAnswer> {
    match &call.answer {
        Content::Json(value) => shapes::answer(value),
        _ => None,
    }
}

/// A tool's name as a model may have called it.
fn plain(tool: &str) -> String {
    Names::default().name_for(tool)
}

/// The texts among arguments.
fn hashes(arguments: &Map<String, Value>) -> Vec<u64> {
    let texts = arguments.values().filter_map(Value::as_str).map(str::trim).filter(|text| text.len() >= MIN_ARGUMENT);
    let hash = |text: &str| {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        hasher.finish()
    };
    texts.map(hash).collect()
}
