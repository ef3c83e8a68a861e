"""The user's torch: its build, what it was built for, and its devices where they were looked at.

The facts are taken by helpers/look/under_torch/facts.py under the interpreter that owns torch, and
stand in the table ``torch``. By default no GPU context is taken, so devices are there only
where they were asked for.
"""

from __future__ import annotations

import json
import pkgutil
from dataclasses import dataclass
from typing import Any

from helpers.ground.child import CHECKOUT
from helpers.ground.shapes import OK, Reading
from helpers.ground.units import pci_address
from helpers.look.vendor_text import size, word

from . import guard
from .bundle import Bundle, Row, Text, rows

TABLE = "torch"


@dataclass(frozen=True)
class TorchDevice:
    """One device under torch's index, after all visibility variables.

    ``total`` is the device property and ``driver_total`` what mem_get_info says: they can
    contradict (ROCm#6004), and ``free`` with them.
    """

    index: int
    pci: str
    name: Reading
    integrated: bool | None
    total: Reading
    driver_total: Reading
    free: Reading


@dataclass(frozen=True)
class Framework:
    """The torch of one interpreter.

    ``build`` is cpu, cuda, rocm, or empty where there is no torch that imports.
    """

    python: Reading
    version: Reading
    build: str
    cuda: Reading
    hip: Reading
    archs: tuple[str, ...]
    settings: Reading
    devices: tuple[TorchDevice, ...]


def collect(python: str, timeout_s: float, devices: bool = False) -> list[dict[str, Any]]:
    """The table ``torch``: one row of facts taken under ``python``, or one row with status and
    why.

    ``devices`` starts the runtime on every visible GPU: never on a card that somebody else is
    using.
    """
    source = pkgutil.get_data("helpers.look.under_torch", "facts.py") or b""
    rows = guard.ask(python, source, ("--devices",) if devices else (), timeout_s)
    return [{"python": python, **rows[0]}]


def framework(bundle: Bundle) -> Framework:
    """The torch that the table holds; without one, every field says why."""
    text, row, failed = _answer(bundle)

    def reading(name: str) -> Reading:
        if failed:
            return text.refused(row.get("status"), failed)
        if row.get(name) is None:
            why = "not part of this build" if name in ("cuda", "hip") else "no such field"
            return text.missing(str(row.inner("unread").get(name) or why))
        # An empty text is an answer here: the allocator runs with its defaults.
        default = name == "allocator_settings" and row[name] == ""
        return text.seen("defaults") if default else word(row[name], text)

    listed = [] if failed else rows(row.get("devices"))
    return Framework(
        word(row.get("python_version"), text) if row else reading("python_version"),
        reading("torch"),
        "" if failed else "rocm" if row.get("hip") else "cuda" if row.get("cuda") else "cpu",
        reading("cuda"),
        reading("hip"),
        tuple(map(str, row.many("archs"))),
        reading("allocator_settings"),
        tuple(_device(one, text) for one in listed if one.number("index") is not None),
    )


def devices_reading(bundle: Bundle) -> Reading:
    """How many devices torch could start on, or why they were not looked at or none could be
    started.
    """
    text, row, failed = _answer(bundle)
    why = failed or row.inner("unread").get("devices")
    if not failed and row.get("devices_taken") is not True:
        why = "not asked for: it would take a context on the GPU"
    found = framework(bundle).devices
    return text.refused("", str(why), "count") if why else text.seen(len(found), "count")


def _answer(bundle: Bundle) -> tuple[Text, Row, str]:
    """The table's text and row, and why there is no torch that imports, or empty."""
    text = bundle.read(TABLE)
    row = next(iter(bundle.table(TABLE)), Row())
    if row.get("status") == OK:
        return text, row, ""
    return text, row, str(row.get("why") or text.why or text.status)


def _device(row: Row, text: Text) -> TorchDevice:
    def memory(name: str, asked: str) -> Reading:
        why = row.inner("unread").get(asked) if row.get(name) is None else None
        return text.missing(str(why), "bytes") if why else size(row.get(name), text, "B")

    whole, driver = memory("total_bytes", "properties"), memory("driver_total_bytes", "memory")
    integrated = row.get("integrated")
    shared = None if integrated is None else str(integrated) in ("1", "True")
    names = row["index"], pci_address(row.get("pci")), word(row.get("name"), text)
    return TorchDevice(*names, shared, whole, driver, memory("free_bytes", "memory"))


def recorded_python() -> str:
    """The interpreter that owns torch as set-up found it, which may be gone meanwhile; empty
    where nothing is recorded.
    """
    try:
        kept = json.loads((CHECKOUT / ".venv" / "casebook.json").read_text("utf-8"))
    except (OSError, ValueError):
        return ""
    python = kept.get("torch_python") if isinstance(kept, dict) else ""
    return python if isinstance(python, str) else ""
