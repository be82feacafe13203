//! What a pod uses, from the files of its cgroup. The sandbox's root could change what this says, so it is for people and
//! for metering by goodwill; the limits are Kubernetes'.

use std::fs;

use arenite_model::protocol::PodUsage;

const ROOT: &str = "/sys/fs/cgroup";

/// Reads the counters of cgroup version 2 or 1. What can't be read is 0 or none.
pub(crate) fn of_pod() -> PodUsage {
    of_files(|path| fs::read_to_string(path).ok())
}

fn of_files(read: impl Fn(&str) -> Option<String>) -> PodUsage {
    let at = |path: &str| read(&format!("{ROOT}/{path}"));
    let number = |text: Option<String>| text.and_then(|text| text.trim().parse::<u64>().ok());
    let traffic = read("/proc/net/dev").map(|text| traffic(&text));
    let (received_bytes, sent_bytes) = traffic.unzip();
    let (memory, cpu, pids, oom) = match number(at("memory.current")) {
        Some(memory) => (
            Some(memory),
            at("cpu.stat").and_then(|text| field(&text, "usage_usec")).map(|micros| micros.saturating_mul(1000)),
            number(at("pids.current")),
            at("memory.events").and_then(|text| field(&text, "oom_kill")),
        ),
        None => (
            number(at("memory/memory.usage_in_bytes")),
            number(at("cpuacct/cpuacct.usage")).or_else(|| number(at("cpu,cpuacct/cpuacct.usage"))),
            number(at("pids/pids.current")),
            at("memory/memory.oom_control").and_then(|text| field(&text, "oom_kill")),
        ),
    };
    PodUsage {
        memory_bytes: memory.unwrap_or_default(),
        cpu_nanoseconds: cpu.unwrap_or_default(),
        pids: pids.unwrap_or_default(),
        oom_kills: oom,
        received_bytes,
        sent_bytes,
    }
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Bytes received and sent by all interfaces but the loopback.
fn traffic(text: &str) -> (u64, u64) {
    let lines = text.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
    lines.fold((0, 0), |(received, sent), (_, numbers)| {
        let numbers: Vec<u64> = numbers.split_ascii_whitespace().map(|n| n.parse().unwrap_or(0)).collect();
        let of = |index: usize| numbers.get(index).copied().unwrap_or(0);
        (received + of(0), sent + of(8))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_either_version() {
        let net = "Inter-|   Receive\n face |bytes\n    lo: 5 0 0 0 0 0 0 0 5 0\n  eth0: 100 1 0 0 0 0 0 0 30 1\n";
        let read = |files: &'static [(&'static str, &'static str)]| {
            move |path: &str| match path {
                "/proc/net/dev" => Some(net.to_owned()),
                path => files.iter().find(|(name, _)| path == format!("{ROOT}/{name}")).map(|(_, text)| (*text).to_owned()),
            }
        };
        let second = of_files(read(&[
            ("memory.current", "7\n"),
            ("cpu.stat", "usage_usec 2\nuser_usec 1\n"),
            ("pids.current", "3\n"),
            ("memory.events", "oom 0\noom_kill 4\n"),
        ]));
        assert_eq!((second.memory_bytes, second.cpu_nanoseconds, second.pids, second.oom_kills), (7, 2000, 3, Some(4)));
        assert_eq!((second.received_bytes, second.sent_bytes), (Some(100), Some(30)));
        let first = of_files(read(&[("memory/memory.usage_in_bytes", "9\n"), ("cpuacct/cpuacct.usage", "8\n")]));
        assert_eq!((first.memory_bytes, first.cpu_nanoseconds, first.pids, first.oom_kills), (9, 8, 0, None));
    }
}
