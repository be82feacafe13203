//! Runs mmdebstrap, and adapts its result for an image. It installs the packages that debootstrap does, in half the time.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use super::sources::AptSources;
use crate::imagefile::Suite;
use crate::output::OutputLines;
use crate::removal::remove_tree;

/// Changes when the same suite would have a different result, so that an older layer is not reused.
pub(crate) const RECIPE: &str = "minbase-2";
pub(super) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The mirror of a host without one.
const MIRROR: &str = "http://deb.debian.org/debian";
/// The `PATH` for mmdebstrap: a service's PATH may lack the second.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs as PID 1 of a separate PID namespace, with separate mounts, so that everything that mmdebstrap mounts and starts ends
/// with it. Its standard input is a pipe; this process holds the other end. When that closes, because the build was canceled or
/// the server died, everything in the namespace is killed. The target is mounted on itself so that device files work there,
/// however its file system is mounted. `/bin`, `/sbin` and `/lib*` are links into `/usr` from the start, as with debootstrap: by
/// mmdebstrap's own hook, where the suite has the package that it installs.
const SUPERVISOR: &str = r#"
umask 022
exec 3<&0 </dev/null
mount --bind "$1" "$1" && mount -o remount,bind,dev,suid,exec "$1" || exit 125
cd /
{ read -r _ <&3; kill -KILL -1; } &
exec 3<&-
case $2 in
    bullseye) merge='for dir in bin sbin lib lib32 lib64 libx32; do mkdir -p "$1/usr/$dir" && ln -s "usr/$dir" "$1/$dir" || exit; done' ;;
    *) hooks=/usr/share/mmdebstrap/hooks/merged-usr ;;
esac
mmdebstrap --mode=root --variant=minbase --format=directory --keyring="$4" \
    ${hooks:+--hook-dir="$hooks"} ${merge:+--setup-hook="$merge"} "$2" "$1" "$3"
"#;

/// Why a Debian could not be created.
#[derive(Debug)]
pub(crate) enum BootstrapError {
    Missing(&'static str),
    /// mmdebstrap's own exit code; its output says why.
    Failed(i32),
    Io(&'static str, PathBuf, io::Error),
}

/// Creates a Debian in the empty directory `target`. Dropping the future ends it.
pub(crate) async fn bootstrap(
    suite: Suite,
    sources: &AptSources,
    target: &Path,
    output: &mut OutputLines<'_>,
) -> Result<(), BootstrapError> {
    for tool in ["mmdebstrap", "unshare"] {
        if !PATH.split(':').any(|dir| Path::new(dir).join(tool).exists()) {
            return Err(BootstrapError::Missing(match tool {
                "unshare" => "util-linux",
                _ => "mmdebstrap",
            }));
        }
    }
    let failed = |e| BootstrapError::Io("could not run mmdebstrap for", target.to_owned(), e);
    let code = run(suite, sources.mirror(suite), target, output).await.map_err(failed)?;
    if code != 0 {
        return Err(BootstrapError::Failed(code));
    }
    let own_sources = sources.for_image(suite);
    finish(target, own_sources.as_deref()).map_err(|(path, e)| BootstrapError::Io("could not clean up", path, e))
}

async fn run(suite: Suite, mirror: Option<&str>, target: &Path, output: &mut OutputLines<'_>) -> io::Result<i32> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", SUPERVISOR, "sh"])
        .arg(target)
        .args([suite.as_str(), mirror.unwrap_or(MIRROR), KEYRING])
        .env_clear()
        .envs(host_environment())
        .stdin(Stdio::piped())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .kill_on_drop(true);
    let mut child = command.spawn()?;
    // It holds the pipe's write ends, which would keep the output open for ever.
    drop(command);
    let lifeline = child.stdin.take();
    output.drain(tokio::net::unix::pipe::Receiver::from_owned_fd(reader.into())?).await?;
    let status = child.wait().await?;
    drop(lifeline);
    Ok(status.code().unwrap_or(128))
}

/// The host's environment that mmdebstrap gets: its access to the mirror.
fn host_environment() -> BTreeMap<String, String> {
    let names = [
        "http_proxy",
        "https_proxy",
        "ftp_proxy",
        "no_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ];
    let mut env: BTreeMap<String, String> =
        names.into_iter().filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?))).collect();
    for (name, value) in [("PATH", PATH), ("HOME", "/root"), ("LC_ALL", "C.UTF-8")] {
        env.insert(name.to_owned(), value.to_owned());
    }
    env
}

