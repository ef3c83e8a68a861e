"""The cards that a program can be rehearsed on: those of devices.csv, each with its source; a size; or a box's own bundle."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.load.targets import largest_pool
from helpers.look.bundle import Bundle
from helpers.look.reading import parse_size, show_bytes


class DeviceError(ValueError):
    """No such card: one line with what was seen and what was expected."""


@dataclass(frozen=True)
class Device:
    """A card. ``total_bytes`` as torch reports it, ``capability`` times ten, ``threads``, ``shared_kib`` of one multiprocessor.

    ``blas_mib``: what torch 2.14.1 reserved for cuBLAS at its first product here: torch's own code decides it by capability and
    release, so it is told and not set. A ROCm card has a capability of 90 as a stand-in. ``held_bytes`` is what others hold.
    """

    name: str
    total_bytes: int
    capability: int
    multiprocessors: int
    threads: int
    shared_kib: int
    l2_mib: int
    blas_mib: float
    vendor: str
    source: str
    held_bytes: int = 0

    @property
    def words(self) -> str:
        """The card in one line."""
        held = f", {show_bytes(self.held_bytes)} of it held by others" if self.held_bytes else ""
        return f"{self.name}, {show_bytes(self.total_bytes)}{held}{', a CUDA build for ROCm' if self.vendor == 'rocm' else ''}"


def _read() -> dict[str, Device]:
    with Path(__file__).with_name("devices.csv").open(encoding="utf-8", newline="") as file:
        return {
            row["key"]: Device(
                row["name"],
                int(row["mib"]) << 20,
                int(row["capability"]),
                int(row["multiprocessors"]),
                int(row["threads"]),
                int(row["shared_kib"]),
                int(row["l2_mib"]),
                float(row["blas_mib"]),
                row["vendor"],
                row["source"],
            )
            for row in csv.DictReader(file)
        }


TABLE = _read()


def device(
    gpu: str = "", capacity: str = "", held: str = "", bundle: Bundle | None = None
) -> Device:
    """The card of that name, or of the one in ``bundle``, or an H100's figures with that ``capacity``. Raises DeviceError."""
    if gpu and gpu.lower() not in TABLE:
        raise DeviceError(
            f"--gpu {gpu!r}: expected one of {', '.join(TABLE)}; or --capacity SIZE for another card"
        )
    if not (gpu or capacity or bundle):
        raise DeviceError(
            f"no card; expected --gpu ({', '.join(TABLE)}), --capacity SIZE such as 20GiB, or --box"
        )
    found = (
        TABLE[gpu.lower()]
        if gpu
        else of_bundle(bundle)
        if bundle
        else replace(
            TABLE["h100"],
            name="CUDA card",
            source="the size as given; the other figures are an H100's",
        )
    )
    try:
        size = parse_size(capacity) if capacity else found.total_bytes
        taken = parse_size(held) if held else found.held_bytes
    except ValueError as error:
        raise DeviceError(f"--capacity {capacity!r}, --held {held!r}: {error}") from error
    if taken >= size:
        raise DeviceError(
            f"{show_bytes(size)} with {show_bytes(taken)} held by others: nothing is left; expected less --held"
        )
    return replace(found, total_bytes=size, held_bytes=taken)


def of_bundle(bundle: Bundle) -> Device:
    """The box's own largest card, what is in use on it now counted as held by others. Raises DeviceError where it has none."""
    total, used, gpu = largest_pool(bundle)
    if gpu is None:
        raise DeviceError(
            f"{bundle.box}: no GPU memory in its bundle; expected --gpu or --capacity"
        )
    name, vendor = (
        str(gpu.name.value) if gpu.name.ok else gpu.pci,
        "rocm" if gpu.driver == "amdgpu" else "cuda",
    )
    like = [
        card
        for key, card in TABLE.items()
        if re.search(rf"\b{key.partition('-')[0]}\b", name.lower())
    ]
    base = next((card for card in like if card.vendor == vendor), TABLE["h100"])
    return replace(
        base,
        name=name,
        total_bytes=total,
        held_bytes=used,
        vendor=vendor,
        source=f"capacity and use of box {bundle.box}; the other figures are those of {base.name}",
    )
