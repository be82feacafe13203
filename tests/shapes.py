"""Images in the shapes of those that tasks come in, made from this host's programs, as `docker save` writes them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from registries import docker_archive, layer

#: Answers each request on the port of its first argument. It needs nothing of an image.
SERVE = r"""
#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv) {
  static const char answer[] = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nhello\n";
  struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 8000)};
  int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, (struct sockaddr *)&place, sizeof place) || listen(listener, 16)) return 1;
  for (;;) {
    char request[4096];
    int client = accept(listener, 0, 0);
    if (client < 0) return 2;
    if (read(client, request, sizeof request) > 0 && write(client, answer, sizeof answer - 1) < 0) return 3;
    close(client);
  }
}
"""

GLIBC_PASSWD = b"root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"
MUSL_PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n"


def compiled(folder: Path, name: str, *command: str) -> bytes:
    source = folder / "serve.c"
    source.write_text(SERVE)
    program = folder / name
    subprocess.run([*command, "-O1", "-s", "-o", str(program), str(source)], check=True)
    return program.read_bytes()


def busybox_links() -> dict[str, bytes | str | None]:
    listed = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    return {f"bin/{name}": "busybox" for name in listed if name != "busybox"}


def busybox(folder: Path, name: str) -> Path:
    """busybox and its links, and nothing else."""
    files = {
        "bin": None,
        "bin/busybox": Path("/bin/busybox").read_bytes(),
        **busybox_links(),
        "bin/serve": compiled(folder, "musl-static", "musl-gcc", "-static"),
    }
    config = {"Env": ["PATH=/bin"], "Cmd": ["sh"]}
    return docker_archive(folder / "busybox.tar", name, [layer(files, ("bin/busybox", "bin/serve"))], config)


def alpine(folder: Path, name: str) -> Path:
    """musl and busybox, with the directories and users of a distribution."""
    folders = ("bin", "dev", "etc", "home", "lib", "opt", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "usr/bin", "var", "var/log")
    release = b'NAME="Alpine Linux"\nID=alpine\nVERSION_ID=3.20.0\n'
    files = {
        **dict.fromkeys(folders),
        "bin/busybox": Path("/bin/busybox").read_bytes(),
        **busybox_links(),
        "etc/group": b"root:x:0:root\nnobody:x:65534:\n",
        "etc/os-release": release,
        "etc/passwd": MUSL_PASSWD,
        "lib/ld-musl-x86_64.so.1": Path("/lib/ld-musl-x86_64.so.1").read_bytes(),
        # Debian has no apk. Only its presence counts.
        "sbin/apk": b"#!/bin/sh\necho 'this stands for apk' >&2; exit 1\n",
        "usr/bin/serve": compiled(folder, "musl-dynamic", "musl-gcc"),
    }
    programs = ("bin/busybox", "lib/ld-musl-x86_64.so.1", "sbin/apk", "usr/bin/serve")
    config = {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["/bin/sh"]}
    modes = {"tmp": 0o1777, "root": 0o700}
    return docker_archive(folder / "alpine.tar", name, [layer(files, programs, modes)], config)


def distroless(folder: Path, name: str) -> Path:
    """glibc, certificates and users, and no shell. It runs as a user by number, and the home of that user is missing."""
    serve = compiled(folder, "glibc-dynamic", "gcc")
    listed = subprocess.run(["ldd", str(folder / "glibc-dynamic")], capture_output=True, text=True, check=True).stdout
    libraries = re.findall(r"(/\S+)", listed)
    files: dict[str, bytes | str | None] = dict.fromkeys(("etc", "etc/ssl", "etc/ssl/certs", "tmp", "usr", "usr/bin"))
    for library in libraries:
        parents = [str(parent).lstrip("/") for parent in reversed(Path(library).parents)][1:]
        files.update(dict.fromkeys(parents))
        files[library.lstrip("/")] = Path(library).read_bytes()
    files |= {
        "etc/group": b"root:x:0:\nnonroot:x:65532:\n",
        "etc/os-release": b'PRETTY_NAME="Distroless"\nNAME="Debian GNU/Linux"\nID="debian"\nVERSION_ID="12"\n',
        "etc/passwd": GLIBC_PASSWD,
        "etc/ssl/certs/ca-certificates.crt": Path("/etc/ssl/certs/ca-certificates.crt").read_bytes(),
        "usr/bin/serve": serve,
    }
    programs = ("usr/bin/serve", *(library.lstrip("/") for library in libraries))
    config = {"User": "65532", "Entrypoint": ["/usr/bin/serve"], "Env": ["SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"]}
    return docker_archive(folder / "distroless.tar", name, [layer(files, programs, {"tmp": 0o1777})], config)


def scratch(folder: Path, name: str) -> Path:
    """One static binary, and not even a directory."""
    serve = compiled(folder, "musl-static", "musl-gcc", "-static")
    return docker_archive(folder / "scratch.tar", name, [layer({"serve": serve}, ("serve",))], {"Entrypoint": ["/serve"]})


#: The shapes that are loaded as archives: how each is made, and its program that serves.
ARCHIVES: dict[str, tuple[Callable[[Path, str], Path], str]] = {
    "alpine": (alpine, "/usr/bin/serve"),
    "busybox": (busybox, "/bin/serve"),
    "distroless": (distroless, "/usr/bin/serve"),
    "scratch": (scratch, "/serve"),
}

#: The shape of `python:3.12-slim`, on the base image: Debian with Python and bash, root alone, and no sudo.
SLIM = """FROM base
USER root
WORKDIR /
RUN rm -f /usr/bin/sudo && userdel -r gem
"""
