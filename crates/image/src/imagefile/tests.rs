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
    let steps = &file.stages[0].steps;
    assert_eq!(steps.len(), 1, "{text:?}");
    steps[0].instruction.clone()
}

fn run_of(command: Command) -> Instruction {
    Instruction::Run(Run { command, script: None, mounts: Vec::new(), is_offline: false })
}

fn sh(text: &str) -> Instruction {
    run_of(Command::Shell(text.into()))
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
        Instruction::Copy(copy) => {
            let source = |source: &CopySource| match source {
                CopySource::Path(text) => expanded(text),
                CopySource::Inline { name, content } => format!("{name}: {}", expanded(content)),
            };
            (copy.sources.iter().map(source).collect(), expanded(&copy.destination))
        }
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
    assert_eq!(base_of(&file), Base::Debootstrap(Suite::Bookworm));
    assert_eq!(file.stages[0].source.line, 3);
    let seen: Vec<_> = file.stages[0].steps.iter().map(|s| (s.source.line, s.source.text.as_str())).collect();
    assert_eq!(
        seen,
        [
            (5, "RUN apt-get update &&     apt-get install -y x"),
            (9, "WORKDIR /srv"),
            (10, "USER gem"),
            (11, "LABEL a=1 b=\"2 3\""),
        ]
    );
    assert_eq!(file.stages[0].steps[0].instruction, sh("apt-get update &&     apt-get install -y x"));
}

#[test]
fn the_image_base_of_this_repository_is_understood() {
    let file = parse(include_str!("../../../../images/base.Imagefile"));
    assert_eq!(base_of(&file), Base::Debootstrap(Suite::Bookworm));
    let gem = Instruction::User(Text::from_literal("gem"));
    assert!(file.stages[0].steps.iter().any(|s| s.instruction == gem));
}

#[test]
fn run_has_a_shell_form_and_a_json_form() {
    assert_eq!(step("RUN echo \"$HOME\" '#' \\$x"), sh("echo \"$HOME\" '#' \\$x"));
    assert_eq!(
        step("RUN [\"/bin/echo\", \"a b\", \"\\u00e9\"]"),
        run_of(Command::Exec(vec!["/bin/echo".into(), "a b".into(), "é".into()]))
    );
    // These only look like JSON, and like here-documents.
    assert_eq!(step("RUN [ -e /x ] && true"), sh("[ -e /x ] && true"));
    for text in ["echo $((1<<n)) <<<word", "echo $((1 <<2))", "echo '<<EOF' \"a <<EOF\" \\<<EOF x<<EOF"] {
        assert_eq!(step(&format!("RUN {text}")), sh(text));
    }
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
    assert_eq!(pairs[0].1.expand(&BTreeMap::new()), Ok(String::new()));
    assert_eq!(pairs[0].1.plain_variables().collect::<Vec<_>>(), ["MISSING"]);
}

#[test]
fn copy_has_flags_several_sources_and_a_json_form() {
    assert_eq!(copied("COPY a \"b c\" $A/ /srv/"), (vec!["a".into(), "b c".into(), "1/".into()], "/srv/".into()));
    assert_eq!(copied("COPY [\"a b\", \"$A\"]"), (vec!["a b".into()], "1".into()));
    assert_eq!(copied("COPY [\"\\\\$A\", \"/x\"]"), (vec!["$A".into()], "/x".into()));
    let Instruction::Copy(copy) = step("COPY --chmod=4755 --chown=gem:0 a b") else { panic!() };
    assert_eq!(copy.chmod.map(|mode| expanded(&mode)).as_deref(), Some("4755"));
    assert_eq!(copy.chown.map(|owner| expanded(&owner)).as_deref(), Some("gem:0"));
    let owner = Chown { user: "gem".into(), group: Some("0".into()) };
    assert_eq!((Chown::parse(1, "gem:0"), parse_mode(1, "4755")), (Ok(owner), Ok(0o4755)));
    let Instruction::Copy(copy) = step("COPY --from=build --link --exclude=*.o --exclude=x --chown=$A:$B_2 a b") else {
        panic!()
    };
    assert_eq!(copy.from.as_deref(), Some("build"));
    assert_eq!(copy.exclude.iter().map(expanded).collect::<Vec<_>>(), ["*.o", "x"]);
    assert_eq!(expanded(&copy.chown.unwrap()), "1:two words");
}

