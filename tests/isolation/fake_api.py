"""A fake service over TLS and HTTP: it writes each request to a file, and answers with what it got.

Run as `fake_api.py ADDRESS CERTIFICATE KEY LOG`: TLS on port 443, HTTP on port 80.
"""

from __future__ import annotations

import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    log: str

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode(errors="replace")
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size).decode(errors="replace")
                self.rfile.readline()
            self.rfile.readline()
        got = {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": body}
        with open(self.log, "a") as log:
            log.write(json.dumps(got) + "\n")
        answer = json.dumps(got).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = answer

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    address, certificate, key, Echo.log = sys.argv[1:]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    plain, tls = (ThreadingHTTPServer((address, port), Echo) for port in (80, 443))
    tls.socket = context.wrap_socket(tls.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=plain.serve_forever, daemon=True).start()
    tls.serve_forever()


main()
