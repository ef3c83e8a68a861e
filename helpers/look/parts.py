"""Tells what kind of GPU a text or a box means: an APU, a card, or one of NVIDIA's that shares the
RAM.

It is told by the GPU's own name or chip, never by the CPU's; parts.json has the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from helpers.ground.tables import data, lazy
from helpers.ground.units import GIB
from helpers.look.bundle import Bundle

APU = "apu"
CARD = "card"
UNIFIED = "nvidia-unified"
UNKNOWN = "unknown"
LONGEST = 60_000
"""Letters of a text that are read: posts name their GPU at the start, and logs are long."""
LONGEST_LINE = 400
"""Letters of a line of a device list that are read."""
LEAST_SHARE = {"AMD": 0.985, "NVIDIA": 0.905}
"""The least share of its nominal size that a driver shows of a card: firmware and, on NVIDIA's GDDR
cards, ECC take the rest.
"""
LEAST_UNIFIED_SHARE = 0.9
"""The same of a part that shares the RAM: the kernel keeps up to a tenth."""
MOST_SHARE = 1.001
"""The most, so that a rounded total still counts."""
_BRAND = lazy(
    "^(?:(?:radeon|instinct|geforce|tesla|rtx|gtx|rx|pro|titan) )+", re.IGNORECASE
)
_MODEL = lazy(r"\d ?[A-Za-z]|[A-Za-z]\d{2}")
"""Digits and a letter side by side, as in 7900 XTX and MI300: no other number looks like that."""
# "Device 0", "GPU[1]", "cuda:0", or a number at the start of a line.
_INDEX = lazy(
    r"(?:\b(?:device|gpu|rocm|hip|cuda|vulkan|index)[ #:\[(=]{0,3}|^[ \t]{0,8})"
    r"(\d{1,2})(?=[\]):=, ]|$)",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True)
class Part:
    """One row of parts.json. ``gib`` are the memory sizes of a card and of its partitions; of a
    part with shared memory only those that no card has, so that a total alone tells them apart.
    """

    kind: str
    vendor: str
    names: tuple[str, ...]
    gfx: tuple[str, ...]
    source: str
    gib: tuple[int, ...] = ()


@dataclass(frozen=True)
class Mention:
    """A part that a text names, the words of the text for it, and their place."""

    start: int
    end: int
    words: str
    part: Part


@dataclass(frozen=True)
class Listed:
    """A GPU of a program's list of devices, with its index there."""

    index: int
    name: str
    kind: str
    vendor: str


@lru_cache(maxsize=1)
def parts() -> tuple[Part, ...]:
    """Every known part, in the file's order."""
    return tuple(
        Part(
            kind=row["kind"],
            vendor=row["vendor"],
            names=tuple(row["names"]),
            gfx=tuple(row["gfx"]),
            source=row["source"],
            gib=tuple(row.get("gib", ())),
        )
        for row in data("look/parts")
    )


@lru_cache(maxsize=1)
def _names() -> dict[str, tuple[str, Part]]:
    """(name, part) by the squeezed name, the longest name first: in a pattern of alternatives the
    first that fits is taken, and "RTX 4070" is the start of "RTX 4070 Ti".
    """
    names: dict[str, tuple[str, Part]] = {}
    for part in parts():
        for name in (*part.names, *part.gfx):
            names.setdefault(_squeezed(name), (name, part))
            # "7900 XTX" alone is that card; a bare number such as 580 may be a driver's version.
            bare = _BRAND.sub("", name)
            if bare != name and _MODEL.search(bare):
                names.setdefault(_squeezed(bare), (bare, part))
    return dict(sorted(names.items(), key=lambda entry: -len(entry[1][0])))