#[test]
fn what_is_not_understood_is_refused_with_its_line_and_what_to_do() {
    let cases: &[(&str, usize, &str)] = &[
        ("", 1, "there is no FROM"),
        ("# nothing\n\n", 1, "there is no FROM"),
        ("RUN true", 1, "first instruction must be FROM"),
        ("FROM", 1, "FROM names no base"),
        ("FROM --pull base", 1, "not supported: FROM's flag \"--pull\""),
        ("FROM base AS x y", 1, "takes one base"),
        ("FROM base AS", 1, "takes one base"),
        ("FROM base AS 1x", 1, "stage's name \"1x\""),
        ("FROM base AS $x", 1, "stage's name"),
        ("FROM base AS a\nFROM base AS A", 2, "already"),
        ("ARG", 1, "ARG is empty"),
        ("ARG 1x=2\nFROM base", 1, "ARG's name is not valid"),
        ("ARG X\nRUN true", 2, "first instruction must be FROM"),
        ("FROM debootstrap:potato", 1, "\"potato\""),
        ("FROM ../etc", 1, "not valid"),
        ("FROM a b", 1, "takes one base"),
        ("FROM base\nFRON x", 2, "unknown instruction \"FRON\""),
        ("FROM base\nRUN", 2, "RUN is empty"),
        ("FROM base\nRUN [\"a\", b]", 2, "not valid JSON"),
        ("FROM base\nRUN []", 2, "array is empty"),
        ("FROM base\nRUN [\"\"]", 2, "program is empty"),
        ("FROM base\nRUN x && \\\n", 2, "nothing follows"),
        ("FROM base\nRUN x \\\n# only a comment", 2, "nothing follows"),
        ("FROM base\nRUN a\x07b", 2, "control character"),
        ("FROM base\nCOPY a", 2, "at least one source"),
        ("FROM base\nCOPY --parents a b", 2, "not supported: COPY's flag \"--parents\""),
        ("FROM base\nCOPY --from=$x a b", 2, "variables in --from"),
        ("FROM base\nCOPY --from= a b", 2, "--from has no value"),
        ("FROM base\nADD --from=x a b", 2, "not supported: ADD's flag"),
        ("FROM base\nADD --checksum=sha256:1 http://a.example/b b", 2, "--checksum=sha256:1 is not valid"),
        ("FROM base\nCOPY --checksum=sha256:1 a b", 2, "not supported: COPY's flag"),
        ("FROM base\nCOPY --from=x <<EOF /a\nEOF", 2, "here-document is a source"),
        ("FROM base\nCOPY a /b <<EOF\nx\nEOF", 2, "here-document is a source"),
        ("FROM base\nRUN --mount=type=ssh x", 2, "not supported: --mount=type=ssh"),
        ("FROM base\nRUN --mount=type=cache x", 2, "no target"),
        ("FROM base\nRUN --mount=type=secret x", 2, "no id"),
        ("FROM base\nRUN --mount=type=tmpfs,target=/x,size=0 x", 2, "size=0 is not valid"),
        ("FROM base\nRUN --mount=type=tmpfs,target=/x,size=9999999999999999999g x", 2, "is not valid"),
        ("FROM base\nRUN --mount=type=cache,target=/x,target=/y x", 2, "given twice"),
        ("FROM base\nRUN --mount=type=cache,target=/x,uid=65536 x", 2, "uid=65536"),
        ("FROM base\nRUN --mount=type=cache,target=/x,mode=9 x", 2, "not valid"),
        ("FROM base\nRUN --mount=type=bind,target=/x,size=1 x", 2, "option \"size\""),
        ("FROM base\nRUN --network=x y", 2, "not supported: RUN's flag \"--network=x\""),
        ("FROM base\nRUN --security=insecure y", 2, "not supported: RUN's flag"),
        ("FROM base\nRUN --network=none", 2, "RUN is empty"),
        ("FROM base\nONBUILD RUN x", 2, "not supported: ONBUILD"),
        ("FROM base\nSHELL bash -c", 2, "JSON array"),
        ("FROM base\nSHELL []", 2, "array is empty"),
        ("FROM base\nSTOPSIGNAL a b", 2, "one signal"),
        ("FROM base\nHEALTHCHECK curl", 2, "CMD and a command"),
        ("FROM base\nHEALTHCHECK --interval=3 CMD x", 2, "--interval=3 is not valid"),
        ("FROM base\nHEALTHCHECK --retries=x CMD x", 2, "--retries"),
        ("FROM base\nHEALTHCHECK --foo=1s CMD x", 2, "not supported: HEALTHCHECK's flag"),
        ("FROM base\n\nRUN <<EOF\nx\n EOF\n", 3, "\"EOF\" does not end"),
        ("FROM base\nRUN <<EOF\nx\n\0\nEOF\n", 4, "NUL byte"),
        ("FROM base\nRUN a\0b", 2, "control character"),
        ("FROM base\nENV A=${B:=c}", 2, "not supported: ${B:=c}"),
        ("FROM base\nENV A=${B#c}", 2, "not supported: ${B#c}"),
        ("FROM base\nENV A=${B:-c", 2, "brace"),
        ("FROM base\nENV A=${}", 2, "not supported"),
        ("FROM base\nCOPY --chmod=u+x a b", 2, "--chmod=u+x is not valid"),
        ("FROM base\nCOPY --chmod=10000 a b", 2, "not valid"),
        ("FROM base\nCOPY --chown=a:b:c a b", 2, "not valid"),
        ("FROM base\nCOPY --chown=a --chown=b a b", 2, "given twice"),
        ("FROM base\nCOPY <<x /y", 2, "does not end"),
        ("FROM base\nENV A=\"x", 2, "quote \" is not closed"),
        ("FROM base\nENV A=${B", 2, "brace"),
        ("FROM base\nENV 1A=x", 2, "name is not valid"),
        ("FROM base\nENV =x", 2, "empty name"),
        ("FROM base\nENV A", 2, "without a value"),
        ("FROM base\nENV A=1 B", 2, "without a value"),
        ("FROM base\nUSER -x", 2, "not valid"),
        ("FROM base\nUSER a:", 2, "not valid"),
        ("FROM base\nUSER a b", 2, "not valid"),
        ("# escape=x\nFROM base", 1, "escape character"),
    ];
    for (text, line, message) in cases {
        let error = error(text);
        assert_eq!(error.line, *line, "{text:?}: {error}");
        assert!(error.message.contains(message), "{text:?}: {error}");
    }
    assert_eq!(
        error("FROM base\nONBUILD RUN x").hint.as_deref(),
        Some("write its instruction into the files that start FROM this image")
    );
}

