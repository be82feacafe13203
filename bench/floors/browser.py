"""Xvnc and a headed Chromium, started by hand, one as soon as the other serves. Prints two numbers, the microseconds until the
browser answers on its DevTools port and those until its window is painted. With "stay" it leaves both running."""

import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

DISPLAY = 7
PORT = 9777
WAIT = 0.002
# Those of Arenite's own that change what is started.
FLAGS = """--no-sandbox --start-maximized --no-first-run --no-default-browser-check --password-store=basic --disable-gpu
--enable-unsafe-swiftshader --disable-background-networking --disable-component-update --disable-sync
--disable-site-isolation-trials""".split()


class Screen:
    """As much of the X11 protocol as a look at some pixels takes."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(f"/tmp/.X11-unix/X{DISPLAY}")
        self.socket.sendall(struct.pack("<BxHHHHxx", ord("l"), 11, 0, 0, 0))
        status, length = struct.unpack("<BxxxxxH", self.exactly(8))
        assert status == 1, "the X server refuses"
        setup = self.exactly(4 * length)
        vendor, formats = struct.unpack_from("<H", setup, 16)[0], setup[21]
        self.root = struct.unpack_from("<I", setup, 32 + (vendor + 3) // 4 * 4 + 8 * formats)[0]

    def exactly(self, length: int) -> bytes:
        got = b""
        while len(got) < length:
            more = self.socket.recv(length - len(got))
            assert more, "the X server has gone"
            got += more
        return got

    def is_painted(self) -> bool:
        """Whether the window's bars are there: they have more than one colour, and the bare screen has one."""
        get_image = struct.pack("<BBHIhhHHI", 73, 2, 5, self.root, 0, 0, 200, 80, 0xFFFFFFFF)
        self.socket.sendall(get_image)
        head = self.exactly(32)
        assert head[0] == 1, "the X server answers with an error"
        pixels = self.exactly(4 * struct.unpack_from("<I", head, 4)[0])
        return pixels != pixels[:4] * (len(pixels) // 4)


def answers() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/json/version", timeout=5):
            return True
    except urllib.error.URLError:
        return False


profile = tempfile.mkdtemp(dir=os.path.expanduser("~"))
quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
xvnc = ["Xvnc", f":{DISPLAY}", "-geometry", "1280x1024", "-depth", "24", "-rfbport", "-1", "-rfbunixpath", f"{profile}/vnc"]
chromium = ["/usr/lib/chromium/chromium", *FLAGS, f"--user-data-dir={profile}", f"--remote-debugging-port={PORT}", "about:blank"]
begun = time.perf_counter()
announced, announce = os.pipe()
server = subprocess.Popen(
    [*xvnc, "-SecurityTypes", "None", "-displayfd", str(announce)], stdout=subprocess.DEVNULL, pass_fds=[announce], **quiet
)
os.read(announced, 1)
display = {**os.environ, "DISPLAY": f":{DISPLAY}"}
browser = subprocess.Popen(chromium, stdout=subprocess.DEVNULL, env=display, **quiet)
screen = Screen()
ready = painted = None
while not (ready and painted):
    now = time.perf_counter() - begun
    if not painted and screen.is_painted():
        painted = now
    if not ready and answers():
        ready = now
    assert now < 60, "the browser does not come"
    time.sleep(WAIT)
sys.stdout.write(f"{ready * 1e6:.0f} {painted * 1e6:.0f}\n")
if "stay" not in sys.argv:
    for process in (browser, server):
        process.kill()
        process.wait()
    shutil.rmtree(profile, ignore_errors=True)
