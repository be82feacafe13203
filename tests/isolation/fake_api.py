"""A fake service over TLS and HTTP: it writes each request to a file, and answers with what it got.

Run as `fake_api.py ADDRESS CERTIFICATE KEY LOG REPOSITORIES`: TLS on port 443, HTTP on port 80. Below `/git/`, it serves the files
of REPOSITORIES, for the user and password in its file `login`.
"""

from __future__ import annotations

import base64
import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    log: str
    repositories: Path

    def file(self) -> None:
        login = base64.b64encode((self.repositories / "login").read_bytes()).decode()
        path = self.repositories / self.path.split("?")[0].removeprefix("/git/")
        status = 200 if path.is_file() else 404
        if self.headers.get("authorization") != f"Basic {login}":
            status = 401
        content = path.read_bytes() if status == 200 else b""
        self.send_response(status)
        if status == 401:
            self.send_header("www-authenticate", 'Basic realm="git"')
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def answer(self) -> None:
        if self.path.startswith("/git/"):
            return self.file()
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
    address, certificate, key, Echo.log, repositories = sys.argv[1:]
    Echo.repositories = Path(repositories)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    # HTTPServer would look for the address's name, which takes ten seconds here.
    ThreadingTCPServer.daemon_threads = True
    plain, tls = (ThreadingTCPServer((address, port), Echo) for port in (80, 443))
    tls.socket = context.wrap_socket(tls.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=plain.serve_forever, daemon=True).start()
    tls.serve_forever()


main()
