"""The user's torch: its build, what it was built for, and its devices where they were looked at.

The facts are taken by helpers/torchside/facts.py under the interpreter that owns torch, and stand in the table ``torch``. By
default no GPU context is taken, so devices are there only where they were asked for.
"""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass
from typing import Any

from helpers.units import pci_address

from . import program
from .bundle import Bundle
from .reading import NOT_ALLOWED, NOT_AVAILABLE, Reading, not_available, seen
from .vendor_text import Failure, count, listed, mapping, size, word

COMMANDS: tuple[tuple[str, ...], ...] = ()
FILES: tuple[str, ...] = ()
TABLE = "torch"


@dataclass(frozen=True)
class TorchDevice:
    """One device under torch's index, after all visibility variables.

    ``total`` is the device property and ``driver_total`` what mem_get_info says: they can contradict (ROCm#6004), and
    ``free`` with them.
    """

    index: int
    pci: str
    name: Reading
    gfx: Reading
    capability: Reading
    integrated: bool | None
    uuid: Reading
    multiprocessors: Reading
    total: Reading
    driver_total: Reading
    free: Reading


@dataclass(frozen=True)
class Framework:
    """The torch of one interpreter. ``build`` is cpu, cuda, rocm, or empty where there is no torch that imports.

    ``cudnn`` is MIOpen's version on ROCm. ``names`` are the variables and allocator options whose names stand in the binaries
    of the allocator: one that is missing there may still be read. ``variables`` is what this interpreter was given.
    """

    interpreter: str
    python: Reading
    version: Reading
    build: str
    cuda: Reading
    hip: Reading
    git: Reading
    path: Reading
    archs: tuple[str, ...]
    cudnn: Reading
    nccl: Reading
    driver_cuda: Reading
    allocator: Reading
    settings: Reading
    names: tuple[str, ...]
    variables: dict[str, str]
    warnings: tuple[str, ...]
    import_s: float
    device_count: Reading
    devices: tuple[TorchDevice, ...]


def collect(python: str, timeout_s: float, devices: bool = False) -> list[dict[str, Any]]:
    """The table ``torch``: one row of facts taken under ``python``, or one row with status and why.

    ``devices`` starts the runtime on every visible GPU: never on a card that somebody else is using.
    """
    source = pkgutil.get_data("helpers.torchside", "facts.py") or b""
    rows = program.ask(python, source, ("--devices",) if devices else (), timeout_s)
    return [{"python": python, **rows[0]}]


def framework(bundle: Bundle) -> Framework:
    """The torch that the table holds; without one, every field says why."""
    text = bundle.read(TABLE)
    row = next(iter(bundle.table(TABLE)), {})
    failure = _failure(row, text.why or text.status)
    unread = mapping(row.get("unread"))

    def reading(name: str, unit: str = "text") -> Reading:
        if failure:
            return failure.reading(unit, TABLE, text.item)
        if row.get(name) is None:
            why = unread.get(name) or ("not part of this build" if name in ("cuda", "hip") else "no such field")
            return not_available(str(why), unit, TABLE, text.item)
        return (count if unit == "count" else word)(row.get(name), TABLE, text.item)

    python = word(row.get("python_version"), TABLE, text.item) if row else reading("python_version")
    import_s = row.get("import_s")
    return Framework(
        interpreter=str(row.get("python") or ""), python=python, version=reading("torch"), build=_build(row, failure),
        cuda=reading("cuda"), hip=reading("hip"), git=reading("git"), path=reading("path"),
        archs=_names(row.get("archs")), cudnn=reading("cudnn"), nccl=reading("nccl"), driver_cuda=reading("driver_cuda"),
        allocator=reading("allocator_backend"), settings=_settings(row, reading("allocator_settings"), text.item),
        names=_names(row.get("allocator_names")),
        variables={key: str(value) for key, value in mapping(row.get("environment")).items()},
        warnings=_names(row.get("warnings")), import_s=float(import_s) if isinstance(import_s, (int, float)) else 0.0,
        device_count=reading("device_count", "count"),
        devices=() if failure else tuple(_device(device, text.item) for device in listed(row.get("devices"))
                                         if type(mapping(device).get("index")) is int))


