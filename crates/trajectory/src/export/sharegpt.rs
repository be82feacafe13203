//! `sharegpt`: `{conversations, tools}`, a line for each branch. Turns are `function_call` and `observation`, as trainers of
//! function calls read them. There are no turns of `human` and `gpt`, because their text was never seen.
//!
//! `value` of a call is `{"name", "arguments"}` in a string, and `tools` is a list in a string.

use serde::Serialize;
use serde_json::{Map, Value};

use super::call::{Names, tool};
use super::messages::Described;
use super::shown::{TEXT, shown};
use super::source::Source;
use super::tree::Tree;
use super::writer::Writer;
use crate::TrajectoryError;

#[derive(Serialize)]
struct Message<'a> {
    from: &'a str,
    value: String,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: &'a Map<String, Value>,
}

pub(super) fn write(source: &mut Source<'_>, tree: &Tree, out: &mut Writer<'_>) -> Result<(), TrajectoryError> {
    for leaf in tree.leaves(source.trajectory())? {
        out.raw("{\"id\":")?;
        out.json(&format!("{}-{}", source.trajectory(), tree.number(leaf)))?;
        out.raw(",\"conversations\":[")?;
        let (mut first, mut names) = (true, Names::default());
        for step in tree.path(leaf) {
            let Some(call) = source.call(step)? else { continue };
            let name = names.name_for(&tool(&call.step.action));
            let function = out.text(&Function { name: &name, arguments: &call.arguments })?;
            out.item(&mut first, &Message { from: "function_call", value: function })?;
            out.item(&mut first, &Message { from: "observation", value: shown(&call, TEXT) })?;
        }
        let tools: Vec<Described<'_>> = names.all().map(Described::new).collect();
        out.raw("],\"tools\":")?;
        let tools = out.text(&tools)?;
        out.json(&tools)?;
        out.raw("}\n")?;
    }
    Ok(())
}
