//! What a session types into its shell.

use std::collections::VecDeque;
use std::fmt::Write as _;

/// The variable that carries [`setup`] into the shell; the shell removes it.
pub(super) const SETUP_VARIABLE: &str = "__ARENITE_SETUP";

/// The first typed line. It waits in the terminal until the user's own start-up files have run.
pub(super) const FIRST_LINE: &str = " \\builtin eval \"$__ARENITE_SETUP\"\n";

/// The functions of a shell that marks with `nonce`.
///
/// They write to `/dev/tty`, since a command may redirect the shell's own output for good. They call builtins, since a command
/// may define functions of any name. They turn off tracing for themselves, and preserve `$?`, except under `set -e`, where
/// returning it would end the shell. `jobs` keeps reports on earlier background jobs out of the output of an unrelated command.
/// - `__arenite_next DIR_LENGTH LENGTH STATUS`: reads a directory and a command, prints mark S, returns the status.
/// - `__arenite_read LENGTH`: reads a text in pieces, and prints mark G before each: until `read` has switched the terminal to
///   single characters, it holds at most a line of 4095 bytes and drops the rest.
/// - `__arenite_prompt`: prints mark P before each prompt.
/// - `__arenite_arm`: installs it as the prompt command again, in case a command removed it.
/// - `__arenite_carry`: prints a line for each exported variable that differs from the shell's first environment.
pub(super) fn setup(nonce: &str) -> String {
    const TEXT: &str = r#"
__arenite_prompt() {
  { \builtin local s=$? x=$-; \builtin set +x; } 2>/dev/null
  \builtin unset -v __arenite_c
  \builtin printf '\e]7701;NONCE;P;%s;%s\a' "$s" "$PWD" >/dev/tty
  case $x${__arenite_x-} in *x*) __arenite_x=; \builtin set -x;; esac
  case $x in *e*) ;; *) \builtin return "$s";; esac
}
__arenite_arm() {
  { \builtin local s=$? x=$-; \builtin set +x; } 2>/dev/null
  case $x in *x*) __arenite_x=x;; esac
  case ${PROMPT_COMMAND-} in
    __arenite_prompt*) ;;
    *) PROMPT_COMMAND="__arenite_prompt${PROMPT_COMMAND:+;$PROMPT_COMMAND}";;
  esac
  \builtin export -n PROMPT_COMMAND
  case $x in *e*) ;; *) \builtin return "$s";; esac
}
__arenite_read() {
  \builtin local n=$1 c
  b=
  while ((n > 0)); do
    \builtin printf '\e]7701;NONCE;G\a' >/dev/tty
    IFS= \builtin read -rs -N $((n < CHUNK ? n : CHUNK)) c </dev/tty || \builtin return 1
    b+=$c
    ((n -= CHUNK)) || \builtin :
  done
  \builtin printf -v b %b "$b"
}
__arenite_next() {
  { \builtin local s=$3 b= x=$-; \builtin set +x; } 2>/dev/null
  if [[ $1 != 0 ]]; then
    __arenite_read "$1" || \builtin return
    case $b in L*) \builtin cd -L -- "${b:1}" ;; *) \builtin cd -P -- "${b:1}" ;; esac >/dev/null 2>&1 || \builtin :
  fi
  __arenite_read "$2" || \builtin return
  __arenite_c=$b
  \builtin jobs >/dev/null 2>&1
  if ((${#b} < 4096)) && [[ $b != __arenite_carry ]]; then \builtin history -s -- "$b"; fi
  case $x in *x*) __arenite_c="set -x;$b";; esac
  \builtin printf '\e]7701;NONCE;S\a' >/dev/tty
  case $x in *e*) ;; *) \builtin return "$s";; esac
}
__arenite_carry() {
  { \builtin local __arenite_s=$? __arenite_o=$- __arenite_n __arenite_v IFS=$' \t\n'; \builtin set +x; } 2>/dev/null
  \builtin local -A __arenite_was __arenite_now
  while IFS= \builtin read -rd '' __arenite_v; do
    __arenite_n=${__arenite_v%%=*}
    case $__arenite_n in '' | [0-9]* | *[!a-zA-Z0-9_]*) ;; *) __arenite_was[$__arenite_n]=${__arenite_v#*=} ;; esac
  done </proc/$$/environ
  for __arenite_n in $(\builtin compgen -e); do
    case $__arenite_n in _ | IFS | PWD | OLDPWD | SHLVL | __arenite_* | __ARENITE_*) \builtin continue ;; esac
    [[ -v $__arenite_n ]] || \builtin continue
    __arenite_now[$__arenite_n]=1
    if [[ ! ${__arenite_was[$__arenite_n]+x} || ${__arenite_was[$__arenite_n]} != "${!__arenite_n}" ]]; then
      \builtin printf 'export %s=%s\n' "$__arenite_n" "${!__arenite_n@Q}"
    fi
  done
  for __arenite_n in "${!__arenite_was[@]}"; do
    case $__arenite_n in _ | IFS | PWD | OLDPWD | SHLVL | __ARENITE_*) \builtin continue ;; esac
    if [[ ! ${__arenite_now[$__arenite_n]+x} ]]; then \builtin printf 'unset -v %s\n' "$__arenite_n"; fi
  done
  case $__arenite_o in *x*) \builtin set -x;; esac
  case $__arenite_o in *e*) ;; *) \builtin return "$__arenite_s";; esac
}
HISTCONTROL=ignoreboth
\builtin unset -v HISTFILE __ARENITE_SETUP
\builtin bind 'set enable-bracketed-paste off'
PS0='\e]7701;NONCE;T\a'
__arenite_arm
"#;
    TEXT.replace("NONCE", nonce).replace("CHUNK", &CHUNK.to_string())
}

