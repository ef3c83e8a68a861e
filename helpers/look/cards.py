"""Cards by name: those of cards.csv, each with its source; a card of a given size; or a box's own.

capabilities.csv holds the limits of a multiprocessor by capability: CUDA programming guide, compute
capabilities; blas_mib as torch's CUDABlas.cpp chooses a workspace, 32 MiB from capability 9.0 on.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from helpers.ground.units import GIB, cut, parse_capacity, parse_size, show_bytes
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, gpus

CONTEXT_LEAST_BYTES = GIB // 5
CONTEXT_LIKELY_BYTES = 9 * GIB // 20
CONTEXT_MOST_BYTES = 6 * GIB // 10
"""What the context and the libraries of one process take of a card beside what it allocates: by
llama.cpp's accounting in records of its server.
"""
CONTEXT_IN_WORDS = f"{CONTEXT_LEAST_BYTES / GIB:.1f} to {CONTEXT_MOST_BYTES / GIB:.1f} GiB on most cards"
STAND_IN = "9.0"
"""Whose limits and capability a card has that is not CUDA's."""
SIZE_ALONE = "the size as given; the other figures are an H100's"
"""The source of a card of which nothing but the size was given."""
BESIDE_A_MODEL = re.compile(
    r"nvidia|geforce|tesla|quadro|amd|radeon|instinct|graphics|\(tm\)|generation|edition|server|"
    r"workstation|\b(rtx|rx|pcie|sxm\d?|hbm\d?e?|\d+gb)(\b|(?=\d))"
)
"""Words of a card's name that do not tell its model."""


class CardError(ValueError):
    """No such card: one line with what was seen and what was expected."""


@dataclass(frozen=True)
class GpuCard:
    """A card.

    ``total_bytes`` is what the driver reports to torch, 0 where the firmware and the kernel decide
    it; ``is_shared`` says that it is the computer's own RAM. ``arch`` is CUDA's capability or
    AMD's gfx name, ``multiprocessors`` are torch's: on RDNA two compute units each. ``l2_mib`` is
    0 where it is not known. ``threads``, ``blocks`` and ``shared_kib`` are those of one
    multiprocessor. ``held_bytes`` is what others hold.

    ``blas_mib`` is what torch 2.14.1 reserves for cuBLAS at its first product: torch's own code
    decides it by capability and release, so it is reported and not set.
    """

    name: str
    total_bytes: int
    arch: str
    capability: int
    multiprocessors: int
    threads: int
    blocks: int
    shared_kib: int
    l2_mib: float
    blas_mib: float
    vendor: str
    is_shared: bool
    source: str
    held_bytes: int = 0

    @property
    def words(self) -> str:
        """The card in one line."""
        words = f"{self.name}, {show_bytes(self.total_bytes)}"
        if self.held_bytes:
            words += f", of which others use {show_bytes(self.held_bytes)}"
        if self.vendor == "rocm":
            words += ", a CUDA build for ROCm"
        return words


def _rows_of(name: str) -> list[dict[str, str]]:
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@lru_cache(maxsize=1)
def cards() -> dict[str, GpuCard]:
    """The table of cards, by their short names."""
    limits = {row["arch"]: row for row in _rows_of("capabilities.csv")}
    by_key = {}
    for row in _rows_of("cards.csv"):
        arch = row["arch"]
        if row["vendor"] != "cuda":
            arch = STAND_IN
        limit = limits[arch]
        by_key[row["key"]] = GpuCard(
            name=row["name"],
            total_bytes=int(row["mib"] or 0) << 20,
            arch=row["arch"],
            capability=round(10 * float(arch)),
            multiprocessors=int(row["multiprocessors"]),
            threads=int(limit["threads"]),
            blocks=int(limit["blocks"]),
            shared_kib=int(limit["shared_kib"]),
            l2_mib=float(row["l2_mib"] or 0),
            blas_mib=float(limit["blas_mib"]),
            vendor=row["vendor"],
            is_shared=row["memory"] == "shared",
            source=row["source"],
        )
    return by_key


def named_card(name: str) -> GpuCard:
    """The card of that short name, or of a name as tools print it. Raises CardError."""
    card = cards().get(name.lower())
    if card is None and not name.isdigit():
        card = card_alike(name)
    if card is not None:
        return card
    meant = ""
    near = get_close_matches(name.lower(), cards(), n=3, cutoff=0.5)
    if near:
        meant = f" (near it: {', '.join(near)})"
    raise CardError(
        f"--gpu {cut(name, 40)!r}: not in the table{meant}; expected a name that --gpu list shows, "
        "or --capacity SIZE"
    )


