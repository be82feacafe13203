//! `cp`: copies files and directories to, from and between sandboxes.
//!
//! A single file streams through the file service. A directory is a tar archive, packed and unpacked by `tar` in the sandbox
//! and by [`archive`] on this host.

mod archive;

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use arenite_model::SandboxName;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use tokio_util::io::ReaderStream;

use super::exec::Command;
use super::quoted;
use super::transfer::Transfer;
use crate::cli::CpArgs;
use crate::client::{Client, encoded};
use crate::failure::{Attempt, Failure, Outcome};
use crate::{output, wire};

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Side {
    Local(PathBuf),
    /// Stdin or stdout.
    Stream,
    Sandbox(SandboxPath),
}

/// A path in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SandboxPath {
    name: SandboxName,
    path: String,
}

impl std::fmt::Display for SandboxPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.name, self.path)
    }
}

impl Side {
    fn sandbox(&self) -> Option<SandboxName> {
        match self {
            Self::Sandbox(at) => Some(at.name.clone()),
            Self::Local(_) | Self::Stream => None,
        }
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        if text == "-" {
            return Ok(Self::Stream);
        }
        // Like scp: a colon before any slash ends the sandbox's name.
        let Some((name, path)) = text.split_once(':').filter(|(name, _)| !name.contains('/')) else {
            return Ok(Self::Local(text.into()));
        };
        let bad = |message: String, hint: String| Err(Failure::new(message).hint(hint).exit_code(2));
        let name: SandboxName = match name.parse() {
            Ok(name) => name,
            Err(error) => return bad(format!("{error}"), format!("a local path with a colon is written ./{text}")),
        };
        if path.contains(['\0', '\n', '\r']) {
            return bad(
                format!("the path {path:?} has a line break or a NUL byte"),
                "rename it, or copy its directory".to_owned(),
            );
        }
        if !path.starts_with('/') {
            return bad(
                format!("the path {path:?} in sandbox {name} is not absolute"),
                format!("write it as {name}:/home/gem/{path}"),
            );
        }
        Ok(Self::Sandbox(SandboxPath { name, path: path.to_owned() }))
    }
}

pub(crate) async fn copy(args: CpArgs) -> Outcome {
    let sides = (Side::parse(&args.source)?, Side::parse(&args.target)?);
    let arguments = [("source", &*args.source), ("target", &*args.target)];
    let client = Client::connect_to(&args.server)?.recorded_as("cp", &arguments)?;
    let copy = Copy { client, progress: Transfer::new("copying", args.quiet) };
    let sandboxes: Vec<SandboxName> = [&sides.0, &sides.1].into_iter().filter_map(Side::sandbox).collect();
    let done = copy.run_all(sides).await;
    for sandbox in sandboxes {
        copy.client.end_command(sandbox.as_str()).await;
    }
    done?;
    copy.progress.end();
    Ok(ExitCode::SUCCESS)
}

/// The kind of a path in a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    Other,
    Absent,
}

