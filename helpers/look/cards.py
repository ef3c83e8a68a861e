"""Cards that are not in this machine: by name (cards.csv, each with its source), by size, or of a
recorded box.

capabilities.csv has the limits of a multiprocessor by compute capability (CUDA programming guide),
and in blas_mib the workspace that torch gives cuBLAS (parseChosenWorkspaceSize of
CublasHandlePool.cpp): 32 MiB from 9.0 on.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from helpers.ground.units import (
    GIB,
    LONGEST_SEEN,
    MIB,
    cut,
    parse_capacity,
    parse_size,
    show_bytes,
)
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, gpus

Number = TypeVar("Number", int, float)

CONTEXT_LEAST_BYTES = GIB // 5
CONTEXT_LIKELY_BYTES = 9 * GIB // 20
CONTEXT_MOST_BYTES = 6 * GIB // 10
"""Memory of a card that the context and the libraries of one process take beside its allocations:
least, usual and most, by llama.cpp's accounting in records of its server.
"""
CONTEXT_IN_WORDS = f"{CONTEXT_LEAST_BYTES / GIB:.1f} to {CONTEXT_MOST_BYTES / GIB:.1f} GiB on most cards"
STAND_IN = "9.0"
"""The compute capability, an H100's, whose limits stand for those of AMD cards: a rehearsal runs a
CUDA build of torch for them.
"""
SIZE_ALONE = "the size as given; the other figures are an H100's"
"""The source of a card if only its size was given."""
BESIDE_A_MODEL = re.compile(
    r"nvidia|geforce|tesla|quadro|amd|radeon|instinct|graphics|\(tm\)|generation|edition|server|"
    r"workstation|\b(rtx|rx|pcie|sxm\d?|hbm\d?e?|\d+gb)(\b|(?=\d))"
)
"""Words of a card's name that its other models have, too."""


class CardError(ValueError):
    """There is no such card: one line with what was seen and what was expected."""


@dataclass(frozen=True)
class GpuCard:
    """A card.

    ``total_bytes`` is what the driver reports to torch; in the table it is 0 for a card whose
    memory the firmware and the kernel decide (find_card returns none without a size).
    ``is_shared``: the memory is the computer's own RAM. ``arch`` is the compute capability as in
    "8.6", or AMD's gfx name; ``capability`` the same as 86. ``multiprocessors`` are as torch
    counts them: on RDNA one is two compute units. ``threads``, ``blocks`` and ``shared_kib`` are
    the limits of one multiprocessor. ``l2_mib`` is the L2 cache, 0 if it is not known.
    ``held_bytes`` is the memory that other processes hold.

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
        """The card in one line, for people."""
        words = f"{self.name}, {show_bytes(self.total_bytes)}"
        if self.held_bytes:
            words += f", of which others use {show_bytes(self.held_bytes)}"
        if self.vendor == "rocm":
            words += ", a CUDA build for ROCm"
        return words


def _rows_of(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file beside this one."""
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@lru_cache(maxsize=1)
def cards() -> dict[str, GpuCard]:
    """The table of cards, by their short names such as ``4090``."""
    limits = {row["arch"]: row for row in _rows_of("capabilities.csv")}
    by_key = {}
    for row in _rows_of("cards.csv"):
        arch = row["arch"]
        if row["vendor"] != "cuda":
            arch = STAND_IN
        limit = limits[arch]
        by_key[row["key"]] = GpuCard(
            name=row["name"],
            total_bytes=_number(row["mib"], int) * MIB,
            arch=row["arch"],
            capability=round(10 * float(arch)),
            multiprocessors=int(row["multiprocessors"]),
            threads=int(limit["threads"]),
            blocks=int(limit["blocks"]),
            shared_kib=int(limit["shared_kib"]),
            l2_mib=_number(row["l2_mib"], float),
            blas_mib=float(limit["blas_mib"]),
            vendor=row["vendor"],
            is_shared=row["memory"] == "shared",
            source=row["source"],
        )
    return by_key


def _number(cell: str, kind: type[Number]) -> Number:
    """The number in a cell of a table; 0 if it is empty."""
    if not cell:
        return kind(0)
    return kind(cell)


def named_card(name: str) -> GpuCard:
    """The card with that short name, or a name as tools print it. Raises CardError."""
    card = cards().get(name.lower())
    # A number alone, such as 5000, is in the names of several models.
    if card is None and not name.isdigit():
        card = card_alike(name)
    if card is not None:
        return card
    meant = ""
    # Lower than the 0.6 that difflib takes by default: short names have few letters to compare.
    near = get_close_matches(name.lower(), cards(), n=3, cutoff=0.5)
    if near:
        meant = f" (near it: {', '.join(near)})"
    raise CardError(
        f"--gpu {cut(name, LONGEST_SEEN)!r}: not in the table{meant}; expected a name that --gpu "
        "list shows, or --capacity SIZE"
    )


def other_sizes(name: str) -> dict[str, GpuCard]:
    """The cards of the same model with other sizes than the one that ``named_card`` returns, one
    for each size, by their short names. Empty if ``name`` is a name of one card.
    """
    if name.lower() in cards() or not _model_of(name):
        return {}
    chosen = named_card(name)
    if chosen.name.lower() == name.lower():
        return {}
    sizes_gib = {round(chosen.total_bytes / GIB)}
    others = {}
    for key, card in cards().items():
        size_gib = round(card.total_bytes / GIB)
        if _model_of(card.name) == _model_of(name) and size_gib not in sizes_gib:
            sizes_gib.add(size_gib)
            others[key] = card
    return others


