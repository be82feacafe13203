//! The forms in which commands show entries: a table, JSON, names, or a template.

use std::process::ExitCode;
use std::str::FromStr;

use serde_json::Value;

use super::template::Template;
use super::{Table, harmless, json, line};
use crate::failure::{Failure, Outcome};
use crate::names::nearest;

/// A form of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Form {
    Table,
    Json,
    /// One name a line.
    Name,
    /// One text a line.
    Template(Template),
}

impl FromStr for Form {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const NAMES: [&str; 4] = ["table", "json", "name", "template"];
        match text {
            "table" => return Ok(Self::Table),
            "json" => return Ok(Self::Json),
            "name" => return Ok(Self::Name),
            _ => {}
        }
        match text.strip_prefix("template=") {
            Some(template) => template.parse().map(Self::Template),
            None if text.contains("{{") => text.parse().map(Self::Template),
            None if text == "template" => Err("the template is missing: write template='{{.name}}'".to_owned()),
            None => {
                let meant = nearest(text, NAMES.into_iter()).map_or_else(String::new, |meant| format!("did you mean {meant}? "));
                Err(format!("{meant}write table, json, name, or template='{{{{.name}}}}'"))
            }
        }
    }
}

/// Where an answer of the server has its entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entries {
    /// The field with the list.
    pub(crate) list: &'static str,
    /// The fields with an entry's name: the first one that it has counts.
    pub(crate) names: &'static [&'static str],
}

impl Entries {
    pub(crate) const fn named(list: &'static str) -> Self {
        Self { list, names: &["name"] }
    }

    pub(super) fn listed<'a>(&self, answer: &'a Value) -> &'a [Value] {
        answer[self.list].as_array().map_or(&[], Vec::as_slice)
    }

    pub(super) fn name(&self, entry: &Value) -> String {
        self.names.iter().find_map(|name| text(&entry[name])).unwrap_or_default()
    }
}

/// A name, which may be a number.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// What people see of a list.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) table: Option<Table>,
    /// Lines below the table.
    pub(crate) lines: Vec<String>,
    /// A line on stderr.
    pub(crate) note: Option<String>,
}

impl View {
    /// For a list without entries: how to get some.
    pub(crate) fn empty(note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..Self::default() }
    }

    pub(crate) fn print(&self) {
        self.table.iter().flat_map(Table::lines).for_each(line);
        self.lines.iter().for_each(line);
        if let Some(note) = &self.note {
            eprintln!("{note}");
        }
    }
}

impl From<Table> for View {
    fn from(table: Table) -> Self {
        Self { table: Some(table), ..Self::default() }
    }
}

impl Form {
    /// Prints a list.
    pub(crate) fn show(&self, answer: Value, entries: Entries, view: impl FnOnce(Value) -> Result<View, Failure>) -> Outcome {
        match self {
            Self::Json => json(&answer),
            Self::Table => view(answer)?.print(),
            Self::Name => entries.listed(&answer).iter().for_each(|entry| line(harmless(&entries.name(entry)))),
            Self::Template(template) => template.render(entries.listed(&answer))?.iter().for_each(line),
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints one object, or several.
    pub(crate) fn show_objects(&self, mut objects: Vec<Value>, name: &'static str) -> Outcome {
        match self {
            // One is the usual case, and easier to select from.
            Self::Json if objects.len() == 1 => json(&objects.remove(0)),
            Self::Json => json(&Value::Array(objects)),
            Self::Table => {
                for (number, object) in objects.iter().enumerate() {
                    if number > 0 {
                        line("");
                    }
                    fields(object).lines().iter().for_each(line);
                }
            }
            Self::Name => objects.iter().filter_map(|object| text(&object[name])).for_each(|name| line(harmless(&name))),
            Self::Template(template) => template.render(&objects)?.iter().for_each(line),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A line for each field, under the name that templates know it by.
fn fields(object: &Value) -> Table {
    fn add(table: &mut Table, path: &str, value: &Value) {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                fields.iter().for_each(|(name, value)| add(table, &format!("{path}.{name}"), value));
            }
            Value::String(text) => table.add_row([path, text]),
            Value::Null => table.add_row([path, "-"]),
            value => table.add_row([path.to_owned(), value.to_string()]),
        }
    }
    let mut table = Table::new(&["field", "value"]).whole();
    add(&mut table, "", object);
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn forms_are_parsed() {
        assert_eq!("json".parse(), Ok(Form::Json));
        assert_eq!("{{.name}}".parse::<Form>(), "template={{.name}}".parse());
        assert_eq!("jsno".parse::<Form>().unwrap_err(), "did you mean json? write table, json, name, or template='{{.name}}'");
        assert!("template".parse::<Form>().unwrap_err().contains("is missing"));
    }

    #[test]
    fn an_object_has_a_line_for_each_field() {
        let lines = fields(&json!({"a": 1, "b": {"c": "x", "d": null}, "e": {}, "f": [1, 2]})).lines();
        assert_eq!(lines, ["FIELD  VALUE", ".a     1", ".b.c   x", ".b.d   -", ".e     {}", ".f     [1,2]"]);
    }
}
