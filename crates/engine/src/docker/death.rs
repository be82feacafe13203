//! How a container ended, from what Docker says about it.

use arenite_model::{Death, DeathReason};

use super::api::State;

const SIGKILL: i32 = 9;
/// Docker's exit code of a process that a signal ended: this plus the signal's number.
const OF_SIGNAL: i32 = 128;

pub(super) fn death_of(state: &State) -> Death {
    let code = state.exit_code;
    if state.oom_killed && code == OF_SIGNAL + SIGKILL {
        return Death { signal: Some(SIGKILL), ..Death::new(DeathReason::Oom) };
    }
    if !state.error.is_empty() {
        let message = format!("Docker could not run it: {}", state.error.chars().take(300).collect::<String>());
        return Death::with_message(DeathReason::Unknown, message);
    }
    if (OF_SIGNAL + 1..OF_SIGNAL + 65).contains(&code) {
        let signal = code - OF_SIGNAL;
        let message = match signal {
            SIGKILL => "its guest was killed with SIGKILL".to_owned(),
            _ => format!("its guest was ended by signal {signal}"),
        };
        return Death { signal: Some(signal), ..Death::with_message(DeathReason::Killed, message) };
    }
    let message = format!("its guest exited with status {code}");
    Death { exit_status: Some(code), ..Death::with_message(DeathReason::Exit, message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_named_by_what_docker_says() {
        for (code, oom_killed, wanted) in [
            (137, true, (DeathReason::Oom, None, Some(9))),
            (137, false, (DeathReason::Killed, None, Some(9))),
            (143, true, (DeathReason::Killed, None, Some(15))),
            (0, false, (DeathReason::Exit, Some(0), None)),
            (1, true, (DeathReason::Exit, Some(1), None)),
        ] {
            let death = death_of(&State { exit_code: code, oom_killed, ..State::default() });
            assert_eq!((death.reason, death.exit_status, death.signal), wanted, "{code}");
        }
    }
}
