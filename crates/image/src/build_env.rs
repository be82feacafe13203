//! The parts of the host that only RUN steps of a build see: its access to the network.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The proxy variables and the CA store of the host. Never part of a layer's digest, of an image or of records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildEnv {
    /// The environment of the step's processes, overridden by the image's.
    pub env: BTreeMap<String, String>,
    /// The host's CA bundle, mounted read-only at [`BuildEnv::CA_PATH`].
    pub ca_file: Option<PathBuf>,
    /// Small files mounted read-only in the step's sandbox: an absolute path below `/run/arenite` and the content.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Paths of CA bundles on hosts.
const CA_BUNDLES: [&str; 4] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"];
/// Variables that programs read for a CA bundle.
const CA_VARIABLES: [&str; 7] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "AWS_CA_BUNDLE",
];
const PROXY_VARIABLES: [&str; 4] = ["http_proxy", "https_proxy", "all_proxy", "no_proxy"];
const APT_CONFIG_PATH: &str = "/run/arenite/apt.conf";

impl BuildEnv {
    /// Path of the host's CA bundle in a step's sandbox.
    pub const CA_PATH: &'static str = "/run/arenite/build-ca.crt";

    /// The environment of this host.
    pub fn of_host() -> Self {
        let bundles: Vec<PathBuf> = std::env::var_os("SSL_CERT_FILE")
            .map(PathBuf::from)
            .into_iter()
            .chain(CA_BUNDLES.iter().map(PathBuf::from))
            .collect();
        Self::from_parts(&|name| std::env::var(name).ok(), &bundles)
    }

    /// For steps in sandboxes of a server: no proxies, and the extra CA file of its sandboxes.
    pub fn of_sandboxes(extra_ca: Option<&Path>) -> Self {
        Self::from_parts(&|_| None, &extra_ca.map(Path::to_owned).into_iter().collect::<Vec<_>>())
    }

    fn from_parts(variable: &dyn Fn(&str) -> Option<String>, bundles: &[PathBuf]) -> Self {
        let mut env = BTreeMap::new();
        for name in PROXY_VARIABLES {
            let upper = name.to_ascii_uppercase();
            // Programs differ in the case that they read.
            let value = variable(name).or_else(|| variable(&upper));
            if let Some(value) = value.filter(|v| !v.is_empty()) {
                env.insert(name.to_owned(), value.clone());
                env.insert(upper, value);
            }
        }
        let ca_file = bundles.iter().find(|path| is_file(path)).cloned();
        let mut files = Vec::new();
        if ca_file.is_some() {
            for name in CA_VARIABLES {
                env.insert(name.to_owned(), Self::CA_PATH.to_owned());
            }
            // apt reads no variable for a CA bundle, but a file of settings.
            env.insert("APT_CONFIG".to_owned(), APT_CONFIG_PATH.to_owned());
            let settings = format!("Acquire::https::CAInfo \"{}\";\n", Self::CA_PATH);
            files.push((APT_CONFIG_PATH.to_owned(), settings.into_bytes()));
        }
        Self { env, ca_file, files }
    }
}

fn is_file(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_come_in_both_cases_and_the_ca_under_its_own_path() {
        let scratch = tempfile::tempdir().unwrap();
        let bundle = scratch.path().join("ca.crt");
        std::fs::write(&bundle, "pem").unwrap();
        let host = |name: &str| match name {
            "HTTPS_PROXY" => Some("http://proxy.example:3128".to_owned()),
            "no_proxy" => Some("localhost".to_owned()),
            "http_proxy" => Some(String::new()),
            _ => None,
        };
        let found = BuildEnv::from_parts(&host, &[scratch.path().join("none"), bundle.clone()]);
        assert_eq!(found.env["https_proxy"], "http://proxy.example:3128");
        assert_eq!(found.env["HTTPS_PROXY"], "http://proxy.example:3128");
        assert_eq!(found.env["NO_PROXY"], "localhost");
        assert!(!found.env.contains_key("http_proxy"));
        assert_eq!(found.env["PIP_CERT"], BuildEnv::CA_PATH);
        assert_eq!(found.ca_file, Some(bundle));
        assert_eq!(found.files[0].0, found.env["APT_CONFIG"]);

        let bare = BuildEnv::from_parts(&|_| None, &[scratch.path().join("none")]);
        assert_eq!(bare, BuildEnv::default());
    }
}