/// What dpkg leaves out of every package: an agent's computer doesn't need it, and it is a quarter of a small system.
const DPKG_CONFIG: &str = "\
# No manuals and translations; copyright files stay. Writes are not synced one by one.
force-unsafe-io
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/lintian/*
path-exclude /usr/share/locale/*
path-include /usr/share/locale/locale.alias
";

const APT_CONFIG: &str = "\
# No translated descriptions, and lists stay as they are fetched.
Acquire::Languages \"none\";
Acquire::GzipIndexes \"true\";
Apt::AutoRemove::SuggestsImportant \"false\";
";

/// Services are not started when they are installed: nothing here would supervise them.
const POLICY: &str = "#!/bin/sh\nexit 101\n";

/// Removes what belongs to this host or to this build, and adds what images have in common. The tree is Debian's own and
/// signed, but its links are still not followed: a path here goes through directories only.
fn finish(root: &Path, sources: Option<&str>) -> Result<(), (PathBuf, io::Error)> {
    let empty = [
        "dev",
        "var/lib/apt/lists",
        "var/cache/apt",
        "var/cache/ldconfig",
        "usr/share/man",
        "usr/share/info",
        "usr/share/lintian",
        "usr/share/locale",
        "tmp",
        "run",
    ];
    for dir in empty {
        let path = root.join(dir);
        empty_directory(&path).map_err(|e| (path, e))?;
    }
    let gone =
        ["etc/resolv.conf", "etc/hostname", "etc/apt/sources.list", "var/lib/dpkg/status-old", "var/lib/dpkg/diversions-old"];
    for name in gone {
        if name == "etc/apt/sources.list" && sources.is_none() {
            continue;
        }
        let path = root.join(name);
        remove_any(&path).map_err(|e| (path, e))?;
    }
    drop_documentation(&root.join("usr/share/doc"))?;
    truncate_files(&root.join("var/log"))?;

    let mut files = vec![
        ("etc/dpkg/dpkg.cfg.d/arenite", DPKG_CONFIG, 0o644),
        ("etc/apt/apt.conf.d/90arenite", APT_CONFIG, 0o644),
        ("usr/sbin/policy-rc.d", POLICY, 0o755),
        // Empty: every sandbox is a different machine.
        ("etc/machine-id", "", 0o444),
    ];
    if let Some(sources) = sources {
        files.push(("etc/apt/sources.list.d/debian.sources", sources, 0o644));
    }
    for (name, content, mode) in files {
        let path = root.join(name);
        let write = || -> io::Result<()> {
            remove_any(&path)?;
            fs::write(&path, content)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
        };
        write().map_err(|e| (path.clone(), e))?;
    }
    Ok(())
}

fn entries(dir: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::symlink_metadata(dir) {
        Ok(kind) if kind.is_dir() => fs::read_dir(dir)?.collect(),
        Ok(_) => Err(io::Error::other("it is not a directory")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

fn empty_directory(dir: &Path) -> io::Result<()> {
    entries(dir)?.iter().try_for_each(|e| remove_any(&e.path()))
}

fn remove_any(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(kind) if kind.is_dir() => remove_tree(path),
        Ok(_) => fs::remove_file(path),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Keeps the copyright files.
fn drop_documentation(doc: &Path) -> Result<(), (PathBuf, io::Error)> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |e| (path, e)
    };
    for package in entries(doc).map_err(at(doc))? {
        let dir = package.path();
        if !package.file_type().map_err(at(&dir))?.is_dir() {
            continue;
        }
        for file in entries(&dir).map_err(at(&dir))? {
            if file.file_name() != "copyright" {
                remove_any(&file.path()).map_err(at(&dir))?;
            }
        }
    }
    Ok(())
}

fn truncate_files(dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    for entry in entries(dir).map_err(|e| (dir.to_owned(), e))? {
        let path = entry.path();
        let kind = entry.file_type().map_err(|e| (path.clone(), e))?;
        if kind.is_dir() {
            truncate_files(&path)?;
        } else if kind.is_file() {
            fs::OpenOptions::new().write(true).truncate(true).open(&path).map_err(|e| (path, e))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_belongs_to_the_host_is_gone_and_the_rest_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("root");
        for dir in [
            "dev/pts",
            "etc/apt/sources.list.d",
            "etc/apt/apt.conf.d",
            "etc/dpkg/dpkg.cfg.d",
            "usr/sbin",
            "usr/share/doc/tool",
            "var/log/apt",
            "var/lib/apt/lists/partial",
            "var/cache/apt/archives",
        ] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        let host = scratch.path().join("host-file");
        fs::write(&host, "precious").unwrap();
        symlink(&host, root.join("etc/hostname")).unwrap();
        symlink(&host, root.join("usr/sbin/policy-rc.d")).unwrap();
        for file in [
            "dev/null",
            "etc/resolv.conf",
            "etc/apt/sources.list",
            "var/log/apt/term.log",
            "usr/share/doc/tool/copyright",
            "usr/share/doc/tool/README",
            "etc/machine-id",
            "var/lib/apt/lists/x_Packages",
        ] {
            fs::write(root.join(file), "content").unwrap();
        }
        finish(&root, Some("Types: deb\n")).unwrap();

        for gone in [
            "dev/pts",
            "dev/null",
            "etc/resolv.conf",
            "etc/hostname",
            "etc/apt/sources.list",
            "usr/share/doc/tool/README",
            "var/lib/apt/lists/x_Packages",
        ] {
            assert!(fs::symlink_metadata(root.join(gone)).is_err(), "{gone}");
        }
        for (file, content) in [
            ("var/log/apt/term.log", ""),
            ("etc/machine-id", ""),
            ("usr/share/doc/tool/copyright", "content"),
            ("etc/apt/sources.list.d/debian.sources", "Types: deb\n"),
            ("usr/sbin/policy-rc.d", POLICY),
        ] {
            assert_eq!(fs::read_to_string(root.join(file)).unwrap(), content, "{file}");
        }
        assert_eq!(fs::read_to_string(&host).unwrap(), "precious");
    }
}