#[test]
fn no_file_is_too_big_or_too_strange_to_be_refused() {
    assert!(error(&"#".repeat(MAX_FILE_BYTES + 1)).message.contains("longer than"));
    let many = format!("FROM base\n{}", "RUN x\n".repeat(MAX_STEPS));
    assert_eq!(error(&many).line, MAX_STEPS + 1);
    let just = format!("FROM base\n{}", "RUN x\n".repeat(MAX_STEPS - 1));
    assert_eq!(parse(&just).stages[0].steps.len(), MAX_STEPS - 1);
    let long = format!("FROM base\nRUN {}", "x\\\n".repeat(MAX_INSTRUCTION_BYTES));
    assert!(error(&long).message.contains("longer than"));
    let bad = Imagefile::parse(b"FROM base\nRUN \xff").unwrap_err();
    assert_eq!((bad.line, bad.message.as_str()), (2, "this is not UTF-8 text"));
    let nested = format!("FROM base\nRUN {}", "[".repeat(60_000));
    assert!(nested.parse::<Imagefile>().is_ok());
}

/// The base of the only stage.
fn base_of(file: &Imagefile) -> Base {
    file.plan(None, &BTreeMap::new()).unwrap().stages[0].1.clone()
}

fn shell_text(text: &str) -> String {
    match step(text) {
        Instruction::Run(Run { command: Command::Shell(text), script: None, .. }) => text,
        other => panic!("{text:?} was understood as {other:?}"),
    }
}

