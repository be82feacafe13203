"""`arenite rag`, on data directories of the tests' own: no server is needed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arenite_server import binary

Rag = Callable[..., subprocess.CompletedProcess[str]]


def run_rag(data_dir: Path, *words: str | Path, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")}
    line = [str(binary()), "rag", *map(str, words)]
    if words[0] != "embed":
        line += ["--data-dir", str(data_dir)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=900, env=environment, check=False, **more)
    assert not check or done.returncode == 0, done.stderr
    assert "panicked" not in done.stderr, done.stderr
    return done


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path
