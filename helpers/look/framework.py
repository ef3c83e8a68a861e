"""The user's torch: its build, what it was built for, and its devices where they were looked at.

The facts are taken by helpers/look/under_torch/facts.py under the interpreter that owns torch, and
stand in the table ``torch``. By default no GPU context is taken, so devices are there only
where they were asked for.
"""

from __future__ import annotations

import json
import pkgutil
from dataclasses import dataclass

from helpers.ground.child import CHECKOUT
from helpers.ground.shapes import OK, Reading
from helpers.ground.units import pci_address
from helpers.look.bundle import Bundle, JsonRow, Row, Text, rows
from helpers.look.vendor_text import size, word

from . import commands

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


def collect(python: str, timeout_s: float, devices: bool = False) -> list[JsonRow]:
    """The table ``torch``: one row of facts taken under ``python``, or one row with status and
    why.

    ``devices`` starts the runtime on every visible GPU: never on a card that somebody else is
    using.
    """
    source = pkgutil.get_data("helpers.look.under_torch", "facts.py") or b""
    arguments = ("--devices",) if devices else ()
    answers = commands.run_python(python, source, arguments, timeout_s)
    return [{"python": python, **answers[0]}]


def framework(bundle: Bundle) -> Framework:
    """The torch that the table holds; without one, every field says why."""
    answer = _Answer(bundle)
    row = answer.row
    python = answer.reading("python_version")
    if row:
        python = word(row.get("python_version"), answer.text)
    devices = []
    if not answer.why_none:
        for device in rows(row.get("devices")):
            if device.number("index") is not None:
                devices.append(_device(device, answer.text))
    return Framework(
        python=python,
        version=answer.reading("torch"),
        build=answer.build(),
        cuda=answer.reading("cuda"),
        hip=answer.reading("hip"),
        archs=tuple(map(str, row.many("archs"))),
        settings=answer.settings(),
        devices=tuple(devices),
    )


def devices_reading(bundle: Bundle) -> Reading:
    """How many devices torch could start on, or why they were not looked at or none could be
    started.
    """
    answer = _Answer(bundle)
    why = answer.why_none
    if not why and answer.row.get("devices_taken") is not True:
        why = "not asked for: it would take a context on the GPU"
    why = why or str(answer.row.inner("unread").get("devices") or "")
    if why:
        return answer.text.refused("", why, "count")
    return answer.text.seen(len(framework(bundle).devices), "count")


class _Answer:
    """The table's text and row; ``why_none`` says why there is no torch that imports."""

    def __init__(self, bundle: Bundle):
        self.text = bundle.read(TABLE)
        self.row = next(iter(bundle.table(TABLE)), Row())
        self.why_none = ""
        if self.row.get("status") != OK:
            self.why_none = str(
                self.row.get("why") or self.text.why or self.text.status
            )

    def build(self) -> str:
        if self.why_none:
            return ""
        if self.row.get("hip"):
            return "rocm"
        return "cuda" if self.row.get("cuda") else "cpu"

    def reading(self, name: str) -> Reading:
        if self.why_none:
            return self.text.refused(self.row.get("status"), self.why_none)
        if self.row.get(name) is None:
            usual = (
                "not part of this build" if name in ("cuda", "hip") else "no such field"
            )
            return self.text.missing(str(self.row.inner("unread").get(name) or usual))
        return word(self.row[name], self.text)

    def settings(self) -> Reading:
        """The allocator's settings; an empty text is an answer: it runs with its defaults."""
        if not self.why_none and self.row.get("allocator_settings") == "":
            return self.text.seen("defaults")
        return self.reading("allocator_settings")


def _device(row: Row, text: Text) -> TorchDevice:
    integrated = row.get("integrated")
    return TorchDevice(
        index=row["index"],
        pci=pci_address(row.get("pci")),
        name=word(row.get("name"), text),
        integrated=None if integrated is None else str(integrated) in ("1", "True"),
        total=_memory(row, "total_bytes", "properties", text),
        driver_total=_memory(row, "driver_total_bytes", "memory", text),
        free=_memory(row, "free_bytes", "memory", text),
    )


def _memory(row: Row, name: str, question: str, text: Text) -> Reading:
    """A size of a device, or why the question that gives it was not answered."""
    if row.get(name) is None:
        why = row.inner("unread").get(question)
        if why:
            return text.missing(str(why), "bytes")
    return size(row.get(name), text, "B")


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