#[test]
fn here_documents_are_scripts_input_of_commands_or_files() {
    assert_eq!(shell_text("RUN <<EOF\necho $A\n  # no comment\n\necho b\nEOF\n"), "echo $A\n  # no comment\n\necho b\n");
    assert_eq!(shell_text("RUN <<-'E-1'\n\tif x\n\t\ty\n\tE-1\n"), "if x\ny\n");
    assert_eq!(
        shell_text("RUN cat <<A >x && cat 3<<-\"B\"; true\n$a\nA\n\tb\nB\n"),
        "cat <<A >x && cat 3<<-\"B\"; true\n$a\nA\n\tb\nB"
    );
    let Instruction::Run(run) = step("RUN <<EOF\n#!/usr/bin/env python3 -u\nprint(1)\nEOF") else { panic!() };
    assert_eq!(run.command, Command::Exec(vec!["/usr/bin/env".into(), "python3 -u".into()]));
    assert_eq!(run.script.as_deref(), Some("#!/usr/bin/env python3 -u\nprint(1)\n"));

    let (sources, destination) = copied("COPY <<one <<\"two\" plain /srv/\na $A \\$A 'q'\none\n$A \\\ntwo\n");
    assert_eq!(sources, ["one: a 1 $A 'q'\n", "two: $A \\\n", "plain"]);
    assert_eq!(destination, "/srv/");
    // The lines after it are instructions again.
    assert_eq!(parse("FROM base\nRUN <<EOF\nFROM x\nEOF\nUSER a").stages[0].steps.len(), 2);
    let many = format!("FROM base\nRUN x {}", "<<A ".repeat(33));
    assert!(error(&many).message.contains("more than 32 here-documents"));
}

