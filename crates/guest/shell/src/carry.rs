//! What a fork takes over from its parent's sessions: each with its directory, and the environment of shells.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arenite_model::protocol::{CarriedSession, CarriedSessions, MAX_CARRIED};

use crate::bash::BashService;
use crate::shell::ShellService;

/// Time for all shells to tell their environment. One that is busy, or does not answer, is carried without.
pub(crate) const PATIENCE: Duration = Duration::from_millis(1500);
/// The most bytes of one shell's environment: its setup is one variable of at most 128 KiB.
pub(crate) const MAX_ENV: usize = 64 << 10;

/// The sessions of a sandbox that is forked.
pub async fn carried(shell: &Arc<ShellService>, bash: &BashService) -> CarriedSessions {
    within(CarriedSessions { shell: shell.carried().await, bash: bash.carried(), own_env: BTreeSet::new() }, MAX_CARRIED)
}

/// Leaves out what would make the JSON longer: environments first, then sessions.
fn within(mut carried: CarriedSessions, most: usize) -> CarriedSessions {
    // Brackets and names of fields.
    let mut left = most.saturating_sub(100);
    let mut fits = |session: &CarriedSession| {
        let length = serde_json::to_string(session).map_or(usize::MAX, |text| text.len() + 1);
        left.checked_sub(length).map(|rest| left = rest).is_some()
    };
    for sessions in [&mut carried.shell, &mut carried.bash] {
        sessions.retain_mut(|session| {
            fits(session) || {
                session.env.clear();
                fits(session)
            }
        });
    }
    carried
}

/// Opens the parent's sessions in its fork. One that can't be opened is left out: its next call says so.
pub fn take_over(shell: &Arc<ShellService>, bash: &Arc<BashService>, carried: CarriedSessions) {
    for session in carried.shell {
        let env = without(&session.env, &carried.own_env);
        shell.take_over(CarriedSession { env, ..session });
    }
    for session in carried.bash {
        bash.take_over(session);
    }
}

/// Leaves out what sets the fork's own variables.
fn without(env: &str, own: &BTreeSet<String>) -> String {
    let sets = |line: &str| {
        let named = line.strip_prefix("export ").and_then(|rest| rest.split_once('=')).map(|(name, _)| name);
        named.or_else(|| line.strip_prefix("unset -v ")).is_some_and(|name| own.contains(name))
    };
    env.lines().filter(|line| !sets(line)).flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_are_left_out_before_sessions() {
        let session =
            |id: &str, env: &str| CarriedSession { id: id.to_owned(), env: env.to_owned(), ..CarriedSession::default() };
        let all = CarriedSessions {
            shell: vec![session("a", "short"), session("b", &"\"".repeat(200)), session("c", "short")],
            bash: vec![session(&"d".repeat(400), ""), session("e", "")],
            own_env: BTreeSet::new(),
        };
        let kept = within(all, 400);
        assert!(serde_json::to_string(&kept).unwrap().len() <= 400);
        let shown = |sessions: &[CarriedSession]| sessions.iter().map(|one| (one.id.clone(), one.env.len())).collect::<Vec<_>>();
        assert_eq!(shown(&kept.shell), [("a".to_owned(), 5), ("b".to_owned(), 0), ("c".to_owned(), 5)]);
        assert_eq!(shown(&kept.bash), [("e".to_owned(), 0)]);
    }

    #[test]
    fn a_forks_own_variables_are_left_out() {
        let own = ["A".to_owned(), "C".to_owned()].into();
        assert_eq!(without("export A='1'\nexport B=$'x\\ny'\nunset -v C\nunset -v D\n", &own), "export B=$'x\\ny'\nunset -v D\n");
    }
}
