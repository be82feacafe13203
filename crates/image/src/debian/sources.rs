//! The host's apt sources: the mirror for a fresh Debian, and the sources that it gets.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use crate::imagefile::Suite;

/// Maximum number of bytes read of one sources file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum number of sources files read.
const MAX_FILES: usize = 200;
/// Suites that identify a mirror of Debian: it has the others too.
const DEBIAN_SUITES: [&str; 9] = ["bullseye", "bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing", "unstable"];

/// One repository that a host uses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Repository {
    uri: String,
    suites: Vec<String>,
    components: Vec<String>,
}

/// The repositories of a host that a fresh Debian can use: over http or https, without credentials in the address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AptSources {
    repositories: Vec<Repository>,
}

impl AptSources {
    /// Reads `sources.list` and `sources.list.d` of an apt directory, such as `/etc/apt`. Skips what can't be read.
    pub(crate) fn read(apt: &Path) -> Self {
        let mut paths = vec![apt.join("sources.list")];
        if let Ok(entries) = fs::read_dir(apt.join("sources.list.d")) {
            let mut parts: Vec<_> = entries.flatten().map(|e| e.path()).take(MAX_FILES).collect();
            parts.sort();
            paths.extend(parts);
        }
        let mut sources = Self::default();
        for path in paths {
            let mut text = String::new();
            let read = File::open(&path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
            match (read, path.extension().and_then(|e| e.to_str())) {
                (Ok(_), Some("list")) => sources.add_lines(&text),
                (Ok(_), Some("sources")) => sources.add_stanzas(&text),
                _ => {}
            }
        }
        sources
    }

    /// The mirror for a suite: one that the host uses for this suite, else one that it uses for another suite of Debian.
    pub(crate) fn mirror(&self, suite: Suite) -> Option<&str> {
        let with = |wanted: &dyn Fn(&str) -> bool| {
            self.repositories
                .iter()
                .find(|r| r.suites.iter().any(|s| wanted(s)) && r.components.iter().any(|c| c == "main"))
                .map(|r| r.uri.as_str())
        };
        with(&|s| s == suite.as_str()).or_else(|| with(&|s| DEBIAN_SUITES.contains(&s)))
    }

    /// The text of the new Debian's sources in deb822 format: the suite from the mirror, with its updates and security fixes if
    /// the host has those of its suite. None without a mirror.
    pub(crate) fn for_image(&self, suite: Suite) -> Option<String> {
        let mirror = self.mirror(suite)?;
        let name = suite.as_str();
        let has = |ending: &str| {
            self.repositories
                .iter()
                .find(|r| r.suites.iter().any(|s| s.strip_suffix(ending).is_some_and(|s| DEBIAN_SUITES.contains(&s))))
        };
        let mut suites = name.to_owned();
        if has("-updates").is_some() {
            suites.push_str(&format!(" {name}-updates"));
        }
        let mut text = stanza(mirror, &suites);
        if let Some(security) = has("-security") {
            text.push('\n');
            text.push_str(&stanza(&security.uri, &format!("{name}-security")));
        }
        Some(text)
    }

    /// The one-line format: `deb [options] uri suite component…`.
    fn add_lines(&mut self, text: &str) {
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let Some(rest) = line.strip_prefix("deb").filter(|r| r.starts_with([' ', '\t'])) else {
                continue;
            };
            let rest = rest.trim_start();
            let rest = match rest.strip_prefix('[') {
                Some(options) => match options.split_once(']') {
                    Some((_, rest)) => rest,
                    None => continue,
                },
                None => rest,
            };
            let mut words = rest.split_whitespace().map(str::to_owned);
            if let (Some(uri), Some(suite)) = (words.next(), words.next()) {
                self.add(uri, vec![suite], words.collect());
            }
        }
    }