#[test]
fn variables_have_defaults_alternatives_and_messages() {
    for (text, expected) in [
        ("${A:-x}", "1"),
        ("${N:-x}", "x"),
        ("${N-x}", "x"),
        ("${E:-x}", "x"),
        ("${E-x}", ""),
        ("${A:+x}", "x"),
        ("${N:+x}", ""),
        ("${E:+x}", ""),
        ("${E+x}", "x"),
        ("${N:-${M:-$A}}", "1"),
        ("\"${N:-a b}\"", "a b"),
        ("${N:-'}'}", "}"),
        ("${A:?message}", "1"),
        ("$N", ""),
        ("a${N}b", "ab"),
        ("\\${A}", "${A}"),
        ("$1", "$1"),
    ] {
        let Instruction::Env(pairs) = step(&format!("ENV X={text}")) else { panic!() };
        let env = [("A", "1"), ("E", "")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!(pairs[0].1.expand(&env).as_deref(), Ok(expected), "{text}");
    }
    let Instruction::Env(pairs) = step("ENV X=${N:?give $A} Y=${E:?}") else { panic!() };
    let env = [("A", "1"), ("E", "")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    assert_eq!(pairs[0].1.expand(&env), Err("the variable N: give 1".to_owned()));
    assert_eq!(pairs[1].1.expand(&env), Err("the variable E: it must be set".to_owned()));
}

#[test]
fn variables_can_not_be_nested_or_grow_without_end() {
    let nested = |depth: usize| format!("FROM base\nENV X={}{}", "${a:-".repeat(depth), "}".repeat(depth));
    assert!(nested(16).parse::<Imagefile>().is_ok());
    assert!(error(&nested(17)).message.contains("nested more than 16 deep"));
    assert!(error(&nested(10_000)).message.contains("nested more than 16 deep"));
    let Instruction::Env(pairs) = step(&format!("ENV X={}", "$A".repeat(30_000))) else { panic!() };
    let env = [("A".to_owned(), "x".repeat(100_000))].into();
    assert!(pairs[0].1.expand(&env).unwrap_err().contains("more than 1048576 bytes"));
}

#[test]
fn directives_stand_first_and_change_the_escape_character() {
    let file = parse("# syntax=docker/dockerfile:1\n# escape=`\nFROM base\nRUN a `\n  b \\\nENV A=x` y\n");
    assert_eq!(file.stages[0].steps[0].instruction, sh("a   b \\"));
    assert_eq!(file.stages[0].steps.len(), 2);
    // After a comment it is one too.
    let file = parse("# hello\n# escape=`\nFROM base\nRUN a \\\n b\n");
    assert_eq!(file.stages[0].steps.len(), 1);
    // An escaped backslash ends no line.
    assert_eq!(parse("FROM base\nRUN a \\\\\nRUN b").stages[0].steps.len(), 2);
}

#[test]
fn configuration_has_its_two_forms() {
    let exec = |words: &[&str]| Command::Exec(words.iter().map(|w| (*w).to_owned()).collect());
    assert_eq!(step("CMD [\"a\", \"b c\"]"), Instruction::Cmd(exec(&["a", "b c"])));
    assert_eq!(step("CMD a \"$b\""), Instruction::Cmd(Command::Shell("a \"$b\"".into())));
    assert_eq!(step("ENTRYPOINT []"), Instruction::Entrypoint(exec(&[])));
    assert_eq!(step("SHELL [\"/bin/bash\", \"-c\"]"), Instruction::Shell(vec!["/bin/bash".into(), "-c".into()]));
    assert_eq!(step("HEALTHCHECK none"), Instruction::Healthcheck(None));
    let seconds = |n| Some(std::time::Duration::from_secs(n));
    let check = Healthcheck {
        command: Command::Shell("curl x".into()),
        interval: seconds(90),
        timeout: Some(std::time::Duration::from_millis(500)),
        start_period: seconds(3600),
        start_interval: None,
        retries: Some(3),
    };
    let text = "HEALTHCHECK --interval=1m30s --timeout=500ms --start-period=1h --retries=3 CMD curl x";
    assert_eq!(step(text), Instruction::Healthcheck(Some(check)));
    assert_eq!(step("MAINTAINER A B <c@d>"), Instruction::Maintainer);
    assert!(matches!(step("EXPOSE 80 443/udp $P"), Instruction::Expose(ports) if ports.len() == 3));
    assert!(matches!(step("VOLUME [\"/a\", \"/b\"]"), Instruction::Volume(paths) if paths.len() == 2));
}

#[test]
fn mounts_have_their_options() {
    let mount = |text: &str| match step(&format!("RUN --mount={text} x")) {
        Instruction::Run(run) => run.mounts[0].clone(),
        other => panic!("{other:?}"),
    };
    let cache = mount("type=cache,id=apt-$A,target=/c,sharing=locked,mode=0700,uid=5");
    assert_eq!(expanded(&cache.target.unwrap()), "/c");
    let MountKind::Cache { id: Some(id), mode: 0o700, owner: (5, 0), is_writable: true } = cache.kind else { panic!() };
    assert_eq!(expanded(&id), "apt-1");
    let bind = mount("source=a,from=build,rw,dst=/b");
    assert!(matches!(bind.kind, MountKind::Bind { from: Some(from), is_writable: true, .. } if from == "build"));
    assert!(matches!(mount("type=bind,target=.").kind, MountKind::Bind { from: None, is_writable: false, .. }));
    assert_eq!(mount("type=tmpfs,target=/t,size=64m").kind, MountKind::Tmpfs { bytes: Some(64 << 20) });
    let secret = mount("type=secret,id=token,required,env=TOKEN");
    assert!(matches!(secret.kind, MountKind::Secret { is_required: true, variable: Some(_), mode: 0o400, .. }));
    let Instruction::Run(run) = step("RUN --mount=type=tmpfs,target=/a --network=none --mount=type=tmpfs,target=/b x y") else {
        panic!()
    };
    assert_eq!((run.mounts.len(), run.is_offline, run.command), (2, true, Command::Shell("x y".into())));
}

/// Stages and their bases, by target and build arguments.
fn plan(text: &str, target: Option<&str>, args: &[(&str, &str)]) -> Result<Vec<(usize, Base)>, ParseError> {
    let args = args.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    parse(text).plan(target, &args).map(|plan| plan.stages)
}

#[test]
fn only_the_stages_that_the_target_needs_are_built() {
    let text = "ARG V=1\nARG IMAGE=base:$V\nFROM $IMAGE AS one\nFROM scratch AS unused\n\
                FROM one AS two\nRUN x\nFROM tools AS three\nCOPY --from=Two /a /b\nCOPY --from=0 /a /b\nCOPY --from=tools /a /b\n\
                FROM debootstrap:bookworm\nRUN --mount=from=three,target=/x y\n";
    let image = |name: &str| Base::Image(name.parse().unwrap());
    let three = vec![(0, image("base:1")), (2, Base::Stage(0)), (3, image("tools"))];
    assert_eq!(plan(text, Some("THREE"), &[]), Ok(three.clone()));
    assert_eq!(plan(text, Some("3"), &[("V", "9")]).unwrap()[0], (0, image("base:9")));
    assert_eq!(plan(text, Some("0"), &[("IMAGE", "other")]), Ok(vec![(0, image("other"))]));
    assert_eq!(plan(text, None, &[]), Ok([three, vec![(4, Base::Debootstrap(Suite::Bookworm))]].concat()));
    assert_eq!(plan(text, Some("unused"), &[]), Ok(vec![(1, Base::Scratch)]));
    for (text, line, message) in [
        ("FROM base AS a\nCOPY --from=a /x /y", 2, "can't copy from itself"),
        ("FROM base AS a\nCOPY --from=b /x /y\nFROM base AS b\nCOPY --from=a / /a", 2, "comes later"),
        ("FROM base\nCOPY --from=1 /x /y", 2, "there is no stage 1"),
        ("FROM base\nCOPY --from=0 /x /y", 2, "can't copy from itself"),
        ("FROM base\nCOPY --from=99999999999999999999999 /x /y", 2, ""),
        ("FROM base\nCOPY --from=../x /x /y", 2, "not valid"),
        ("ARG X\nFROM $X", 2, "names no base"),
        ("ARG X=../etc\nFROM $X", 2, "not valid"),
        ("ARG X=${Y:?set Y}\nFROM base", 1, "set Y"),
        ("FROM --platform=linux/s390x base", 1, "not supported: the platform"),
        ("FROM --platform=$NONE$BUILDPLATFORM/x base", 1, "not supported: the platform"),
    ] {
        match plan(text, Some("0").filter(|_| text.contains("AS b")), &[]) {
            Err(error) => assert!(error.line == line && error.message.contains(message), "{text:?}: {error}"),
            Ok(plan) => assert_eq!(message, "", "{text:?}: {plan:?}"),
        }
    }
    // A stage's name is known after it only, so there are no cycles: this one's base is an image.
    assert_eq!(plan("FROM b AS a\nFROM a AS b", None, &[]), Ok(vec![(0, image("b")), (1, Base::Stage(0))]));
    assert_eq!(plan("FROM a AS a", None, &[]), Ok(vec![(0, image("a"))]));
    assert!(plan("FROM --platform=$BUILDPLATFORM base", None, &[]).is_ok());
    assert!(plan("FROM base", Some("x"), &[]).unwrap_err().message.contains("no stage \"x\""));
    let many = "FROM base\n".repeat(MAX_STAGES + 1);
    assert_eq!(error(&many).line, MAX_STAGES + 1);
}
