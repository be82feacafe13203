//! Programs of the host that must not gain rights by set-user-id programs.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Starts a command without a way to more rights than it is given.
#[expect(clippy::disallowed_methods, reason = "for programs that start rarely, and not for sandboxes")]
pub fn restrict(command: &mut Command) {
    // SAFETY: between fork and exec, the closure makes one system call and allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(rustix::thread::set_no_new_privs(true)?));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restricted_command_says_so() {
        let mut command = Command::new("grep");
        command.args(["NoNewPrivs", "/proc/self/status"]);
        restrict(&mut command);
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "NoNewPrivs:\t1");
    }
}
