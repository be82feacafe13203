//! The operating system, as its files describe it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The most bytes to read of such a file.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The start of a small file; empty if there is none.
pub(super) fn text(path: impl AsRef<Path>) -> String {
    use std::io::Read;
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        // Returns the part that could be read.
        let _ = file.take(MAX_FILE_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Name and version of the distribution, from `os-release`.
pub(super) fn distribution(os_release: &str) -> (String, String) {
    let fields: BTreeMap<&str, &str> = os_release
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim(), value.trim().trim_matches(['"', '\''])))
        .collect();
    let field = |names: [&str; 2]| names.iter().find_map(|n| fields.get(n)).map_or(String::new(), |v| (*v).to_owned());
    let name = field(["NAME", "ID"]);
    (if name.is_empty() { "Linux".to_owned() } else { name }, field(["VERSION", "VERSION_ID"]))
}

/// The name of the time zone: from the environment, else from the system.
pub(super) fn timezone(env: &BTreeMap<String, String>) -> String {
    let link = || {
        let target = std::fs::read_link("/etc/localtime").ok()?;
        Some(target.to_str()?.split_once("zoneinfo/")?.1.to_owned())
    };
    let named = || Some(text("/etc/timezone").trim().to_owned());
    [env.get("TZ").map(|tz| tz.trim_start_matches(':').to_owned()), link(), named()]
        .into_iter()
        .flatten()
        .find(|zone| !zone.is_empty())
        .unwrap_or_else(|| "UTC".to_owned())
}

/// Adds TCP ports with a listener from a table like `/proc/net/tcp`.
fn listening(table: &str, ports: &mut BTreeSet<u16>) {
    const LISTEN: &str = "0A";
    for line in table.lines().skip(1) {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, state) = (fields.next(), fields.nth(1));
        let port = local.and_then(|l| l.rsplit_once(':')).and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
        if state == Some(LISTEN) {
            ports.extend(port);
        }
    }
}

/// TCP ports with a listener in the sandbox.
pub(super) fn occupied_ports() -> BTreeSet<u16> {
    let mut ports = BTreeSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        listening(&text(table), &mut ports);
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_read_from_os_release() {
        let debian = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nNAME=\"Debian GNU/Linux\"\nVERSION_ID=\"12\"\nVERSION=\"12 (bookworm)\"\n";
        assert_eq!(distribution(debian), ("Debian GNU/Linux".to_owned(), "12 (bookworm)".to_owned()));
        assert_eq!(distribution("ID=alpine\nVERSION_ID=3.20\n"), ("alpine".to_owned(), "3.20".to_owned()));
        assert_eq!(distribution(""), ("Linux".to_owned(), String::new()));
    }

    #[test]
    fn only_listening_ports_count() {
        let table = "  sl  local_address rem_address   st\n   0: 0100007F:1F90 00000000:0000 0A 0\n   1: 0100007F:1F91 0100007F:1F90 01 0\nbroken\n";
        let mut ports = BTreeSet::new();
        listening(table, &mut ports);
        assert_eq!(ports.into_iter().collect::<Vec<_>>(), [8080]);
    }
}
