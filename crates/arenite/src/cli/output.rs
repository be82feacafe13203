//! Arguments for the form of the output.

use clap::Args;

use crate::output::{Form, ListForm};

/// The form of entries.
#[derive(Debug, Clone, Args)]
pub(crate) struct Output {
    /// Form of the output: table, json, name, or a template such as '{{.name}} {{.state}}'
    #[arg(long, short, value_name = "FORM")]
    output: Option<Form>,
    /// Print JSON; the same as -o json
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl Output {
    /// The form, if one was selected.
    pub(crate) fn selected(&self) -> Option<Form> {
        self.json.then_some(Form::Json).or_else(|| self.output.clone())
    }

    /// The form, which is a table by default.
    pub(crate) fn form(&self) -> Form {
        self.selected().unwrap_or(Form::Table)
    }
}

/// The form of a list.
#[derive(Debug, Clone, Args)]
pub(crate) struct ListOutput {
    #[command(flatten)]
    output: Output,
    /// Show changes until Ctrl-C: redraw the table on a terminal, print a line for each change elsewhere
    #[arg(long, short = 'w')]
    watch: bool,
}

impl ListOutput {
    pub(crate) fn form(&self) -> ListForm {
        ListForm { form: self.output.form(), watch: self.watch }
    }
}