def find_card(
    gpu: str = "",
    capacity: str = "",
    held_by_others: str = "",
    bundle: Bundle | None = None,
) -> GpuCard:
    """The card that options of a command mean: named ``gpu``; else the largest of ``bundle``; else
    one with an H100's figures.

    ``capacity`` and ``held_by_others`` are sizes such as "20GiB", which replace those of the
    table or the box. Raises CardError where the options name no card, where a named card has no
    size in the table and ``capacity`` gives none, where a size is none, and where others hold all
    of it: so the card that is returned always has ``total_bytes`` above 0.
    """
    card = _base_card(gpu, capacity, bundle)
    try:
        if capacity:
            card = replace(card, total_bytes=parse_capacity(capacity))
        if held_by_others:
            card = replace(card, held_bytes=parse_size(held_by_others))
    except ValueError as error:
        raise CardError(f"--capacity or --held: {error}") from error
    if card.held_bytes >= card.total_bytes:
        total = show_bytes(card.total_bytes)
        all_of_it = f"others hold {show_bytes(card.held_bytes)} of {total}"
        raise CardError(
            f"{all_of_it}: nothing is left; expected less --held or more --capacity"
        )
    return card


def _base_card(gpu: str, capacity: str, bundle: Bundle | None) -> GpuCard:
    """The card of ``find_card`` before its sizes are replaced. Only with a ``capacity``, which then
    replaces it, may its ``total_bytes`` be 0. Raises CardError.
    """
    if gpu:
        card = named_card(gpu)
        if not (card.total_bytes or capacity):
            raise CardError(
                f"--gpu {gpu}: firmware and kernel decide how much memory it gets ({card.source}); "
                "expected --capacity SIZE beside it, or --box"
            )
        return card
    has_gpu = bundle is not None and largest_pool(bundle)[2] is not None
    # Without a GPU in it, the error says that a size would do.
    if bundle and (has_gpu or not capacity):
        return card_of_box(bundle)
    if capacity:
        return replace(cards()["h100"], name="CUDA card", source=SIZE_ALONE)
    expected = "expected --gpu NAME (--gpu list shows all), --capacity SIZE or --box"
    raise CardError(f"no card; {expected}")


def card_of_box(bundle: Bundle) -> GpuCard:
    """The box's own largest card; the memory in use on it counts as held by others.

    Raises CardError if the box has none.
    """
    total_bytes, used_bytes, gpu = largest_pool(bundle)
    if gpu is None:
        raise CardError(f"{bundle.box} has no GPU memory; expected --gpu or --capacity")
    name = gpu.pci
    if gpu.name.ok:
        name = str(gpu.name.value)
    vendor = "cuda"
    if gpu.driver == "amdgpu":
        vendor = "rocm"
    base = card_alike(name, vendor, total_bytes)
    if base is None:
        base = cards()["h100"]
    arch = base.arch
    if vendor == "rocm" and base.vendor != vendor:
        arch = ""  # the H100's is no gfx name
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
    """The card of the table that has ``name`` as tools print it, or is of its model. Of several
    such cards the one nearest in size; None if there is none. ``vendor``: cuda, rocm, or any.
    """
    model = _model_of(name)
    if not model:
        return None
    alike = []
    for card in cards().values():
        if _model_of(card.name) == model and vendor in ("", card.vendor):
            if card.name.lower() == name.lower():
                return card
            alike.append(card)
    by_size = sorted(alike, key=lambda card: abs(card.total_bytes - total_bytes))
    return next(iter(by_size), None)


def _model_of(name: str) -> str:
    """The part of a card's name that tells models apart, without blanks: 4070ti for "NVIDIA
    GeForce RTX 4070 Ti" and for "rtx4070ti".
    """
    model = BESIDE_A_MODEL.sub(" ", name.lower())
    return "".join(re.findall(r"[a-z0-9]+", model))


def largest_pool(bundle: Bundle) -> tuple[int, int, Gpu | None]:
    """The largest pool of memory of a box's GPUs: (its bytes, bytes in use as far as they are
    known, its GPU); (0, 0, None) if there is none.

    GTT is left out: on a card it is RAM of the host, and on an APU another layer says how much
    of it a program gets.
    """
    sizes = []
    for gpu in gpus(bundle):
        pools = [pool for pool in gpu.pools if pool.total.ok]
        if _has_compute_layer(gpu):
            pools = [pool for pool in pools if "GTT" not in pool.layer]
        sizes += [(pool.total.bytes, pool.used.bytes, gpu) for pool in pools]
    return max(sizes, key=lambda size: size[0], default=(0, 0, None))


def _has_compute_layer(gpu: Gpu) -> bool:
    """Whether another layer than GTT says how much memory a program gets: on a card always, on an
    APU those of ROCm and torch.
    """
    layers = {pool.layer for pool in gpu.pools if pool.total.ok}
    is_known = not layers.isdisjoint(("KFD bank", "HSA pool", "torch"))
    return gpu.integrated is False or is_known