@lru_cache(maxsize=64)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern for any of the names as a word of its own, with any sign for a blank."""
    spelt = [re.escape(name).replace(r"\ ", "[ _-]{0,2}") for name in names]
    any_name = "|".join(spelt)
    return re.compile(rf"(?<![A-Za-z0-9])(?:{any_name})(?![A-Za-z0-9])", re.IGNORECASE)


def _squeezed(words: str) -> str:
    """The words in lower case without what people write or leave out between them."""
    return words.replace(" ", "").replace("_", "").replace("-", "").lower()


def mentions(text: str) -> list[Mention]:
    """Every known part that a text names in its first LONGEST letters, in its order."""
    text = text[:LONGEST]
    flat = _squeezed(text)
    # Few of hundreds of names are in a text, and a pattern of these alone is fast.
    names = tuple(name for squeezed, (name, _) in _names().items() if squeezed in flat)
    if not names:
        return []
    mentioned = []
    for match in _pattern(names).finditer(text):
        words = match.group()
        _, part = _names()[_squeezed(words)]
        mentioned.append(Mention(match.start(), match.end(), words, part))
    return mentioned


def gpu_kind(
    names: Iterable[str] = (),
    bundle: Bundle | None = None,
    total_bytes: int | None = None,
) -> str:
    """The kind of GPU: APU, CARD, UNIFIED or UNKNOWN. ``names`` are texts about the GPU, not the
    CPU.

    If both a card and an APU are named, ``total_bytes`` (the memory that the failing program sees)
    decides; without it the card counts, because many processors have a small GPU beside it.
    """
    mentioned_parts = _parts_in(names)
    kinds = {part.kind for part in mentioned_parts}
    if bundle is not None:
        kinds |= _kinds_of_box(bundle)
    if UNIFIED in kinds:
        return UNIFIED
    if APU in kinds and CARD in kinds and total_bytes:
        sizes: list[int] = []
        for part in mentioned_parts:
            if part.kind == CARD:
                sizes += part.gib
        # The named cards cannot show this total, so the program runs on the APU.
        if sizes and not is_card_size(total_bytes, "", sizes):
            return APU
    for kind in (CARD, APU):
        if kind in kinds:
            return kind
    return UNKNOWN


def _parts_in(texts: Iterable[str]) -> list[Part]:
    """The parts that texts name; those that they name only by the number of a chip, such as
    gfx1100, count if there are no others, since HSA_OVERRIDE_GFX_VERSION makes a chip claim
    another's.
    """
    by_name = []
    by_chip = []
    for text in texts:
        for mention in mentions(text):
            if mention.words.lower().startswith("gfx"):
                by_chip.append(mention.part)
            else:
                by_name.append(mention.part)
    if by_name:
        return by_name
    return by_chip


def _kinds_of_box(bundle: Bundle) -> set[str]:
    """The kinds of a box's GPUs. A GPU of which no layer says whether it is integrated adds none,
    unless it is NVIDIA's and its name is that of a part that shares the RAM.
    """
    from helpers.look.gpus import gpus  # only a captured box needs every layer's reader

    kinds = set()
    for gpu in gpus(bundle):
        named = {mention.part.kind for mention in mentions(gpu.name.show())}
        if gpu.vendor == "NVIDIA" and (gpu.integrated or UNIFIED in named):
            kinds.add(UNIFIED)
        elif gpu.integrated:
            kinds.add(APU)
        elif gpu.integrated is not None:
            kinds.add(CARD)
    return kinds


def is_card_size(
    total_bytes: int, vendor: str = "AMD", gib: Iterable[int] | None = None
) -> bool:
    """Whether a total, as a runtime reports it, is that of a card of the vendor; with ``gib``, of a
    card with one of these sizes.
    """
    least = LEAST_SHARE.get(vendor, min(LEAST_SHARE.values()))
    if gib is None:
        gib = _sizes_of(CARD, vendor)
    for size_gib in gib:
        size = size_gib * GIB
        if least * size <= total_bytes <= MOST_SHARE * size:
            return True
    return False


def is_unified_size(total_bytes: int) -> bool:
    """Whether a total, as CUDA reports it, is that of a part that shares the RAM, and of no card."""
    if is_card_size(total_bytes, "NVIDIA"):
        return False
    for size_gib in _sizes_of(UNIFIED, "NVIDIA"):
        size = size_gib * GIB
        if LEAST_UNIFIED_SHARE * size <= total_bytes <= size:
            return True
    return False


def _sizes_of(kind: str, vendor: str) -> set[int]:
    """The memory sizes, in GiB, of all parts of a kind and a vendor."""
    sizes: set[int] = set()
    for part in parts():
        if part.kind == kind and part.vendor == vendor:
            sizes.update(part.gib)
    return sizes


def card_sizes(names: Iterable[str]) -> tuple[int, ...]:
    """The memory sizes, in GiB, that the cards in these texts can have; empty if none is known."""
    sizes: set[int] = set()
    for text in names:
        for mention in mentions(text):
            if mention.part.kind == CARD:
                sizes.update(mention.part.gib)
    return tuple(sorted(sizes))


def device_list(text: str) -> tuple[Listed, ...]:
    """The GPUs that a text lists with an index, in the order of the indices: "Device 0: NAME,
    gfx1036" as well as "NAME at device 1". Of several for one index the first counts.
    """
    listed: dict[int, Listed] = {}
    for line in re.split(r"[\n;]", text[:LONGEST]):
        line = line[:LONGEST_LINE]
        indices = list(_INDEX.finditer(line))
        mentioned = mentions(line)
        if not indices or not mentioned:
            continue
        # A line has either its indices before the names, or behind them; what comes first tells.
        index_leads = indices[0].start() < mentioned[0].start
        for mention in mentioned:
            if index_leads:
                nearest = [i for i in indices if i.start() < mention.start][-1:]
            else:
                nearest = [i for i in indices if i.start() >= mention.end][:1]
            for index in nearest:
                gpu = Listed(
                    index=int(index[1]),
                    name=mention.words,
                    kind=mention.part.kind,
                    vendor=mention.part.vendor,
                )
                listed.setdefault(gpu.index, gpu)
    return tuple(listed[index] for index in sorted(listed))