fn base_name(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

#[derive(Debug, Deserialize)]
struct Uploaded {}

struct Copy {
    client: Client,
    progress: Transfer,
}

impl Copy {
    async fn run_all(&self, sides: (Side, Side)) -> Result<(), Failure> {
        let copy = self;
        match sides {
            (Side::Local(from), Side::Sandbox(to)) => copy.bring_in(&from, &to).await?,
            (Side::Sandbox(from), Side::Local(to)) => copy.bring_out(&from, &to).await?,
            (Side::Sandbox(from), Side::Sandbox(to)) => copy.between(&from, &to).await?,
            (Side::Stream, Side::Sandbox(to)) => {
                if to.path.ends_with('/') {
                    return Err(Failure::new(format!("{to} is a directory, and stdin has no name"))
                        .hint("add a file name to it")
                        .exit_code(2));
                }
                copy.upload(&to, ReaderStream::new(tokio::io::stdin())).await?;
            }
            (Side::Sandbox(from), Side::Stream) => {
                let mut content = copy.download(&from).await?;
                while let Some(piece) = content.next().await {
                    output::bytes(&piece.attempt(|| format!("{from} broke off"))?);
                }
            }
            (Side::Local(_) | Side::Stream, Side::Local(_) | Side::Stream) => {
                return Err(Failure::new("neither side names a sandbox")
                    .hint("write NAME:/PATH for the side that is in one")
                    .exit_code(2));
            }
        }
        Ok(())
    }

    /// Runs a line in the sandbox and returns its output.
    async fn run(&self, name: &SandboxName, line: String) -> Result<String, Failure> {
        Command::new(name.as_str(), line).capture(&self.client).await
    }

    async fn kind(&self, at: &SandboxPath) -> Result<Kind, Failure> {
        let path = quoted(&at.path);
        let line = format!(
            "if [ -d {path} ]; then echo d; elif [ -f {path} ]; then echo f; elif [ -e {path} ]; then echo o; else echo a; fi"
        );
        Ok(match self.run(&at.name, line).await?.trim() {
            "d" => Kind::Directory,
            "f" => Kind::File,
            "o" => Kind::Other,
            _ => Kind::Absent,
        })
    }

    /// The target of a file: in the target if that is a directory, else the target itself.
    async fn landing(&self, target: &SandboxPath, file: &str) -> Result<SandboxPath, Failure> {
        if !target.path.ends_with('/') && self.kind(target).await? != Kind::Directory {
            return Ok(target.clone());
        }
        Ok(SandboxPath { name: target.name.clone(), path: format!("{}/{file}", target.path.trim_end_matches('/')) })
    }

    async fn upload(
        &self,
        to: &SandboxPath,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<(), Failure> {
        self.upload_counted(to, self.progress.watch(content)).await
    }

    /// Uploads what is counted elsewhere.
    async fn upload_counted(
        &self,
        to: &SandboxPath,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<(), Failure> {
        let path = format!("/sandbox/{}/v1/file/upload", to.name);
        let answer: wire::Envelope<Uploaded> = self.client.upload(&path, &to.path, content).await?;
        answer.into_data().map(|Uploaded {}| ())
    }

    async fn download(
        &self,
        from: &SandboxPath,
    ) -> Result<impl Stream<Item = io::Result<Bytes>> + Send + Unpin + 'static + use<>, Failure> {
        let path = format!("/sandbox/{}/v1/file/download?path={}", from.name, encoded(&from.path));
        let (size, content) = self.client.download_sized(&path).await?;
        self.progress.expect(size.unwrap_or_default());
        Ok(Box::pin(self.progress.watch(content)))
    }

    async fn between(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), Failure> {
        if self.kind(from).await? == Kind::Directory {
            return Err(Failure::new(format!("{from} is a directory, and only files are copied from sandbox to sandbox"))
                .hint("copy it out to this host first, then in"));
        }
        let to = self.landing(to, base_name(&from.path)).await?;
        let content = self.download(from).await?;
        self.upload_counted(&to, content).await
    }

    async fn bring_in(&self, from: &Path, to: &SandboxPath) -> Result<(), Failure> {
        let unreadable = || format!("could not read {}", from.display());
        let data = std::fs::metadata(from).attempt(unreadable)?;
        let whole = from.canonicalize().attempt(unreadable)?;
        let Some(own_name) = whole.file_name().and_then(|f| f.to_str()) else {
            return Err(Failure::new(format!("{} has no name to copy it under", from.display())));
        };
        if data.is_dir() {
            return self.bring_directory_in(&whole, own_name, to).await;
        }
        // A link is copied as its target, under the link's name.
        let name = from.file_name().and_then(|f| f.to_str()).unwrap_or(own_name);
        let to = self.landing(to, name).await?;
        let source = tokio::fs::File::open(from).await.attempt(unreadable)?;
        self.progress.expect(data.len());
        self.upload(&to, ReaderStream::with_capacity(source, 256 << 10)).await?;
        if data.permissions().mode() & 0o111 != 0 {
            self.run(&to.name, format!("chmod +x {}", quoted(&to.path))).await?;
        }
        Ok(())
    }

    /// Copies into an existing directory, else to a new one with the target's name, like `cp -r`.
    async fn bring_directory_in(&self, from: &Path, own_name: &str, to: &SandboxPath) -> Result<(), Failure> {
        let path = match to.path.trim_end_matches('/') {
            "" => "/",
            path => path,
        };
        let (parent, member) = match self.kind(to).await? {
            Kind::Directory => (path, own_name),
            Kind::Absent => match path.rsplit_once('/') {
                Some(("", member)) => ("/", member),
                Some((parent, member)) => (parent, member),
                None => ("/", path),
            },
            Kind::File | Kind::Other => return Err(Failure::new(format!("{to} is there and is not a directory"))),
        };
        let temporary = self.temporary(&to.name).await?;
        let packed = self.upload(&temporary, archive::pack(from.to_owned(), member.to_owned())).await;
        let result = match packed {
            Ok(()) => {
                let line = format!("mkdir -p -- {0} && tar -C {0} -xf {1}", quoted(parent), quoted(&temporary.path));
                self.run(&to.name, line).await.map(drop)
            }
            Err(failure) => Err(failure),
        };
        self.remove(&temporary).await;
        result
    }

    async fn bring_out(&self, from: &SandboxPath, to: &Path) -> Result<(), Failure> {
        match self.kind(from).await? {
            Kind::Directory => {}
            Kind::File => {
                let target = if to.is_dir() { to.join(base_name(&from.path)) } else { to.to_owned() };
                return write_file(&target, self.download(from).await?).await;
            }
            Kind::Absent => return Err(Failure::new(format!("there is no {from}"))),
            Kind::Other => return Err(Failure::new(format!("{from} is neither a file nor a directory"))),
        }
        let into = if to.is_dir() { to.join(base_name(&from.path)) } else { to.to_owned() };
        std::fs::create_dir_all(&into).attempt(|| format!("could not make {}", into.display()))?;
        let temporary = self.temporary(&from.name).await?;
        let line = format!("tar -C {} --one-file-system -cf {} .", quoted(&from.path), quoted(&temporary.path));
        let result = match self.run(&from.name, line).await {
            Ok(_) => match self.download(&temporary).await {
                Ok(content) => archive::unpack(content, into).await,
                Err(failure) => Err(failure),
            },
            Err(failure) => Err(failure),
        };
        self.remove(&temporary).await;
        result
    }

    /// Creates a temporary file in a sandbox, on its disk: `/tmp` is small there.
    async fn temporary(&self, name: &SandboxName) -> Result<SandboxPath, Failure> {
        let line = "command -v tar >/dev/null || { echo 'the image has no tar, which copying a directory needs' >&2; exit 1; }\n\
                    mktemp -p /var/tmp arenite-cp.XXXXXXXX 2>/dev/null || mktemp -p /tmp arenite-cp.XXXXXXXX";
        let path = self.run(name, line.to_owned()).await?.trim().to_owned();
        // The answer is used in a form: it must be a path and nothing else.
        if !path.starts_with('/') || path.contains(char::is_whitespace) {
            return Err(Failure::new(format!("sandbox {name} gave no usable name for a temporary file")));
        }
        Ok(SandboxPath { name: name.clone(), path })
    }

    async fn remove(&self, temporary: &SandboxPath) {
        if let Err(failure) = self.run(&temporary.name, format!("rm -f -- {}", quoted(&temporary.path))).await {
            eprintln!("warning: {temporary} was left behind: {failure}");
        }
    }
}

/// Writes beside the target and renames, so that an interrupted copy leaves the old file.
pub(super) async fn write_file(target: &Path, mut content: impl Stream<Item = io::Result<Bytes>> + Unpin) -> Result<(), Failure> {
    let what = || format!("could not write {}", target.display());
    // A pipe or a device is written directly.
    let special = std::fs::metadata(target).is_ok_and(|data| !data.is_file());
    let part = if special {
        target.to_owned()
    } else {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        target.with_file_name(name)
    };
    let writing = async {
        let mut file = if special { File::options().write(true).open(&part) } else { File::create_new(&part) }.attempt(what)?;
        while let Some(piece) = content.next().await {
            file.write_all(&piece.attempt(|| "the copy broke off".into())?).attempt(what)?;
        }
        if special { Ok(()) } else { std::fs::rename(&part, target).attempt(what) }
    };
    let result = writing.await;
    if result.is_err() && !special {
        // A partial file is useless; it may not exist.
        let _ = std::fs::remove_file(&part);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_told_apart_as_scp_does() {
        assert_eq!(Side::parse("-").unwrap(), Side::Stream);
        assert_eq!(Side::parse("./a:b").unwrap(), Side::Local("./a:b".into()));
        let at = SandboxPath { name: "demo".parse().unwrap(), path: "/x y".into() };
        assert_eq!(Side::parse("demo:/x y").unwrap(), Side::Sandbox(at));
        for bad in ["demo:x", "Demo:/x", "demo:", ":/x", "demo:/a\r\nb"] {
            assert!(Side::parse(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_copy_that_breaks_off_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("file");
        std::fs::write(&target, "old").unwrap();
        let pieces = [Ok(Bytes::from_static(b"new")), Err(io::Error::other("cut"))];
        assert!(write_file(&target, futures_util::stream::iter(pieces)).await.is_err());
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
