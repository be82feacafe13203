//! The programs and packages that tasks need on the host, and their installation.

use std::path::Path;
use std::process::Command;

use crate::command::{download, find, is_root, program, run, succeeds};
use crate::failure::{Failure, Outcome};

/// A program or package that must be installed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    present: Present,
    /// Debian's package that contains it.
    package: &'static str,
    why: &'static str,
}

/// How its presence is checked.
#[derive(Debug, Clone, Copy)]
enum Present {
    /// One of these programs exists.
    AnyOf(&'static [&'static str]),
    File(&'static str),
    /// This command succeeds.
    Runs(&'static [&'static str]),
}

impl Present {
    fn holds(self) -> bool {
        match self {
            Self::AnyOf(names) => names.iter().any(|name| find(name).is_some()),
            Self::File(path) => Path::new(path).exists(),
            Self::Runs(words) => succeeds(program(words[0]).args(&words[1..])),
        }
    }
}

/// To build the server.
pub(crate) const TO_BUILD: &[Need] = &[
    Need { present: Present::AnyOf(&["cc"]), package: "gcc", why: "the embedded database is compiled" },
    Need { present: Present::File("/usr/include/stdlib.h"), package: "libc6-dev", why: "programs are linked" },
    Need { present: Present::AnyOf(&["node"]), package: "nodejs", why: "the console and the dashboard are built with it" },
    Need { present: Present::AnyOf(&["npm"]), package: "npm", why: "it brings what builds them" },
];

/// To run it, besides.
pub(crate) const TO_RUN: &[Need] = &[
    Need { present: Present::AnyOf(&["mmdebstrap"]), package: "mmdebstrap", why: "the base image begins with it" },
    BTRFS,
    NFT,
    Need { present: Present::AnyOf(&["ip"]), package: "iproute2", why: "networks are looked into with it" },
    Need {
        present: Present::File("/etc/ssl/certs/ca-certificates.crt"),
        package: "ca-certificates",
        why: "image builds download packages",
    },
];

const BTRFS: Need =
    Need { present: Present::AnyOf(&["mkfs.btrfs"]), package: "btrfs-progs", why: "the storage pool is made with it" };
const NFT: Need =
    Need { present: Present::AnyOf(&["nft"]), package: "nftables", why: "sandboxes are kept from private addresses" };
const BUSYBOX: Need =
    Need { present: Present::AnyOf(&["busybox"]), package: "busybox-static", why: "an image without glibc is made with it" };
const PYTHON: Need = Need { present: Present::AnyOf(&["python3"]), package: "python3", why: "the end-to-end tests are Python" };
const PYTHON_VENV: Need = Need {
    present: Present::Runs(&["python3", "-c", "import venv, ensurepip"]),
    package: "python3-venv",
    why: "they run in an environment of their own",
};

/// To run the end-to-end tests that need nothing else.
pub(crate) const TO_RUN_PYTEST: &[Need] = &[PYTHON, PYTHON_VENV];

/// What a node's image contains besides the program.
pub(crate) const TO_RUN_NODES: &[Need] = &[BTRFS, NFT];

/// In addition, to run the tests.
pub(crate) const TO_TEST: &[Need] = &[
    PYTHON,
    PYTHON_VENV,
    Need { present: Present::AnyOf(&["chromium"]), package: "chromium", why: "a real browser is turned on hostile pages" },
    Need {
        present: Present::AnyOf(&["firefox-esr"]),
        package: "firefox-esr",
        why: "our pages are opened in another browser, too",
    },
    Need { present: Present::AnyOf(&["curl"]), package: "curl", why: "calls are made as the README shows them" },
    Need { present: Present::AnyOf(&["ffprobe"]), package: "ffmpeg", why: "recordings are looked into" },
    Need { present: Present::AnyOf(&["pg_createcluster"]), package: "postgresql", why: "the store is tested on it" },
    Need { present: Present::File("/usr/sbin/sshd"), package: "openssh-server", why: "sandboxes log in to it" },
    Need { present: Present::AnyOf(&["ssh-keygen"]), package: "openssh-client", why: "keys for it are made with it" },
    Need {
        present: Present::AnyOf(&["docker-registry"]),
        package: "docker-registry",
        why: "images are pulled from a real registry and pushed to it",
    },
    Need { present: Present::File("/usr/sbin/dockerd"), package: "docker.io", why: "sandboxes run as its containers" },
    Need { present: Present::AnyOf(&["iptables"]), package: "iptables", why: "Docker's firewall is passed" },
    BUSYBOX,
    Need {
        present: Present::AnyOf(&["musl-gcc"]),
        package: "musl-tools",
        why: "a program of an image with musl is made with it",
    },
];

