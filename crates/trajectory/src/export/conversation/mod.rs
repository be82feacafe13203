//! Conversations with models: what their requests and answers contain, and which request continues which answer.
//!
//! A request repeats all earlier messages of its conversation. So the last request of a conversation, with its answer, is the
//! whole of it, and a message is new if no earlier request had it with the same messages before.

mod chat;
mod shapes;
mod turns;

pub(super) use chat::{ChatCall, ChatMessage, Role, openai};
pub(super) use shapes::{ChatAnswer, request};
pub(super) use turns::{Conversations, ModelTurn, Transcript, answer_of};
