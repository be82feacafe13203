use std::collections::BTreeMap;

use super::*;

fn parse(text: &str) -> Imagefile {
    text.parse().unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

fn error(text: &str) -> ParseError {
    match text.parse::<Imagefile>() {
        Err(error) => error,
        Ok(file) => panic!("{text:?} was understood as {file:?}"),
    }
}

/// The one step after FROM.
fn step(text: &str) -> Instruction {
    let file = parse(&format!("FROM base\n{text}"));
    assert_eq!(file.steps.len(), 1, "{text:?}");
    file.steps[0].instruction.clone()
}

fn sh(text: &str) -> Instruction {
    Instruction::Run(vec!["/bin/sh".into(), "-c".into(), text.into()])
}

fn expanded(text: &Text) -> String {
    let env = [("A", "1"), ("B_2", "two words")];
    let env: BTreeMap<_, _> = env.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    text.expand(&env).unwrap()
}

fn env(text: &str) -> Vec<(String, String)> {
    match step(text) {
        Instruction::Env(pairs) => pairs.into_iter().map(|(k, v)| (k, expanded(&v))).collect(),
        other => panic!("{text:?} was understood as {other:?}"),
    }
}

fn copied(text: &str) -> (Vec<String>, String) {
    match step(text) {
        Instruction::Copy(copy) => (copy.sources.iter().map(expanded).collect(), expanded(&copy.destination)),
        other => panic!("{text:?} was understood as {other:?}"),
    }
}

#[test]
fn a_whole_file_is_understood_with_its_lines() {
    let file = parse(
        "\u{feff}# syntax=any/thing\r\n\r\nfrom debootstrap:bookworm\r\n\
         # a comment\r\nRUN apt-get update && \\\r\n  # between\r\n\r\n    apt-get install -y x\r\n\
         Workdir /srv\nuSeR gem\nlabel a=1 b=\"2 3\"\n",
    );
    assert_eq!(file.from, Base::Debootstrap(Suite::Bookworm));
    assert_eq!(file.from_source.line, 3);
    let seen: Vec<_> = file.steps.iter().map(|s| (s.source.line, s.source.text.as_str())).collect();
    assert_eq!(
        seen,
        [
            (5, "RUN apt-get update &&     apt-get install -y x"),
            (9, "WORKDIR /srv"),
            (10, "USER gem"),
            (11, "LABEL a=1 b=\"2 3\""),
        ]
    );
    assert_eq!(file.steps[0].instruction, sh("apt-get update &&     apt-get install -y x"));
}

#[test]
fn the_image_base_of_this_repository_is_understood() {
    let file = parse(include_str!("../../../../images/base.Imagefile"));
    assert_eq!(file.from, Base::Debootstrap(Suite::Bookworm));
    assert!(file.steps.iter().any(|s| s.instruction == Instruction::User("gem".into())));
}

#[test]
fn run_has_a_shell_form_and_a_json_form() {
    assert_eq!(step("RUN echo \"$HOME\" '#' \\$x"), sh("echo \"$HOME\" '#' \\$x"));
    assert_eq!(
        step("RUN [\"/bin/echo\", \"a b\", \"\\u00e9\"]"),
        Instruction::Run(vec!["/bin/echo".into(), "a b".into(), "é".into()])
    );
    // These only look like JSON, and like here-documents.
    assert_eq!(step("RUN [ -e /x ] && true"), sh("[ -e /x ] && true"));
    assert_eq!(step("RUN echo $((1<<n)) <<<word"), sh("echo $((1<<n)) <<<word"));
}

#[test]
fn values_keep_what_is_quoted_and_take_what_was_set() {
    let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
    assert_eq!(
        env(r#"ENV K=V K2="a b" K3='c $A' K4=d\ e K5= K6="" K7="q\"\\\$A" K8=x"y"'z'"#),
        [
            pair("K", "V"),
            pair("K2", "a b"),
            pair("K3", "c $A"),
            pair("K4", "d e"),
            pair("K5", ""),
            pair("K6", ""),
            pair("K7", "q\"\\$A"),
            pair("K8", "xyz"),
        ]
    );
    assert_eq!(env("ENV K the rest = of it"), [pair("K", "the rest = of it")]);
    assert_eq!(
        env("ENV P=/bin:$A:${B_2}/x Q=\"$A\" R=$ S=a$"),
        [pair("P", "/bin:1:two words/x"), pair("Q", "1"), pair("R", "$"), pair("S", "a$"),]
    );
    assert_eq!(env("ENV A=1 \\\n    B=2"), [pair("A", "1"), pair("B", "2")]);
    let Instruction::Env(pairs) = step("ENV X=$MISSING") else { panic!() };
    assert_eq!(pairs[0].1.expand(&BTreeMap::new()), Err("MISSING".to_owned()));
}

#[test]
fn copy_has_flags_several_sources_and_a_json_form() {
    assert_eq!(copied("COPY a \"b c\" $A/ /srv/"), (vec!["a".into(), "b c".into(), "1/".into()], "/srv/".into()));
    // JSON text is not expanded.
    assert_eq!(copied("COPY [\"a b\", \"$A\"]"), (vec!["a b".into()], "$A".into()));
    let Instruction::Copy(copy) = step("COPY --chmod=4755 --chown=gem:0 a b") else { panic!() };
    assert_eq!(copy.chmod, Some(0o4755));
    assert_eq!(copy.chown, Some(Chown { user: "gem".into(), group: Some("0".into()) }));
}

#[test]
fn what_is_not_understood_is_refused_with_its_line_and_what_to_do() {
    let cases: &[(&str, usize, &str)] = &[
        ("", 1, "there is no FROM"),
        ("# nothing\n\n", 1, "there is no FROM"),
        ("RUN true", 1, "first instruction must be FROM"),
        ("\n\nARG X\nFROM base", 3, "first instruction must be FROM"),
        ("FROM", 1, "FROM names no base"),
        ("FROM base AS x", 1, "several build stages"),
        ("FROM --platform=x base", 1, "not supported"),
        ("FROM debootstrap:potato", 1, "\"potato\""),
        ("FROM ../etc", 1, "not valid"),
        ("FROM $BASE", 1, "not supported: variables"),
        ("FROM a b", 1, "takes one base"),
        ("FROM base\nFROM base", 2, "a second FROM"),
        ("FROM base\nRUN true\nARG X=1", 3, "not supported: ARG"),
        ("FROM base\nentrypoint [\"x\"]", 2, "not supported: ENTRYPOINT"),
        ("FROM base\nFRON x", 2, "unknown instruction \"FRON\""),
        ("FROM base\nRUN", 2, "RUN is empty"),
        ("FROM base\nRUN --mount=type=cache x", 2, "not supported: RUN's flag"),
        ("FROM base\nRUN [\"a\", b]", 2, "not valid JSON"),
        ("FROM base\nRUN []", 2, "array is empty"),
        ("FROM base\nRUN [\"\"]", 2, "program is empty"),
        ("FROM base\nRUN cat <<EOF >x", 2, "here-documents"),
        ("FROM base\nRUN x && \\\n", 2, "nothing follows"),
        ("FROM base\nRUN x \\\n# only a comment", 2, "nothing follows"),
        ("FROM base\nRUN a\x07b", 2, "control character"),
        ("FROM base\nCOPY a", 2, "at least one source"),
        ("FROM base\nCOPY --from=x a b", 2, "not supported: COPY's flag"),
        ("FROM base\nCOPY --chmod=u+x a b", 2, "--chmod=u+x is not valid"),
        ("FROM base\nCOPY --chmod=10000 a b", 2, "not valid"),
        ("FROM base\nCOPY --chown=a:b:c a b", 2, "not valid"),
        ("FROM base\nCOPY --chown=a --chown=b a b", 2, "given twice"),
        ("FROM base\nCOPY <<x /y", 2, "here-documents"),
        ("FROM base\nENV A=\"x", 2, "quote \" is not closed"),
        ("FROM base\nENV A=${B:-c}", 2, "not supported: ${B:-c}"),
        ("FROM base\nENV A=${B", 2, "brace"),
        ("FROM base\nENV 1A=x", 2, "name is not valid"),
        ("FROM base\nENV =x", 2, "empty name"),
        ("FROM base\nENV A", 2, "without a value"),
        ("FROM base\nENV A=1 B", 2, "without a value"),
        ("FROM base\nUSER a:b", 2, "not valid"),
        ("FROM base\nUSER -x", 2, "not valid"),
        ("# escape=`\nFROM base", 1, "escape character"),
    ];
    for (text, line, message) in cases {
        let error = error(text);
        assert_eq!(error.line, *line, "{text:?}: {error}");
        assert!(error.message.contains(message), "{text:?}: {error}");
    }
    assert_eq!(
        error("FROM base\nCMD x").hint.as_deref(),
        Some("a sandbox runs its guest; give its main command when you create it")
    );
}

#[test]
fn no_file_is_too_big_or_too_strange_to_be_refused() {
    assert!(error(&"#".repeat(MAX_FILE_BYTES + 1)).message.contains("longer than"));
    let many = format!("FROM base\n{}", "RUN x\n".repeat(MAX_STEPS));
    assert_eq!(error(&many).line, MAX_STEPS + 1);
    let just = format!("FROM base\n{}", "RUN x\n".repeat(MAX_STEPS - 1));
    assert_eq!(parse(&just).steps.len(), MAX_STEPS - 1);
    let long = format!("FROM base\nRUN {}", "x\\\n".repeat(MAX_INSTRUCTION_BYTES));
    assert!(error(&long).message.contains("longer than"));
    let bad = Imagefile::parse(b"FROM base\nRUN \xff").unwrap_err();
    assert_eq!((bad.line, bad.message.as_str()), (2, "this is not UTF-8 text"));
    let nested = format!("FROM base\nRUN {}", "[".repeat(60_000));
    assert!(nested.parse::<Imagefile>().is_ok());
}
