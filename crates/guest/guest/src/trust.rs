//! Trust in the sandbox's own certificate authority, which signs what the egress proxy shows where it ends TLS for hosts of secrets.
//!
//! Most programs read the image's file of trusted certificates, or are pointed at it by variables that the server sets. Chromium
//! reads a policy, and Java has a store, into which its own `keytool` puts the certificate.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{Command, Exit};
use serde_json::json;

/// Files of trusted certificates of distributions. The first one is created if it is missing.
const BUNDLES: [&str; 5] = [
    "etc/ssl/certs/ca-certificates.crt",
    "etc/ssl/cert.pem",
    "etc/ssl/ca-bundle.pem",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];
/// From which `update-ca-certificates` makes the bundle again.
const SOURCES: &str = "usr/local/share/ca-certificates";
const SOURCE_FILE: &str = "arenite-egress.crt";
const CHROMIUM_POLICIES: [&str; 2] = ["etc/chromium/policies/managed", "etc/opt/chrome/policies/managed"];
const POLICY_FILE: &str = "arenite-egress.json";
const JAVA_STORES: [&str; 2] = ["etc/ssl/certs/java/cacerts", "usr/lib/jvm/default-java/lib/security/cacerts"];
const KEYTOOLS: [&str; 3] = ["/usr/bin/keytool", "/usr/lib/jvm/default-java/bin/keytool", "/opt/java/openjdk/bin/keytool"];
const ALIAS: &str = "arenite-egress";
/// Time for Java's tool to start and to write its store.
const KEYTOOL_LIMIT: Duration = Duration::from_secs(30);
/// Around the certificate in a bundle, so that another one can replace it.
const BEGIN: &str = "# arenite: the certificate authority of this sandbox\n";
const END: &str = "# arenite: end\n";

/// Makes programs trust the authority of the configuration, if there is one. Failures are logged: those programs then refuse the
/// hosts of secrets.
pub(crate) async fn install(runtime: &Runtime) {
    let config = runtime.config();
    let Some(certificate) = config.certificate.clone() else { return };
    let written = tokio::task::spawn_blocking(move || write_files(Path::new("/"), &certificate)).await;
    match written {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "the sandbox's certificate authority could not be made trusted"),
        Err(error) => tracing::error!(%error, "the sandbox's certificate authority could not be made trusted"),
    }
    let stores: Vec<PathBuf> =
        JAVA_STORES.iter().map(|store| Path::new("/").join(store)).filter(|store| store.is_file()).collect();
    let Some(keytool) = KEYTOOLS.iter().find(|tool| Path::new(tool).is_file()) else { return };
    for store in stores {
        if let Err(error) = import(runtime, keytool, &store).await {
            tracing::error!(%error, store = %store.display(), "Java could not be made to trust the sandbox's certificate authority");
        }
    }
}

fn write_files(root: &Path, certificate: &str) -> io::Result<()> {
    for (number, bundle) in BUNDLES.iter().enumerate() {
        let path = root.join(bundle);
        let known = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && number > 0 => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(path.parent().expect("it is below the root"))?;
                String::new()
            }
            known => known?,
        };
        let changed = with_certificate(&known, certificate);
        if changed != known {
            fs::write(&path, changed)?;
        }
    }
    fs::create_dir_all(root.join(SOURCES))?;
    fs::write(root.join(SOURCES).join(SOURCE_FILE), certificate)?;
    for directory in CHROMIUM_POLICIES.map(|directory| root.join(directory)) {
        // A browser that is not there needs no policy.
        if directory.parent().and_then(Path::parent).is_some_and(Path::is_dir) {
            fs::create_dir_all(&directory)?;
            fs::write(directory.join(POLICY_FILE), json!({ "CACertificates": [base64(certificate)] }).to_string())?;
        }
    }
    Ok(())
}

