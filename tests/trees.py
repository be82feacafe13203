"""Compares the files of two images, each as the directories of its layers."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFSOCK: "socket",
}


@contextmanager
def merged(layers: Sequence[Path], at: Path, *options: str) -> Iterator[Path]:
    """Layers, lowest first, as one read-only tree."""
    at.mkdir()
    # A layer alone needs another one below it.
    below = at.parent / f"{at.name}-empty"
    below.mkdir()
    lower = ":".join(str(layer) for layer in [*reversed(layers), below])
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", ",".join(["ro", *options, f"lowerdir={lower}"]), str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


def paths(tree: Path) -> set[str]:
    """All paths below it, as bytes that are no UTF-8 come from the file system."""
    found = set()
    for folder, folders, files in os.walk(tree):
        place = os.path.relpath(folder, tree)
        found |= {os.path.normpath(os.path.join(place, name)) for name in [*folders, *files]}
    return found


def entry(path: Path) -> dict[str, object]:
    """What a path is: type, mode, owner, size, digest of the content, and link's target; empty if it is missing."""
    try:
        about = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found: dict[str, object] = {
        "type": KINDS[stat.S_IFMT(about.st_mode)],
        "mode": f"{stat.S_IMODE(about.st_mode):o}",
        "owner": f"{about.st_uid}:{about.st_gid}",
    }
    if stat.S_ISREG(about.st_mode):
        with path.open("rb") as file:
            found |= {"size": about.st_size, "content": hashlib.file_digest(file, "sha256").hexdigest()}
    elif stat.S_ISLNK(about.st_mode):
        found["link"] = os.readlink(path)
    elif stat.S_ISDIR(about.st_mode):
        found["names"] = sorted(os.listdir(path))
    elif stat.S_ISCHR(about.st_mode) or stat.S_ISBLK(about.st_mode):
        found["device"] = about.st_rdev
    return found


def differences(ours: Path, theirs: Path, where: set[str]) -> Iterator[tuple[str, str, object, object]]:
    """The paths of `where` that differ: path, what differs, here, there."""
    for path in sorted(where):
        here, there = entry(ours / path), entry(theirs / path)
        if not here or not there:
            if here or there:
                yield path, "existence", bool(here), bool(there)
            continue
        for what in here.keys() | there.keys():
            if here.get(what) != there.get(what):
                yield path, what, here.get(what), there.get(what)
