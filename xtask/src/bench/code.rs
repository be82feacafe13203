//! New sandboxes with and without a pool: the first output, and the first code.

use std::time::{Duration, Instant};

use super::http::Connection;
use super::report::{Report, Row};
use crate::failure::{Failure, Outcome};

/// The pool that the server is started with.
pub(super) const POOL: &str = "code=2";
/// Each round waits for the pool to refill, so there are fewer than of others.
const MOST_ROUNDS: usize = 40;
const WARM_UP: usize = 3;
/// Maximum time for the pool to fill.
const FILL: Duration = Duration::from_secs(60);
/// Time after that until a kernel's start has finished.
const SETTLE: Duration = Duration::from_millis(500);

/// The time to start a kernel alone.
const KERNEL: &str = include_str!("../../../bench/floors/kernel.py");
/// The time to start Python alone.
const PYTHON: &str = "\
import subprocess, time
begun = time.perf_counter()
subprocess.run(['python3', '-c', 'pass'], check=True)
print(f'{(time.perf_counter() - begun) * 1e6:.0f}')
";

pub(super) fn measure(rounds: usize, api: &mut Connection, report: &mut Report) -> Outcome {
    let rounds = rounds.min(MOST_ROUNDS);
    api.create_for_code("bench-floor", true)?;
    let (mut pooled, mut pythons, mut own, mut kernels) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..WARM_UP + rounds {
        fill(api)?;
        let name = format!("bench-code-{round}");
        let begun = Instant::now();
        api.create_for_code(&name, false)?;
        api.python(&name, "1 + 1")?;
        let took = begun.elapsed();
        api.delete(&name)?;
        let python = floor(api, PYTHON)?;
        fill(api)?;
        let begun = Instant::now();
        api.create_for_code(&name, true)?;
        api.python(&name, "1 + 1")?;
        let alone = begun.elapsed();
        api.delete(&name)?;
        let kernel = floor(api, KERNEL)?;
        if round >= WARM_UP {
            pooled.push(took);
            pythons.push(python);
            own.push(alone);
            kernels.push(kernel);
        }
    }
    api.delete("bench-floor")?;
    report.push(
        Row::ratio("create from the pool → first code/execute of Python, p50", &pooled, 0.50, &pythons, 0.50, 2.0)
            .against("python3 -c pass"),
    );
    report.push(
        Row::ratio("create → first code/execute of Python, p50", &own, 0.50, &kernels, 0.50, 1.2)
            .against("ipykernel, from its start to its first answer"),
    );
    report.push(
        Row::ratio("create from the pool → first code/execute of Python, next to no pool", &pooled, 0.50, &own, 0.50, 0.5)
            .against("the same without the pool"),
    );
    Ok(())
}

/// What a server without a fitting pool has ready for a create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    /// A namespace, a cgroup, a network, a disk, and a running guest.
    Slot,
    Nothing,
}

/// Create → first output, from the pool and without it.
pub(super) fn claims(rounds: usize, ready: Ready, api: &mut Connection, report: &mut Report) -> Outcome {
    let (mut claimed, mut cold) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + rounds.min(MOST_ROUNDS) {
        for (own, times) in [(false, &mut claimed), (true, &mut cold)] {
            // Before each, so that both begin on a host that was idle for the same time.
            fill(api)?;
            let name = format!("bench-claim-{round}");
            let begun = Instant::now();
            api.create_for_code(&name, own)?;
            api.bash(&name, "echo hi")?;
            let took = begun.elapsed();
            api.delete(&name)?;
            if round >= WARM_UP {
                times.push(took);
            }
        }
    }
    report.push(match ready {
        Ready::Slot => {
            Row::ratio("create from the pool → first output next to a prepared slot, p50", &claimed, 0.50, &cold, 0.50, 0.5)
                .against("the same from a prepared slot")
        }
        Ready::Nothing => Row::ratio("create from the pool → first output, p50", &claimed, 0.50, &cold, 0.50, 0.5)
            .against("a cold create: nothing is prepared"),
    });
    Ok(())
}

/// Runs a program in a sandbox; it prints the microseconds that it measured.
fn floor(api: &mut Connection, program: &str) -> Result<Duration, Failure> {
    let said = api.bash("bench-floor", &format!("python3 - <<'END'\n{program}\nEND"))?;
    let microseconds: f64 = said.trim().parse().map_err(|_| Failure::new(format!("the floor answered {said:?}")))?;
    Ok(Duration::from_secs_f64(microseconds / 1e6))
}

/// Waits until the pool is full again.
fn fill(api: &mut Connection) -> Outcome {
    let begun = Instant::now();
    while api.metric("arenite_sandbox_pool ")? < 2.0 {
        if begun.elapsed() > FILL {
            return Err(Failure::new("the pool of sandboxes was not filled"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(SETTLE);
    Ok(())
}
