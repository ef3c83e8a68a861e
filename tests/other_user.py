"""Code run as another user, for what this process may read and others may not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOBODY = 65534


def as_nobody(code: str, *arguments: object) -> Any:
    """What ``code`` prints as JSON when it runs under another uid with no groups; skips where that cannot be."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv to become another user")
    become = [
        "setpriv",
        "--reuid",
        str(NOBODY),
        "--regid",
        str(NOBODY),
        "--clear-groups",
        sys.executable,
        "-c",
    ]
    first = subprocess.run(
        [*become, f"import sys; sys.path.insert(0, {str(ROOT)!r}); import helpers.look.bundle"],
        capture_output=True,
        text=True,
        check=False,
    )
    if first.returncode:
        pytest.skip("another user cannot run this Python or read this checkout")
    ran = subprocess.run(
        [*become, f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest closes its own to them whenever it starts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
