//! Parses calls in Python syntax, and nothing else of Python: names, brackets, literals. The text is never run as code.

use std::iter::Peekable;
use std::str::Chars;

use crate::error::{SynthesisError, invalid};

/// Longest text, in characters.
const MAX_TEXT: usize = 256 << 10;
/// The most calls in one text.
const MAX_CALLS: usize = 1000;
/// The most arguments of a call, and items of a list.
const MAX_ITEMS: usize = 1000;
/// Deepest nesting of brackets.
const MAX_DEPTH: usize = 8;
/// Longest name, in characters.
const MAX_NAME: usize = 64;

/// A literal value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    None,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Literal>),
    /// A name without a call, such as `pyautogui.easeInQuad`.
    Name(String),
}

/// A call, with its dotted name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CallExpression {
    pub(super) name: String,
    pub(super) positional: Vec<Literal>,
    pub(super) named: Vec<(String, Literal)>,
}

/// One statement.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Statement {
    CallExpression(CallExpression),
    /// `import a, b.c`: the imported modules.
    Import(Vec<String>),
    /// `pyautogui.PAUSE = 0.1`: the name.
    Set(String),
}

/// Parses the statements of a text.
///
/// # Errors
/// What can't be parsed, and its position.
pub(super) fn parse(text: &str) -> Result<Vec<Statement>, SynthesisError> {
    if text.chars().nth(MAX_TEXT).is_some() {
        return Err(invalid(format!("it is longer than {MAX_TEXT} characters")));
    }
    let mut reader = Reader { rest: text.chars().peekable(), line: 1 };
    let mut statements = Vec::new();
    loop {
        reader.skip_between();
        if reader.peek().is_none() {
            return Ok(statements);
        }
        if statements.len() == MAX_CALLS {
            return Err(invalid(format!("it has more than {MAX_CALLS} calls")));
        }
        let line = reader.line;
        statements.push(reader.statement().map_err(|error| error.within(format!("line {line}")))?);
    }
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
}

