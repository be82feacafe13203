"""A certificate authority of a test, and the certificate and key of its server, made by openssl."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

EXTENSIONS = """[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
subjectKeyIdentifier = hash
keyUsage = critical, keyCertSign
[server]
basicConstraints = critical, CA:FALSE
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
extendedKeyUsage = serverAuth
subjectAltName = {names}
"""


class Authority:
    """Its files: `ca.pem`, `cert.pem`, and `key.pem`."""

    def __init__(self, folder: Path, names: str = "DNS:localhost, IP:127.0.0.1"):
        self.folder = folder
        self.ca, self.cert, self.key = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
        (folder / "extensions").write_text(EXTENSIONS.format(names=names))
        self._make("ca", "authority", days=30)
        self.issue()

    def issue(self, days: int = 30) -> None:
        """Replaces the server's pair as a renewal does."""
        self._make("new", "server", days, "-CA", "ca.pem", "-CAkey", "ca.key")
        (self.folder / "new.pem").replace(self.cert)
        (self.folder / "new.key").replace(self.key)

    def _make(self, name: str, kind: str, days: int, *signer: str) -> None:
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        command += ["-config", "extensions", "-extensions", kind, "-days", str(days), "-subj", f"/CN=Arenite test {kind}"]
        command += ["-keyout", f"{name}.key", "-out", f"{name}.pem", *signer]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca))
