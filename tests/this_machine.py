"""Names of this machine in a notebook that is about to be committed: each is replaced by what it is.

Only values that this machine knows of itself are looked for: host, user, home, checkout, ids and
addresses. Nothing else is changed.
"""

from __future__ import annotations

import getpass
import json
import re
import socket
import tempfile
from pathlib import Path

import nbformat
import psutil

ROOT = Path(__file__).resolve().parents[1]
IDS = ("/etc/machine-id", "/proc/sys/kernel/random/boot_id")
EVERYWHERE = {"root", "localhost", "127.0.0.1", "::1", "0.0.0.0", "00:00:00:00:00:00", "/"}
SHORTEST = 3


def known_values() -> dict[str, str]:
    """Each value of this machine with the word that stands for it, the longest value first."""
    values = {
        str(ROOT): "CHECKOUT",
        str(Path.home()): "HOME",
        tempfile.gettempdir(): "TMP",
        getpass.getuser(): "USER",
        socket.getfqdn(): "HOST",
        socket.gethostname(): "HOST",
    }
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            values[address.address.partition("%")[0]] = "ADDRESS"
    for path in map(Path, IDS):
        if path.is_file():
            values[path.read_text().strip()] = "ID"
    return {
        value: values[value]
        for value in sorted(values, key=len, reverse=True)
        if len(value) >= SHORTEST and value not in EVERYWHERE
    }


def replaced(text: str, known: dict[str, str]) -> str:
    """The text with each known value replaced where it is no part of a longer word."""
    if not known:
        return text
    values = "|".join(re.escape(value) for value in known)
    whole_word = rf"(?<![\w.-])(?:{values})(?![\w-]|\.\w)"
    return re.sub(whole_word, lambda match: known[match[0]], text)


def replace_in_notebook(notebook: nbformat.NotebookNode, known: dict[str, str]) -> int:
    """Replace known values in the sources and outputs of a notebook; returns in how many texts."""
    changed = 0
    for cell in notebook.cells:
        source = replaced(cell.source, known)
        outputs = json.dumps(cell.get("outputs", []), ensure_ascii=False)
        clean = replaced(outputs, known)
        changed += (source != cell.source) + (clean != outputs)
        cell.source = source
        if "outputs" in cell:
            cell.outputs = nbformat.from_dict(json.loads(clean))
    return changed
