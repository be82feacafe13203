"""A fake resolver: it answers names below `.test` with one address, and nothing else."""

from __future__ import annotations

import socket
import struct
import threading


class FakeNames:
    """Serves queries over UDP on loopback until it is closed."""

    def __init__(self, suffix: str, address: str):
        self.suffix, self.address = suffix, socket.inet_aton(address)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self.socket.close()

    def _serve(self) -> None:
        while True:
            try:
                query, client = self.socket.recvfrom(4096)
                self.socket.sendto(self._answer(query), client)
            except (OSError, IndexError, struct.error):
                if self.socket.fileno() < 0:
                    return

    def _answer(self, query: bytes) -> bytes:
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        question = query[12 : at + 5]
        [kind] = struct.unpack(">H", query[at + 1 : at + 3])
        is_known = ".".join(labels).lower().endswith(self.suffix)
        found = is_known and kind == 1
        head = query[:2] + struct.pack(">5H", 0x8180 | (0 if is_known else 3), 1, int(found), 0, 0)
        record = b"\xc0\x0c" + struct.pack(">2HIH", 1, 1, 60, 4) + self.address
        return head + question + (record if found else b"")