impl Reader<'_> {
    fn peek(&mut self) -> Option<char> {
        self.rest.peek().copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        if next == Some('\n') {
            self.line += 1;
        }
        next
    }

    fn take(&mut self, wanted: char) -> bool {
        let there = self.peek() == Some(wanted);
        if there {
            self.next();
        }
        there
    }

    fn need(&mut self, wanted: char) -> Result<(), SynthesisError> {
        if self.take(wanted) { Ok(()) } else { Err(invalid(format!("{wanted:?} is expected, and there is {}", self.found()))) }
    }

    fn found(&mut self) -> String {
        self.peek().map_or("the end".to_owned(), |found| format!("{found:?}"))
    }

    fn comment(&mut self) {
        if self.peek() == Some('#') {
            while self.peek().is_some_and(|c| c != '\n') {
                self.next();
            }
        }
    }

    /// Skips blanks in a line.
    fn blanks(&mut self) {
        while self.peek().is_some_and(|c| c == ' ' || c == '\t' || c == '\r') {
            self.next();
        }
    }

    /// Skips everything without meaning within brackets.
    fn space(&mut self) {
        loop {
            self.comment();
            if !self.peek().is_some_and(char::is_whitespace) {
                return;
            }
            self.next();
        }
    }

    /// Skips everything without meaning between statements.
    fn skip_between(&mut self) {
        loop {
            self.space();
            if !self.take(';') {
                return;
            }
        }
    }

    fn word(&mut self) -> Result<String, SynthesisError> {
        let mut word = String::new();
        while let Some(c) = self.peek().filter(|c| c.is_alphanumeric() || *c == '_') {
            if word.is_empty() && c.is_numeric() {
                break;
            }
            if word.len() >= MAX_NAME {
                return Err(invalid(format!("a name is longer than {MAX_NAME} bytes")));
            }
            word.push(c);
            self.next();
        }
        if word.is_empty() { Err(invalid(format!("a name is expected, and there is {}", self.found()))) } else { Ok(word) }
    }

    /// `a.b.c`.
    fn dotted(&mut self) -> Result<String, SynthesisError> {
        let mut name = self.word()?;
        while self.take('.') {
            name.push('.');
            name.push_str(&self.word()?);
            if name.len() > MAX_NAME {
                return Err(invalid(format!("a name is longer than {MAX_NAME} bytes")));
            }
        }
        Ok(name)
    }

    fn statement(&mut self) -> Result<Statement, SynthesisError> {
        let name = self.dotted()?;
        self.blanks();
        let statement = match self.peek() {
            Some('(') => Statement::CallExpression(self.call(name, 0)?),
            Some('=') => {
                self.next();
                self.blanks();
                self.literal(0)?;
                Statement::Set(name)
            }
            _ if name == "import" => {
                let mut modules = vec![self.dotted()?];
                self.blanks();
                while self.take(',') {
                    if modules.len() == MAX_ITEMS {
                        return Err(invalid(format!("there are more than {MAX_ITEMS} imports")));
                    }
                    self.blanks();
                    modules.push(self.dotted()?);
                    self.blanks();
                }
                Statement::Import(modules)
            }
            _ => return Err(invalid(format!("{name} is no call"))),
        };
        self.blanks();
        self.comment();
        match self.peek() {
            None | Some(';' | '\n') => Ok(statement),
            _ => Err(invalid(format!("after a call a new line or ; is expected, and there is {}", self.found()))),
        }
    }

    fn call(&mut self, name: String, depth: usize) -> Result<CallExpression, SynthesisError> {
        self.need('(')?;
        let mut call = CallExpression { name, positional: Vec::new(), named: Vec::new() };
        loop {
            self.space();
            if self.take(')') {
                return Ok(call);
            }
            if call.positional.len() + call.named.len() == MAX_ITEMS {
                return Err(invalid(format!("a call has more than {MAX_ITEMS} arguments")));
            }
            let value = self.literal(depth + 1)?;
            self.space();
            match value {
                Literal::Name(word) if self.take('=') => {
                    self.space();
                    if call.named.iter().any(|(known, _)| *known == word) {
                        return Err(invalid(format!("{word} is given twice")));
                    }
                    call.named.push((word, self.literal(depth + 1)?));
                }
                _ if !call.named.is_empty() => {
                    return Err(invalid("an argument without a name stands after one with a name"));
                }
                value => call.positional.push(value),
            }
            self.space();
            if !self.take(',') {
                self.need(')')?;
                return Ok(call);
            }
        }
    }

    fn literal(&mut self, depth: usize) -> Result<Literal, SynthesisError> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!("brackets are more than {MAX_DEPTH} deep")));
        }
        match self.peek() {
            Some('[') => self.list(']', depth),
            Some('(') => self.list(')', depth),
            Some('"' | '\'') => self.strings(),
            Some('-' | '+' | '.' | '0'..='9') => self.number(),
            Some(c) if c.is_alphabetic() || c == '_' => {
                let name = self.dotted()?;
                match (name.as_str(), self.peek()) {
                    ("None", _) => Ok(Literal::None),
                    ("True", _) => Ok(Literal::Bool(true)),
                    ("False", _) => Ok(Literal::Bool(false)),
                    ("r" | "R" | "u" | "U", Some('"' | '\'')) => self.string(name.eq_ignore_ascii_case("r")).map(Literal::Text),
                    (_, Some('"' | '\'')) => Err(invalid(format!("strings with {name} before them are not read here"))),
                    (_, Some('(')) => {
                        Err(invalid(format!("{name} is called within a call; only values that are written out are read here")))
                    }
                    _ => Ok(Literal::Name(name)),
                }
            }
            _ => Err(invalid(format!("a value is expected, and there is {}", self.found()))),
        }
    }

    /// A list or a tuple; in round brackets, one value without a comma is the value itself.
    fn list(&mut self, end: char, depth: usize) -> Result<Literal, SynthesisError> {
        self.next();
        let mut items = Vec::new();
        loop {
            self.space();
            if self.take(end) {
                return Ok(Literal::List(items));
            }
            if items.len() == MAX_ITEMS {
                return Err(invalid(format!("a list has more than {MAX_ITEMS} items")));
            }
            items.push(self.literal(depth + 1)?);
            self.space();
            if !self.take(',') {
                self.need(end)?;
                return Ok(match items.pop() {
                    Some(only) if end == ')' && items.is_empty() => only,
                    last => Literal::List(items.into_iter().chain(last).collect()),
                });
            }
        }
    }

    fn number(&mut self) -> Result<Literal, SynthesisError> {
        let mut sign = 1.0;
        while let Some(c) = self.peek().filter(|c| matches!(c, '-' | '+')) {
            self.next();
            if c == '-' {
                sign = -sign;
            }
        }
        let mut digits = String::new();
        while let Some(c) = self.peek() {
            let goes_on =
                c.is_ascii_alphanumeric() || matches!(c, '.' | '_') || (matches!(c, '-' | '+') && digits.ends_with(['e', 'E']));
            if !goes_on {
                break;
            }
            if digits.len() >= MAX_NAME {
                return Err(invalid("a number is too long"));
            }
            digits.push(c);
            self.next();
        }
        // Rust parses words as numbers that Python doesn't.
        let is_plain = digits.bytes().all(|b| b.is_ascii_digit() || b"._eE+-".contains(&b));
        let number = digits.replace('_', "").parse::<f64>().ok().filter(|number| is_plain && number.is_finite());
        number.map(|number| Literal::Number(sign * number)).ok_or_else(|| invalid(format!("{digits:?} is no number")))
    }

    /// A string, with adjacent strings appended.
    fn strings(&mut self) -> Result<Literal, SynthesisError> {
        let mut text = self.string(false)?;
        loop {
            self.blanks();
            if !matches!(self.peek(), Some('"' | '\'')) {
                return Ok(Literal::Text(text));
            }
            text.push_str(&self.string(false)?);
        }
    }

    fn string(&mut self, raw: bool) -> Result<String, SynthesisError> {
        let quote = self.next().unwrap_or('"');
        let mut text = String::new();
        let is_long = if !self.take(quote) {
            false
        } else if self.take(quote) {
            true
        } else {
            return Ok(text);
        };
        let unended = || invalid("a string does not end");
        loop {
            match self.next().ok_or_else(unended)? {
                c if c == quote => {
                    if !is_long {
                        return Ok(text);
                    }
                    if !self.take(quote) {
                        text.push(quote);
                    } else if self.take(quote) {
                        return Ok(text);
                    } else {
                        text.extend([quote, quote]);
                    }
                }
                '\n' if !is_long => return Err(unended()),
                '\\' if raw => {
                    text.push('\\');
                    text.push(self.next().ok_or_else(unended)?);
                }
                '\\' => {
                    let escaped = self.next().ok_or_else(unended)?;
                    self.escape(escaped, &mut text)?;
                }
                c => text.push(c),
            }
        }
    }

    fn escape(&mut self, escaped: char, text: &mut String) -> Result<(), SynthesisError> {
        let character = match escaped {
            '\n' => return Ok(()),
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            '\\' | '\'' | '"' => escaped,
            'x' => self.coded(2)?,
            'u' => self.coded(4)?,
            'U' => self.coded(8)?,
            '0'..='7' => {
                let mut code = escaped.to_digit(8).unwrap_or_default();
                for _ in 0..2 {
                    let Some(digit) = self.peek().and_then(|c| c.to_digit(8)) else { break };
                    self.next();
                    code = code * 8 + digit;
                }
                char::from_u32(code).unwrap_or('\u{fffd}')
            }
            'N' => return Err(invalid("characters by their name (\\N) are not read here")),
            // As in Python, both characters stay.
            other => {
                text.push('\\');
                other
            }
        };
        text.push(character);
        Ok(())
    }

    fn coded(&mut self, digits: usize) -> Result<char, SynthesisError> {
        let mut code = 0_u32;
        for _ in 0..digits {
            let digit =
                self.next().and_then(|c| c.to_digit(16)).ok_or_else(|| invalid("an escaped character has too few digits"))?;
            code = code.wrapping_mul(16).wrapping_add(digit);
        }
        char::from_u32(code).ok_or_else(|| invalid(format!("{code:#x} is no character")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, positional: Vec<Literal>, named: Vec<(&str, Literal)>) -> Statement {
        let named = named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Statement::CallExpression(CallExpression { name: name.to_owned(), positional, named })
    }

    fn text(text: &str) -> Literal {
        Literal::Text(text.to_owned())
    }

    #[test]
    fn calls_are_read_as_python_reads_them() {
        let n = Literal::Number;
        let read = parse(
            "import pyautogui, time # both\npyautogui.click(100, -2.5, button='left',) ; time.sleep(.5)\n\n\
             pyautogui.write('a;b\\n\\'c\\x41\\u4e16\\101' \"d\", interval=1e-2)\npyautogui.hotkey(*[])",
        );
        assert!(read.unwrap_err().to_string().starts_with("line 5: "));
        let read = parse(
            "import pyautogui, time # both\npyautogui.click(100, -2.5, button='left',) ; time.sleep(.5)\n\n\
             pyautogui.write('a;b\\n\\'c\\x41\\u4e16\\101' \"d\", interval=1e-2)\n# end\npyautogui.PAUSE = 1\n\
             pyautogui.press(['a', ('b',), (\n3\n)], r'\\d', '''x'\n\"y''')",
        );
        let wanted = vec![
            Statement::Import(vec!["pyautogui".to_owned(), "time".to_owned()]),
            call("pyautogui.click", vec![n(100.0), n(-2.5)], vec![("button", text("left"))]),
            call("time.sleep", vec![n(0.5)], vec![]),
            call("pyautogui.write", vec![text("a;b\n'cA世Ad")], vec![("interval", n(0.01))]),
            Statement::Set("pyautogui.PAUSE".to_owned()),
            call(
                "pyautogui.press",
                vec![Literal::List(vec![text("a"), Literal::List(vec![text("b")]), n(3.0)]), text("\\d"), text("x'\n\"y")],
                vec![],
            ),
        ];
        assert_eq!(read.unwrap(), wanted);
        assert_eq!(parse("").unwrap(), []);
        assert_eq!(parse(" \n;; # x").unwrap(), []);
    }

    #[test]
    fn whatever_else_python_has_is_refused() {
        for hostile in [
            "pyautogui.click(__import__('os').system('id'))",
            "pyautogui.click(1); __import__('os').system('id')(2)",
            "pyautogui.click(1)\nimport os; os.system('id') if True else 0",
            "pyautogui.write(f'{1}')",
            "pyautogui.write(b'x')",
            "pyautogui.write('x' + 'y')",
            "pyautogui.write('x' % 1)",
            "pyautogui.click(1).foo",
            "pyautogui.click(1)[0]",
            "pyautogui.click(x=1, x=2)",
            "pyautogui.click(x=1, 2)",
            "pyautogui.click(1 2)",
            "pyautogui.click(1",
            "pyautogui.click(1))",
            "pyautogui.write('abc",
            "pyautogui.write('abc\n')",
            "pyautogui.write('''abc''",
            "pyautogui.write('\\x4')",
            "pyautogui.write('\\ud800')",
            "pyautogui.write('\\U99999999')",
            "pyautogui.write('\\",
            "pyautogui.click(inf)\u{0}",
            "pyautogui.click(1e999)",
            "pyautogui.click(0x10)",
            "pyautogui.click(nan1.)",
            "pyautogui.click(lambda: 1)",
            "pyautogui.click({})",
            "pyautogui..click()",
            "pyautogui",
            "for x in (1,): pyautogui.click(x)",
            "(1).click()",
            "import",
            "import a,",
            "pyautogui.PAUSE = os.system('id')",
        ] {
            let read = parse(hostile);
            assert!(read.is_err(), "{hostile}: {read:?}");
        }
    }

    #[test]
    fn huge_and_deep_input_is_refused_before_it_costs_anything() {
        let deep = format!("pyautogui.click({}", "[".repeat(100_000));
        assert!(parse(&deep).unwrap_err().to_string().contains("deep"));
        let wide = format!("pyautogui.press([{}])", "1,".repeat(50_000));
        assert!(parse(&wide).unwrap_err().to_string().contains("items"));
        let many = "pyautogui.click()\n".repeat(1001);
        assert!(parse(&many).unwrap_err().to_string().contains("calls"));
        assert!(parse(&"x".repeat(MAX_TEXT + 1)).unwrap_err().to_string().contains("longer"));
        assert!(parse(&format!("a{}", ".b".repeat(10_000))).unwrap_err().to_string().contains("name"));
        assert!(parse(&format!("pyautogui.click({}1)", "-".repeat(100_000))).is_ok());
        assert!(parse(&format!("import {}", "a,".repeat(2000))).unwrap_err().to_string().contains("imports"));
    }

    #[test]
    fn no_cut_or_changed_text_breaks_the_reader() {
        let whole = "import time\npyautogui.click(x=1, y=(2, [3.5]), t='a\\u4e16\"')\npyautogui.write(\"\"\"x\\n'y'\"\"\", None, True); # é世";
        let characters: Vec<char> = whole.chars().collect();
        for at in 0..=characters.len() {
            let _ = parse(&characters[..at].iter().collect::<String>());
            for put in ['\'', '"', '(', ')', '[', '\\', '\n', ',', '=', '.', '\u{0}', '世', '9', '#'] {
                let mut changed = characters.clone();
                changed.insert(at, put);
                let _ = parse(&changed.iter().collect::<String>());
                if at < characters.len() {
                    changed.remove(at + 1);
                    let _ = parse(&changed.iter().collect::<String>());
                }
            }
        }
    }
}
