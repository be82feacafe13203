//! The text of `--help`.

use std::fmt::Write as _;

use super::calls::{self, ApiCall, Body, Field, FieldLocation, Kind};
use crate::api;

const USAGE: &str = "\
The API of this sandbox as a command.

Usage: aio [-o json|text] [--api-url URL] GROUP METHOD [VALUE…] [--FIELD VALUE…]

";

const REST: &str = "
Values
  The required fields may be given in their order, without names. `--` ends the options.
  A value `-` is read from standard input. `--json '{…}'` or `--json -` gives fields as JSON.

Answers
  Text on a terminal, else the API's answer as one line of JSON. Files come as they are.
  What failed is said on standard error. Exit status: 0 done, 1 the call failed, 2 no such call, 3 the API can't be reached.
  A command that fails is no failed call: look at exit_code.

Options
  -o, --output json|text  how answers are written
  -o, --output FILE       after the method: where the answer is written to
  --api-url URL           another address than http://127.0.0.1:8080
  --version

Examples
  aio bash exec 'make test' --timeout 60
  aio file read /etc/hosts | jq -r .data.content
  make 2>&1 | aio file write /tmp/make.log -
  aio browser screenshot -o page.png; aio gui screenshot -o screen.png
  aio GROUP --help; aio GROUP METHOD --help
";

pub(super) fn all(calls: &[ApiCall]) -> String {
    let mut out = String::from(USAGE);
    out.push_str("Groups\n");
    for group in calls::groups(calls) {
        _ = writeln!(out, "  {group:<11} {}", api::purpose(group));
    }
    out + REST
}

pub(super) fn group(group: &str, calls: &[&ApiCall]) -> String {
    let mut out = format!("{}\n\nUsage: aio {group} METHOD [VALUE…] [--FIELD VALUE…]\n\nMethods\n", api::purpose(group));
    let lines: Vec<(String, &str)> = calls.iter().map(|call| (usage(call), first_line(&call.about))).collect();
    let width = lines.iter().map(|(usage, _)| usage.chars().count()).max().unwrap_or(0);
    for (usage, about) in lines {
        _ = writeln!(out, "  {usage:width$}  {about}");
    }
    _ = writeln!(out, "\naio {group} METHOD --help tells a method's fields.");
    out
}

pub(super) fn call(call: &ApiCall) -> String {
    let mut out = format!("{}\n\nUsage: aio {} {}", call.about, call.group, usage(call));
    out.push_str(if call.fields.iter().any(|field| !field.required) { " [--FIELD VALUE…]\n" } else { "\n" });
    if !call.fields.is_empty() {
        out.push_str("\nFields\n");
    }
    for field in &call.fields {
        _ = writeln!(out, "  --{}{}", field.name.replace('_', "-"), form(field));
        for line in about(field).lines().filter(|line| !line.is_empty()) {
            _ = writeln!(out, "      {line}");
        }
    }
    if call.body == Body::AnyJson {
        out.push_str("\nAny other --NAME VALUE goes to the tool; a value that is JSON is sent as such.\n");
    }
    _ = writeln!(out, "\nIt calls {} {}.", call.verb, call.path);
    out
}

fn usage(call: &ApiCall) -> String {
    let required = call.required().map(|field| field.name.to_uppercase());
    std::iter::once(call.method.clone()).chain(required).collect::<Vec<_>>().join(" ")
}

fn first_line(about: &str) -> &str {
    about.lines().next().unwrap_or_default()
}

fn form(field: &Field) -> String {
    match field.kind {
        Kind::Switch => String::new(),
        Kind::File => " FILE".to_owned(),
        Kind::Map => " KEY=VALUE…".to_owned(),
        Kind::List => " VALUE…".to_owned(),
        Kind::Integer | Kind::Number => " NUMBER".to_owned(),
        Kind::Text if !field.choices.is_empty() => format!(" {}", field.choices.join("|")),
        Kind::Text => " TEXT".to_owned(),
    }
}

fn about(field: &Field) -> String {
    let mut about = field.about.clone();
    let mut add = |text: String| {
        if !about.is_empty() && !about.ends_with('\n') {
            about.push('\n');
        }
        about.push_str(&text);
    };
    match &field.default {
        _ if field.required => add("required".to_owned()),
        Some(default) => add(format!("default: {}", default.as_str().map_or_else(|| default.to_string(), str::to_owned))),
        None if field.location == FieldLocation::Path => add("required".to_owned()),
        None => {}
    }
    about
}
