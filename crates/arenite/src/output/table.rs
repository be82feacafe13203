//! Tables without lines, which fit the terminal.

use std::io::{self, IsTerminal};

use rustix::termios;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Spaces between columns.
const GAP: usize = 2;
/// Narrowest width of a shortened column.
const MIN_SHORTENED: usize = 12;
/// Width of a terminal that doesn't know its own.
const DEFAULT_WIDTH: usize = 80;

/// The colour of a cell, which shows on terminals only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colour {
    Red,
    Green,
    Yellow,
}

impl Colour {
    fn code(self) -> u8 {
        match self {
            Self::Red => 31,
            Self::Green => 32,
            Self::Yellow => 33,
        }
    }
}

/// The text of a cell, without control characters.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    colour: Option<Colour>,
}

impl Cell {
    pub(super) fn coloured(text: &str, colour: Option<Colour>) -> Self {
        Self { text: super::harmless(text), colour }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::coloured(&text, None)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::coloured(text, None)
    }
}

#[derive(Debug, Clone)]
struct Column {
    title: String,
    right: bool,
    /// Its texts are shortened before columns are left out.
    long: bool,
}

/// A table. On a narrow terminal, it shortens columns with long texts, and then leaves columns out.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    columns: Vec<Column>,
    /// Numbers of columns, the first to leave out first. The last one always stays.
    dispensable: Vec<usize>,
    is_whole: bool,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Columns that don't fit are left out from the right.
    pub(crate) fn new(header: &[&str]) -> Self {
        let column = |title: &&str| Column { title: title.to_uppercase(), right: false, long: false };
        Self {
            columns: header.iter().map(column).collect(),
            dispensable: (0..header.len()).rev().collect(),
            is_whole: false,
            rows: Vec::new(),
        }
    }

    /// Aligns columns of numbers to the right.
    #[must_use]
    pub(crate) fn right(mut self, titles: &[&str]) -> Self {
        for number in self.numbers(titles) {
            self.columns[number].right = true;
        }
        self
    }

    /// Names the columns with texts that may be shortened.
    #[must_use]
    pub(crate) fn long(mut self, titles: &[&str]) -> Self {
        for number in self.numbers(titles) {
            self.columns[number].long = true;
        }
        self
    }

    /// Names the columns that are left out before all others.
    #[must_use]
    pub(crate) fn leave_out(mut self, titles: &[&str]) -> Self {
        let first = self.numbers(titles);
        self.dispensable.retain(|number| !first.contains(number));
        self.dispensable.splice(0..0, first);
        self
    }

    /// Shows all texts in full: the terminal breaks long lines.
    #[must_use]
    pub(crate) fn whole(mut self) -> Self {
        self.is_whole = true;
        self
    }

    fn numbers(&self, titles: &[&str]) -> Vec<usize> {
        let number = |title: &&str| self.columns.iter().position(|column| column.title == title.to_uppercase());
        titles.iter().filter_map(number).collect()
    }

    pub(crate) fn add_row<T: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let mut row: Vec<Cell> = cells.into_iter().map(Into::into).collect();
        row.resize_with(self.columns.len(), || "".into());
        self.rows.push(row);
    }

    /// The lines for stdout.
    pub(super) fn lines(&self) -> Vec<String> {
        self.lines_for(width().filter(|_| !self.is_whole), is_coloured())
    }

    /// The lines for a width; none: any width.
    fn lines_for(&self, width: Option<usize>, is_coloured: bool) -> Vec<String> {
        let shown = self.fit(width.unwrap_or(usize::MAX));
        let last = shown.last().map(|(number, _)| *number);
        let title = |number: usize| Cell { text: self.columns[number].title.clone(), colour: None };
        let header = (0..self.columns.len()).map(title).collect::<Vec<_>>();
        let line = |row: &Vec<Cell>| {
            let mut line = String::new();
            for (number, width) in &shown {
                let cell = &row[*number];
                let text = shorten(&cell.text, *width);
                let space = " ".repeat(width - text.width());
                let text = match cell.colour {
                    Some(colour) if is_coloured => format!("\x1b[{}m{text}\x1b[0m", colour.code()),
                    _ => text,
                };
                match self.columns[*number].right {
                    true => line += &format!("{space}{text}"),
                    false => line += &format!("{text}{space}"),
                }
                if Some(*number) != last {
                    line += &" ".repeat(GAP);
                }
            }
            line.trim_end().to_owned()
        };
        std::iter::once(&header).chain(&self.rows).map(line).collect()
    }

    /// The columns that fit, with their widths.
    fn fit(&self, width: usize) -> Vec<(usize, usize)> {
        let natural = |number: usize| {
            let cells = self.rows.iter().map(|row| row[number].text.width());
            cells.chain([self.columns[number].title.width()]).max().unwrap_or_default()
        };
        let natural: Vec<usize> = (0..self.columns.len()).map(natural).collect();
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let mut dispensable = self.dispensable.iter();
        loop {
            let excess = |widths: &[(usize, usize)]| {
                let sum: usize = widths.iter().map(|(_, width)| width).sum();
                (sum + GAP * widths.len().saturating_sub(1)).saturating_sub(width)
            };
            let mut widths: Vec<(usize, usize)> = shown.iter().map(|number| (*number, natural[*number])).collect();
            // The widest of the long columns gives way first, down to the width of the next one.
            while excess(&widths) > 0 {
                let long = widths.iter_mut().filter(|(number, width)| self.columns[*number].long && *width > MIN_SHORTENED);
                let Some((_, widest)) = long.max_by_key(|(_, width)| *width) else { break };
                *widest -= 1;
            }
            if excess(&widths) == 0 {
                return widths;
            }
            if let [(number, _)] = widths[..] {
                return vec![(number, width)];
            }
            let Some(next) = dispensable.next() else { return widths };
            shown.retain(|number| number != next);
        }
    }
}