    /// The deb822 format: stanzas of fields.
    fn add_stanzas(&mut self, text: &str) {
        let mut fields: Vec<(String, String)> = Vec::new();
        for line in text.lines().chain([""]) {
            if line.starts_with('#') {
                continue;
            }
            if line.trim().is_empty() {
                self.add_stanza(&std::mem::take(&mut fields));
            } else if line.starts_with([' ', '\t']) {
                if let Some((_, value)) = fields.last_mut() {
                    value.push(' ');
                    value.push_str(line.trim());
                }
            } else if let Some((key, value)) = line.split_once(':') {
                fields.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
    }

    fn add_stanza(&mut self, fields: &[(String, String)]) {
        let words = |key: &str| -> Vec<String> {
            fields.iter().filter(|(k, _)| k == key).flat_map(|(_, v)| v.split_whitespace()).map(str::to_owned).collect()
        };
        let off = ["no", "false", "without", "off", "disable"];
        let disabled = words("enabled").iter().any(|w| off.contains(&w.to_ascii_lowercase().as_str()));
        if disabled || !words("types").iter().any(|t| t == "deb") {
            return;
        }
        for uri in words("uris") {
            self.add(uri, words("suites"), words("components"));
        }
    }

    fn add(&mut self, uri: String, suites: Vec<String>, components: Vec<String>) {
        let host = uri.strip_prefix("http://").or_else(|| uri.strip_prefix("https://")).and_then(|rest| rest.split('/').next());
        // Credentials would be readable in the image.
        if host.is_some_and(|h| !h.is_empty() && !h.contains('@')) {
            self.repositories.push(Repository {
                uri,
                suites: suites.into_iter().map(|s| s.trim_end_matches('/').to_owned()).collect(),
                components,
            });
        }
    }
}

fn stanza(uri: &str, suites: &str) -> String {
    format!("Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: main\nSigned-By: {}\n", super::bootstrap::KEYRING)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(list: &str, deb822: &str) -> AptSources {
        let apt = tempfile::tempdir().unwrap();
        fs::write(apt.path().join("sources.list"), list).unwrap();
        fs::create_dir(apt.path().join("sources.list.d")).unwrap();
        fs::write(apt.path().join("sources.list.d/x.sources"), deb822).unwrap();
        fs::write(apt.path().join("sources.list.d/x.save"), "deb http://no.example/ bookworm main").unwrap();
        AptSources::read(apt.path())
    }

    #[test]
    fn both_formats_give_the_mirror() {
        let lines = "# deb http://commented.example/debian bookworm main\n\
            deb-src http://source.example/debian bookworm main\n\
            deb https://tool.example/apt tool-bookworm main\n\
            deb [arch=amd64 signed-by=/k.gpg] http://one.example/debian bookworm main contrib # end\n";
        assert_eq!(sources(lines, "").mirror(Suite::Bookworm), Some("http://one.example/debian"));
        let stanzas = "Types: deb\nURIs: https://nodes.example/x\nSuites: nodistro\nComponents: main\n\n\
            Enabled: no\nTypes: deb\nURIs: http://off.example/debian\nSuites: trixie\nComponents: main\n\n\
            # a comment\nTypes: deb deb-src\nURIs:\n http://two.example/debian\nsuites: trixie\n trixie-updates\nComponents: main\n";
        assert_eq!(sources("", stanzas).mirror(Suite::Trixie), Some("http://two.example/debian"));
        // Another suite of Debian shows that a mirror has all of them; a vendor's suite does not.
        assert_eq!(sources(lines, stanzas).mirror(Suite::Bullseye), Some("http://one.example/debian"));
        assert_eq!(sources("deb http://u.example/ubuntu noble main", "").mirror(Suite::Bookworm), None);
    }

    #[test]
    fn an_address_that_an_image_can_not_use_or_must_not_know_is_passed_over() {
        let list = "deb cdrom:[Debian]/ bookworm main\n\
            deb file:/srv/debian bookworm main\n\
            deb http://user:secret@private.example/debian bookworm main\n";
        assert_eq!(sources(list, "").mirror(Suite::Bookworm), None);
        assert_eq!(sources(list, "").for_image(Suite::Bookworm), None);
    }

    #[test]
    fn the_image_gets_updates_and_security_where_the_host_has_them() {
        let list = "deb http://m.example/debian bookworm main\n\
            deb http://m.example/debian bookworm-updates main\n\
            deb http://s.example/debian-security bookworm-security main\n";
        assert_eq!(
            sources(list, "").for_image(Suite::Trixie).unwrap(),
            "Types: deb\nURIs: http://m.example/debian\nSuites: trixie trixie-updates\nComponents: main\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
             Types: deb\nURIs: http://s.example/debian-security\nSuites: trixie-security\nComponents: main\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        );
        let bare = sources("deb http://m.example/debian bookworm main\n", "");
        assert!(!bare.for_image(Suite::Bookworm).unwrap().contains("security"));
    }
}
