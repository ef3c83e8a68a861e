"""The user's torch: its release and build, the GPU architectures that it was built for, its
devices.

helpers/look/under_torch/facts.py collects the facts under the Python that has torch, for the table
``torch``. It asks for devices only if a person wants that, since it takes a context on each GPU.
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
    """One device under torch's index, which variables such as CUDA_VISIBLE_DEVICES change.

    ``total`` is the device's property total_memory; ``driver_total`` and ``free`` are those of
    mem_get_info. They can contradict (ROCm#6004).
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
    """The torch of one Python interpreter.

    ``build`` is cpu, cuda, rocm, or empty if no torch can be imported. ``cuda`` and ``hip`` are
    the releases that it was built with, ``settings`` those of its allocator.
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
    """The table ``torch``: one row of facts under the interpreter ``python``, or one row with the
    status and the reason why there are none.

    ``devices`` takes a context on every visible GPU: not for a card that somebody else is using.
    """
    source = pkgutil.get_data("helpers.look.under_torch", "facts.py")
    assert source is not None  # only a loader that cannot read files gives None
    arguments = []
    if devices:
        arguments.append("--devices")
    answers = commands.run_python(python, source, tuple(arguments), timeout_s)
    return [{"python": python, **answers[0]}]


def framework(bundle: Bundle) -> Framework:
    """The torch of a bundle; without one, every field says why."""
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
    """How many devices torch can use, or why that is not known."""
    answer = _Answer(bundle)
    why = answer.why_none
    if not why and answer.row.get("devices_taken") is not True:
        why = "not asked for: it would take a context on the GPU"
    elif not why:
        why = answer.why_unread("devices")
    if why:
        return answer.text.refused("", why, "count")
    return answer.text.seen(len(framework(bundle).devices), "count")


class _Answer:
    """The table ``torch``: its text and its only row. ``why_none`` says why no torch can be
    imported, and is empty if one can.
    """

    def __init__(self, bundle: Bundle):
        self.text = bundle.read(TABLE)
        self.row = next(iter(bundle.table(TABLE)), Row())
        self.why_none = ""
        if self.row.get("status") != OK:
            reasons = [self.row.get("why"), self.text.why, self.text.status]
            self.why_none = str(next(filter(None, reasons)))

    def build(self) -> str:
        """See Framework."""
        if self.why_none:
            return ""
        if self.row.get("hip"):
            return "rocm"
        if self.row.get("cuda"):
            return "cuda"
        return "cpu"

    def why_unread(self, name: str) -> str:
        """Why facts.py could not read a field, or an empty text."""
        return self.row.inner("unread").text(name)

    def reading(self, name: str) -> Reading:
        """A field of the row, or why it has no value."""
        if self.why_none:
            return self.text.refused(self.row.get("status"), self.why_none)
        if self.row.get(name) is not None:
            return word(self.row[name], self.text)
        why = self.why_unread(name)
        if not why and name in ("cuda", "hip"):
            why = "not part of this build"
        elif not why:
            why = "no such field"
        return self.text.missing(why)

    def settings(self) -> Reading:
        """The allocator's settings; an empty text means its defaults."""
        if not self.why_none and self.row.get("allocator_settings") == "":
            return self.text.seen("defaults")
        return self.reading("allocator_settings")


def _device(row: Row, text: Text) -> TorchDevice:
    integrated = None
    if row.get("integrated") is not None:
        integrated = str(row["integrated"]) in ("1", "True")  # by the release of torch
    return TorchDevice(
        index=row["index"],
        pci=pci_address(row.get("pci")),
        name=word(row.get("name"), text),
        integrated=integrated,
        total=_memory(row, "total_bytes", "properties", text),
        driver_total=_memory(row, "driver_total_bytes", "memory", text),
        free=_memory(row, "free_bytes", "memory", text),
    )


def _memory(row: Row, name: str, question: str, text: Text) -> Reading:
    """A size of a device, or why it was not read. ``question`` is the name of facts.py for the call
    that gives several fields.
    """
    why = row.inner("unread").text(question)
    if row.get(name) is None and why:
        return text.missing(why, "bytes")
    return size(row.get(name), text, "B")


def recorded_python() -> str:
    """The Python with torch that the set-up recorded, which may have been removed since; empty if
    there is no record.
    """
    try:
        text = (CHECKOUT / ".venv" / "casebook.json").read_text("utf-8")
        record = json.loads(text, object_hook=Row)
    except (OSError, ValueError):
        return ""
    if not isinstance(record, Row):
        return ""
    return record.text("torch_python")
