"""Servers beyond the host that a server of ours finds by name and trusts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arenite_server import Server
from authority import Authority
from isolation.fake_names import FakeNames


@contextmanager
def trusted_names(server: Server, folder: Path, authority: Authority, suffix: str, address: str) -> Iterator[tuple[str, ...]]:
    """Restarts the server so that names below the suffix lead to the address, and its proxy trusts the authority. The arguments are for further restarts."""
    names = FakeNames(suffix, address)
    # The proxy trusts what the operator adds, as sandboxes do.
    before = os.environ.get("ARENITE_TEST_EXTRA_CA")
    trusted = folder / "trusted.pem"
    trusted.write_text((Path(before).read_text() if before else "") + authority.ca.read_text())
    trusted.chmod(0o644)
    for directory in list(folder.parents)[:3]:
        directory.chmod(0o755)
    folder.chmod(0o755)
    os.environ["ARENITE_TEST_EXTRA_CA"] = str(trusted)
    try:
        arguments = ("--resolver", f"127.0.0.1:{names.port}")
        server.restart(arguments)
        yield arguments
    finally:
        os.environ.pop("ARENITE_TEST_EXTRA_CA")
        if before:
            os.environ["ARENITE_TEST_EXTRA_CA"] = before
        names.close()
        server.restart()