/// The width of the terminal on stdout. None: stdout is something else, which gets everything.
fn width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    match termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => Some(usize::from(size.ws_col)),
        _ => Some(DEFAULT_WIDTH),
    }
}

/// Whether stdout shows colours: <https://no-color.org>.
fn is_coloured() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// The start of a text that is wider than `width`, with an ellipsis.
fn shorten(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut used = 1;
    let fits = |c: &char| {
        used += c.width().unwrap_or_default();
        used <= width
    };
    let start: String = text.chars().take_while(fits).collect();
    if width == 0 { String::new() } else { format!("{}…", start.trim_end()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["name", "cpu", "note", "id"]).right(&["cpu"]).long(&["note"]).leave_out(&["id", "cpu"]);
        table.add_row(["demo", "1", "what it is for, at some length", "sb-1"]);
        table.add_row(["数据", "12.5", "", "sb-22"]);
        table
    }

    #[test]
    fn a_wide_table_has_everything() {
        let lines = table().lines_for(None, false);
        assert_eq!(
            lines,
            [
                "NAME   CPU  NOTE                            ID",
                "demo     1  what it is for, at some length  sb-1",
                "数据  12.5                                  sb-22",
            ]
        );
        assert_eq!(table().lines_for(Some(49), false), lines);
    }

    #[test]
    fn a_narrow_table_shortens_long_texts_and_then_leaves_columns_out() {
        assert_eq!(table().lines_for(Some(40), false)[1], "demo     1  what it is for, at s…  sb-1");
        assert_eq!(table().lines_for(Some(28), false)[1], "demo     1  what it is for,…");
        assert_eq!(table().lines_for(Some(19), false)[1], "demo  what it is f…");
        assert_eq!(table().lines_for(Some(10), false), ["NAME", "demo", "数据"]);
        assert_eq!(table().lines_for(Some(3), false), ["NA…", "de…", "数…"]);
        for width in 1..60 {
            let lines = table().lines_for(Some(width), false);
            assert!(lines.iter().all(|line| line.width() <= width), "{width}: {lines:?}");
        }
    }

    #[test]
    fn cells_have_no_control_characters_and_colours_take_no_space() {
        let mut table = Table::new(&["a", "b"]);
        table.add_row([Cell::coloured("x\x1b[2J\n", Some(Colour::Red)), "y".into()]);
        assert_eq!(table.lines_for(Some(80), true), ["A       B", "\x1b[31mx\u{fffd}[2J\u{fffd}\x1b[0m  y"]);
    }
}
