"""A small internet for tests of network policies: DNS for `.test`, and sites with TLS. Runs in a namespace of the tests.

Arguments: its address, and a folder with `cert.pem`, `key.pem`, and the files of its sites. All names lead to this address.
"""

from __future__ import annotations

import functools
import http.server
import socket
import socketserver
import ssl
import struct
import sys
import threading
from pathlib import Path

ADDRESS, FOLDER = sys.argv[1], Path(sys.argv[2])
TYPE_A, NO_SUCH_NAME = 1, 3


class Names(socketserver.BaseRequestHandler):
    """Each name below `.test` has this address, and nothing else has one."""

    def handle(self) -> None:
        query, channel = self.request
        labels, at = [], 12
        while length := query[at]:
            labels.append(query[at + 1 : at + 1 + length].decode())
            at += 1 + length
        (kind,) = struct.unpack(">H", query[at + 1 : at + 3])
        question = query[12 : at + 5]
        exists = labels[-1] == "test"
        answers = socket.inet_aton(ADDRESS) if exists and kind == TYPE_A else b""
        head = query[:2] + struct.pack(">5H", 0x8180 | (0 if exists else NO_SUCH_NAME), 1, 1 if answers else 0, 0, 0)
        record = b"\xc0\x0c" + struct.pack(">2HIH", TYPE_A, 1, 60, 4) + answers if answers else b""
        channel.sendto(head + question + record, self.client_address)


class Site(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def serve(server: socketserver.BaseServer) -> None:
    threading.Thread(target=server.serve_forever, daemon=True).start()


class Sites(http.server.ThreadingHTTPServer):
    request_queue_size = 64
    context: ssl.SSLContext | None = None

    def finish_request(self, request: socket.socket, client_address: object) -> None:
        # In the request's thread: a client that says nothing keeps no other waiting.
        if self.context:
            request = self.context.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, *_: object) -> None:
        pass


def main() -> None:
    site = functools.partial(Site, directory=str(FOLDER / "site"))
    secure = Sites((ADDRESS, 443), site)
    secure.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.context.load_cert_chain(FOLDER / "cert.pem", FOLDER / "key.pem")
    for server in (socketserver.ThreadingUDPServer((ADDRESS, 53), Names), secure, Sites((ADDRESS, 80), site)):
        serve(server)
    print("ready", flush=True)
    threading.Event().wait()


main()
