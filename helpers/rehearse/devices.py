"""The cards that a program can be rehearsed on: those of devices.csv, each with its source; a
size; or a box's own bundle.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from helpers.ground.units import parse_size, show_bytes
from helpers.look.bundle import Bundle
from helpers.trials.targets import largest_pool


class DeviceError(ValueError):
    """No such card: one line with what was seen and what was expected."""


@dataclass(frozen=True)
class Device:
    """A card.

    ``total_bytes`` as torch reports it, ``capability`` times ten, ``threads``, ``blocks``,
    ``shared_kib`` of an SM.

    ``blas_mib``: what torch 2.14.1 reserved for cuBLAS at its first product here: torch's own
    code decides it by capability and release, so it is told and not set. A ROCm card has a
    capability of 90 as a stand-in. ``held_bytes`` is what others hold.
    """

    name: str
    total_bytes: int
    capability: int
    multiprocessors: int
    threads: int
    blocks: int
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
        stand_in = ", a CUDA build for ROCm" if self.vendor == "rocm" else ""
        return f"{self.name}, {show_bytes(self.total_bytes)}{held}{stand_in}"


def _read() -> dict[str, Device]:
    """The table of cards, by their short names."""
    cards = {}
    with Path(__file__).with_name("devices.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = row.pop("key")
            size = int(row.pop("mib")) << 20
            blas_mib = row.pop("blas_mib")
            known: dict[str, Any] = {k: int(v) if v.isdigit() else v for k, v in row.items()}
            cards[key] = Device(total_bytes=size, blas_mib=float(blas_mib), **known)
    return cards


TABLE = _read()


def device(
    gpu: str = "", capacity: str = "", held: str = "", bundle: Bundle | None = None
) -> Device:
    """The card of that name, or of the one in ``bundle``, or an H100's figures with that
    ``capacity``. Raises DeviceError.
    """
    names = ", ".join(TABLE)
    found = TABLE.get(gpu.lower())
    if gpu and not found:
        raise DeviceError(f"--gpu {gpu!r}: expected one of {names}; or --capacity SIZE")
    if not (gpu or capacity or bundle):
        raise DeviceError(f"no card; expected --gpu ({names}), --capacity 20GiB or so, or --box")
    if not found:
        source = "the size as given; the other figures are an H100's"
        size_alone = replace(TABLE["h100"], name="CUDA card", source=source)
        own = bundle and not (capacity and largest_pool(bundle)[2] is None)
        found = of_bundle(bundle) if bundle and own else size_alone
    try:
        size = parse_size(capacity) if capacity else found.total_bytes
        taken = parse_size(held) if held else found.held_bytes
    except ValueError as error:
        raise DeviceError(f"--capacity {capacity!r}, --held {held!r}: {error}") from error
    if taken >= size:
        all_of_it = f"others hold {show_bytes(taken)} of {show_bytes(size)}"
        raise DeviceError(f"{all_of_it}: nothing is left; expected less --held")
    return replace(found, total_bytes=size, held_bytes=taken)


def of_bundle(bundle: Bundle) -> Device:
    """The box's own largest card, what is in use on it now counted as held by others.

    Raises DeviceError where it has none.
    """
    total, used, gpu = largest_pool(bundle)
    if gpu is None:
        raise DeviceError(f"{bundle.box} has no GPU memory; expected --gpu or --capacity")
    name = str(gpu.name.value) if gpu.name.ok else gpu.pci
    vendor = "rocm" if gpu.driver == "amdgpu" else "cuda"
    keys = [key for key, card in TABLE.items() if card.vendor == vendor]
    like = (k for k in keys if re.search(rf"\b{k.partition('-')[0]}\b", name.lower()))
    base = TABLE[next(like, "h100")]
    source = f"capacity and use of box {bundle.box}; the other figures are those of {base.name}"
    sizes = {"total_bytes": total, "held_bytes": used}
    return replace(base, name=name, vendor=vendor, source=source, **sizes)
