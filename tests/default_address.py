"""A network namespace in which default addresses lead to the server under test.

On the host these addresses may belong to a server of the user's, which tests must not reach.
Run as a program, this is the forwarder: `default_address.py NAMESPACE PORT DEFAULT...` listens on the default ports of
127.0.0.1 inside the namespace and passes connections on to the port outside.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Where AgentFlow's clients look.
DEFAULT = 18890
CLONE_NEWNET = 0x40000000

_numbers = itertools.count()


@contextmanager
def default_address(port: int, *defaults: int) -> Iterator[list[str]]:
    """Default ports are AgentFlow's unless others are given. Yields the words to put before a command that should run inside the namespace."""
    name = f"arenite-test-{os.getpid()}-{next(_numbers)}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        forwarder = subprocess.Popen(
            [sys.executable, __file__, name, *map(str, (port, *(defaults or (DEFAULT,))))], stdout=subprocess.PIPE, text=True
        )
        try:
            assert forwarder.stdout is not None and forwarder.stdout.readline() == "listening\n", "the forwarder did not start"
            yield ["nsenter", f"--net=/run/netns/{name}"]
        finally:
            forwarder.send_signal(signal.SIGTERM)
            forwarder.wait(10)
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def enter(file: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(file, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def listen_inside(name: str, defaults: list[int]) -> list[socket.socket]:
    """Sockets stay in the namespace that they were created in, also when their process leaves."""
    outside = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    inside = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    enter(inside)
    try:
        listeners = [socket.create_server(("127.0.0.1", port), backlog=128) for port in defaults]
    finally:
        enter(outside)
        os.close(inside)
        os.close(outside)
    return listeners


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def forward(name: str, port: int, defaults: list[int]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(pump(reader, onward_writer), pump(onward_reader, writer))
        except OSError:
            pass
        finally:
            onward_writer.close()
            writer.close()

    servers = [await asyncio.start_server(serve, sock=listener) for listener in listen_inside(name, defaults)]
    print("listening", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(forward(sys.argv[1], int(sys.argv[2]), [int(port) for port in sys.argv[3:]]))
