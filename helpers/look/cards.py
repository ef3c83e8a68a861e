"""Cards by name: those of cards.csv, each with its source; a card of a given size; or a box's own."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from helpers.ground.units import parse_size, show_bytes
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, gpus


class CardError(ValueError):
    """No such card: one line with what was seen and what was expected."""


@dataclass(frozen=True)
class GpuCard:
    """A card.

    ``total_bytes`` is what torch reports, ``capability`` is ten times CUDA's; ``threads``,
    ``blocks`` and ``shared_kib`` are those of one multiprocessor. A ROCm card has a capability
    of 90 as a stand-in.

    ``blas_mib`` is what torch 2.14.1 reserved for cuBLAS at its first product here: torch's own
    code decides it by capability and release, so it is reported and not set. ``held_bytes`` is
    what others hold.
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
        words = f"{self.name}, {show_bytes(self.total_bytes)}"
        if self.held_bytes:
            words += f", {show_bytes(self.held_bytes)} of it held by others"
        if self.vendor == "rocm":
            words += ", a CUDA build for ROCm"
        return words


@lru_cache(maxsize=1)
def cards() -> dict[str, GpuCard]:
    """The table of cards, by their short names."""
    with Path(__file__).with_name("cards.csv").open(encoding="utf-8", newline="") as file:
        return {
            row["key"]: GpuCard(
                name=row["name"],
                total_bytes=int(row["mib"]) << 20,
                capability=int(row["capability"]),
                multiprocessors=int(row["multiprocessors"]),
                threads=int(row["threads"]),
                blocks=int(row["blocks"]),
                shared_kib=int(row["shared_kib"]),
                l2_mib=int(row["l2_mib"]),
                blas_mib=float(row["blas_mib"]),
                vendor=row["vendor"],
                source=row["source"],
            )
            for row in csv.DictReader(file)
        }


def find_card(
    gpu: str = "", capacity: str = "", held: str = "", bundle: Bundle | None = None
) -> GpuCard:
    """The card of that name, or the largest of ``bundle``, or an H100's figures at ``capacity``.

    ``capacity`` and ``held`` (what others hold) are sizes such as "20GiB", and win over what the
    table or the box says. Raises CardError.
    """
    names = ", ".join(cards())
    if gpu and gpu.lower() not in cards():
        raise CardError(f"--gpu {gpu!r}: expected one of {names}; or --capacity SIZE")
    if gpu:
        base = cards()[gpu.lower()]
    elif bundle and not (capacity and largest_pool(bundle)[2] is None):
        base = card_of_box(bundle)
    elif capacity:
        source = "the size as given; the other figures are an H100's"
        base = replace(cards()["h100"], name="CUDA card", source=source)
    else:
        raise CardError(f"no card; expected --gpu ({names}), --capacity 20GiB or so, or --box")
    try:
        total_bytes = parse_size(capacity) if capacity else base.total_bytes
        held_bytes = parse_size(held) if held else base.held_bytes
    except ValueError as error:
        raise CardError(f"--capacity {capacity!r}, --held {held!r}: {error}") from error
    if held_bytes >= total_bytes:
        all_of_it = f"others hold {show_bytes(held_bytes)} of {show_bytes(total_bytes)}"
        raise CardError(f"{all_of_it}: nothing is left; expected less --held")
    return replace(base, total_bytes=total_bytes, held_bytes=held_bytes)


def card_of_box(bundle: Bundle) -> GpuCard:
    """The box's own largest card; what is in use on it now counts as held by others.

    Raises CardError where the box has none.
    """
    total_bytes, used_bytes, gpu = largest_pool(bundle)
    if gpu is None:
        raise CardError(f"{bundle.box} has no GPU memory; expected --gpu or --capacity")
    name = str(gpu.name.value) if gpu.name.ok else gpu.pci
    vendor = "rocm" if gpu.driver == "amdgpu" else "cuda"
    base = _card_alike(name, vendor)
    return replace(
        base,
        name=name,
        vendor=vendor,
        source=f"capacity and use of box {bundle.box}; the other figures are those of {base.name}",
        total_bytes=total_bytes,
        held_bytes=used_bytes,
    )


def _card_alike(name: str, vendor: str) -> GpuCard:
    """The first card of the table whose short name, up to its size, is a word of ``name``."""
    for key, row in cards().items():
        model = key.partition("-")[0]
        if row.vendor == vendor and re.search(rf"\b{model}\b", name.lower()):
            return row
    return cards()["h100"]


def largest_pool(bundle: Bundle) -> tuple[int, int, Gpu | None]:
    """The largest pool of a box's GPUs: its bytes, those in use as far as that is known, its GPU.

    0, 0 and None without one. GTT is no room for a tensor: on a card it is the host's, and on an
    APU another layer says what compute gets of it.
    """
    pools = [
        (int(pool.total.value or 0), int(pool.used.value or 0) if pool.used.ok else 0, gpu)
        for gpu in gpus(bundle)
        for pool in gpu.pools
        if pool.total.ok and ("GTT" not in pool.layer or not _has_compute_layer(gpu))
    ]
    return max(pools, key=lambda row: row[0], default=(0, 0, None))


def _has_compute_layer(gpu: Gpu) -> bool:
    """Whether a layer beside GTT says what a program gets: always of a card, compute's of an APU."""
    layers = {pool.layer for pool in gpu.pools if pool.total.ok}
    return gpu.integrated is False or not layers.isdisjoint(("KFD bank", "HSA pool", "torch"))
