"""A network namespace in which AgentFlow's default address leads to the server under test.

On the host that address may belong to a server of the user's, which tests must not reach.
Run as a program, this is the forwarder: `default_address.py NAMESPACE PORT` listens on the default address inside the
namespace and passes connections on to the port outside.
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

DEFAULT = ("127.0.0.1", 18890)
CLONE_NEWNET = 0x40000000

_numbers = itertools.count()


@contextmanager
def default_address(port: int) -> Iterator[list[str]]:
    """Yields the words to put before a command that should run inside the namespace."""
    name = f"arenite-test-{os.getpid()}-{next(_numbers)}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        forwarder = subprocess.Popen([sys.executable, __file__, name, str(port)], stdout=subprocess.PIPE, text=True)
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


def listen_inside(name: str) -> socket.socket:
    """A socket stays in the namespace that it was made in, also when its process leaves."""
    outside = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    inside = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    enter(inside)
    try:
        listener = socket.create_server(DEFAULT, backlog=128)
    finally:
        enter(outside)
        os.close(inside)
        os.close(outside)
    return listener


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def forward(name: str, port: int) -> None:
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

    server = await asyncio.start_server(serve, sock=listen_inside(name))
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(forward(sys.argv[1], int(sys.argv[2])))