/// To build tools for the tests, where Go is old or missing.
pub(crate) const TO_BUILD_GO: &[Need] =
    &[Need { present: Present::AnyOf(&["go"]), package: "golang-go", why: "it downloads the Go that builds tools" }];

/// To run a Kubernetes cluster.
pub(crate) const TO_RUN_KUBERNETES: &[Need] = &[
    Need { present: Present::AnyOf(&["containerd"]), package: "containerd", why: "nodes run containers with it" },
    Need { present: Present::AnyOf(&["runc"]), package: "runc", why: "nodes run containers with it" },
    Need {
        present: Present::File("/usr/lib/cni/ptp"),
        package: "containernetworking-plugins",
        why: "pods are connected with its plugin ptp",
    },
    Need { present: Present::AnyOf(&["nft"]), package: "nftables", why: "Services are forwarded with it" },
    Need { present: Present::AnyOf(&["ip"]), package: "iproute2", why: "nodes are connected with it" },
    Need { present: Present::AnyOf(&["openssl"]), package: "openssl", why: "the API server needs certificates" },
    BUSYBOX,
    Need { present: Present::AnyOf(&["cc"]), package: "gcc", why: "the first process of pods is compiled" },
    Need { present: Present::File("/usr/include/stdlib.h"), package: "libc6-dev", why: "programs are linked" },
];

/// To fuzz.
pub(crate) const TO_FUZZ: &[Need] = &[
    Need { present: Present::AnyOf(&["cc"]), package: "gcc", why: "C libraries of the server are compiled" },
    Need { present: Present::AnyOf(&["c++"]), package: "g++", why: "libFuzzer is compiled" },
    Need { present: Present::File("/usr/include/stdlib.h"), package: "libc6-dev", why: "programs are linked" },
];

/// In addition, to run the benchmarks.
pub(crate) const TO_BENCH: &[Need] = &[
    Need { present: Present::AnyOf(&["runc"]), package: "runc", why: "creates are compared with it" },
    Need { present: Present::AnyOf(&["nginx"]), package: "nginx-light", why: "proxied streams are compared with it" },
    Need {
        present: Present::File("/usr/include/X11/Xlib.h"),
        package: "libx11-dev",
        why: "pictures of a screen are compared with Xlib's",
    },
    Need { present: Present::File("/usr/include/png.h"), package: "libpng-dev", why: "and with libpng's" },
    Need { present: Present::AnyOf(&["rg"]), package: "ripgrep", why: "searches are compared with it" },
    Need { present: Present::File("/usr/sbin/dockerd"), package: "docker.io", why: "unpacking is compared with it" },
    Need { present: Present::AnyOf(&["docker-registry"]), package: "docker-registry", why: "an image is pulled from it" },
    Need { present: Present::AnyOf(&["pg_createcluster"]), package: "postgresql", why: "nodes share a store" },
];

/// Installs what is missing if possible, otherwise reports what to install.
pub(crate) fn prepare(needs: &[&[Need]]) -> Outcome {
    let missing: Vec<Need> = needs.iter().copied().flatten().copied().filter(|need| !need.present.holds()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for need in &missing {
        eprintln!("{} is missing: {}", need.package, need.why);
    }
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    packages.sort_unstable();
    packages.dedup();
    let names = packages.join(" ");
    if find("apt-get").is_none() {
        return Err(Failure::new(format!("this host has no apt-get; install what Debian calls {names}")));
    }
    if !is_root() {
        return Err(Failure::new(format!("install them with: sudo apt-get install --no-install-recommends {names}")));
    }
    // The package lists may exist already, and fetching them takes a while.
    if run(&mut install(&packages)).is_err() {
        download(program("apt-get").args(["update", "-q"]))?;
        download(&mut install(&packages))?;
    }
    match missing.into_iter().find(|need| !need.present.holds()) {
        Some(need) => Err(Failure::new(format!("{} was installed, but what it should bring is still not there", need.package))),
        None => Ok(()),
    }
}

fn install(packages: &[&str]) -> Command {
    let mut command = program("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command.args(["install", "-q", "-y", "--no-install-recommends"]).args(packages);
    command
}

/// Fails without root, which sandboxes need, and names the command to type.
pub(crate) fn must_be_root(task: &str) -> Outcome {
    if is_root() {
        return Ok(());
    }
    Err(Failure::new(format!("sandboxes need the host's root; run: sudo env PATH=\"$PATH\" HOME=\"$HOME\" cargo xtask {task}")))
}

/// The variable and the file of certificate authorities that this user's programs trust. A network that intercepts TLS is set
/// up like that, and sandboxes need the same.
pub(crate) fn extra_ca() -> Option<(&'static str, String)> {
    let names = ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO"];
    names.into_iter().find_map(|name| std::env::var(name).ok().filter(|path| Path::new(path).is_file()).map(|path| (name, path)))
}
