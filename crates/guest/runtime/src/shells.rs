//! The shell of commands.

use std::path::PathBuf;

use crate::programs;

/// A shell that runs commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandShell {
    Bash,
    /// Any POSIX shell, such as busybox's or dash: for images without bash.
    Sh,
}

impl CommandShell {
    /// The shell on the search path of a command with this environment; none: the image has no shell.
    pub fn find(env: &[(String, String)]) -> Option<Self> {
        Self::find_in(&programs::search_path(env))
    }

    fn find_in(path: &[PathBuf]) -> Option<Self> {
        [Self::Bash, Self::Sh].into_iter().find(|shell| programs::locate(shell.name(), path).is_some())
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Sh => "sh",
        }
    }

    /// The words of a command that runs a line.
    pub fn run(self, line: impl Into<String>) -> Vec<String> {
        vec![self.name().to_owned(), "-c".to_owned(), line.into()]
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn bash_comes_before_sh_wherever_they_are() {
        let top = std::env::temp_dir().join(format!("arenite-shells-{}", std::process::id()));
        let path = [top.join("first"), top.join("second")];
        let make = |path: PathBuf| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        assert_eq!(CommandShell::find_in(&path), None);
        make(path[0].join("sh"));
        assert_eq!(CommandShell::find_in(&path), Some(CommandShell::Sh));
        make(path[1].join("bash"));
        assert_eq!(CommandShell::find_in(&path), Some(CommandShell::Bash));
        fs::remove_dir_all(top).unwrap();
    }
}