def devices_reading(bundle: Bundle) -> Reading:
    """How many devices torch could start on, or why they were not looked at or none could be started."""
    found = framework(bundle)
    row = next(iter(bundle.table(TABLE)), {})
    item = bundle.read(TABLE).item
    if not found.build:
        return not_available(found.version.why, "count", TABLE, item)
    if row.get("devices_taken") is not True:
        return not_available("not asked for: it would take a context on the GPU", "count", TABLE, item)
    why = mapping(row.get("unread")).get("devices")
    return not_available(str(why), "count", TABLE, item) if why else seen(len(found.devices), "count", TABLE, item)


def posted_devices(words: str, source: str, item: str = "") -> tuple[TorchDevice, ...]:
    """Devices from what people post: the printed properties of a device, or lines such as ``props.total_memory: 62.47 GiB``.

    torch prints ``total_memory=98304MB`` and means MiB.
    """
    found = [_printed(text) for text in re.findall(r"_CudaDeviceProperties\(([^()\n]{1,800})\)", words)]
    return tuple(_device({"index": index, **fields}, item, source) for index, fields in enumerate(found or _spoken(words)))


def _printed(text: str) -> dict[str, Any]:
    pairs = re.findall(r"(\w{1,40})=(?:'([^'\n]{0,80})'|([^,'\n]{0,80}))", text)
    fields = {key: quoted or plain for key, quoted, plain in pairs}
    return {"name": fields.get("name"), "gfx": fields.get("gcnArchName"), "uuid": fields.get("uuid"),
            "capability": f"{fields['major']}.{fields['minor']}" if {"major", "minor"} <= set(fields) else None,
            "integrated": fields.get("is_integrated"), "multiprocessors": fields.get("multi_processor_count"),
            "total_bytes": fields.get("total_memory")}


def _spoken(words: str) -> list[dict[str, Any]]:
    labels = {"total_bytes": r"total_memory", "driver_total_bytes": r"mem_get_info total", "free_bytes": r"mem_get_info free",
              "integrated": r"is_integrated"}
    fields = {}
    for key, label in labels.items():
        match = re.search(label + r"[ \t]{0,20}[:=][ \t]{0,40}([0-9.]{1,20}(?: ?[KMGT]i?B)?)", words)
        if match:
            fields[key] = match.group(1)
    return [fields] if fields else []


def _device(row: dict[str, Any], item: str, source: str = TABLE) -> TorchDevice:
    unread = mapping(row.get("unread"))

    def memory(name: str, ask: str) -> Reading:
        why = unread.get(ask)
        return not_available(str(why), "bytes", source, item) if why and row.get(name) is None \
            else size(row.get(name), source, item, "B")

    integrated = row.get("integrated")
    name, gfx, capability, uuid = (word(row.get(key), source, item) for key in ("name", "gfx", "capability", "uuid"))
    return TorchDevice(
        row["index"], pci_address(row.get("pci")), name, gfx, capability,
        None if integrated is None else str(integrated) in ("1", "True"), uuid,
        count(row.get("multiprocessors"), source, item), memory("total_bytes", "properties"),
        memory("driver_total_bytes", "memory"), memory("free_bytes", "memory"))


def _failure(row: dict[str, Any], why: str) -> Failure | None:
    if row.get("status") == "ok":
        return None
    return Failure(NOT_ALLOWED if row.get("status") == NOT_ALLOWED else NOT_AVAILABLE, str(row.get("why") or why))


def _build(row: dict[str, Any], failure: Failure | None) -> str:
    if failure:
        return ""
    return "rocm" if row.get("hip") else "cuda" if row.get("cuda") else "cpu"


def _settings(row: dict[str, Any], reading: Reading, item: str) -> Reading:
    # An empty text is an answer here: the allocator runs with its defaults.
    return seen("defaults", "text", TABLE, item) if row.get("allocator_settings") == "" and not reading.ok else reading


def _names(value: Any) -> tuple[str, ...]:
    return tuple(str(name) for name in listed(value))