/// The command that prints what `__arenite_carry` does.
pub(super) const CARRY: &str = "__arenite_carry";

/// The lines of [`CARRY`]'s output, without traces of the shell.
pub(super) fn carried(output: &str) -> String {
    let is_one = |line: &&str| line.starts_with("export ") || line.starts_with("unset -v ");
    output.lines().filter(is_one).flat_map(|line| [line, "\n"]).collect()
}

/// Bytes of one piece of a command that is typed into the terminal.
const CHUNK: usize = 3000;

/// A command and its directory, encoded for the terminal. A letter before the directory says how to treat links.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Letter {
    /// The line to type at the prompt.
    pub(super) line: String,
    /// The pieces to type, one for each G mark.
    pub(super) pieces: VecDeque<String>,
}

/// Encodes a command. `exit_code` is the value of `$?` that the command sees.
pub(super) fn letter(dir: Option<(&str, bool)>, command: &str, exit_code: i32) -> Letter {
    let mut place = String::new();
    if let Some((dir, keep_links)) = dir {
        place.push(if keep_links { 'L' } else { 'P' });
        encode(dir, &mut place);
    }
    let mut body = String::with_capacity(command.len() * 5 / 4);
    encode(command, &mut body);
    let (place_length, length) = (place.len(), body.len());
    let line =
        format!(" __arenite_next {place_length} {length} {exit_code};\\builtin eval \"${{__arenite_c-}}\";__arenite_arm\n");
    let pieces = [place, body]
        .iter()
        .flat_map(|text| text.as_bytes().chunks(CHUNK))
        .map(|piece| piece.iter().map(|byte| char::from(*byte)).collect())
        .collect();
    Letter { line, pieces }
}

/// Encodes a text for `printf %b`, in characters that a terminal passes unchanged.
fn encode(text: &str, to: &mut String) {
    for byte in text.bytes() {
        match byte {
            b' '..=b'[' | b']'..=b'~' => to.push(byte.into()),
            // Always three digits, so that a following digit is not taken for one of them. Writing to a string does not fail.
            _ => drop(write!(to, "\\0{byte:03o}")),
        }
    }
}

/// Removes the traces that the functions above leave at the end of a command's output under `set -x` and `trap DEBUG`.
pub(super) fn strip_traces(output: &mut String) {
    for name in ["__arenite_prompt", "__arenite_arm"] {
        let kept = output.trim_end_matches('\n');
        if let Some(before) = kept.strip_suffix(name) {
            let before = before.trim_end_matches([' ', '+']).len();
            output.truncate(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_survive_any_text() {
        let small = letter(Some(("/a b", true)), "x\n'é'1", 7);
        assert!(small.line.starts_with(" __arenite_next 5 19 7;"), "{}", small.line);
        assert_eq!(small.pieces, ["L/a b", "x\\0012'\\0303\\0251'1"]);
        let large = letter(None, &"y".repeat(CHUNK * 2 + 1), 0);
        let lengths: Vec<_> = large.pieces.iter().map(String::len).collect();
        assert_eq!(lengths, [CHUNK, CHUNK, 1]);
    }

    #[test]
    fn only_our_own_traces_are_removed() {
        let mut output = "+ echo hi\nhi\n+ __arenite_arm\n++ __arenite_prompt\n".to_owned();
        strip_traces(&mut output);
        assert_eq!(output, "+ echo hi\nhi\n");
        let mut other = "__arenite_prompt is a function".to_owned();
        strip_traces(&mut other);
        assert_eq!(other, "__arenite_prompt is a function");
    }
}