/// The bundle with this certificate at its end, in the place of one from before.
fn with_certificate(bundle: &str, certificate: &str) -> String {
    let (before, after) = match bundle.split_once(BEGIN) {
        Some((before, rest)) => (before, rest.split_once(END).map_or("", |(_, after)| after)),
        None => (bundle, ""),
    };
    let lines = [before, after].concat();
    let line_break = if lines.is_empty() || lines.ends_with('\n') { "" } else { "\n" };
    format!("{lines}{line_break}{BEGIN}{}\n{END}", certificate.trim_end())
}

/// The content of a certificate in PEM without its first and last line.
fn base64(certificate: &str) -> String {
    certificate.lines().filter(|line| !line.starts_with("-----")).collect()
}

async fn import(runtime: &Runtime, keytool: &str, store: &Path) -> io::Result<()> {
    let store = store.display().to_string();
    let file = format!("/{SOURCES}/{SOURCE_FILE}");
    // One from before has the same alias. If there is none, this fails.
    let _ = run(runtime, keytool, &["-delete", "-alias", ALIAS, "-keystore", &store]).await;
    run(runtime, keytool, &["-importcert", "-noprompt", "-alias", ALIAS, "-keystore", &store, "-file", &file]).await
}

async fn run(runtime: &Runtime, keytool: &str, arguments: &[&str]) -> io::Result<()> {
    let null = || fs::OpenOptions::new().read(true).write(true).open("/dev/null").map(OwnedFd::from);
    let user = &runtime.root_user;
    // The password of Java's store is public.
    let argv = [keytool].into_iter().chain(arguments.iter().copied()).chain(["-storepass", "changeit"]);
    let command = Command {
        argv: argv.map(str::to_owned).collect(),
        env: runtime.environment(user, &[]),
        cwd: "/".to_owned(),
        user,
        stdio: [null()?, null()?, null()?],
        controlling_tty: false,
    };
    let mut child = runtime.processes.spawn(command).await.map_err(io::Error::other)?;
    match tokio::time::timeout(KEYTOOL_LIMIT, child.wait()).await {
        Ok(Exit::Code(0)) => Ok(()),
        Ok(exit) => Err(io::Error::other(format!("{keytool} {}: {exit:?}", arguments[0]))),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\nBBBB\n-----END CERTIFICATE-----\n";
    const TWO: &str = "-----BEGIN CERTIFICATE-----\nCCCC\n-----END CERTIFICATE-----\n";

    #[test]
    fn another_certificate_replaces_the_one_before() {
        for others in ["", "# others\nX\n", "# others\nX"] {
            let first = with_certificate(others, ONE);
            assert!(first.starts_with(others) && first.contains(ONE), "{first}");
            assert_eq!(with_certificate(&first, ONE), first);
            let second = with_certificate(&first, TWO);
            assert!(second.starts_with(others) && second.contains(TWO) && !second.contains("AAAA"), "{second}");
        }
        // Cut off, or with lines after it.
        assert_eq!(with_certificate(&format!("X\n{BEGIN}AAAA"), TWO), with_certificate("X\n", TWO));
        assert_eq!(with_certificate(&format!("X\n{BEGIN}{ONE}{END}Y\n"), TWO), with_certificate("X\nY\n", TWO));
    }

    #[test]
    fn bundles_sources_and_browsers_get_the_certificate() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir_all(path("etc/pki/tls/certs")).unwrap();
        fs::write(path("etc/pki/tls/certs/ca-bundle.crt"), "others\n").unwrap();
        fs::create_dir_all(path("etc/chromium")).unwrap();
        write_files(root.path(), ONE).unwrap();
        write_files(root.path(), TWO).unwrap();
        for bundle in ["etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt"] {
            let text = fs::read_to_string(path(bundle)).unwrap();
            assert!(text.contains("CCCC") && !text.contains("AAAA"), "{bundle}: {text}");
        }
        assert!(!path("etc/ssl/cert.pem").exists() && !path("etc/opt").exists());
        assert_eq!(fs::read_to_string(path("usr/local/share/ca-certificates/arenite-egress.crt")).unwrap(), TWO);
        let policy = fs::read_to_string(path("etc/chromium/policies/managed/arenite-egress.json")).unwrap();
        assert_eq!(policy, r#"{"CACertificates":["CCCC"]}"#);
    }
}
