//! What a session types into a shell that is not bash: busybox's, dash, any POSIX shell.
//!
//! Such a shell can't read a command from its terminal without showing it. So the command is in a file, and the driver line
//! sources that. Mark P is in `PS1`; there is no mark T.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, fchown};
use std::path::PathBuf;

use super::driver::SETUP_VARIABLE;
use arenite_guest_runtime::users::User;

/// The first typed line. It waits in the terminal until the user's own start-up file has run.
pub(super) const FIRST_LINE: &str = " eval \"$__ARENITE_SETUP\"\n";

/// The functions of a shell that marks with `nonce`. They preserve `$?`, except under `set -e`, where returning it would end the
/// shell.
/// - `__arenite_enter STATUS`: prints mark S, returns the status. `jobs` keeps reports on earlier background jobs out of the
///   output of an unrelated command.
/// - `__arenite_arm`: puts mark P into the prompt again, in case a command replaced the prompt. busybox counts the prompt's
///   characters, except those between `\[` and `\]`.
pub(super) fn setup(nonce: &str) -> String {
    const TEXT: &str = r#"
__arenite_enter() {
  jobs >/dev/null 2>&1
  command printf '\033]7701;NONCE;S\007' >/dev/tty
  case $- in *e*) ;; *) return "$1";; esac
}
__arenite_arm() {
  __arenite_s=$?
  case ${PS1-} in
    *'7701;NONCE;P'*) ;;
    *) if [ -n "${BB_ASH_VERSION-}" ]; then PS1='\[MARK\]'"${PS1-}"; else PS1='MARK'"${PS1-}"; fi;;
  esac
  case $- in *e*) ;; *) return "$__arenite_s";; esac
}
unset HISTFILE SETUP_VARIABLE
__arenite_arm
"#;
    let mark = "\x1b]7701;NONCE;P;$?;$PWD\x07";
    TEXT.replace("MARK", mark).replace("NONCE", nonce).replace("SETUP_VARIABLE", SETUP_VARIABLE)
}

/// A history file that can't be written: the driver lines are no history of the user's.
pub(super) const HISTORY: (&str, &str) = ("HISTFILE", "/dev/null/none");

/// The directory through which one shell gets its commands. Only root can write to it: the guest writes there, and must not
/// follow a link of the sandbox's user. Removed when dropped.
#[derive(Debug)]
pub(super) struct Letterbox {
    dir: PathBuf,
    owner: (u32, u32),
}

impl Letterbox {
    pub(super) fn new(user: &User) -> io::Result<Self> {
        let parent = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| "/run".into(), PathBuf::from);
        let dir = parent.join(format!("arenite-{}", arenite_guest_runtime::random_id()));
        DirBuilder::new().mode(0o755).create(&dir)?;
        Ok(Self { dir, owner: (user.uid, user.gid) })
    }

    /// Leaves a command for the shell, and returns the line to type. `exit_code` is the value of `$?` that the command sees.
    pub(super) fn leave(&self, dir: Option<(&str, bool)>, command: &str, exit_code: i32) -> io::Result<String> {
        let path = self.dir.join("next");
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().write(true).create_new(true).mode(0o400).open(&path)?;
        file.write_all(text(dir, command, exit_code).as_bytes())?;
        if rustix::process::geteuid().is_root() {
            fchown(&file, Some(self.owner.0), Some(self.owner.1))?;
        }
        Ok(format!(" . {};__arenite_arm\n", path.display()))
    }
}

impl Drop for Letterbox {
    fn drop(&mut self) {
        // Nothing else can be in it, and what is left has no other use.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn text(dir: Option<(&str, bool)>, command: &str, exit_code: i32) -> String {
    let place = dir.map_or_else(String::new, |(dir, keep_links)| {
        let how = if keep_links { "-L" } else { "-P" };
        format!("cd {how} -- '{}' >/dev/null 2>&1 || :\n", dir.replace('\'', r"'\''"))
    });
    format!("{place}__arenite_enter {exit_code}\n{command}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_left_for_the_shell_alone() {
        use std::os::unix::fs::MetadataExt;

        let user = User { uid: 65_534, gid: 65_534, ..User::root() };
        let dir = std::env::temp_dir().join(format!("arenite-letterbox-{}", std::process::id()));
        DirBuilder::new().mode(0o755).create(&dir).unwrap();
        let letterbox = Letterbox { dir: dir.clone(), owner: (user.uid, user.gid) };
        for command in ["echo 'a", "echo b"] {
            let line = letterbox.leave(Some(("/it's", false)), command, 7).unwrap();
            assert_eq!(line, format!(" . {}/next;__arenite_arm\n", dir.display()));
            let file = dir.join("next");
            let expected = format!("cd -P -- '/it'\\''s' >/dev/null 2>&1 || :\n__arenite_enter 7\n{command}\n");
            assert_eq!(fs::read_to_string(&file).unwrap(), expected);
            let about = fs::metadata(&file).unwrap();
            assert_eq!(about.mode() & 0o777, 0o400);
            assert!(!rustix::process::geteuid().is_root() || about.uid() == user.uid);
        }
        drop(letterbox);
        assert!(!dir.exists());
    }
}