def other_sizes(name: str) -> dict[str, GpuCard]:
    """Cards of other sizes that a name means as well, one a size, by their short names; none where
    the name says the size.
    """
    if name.lower() in cards() or not _model_of(name):
        return {}
    chosen = named_card(name)
    if chosen.name.lower() == name.lower():
        return {}
    sizes = {round(chosen.total_bytes / GIB)}
    others = {}
    for key, card in cards().items():
        size = round(card.total_bytes / GIB)
        if _model_of(card.name) == _model_of(name) and size not in sizes:
            sizes.add(size)
            others[key] = card
    return others


def find_card(
    gpu: str = "",
    capacity: str = "",
    held_by_others: str = "",
    bundle: Bundle | None = None,
) -> GpuCard:
    """The card of that name, or the largest of ``bundle``, or an H100's figures at ``capacity``.

    ``capacity`` and ``held_by_others`` are sizes such as "20GiB", and win over what the
    table or the box says. Raises CardError.
    """
    if gpu:
        base = named_card(gpu)
        if not (base.total_bytes or capacity):
            raise CardError(
                f"--gpu {gpu}: firmware and kernel decide how much memory it gets ({base.source}); "
                "expected --capacity SIZE beside it, or --box"
            )
    elif bundle and not (capacity and largest_pool(bundle)[2] is None):
        base = card_of_box(bundle)
    elif capacity:
        base = replace(cards()["h100"], name="CUDA card", source=SIZE_ALONE)
    else:
        expected = (
            "expected --gpu NAME (--gpu list shows all), --capacity SIZE or --box"
        )
        raise CardError(f"no card; {expected}")
    try:
        if capacity:
            base = replace(base, total_bytes=parse_capacity(capacity))
        if held_by_others:
            base = replace(base, held_bytes=parse_size(held_by_others))
    except ValueError as error:
        raise CardError(f"--capacity or --held: {error}") from error
    if base.held_bytes >= base.total_bytes:
        total = show_bytes(base.total_bytes)
        all_of_it = f"others hold {show_bytes(base.held_bytes)} of {total}"
        raise CardError(
            f"{all_of_it}: nothing is left; expected less --held or more --capacity"
        )
    return base


def card_of_box(bundle: Bundle) -> GpuCard:
    """The box's own largest card; what is in use on it now counts as held by others.

    Raises CardError where the box has none.
    """
    total_bytes, used_bytes, gpu = largest_pool(bundle)
    if gpu is None:
        raise CardError(f"{bundle.box} has no GPU memory; expected --gpu or --capacity")
    name = str(gpu.name.value) if gpu.name.ok else gpu.pci
    vendor = "rocm" if gpu.driver == "amdgpu" else "cuda"
    base = card_alike(name, vendor, total_bytes) or cards()["h100"]
    arch = base.arch
    if vendor == "rocm" and base.vendor != vendor:
        arch = ""
    return replace(
        base,
        name=name,
        arch=arch,
        vendor=vendor,
        source=f"capacity and use of box {bundle.box}; the other figures are those of {base.name}",
        total_bytes=total_bytes,
        held_bytes=used_bytes,
    )


def card_alike(name: str, vendor: str = "", total_bytes: int = 0) -> GpuCard | None:
    """The card of the table that a tool's name for it means, the nearest to a size where several
    are sold under one name; None where no row is alike.
    """
    model = _model_of(name)
    alike = [
        card
        for card in cards().values()
        if model and _model_of(card.name) == model and vendor in ("", card.vendor)
    ]
    named = [card for card in alike if card.name.lower() == name.lower()]
    by_size = sorted(alike, key=lambda card: abs(card.total_bytes - total_bytes))
    return next(iter([*named, *by_size]), None)


def _model_of(name: str) -> str:
    """What of a card's name tells models apart: "geforce rtx 4070 ti" and "rtx4070ti" are one."""
    return "".join(re.findall(r"[a-z0-9]+", BESIDE_A_MODEL.sub(" ", name.lower())))


def largest_pool(bundle: Bundle) -> tuple[int, int, Gpu | None]:
    """The largest pool of a box's GPUs: its bytes, those in use as far as that is known, its GPU.

    0, 0 and None without one. GTT is no room for a tensor: on a card it is the host's, and on an
    APU another layer says what compute gets of it.
    """
    sizes = []
    for gpu in gpus(bundle):
        pools = [pool for pool in gpu.pools if pool.total.ok]
        if _has_compute_layer(gpu):
            pools = [pool for pool in pools if "GTT" not in pool.layer]
        sizes += [(pool.total.bytes, pool.used.bytes, gpu) for pool in pools]
    return max(sizes, key=lambda size: size[0], default=(0, 0, None))


def _has_compute_layer(gpu: Gpu) -> bool:
    """Whether a layer beside GTT says what a program gets: always of a card, compute's of an APU."""
    layers = {pool.layer for pool in gpu.pools if pool.total.ok}
    has_one = not layers.isdisjoint(("KFD bank", "HSA pool", "torch"))
    return gpu.integrated is False or has_one
