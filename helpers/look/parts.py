"""What kind of GPU a part is: an APU, a card, or NVIDIA's unified memory.

It goes by the GPU's own name or chip, never by the CPU's. The parts are data: parts.json.
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
# Torch and drivers show a little less than the size on the box: firmware and, on NVIDIA's GDDR
# cards, ECC take a share.
LEAST_SHARE = {"AMD": 0.985, "NVIDIA": 0.905}
_BRAND = lazy(
    "^(?:(?:radeon|instinct|geforce|tesla|rtx|gtx|rx|pro|titan) )+", re.IGNORECASE
)
_MODEL = lazy(r"\d ?[A-Za-z]|[A-Za-z]\d{2}")
_INDEX = lazy(
    r"(?:\b(?:device|gpu|rocm|hip|cuda|vulkan|index)[ #:\[(=]{0,3}|^[ \t]{0,8})"
    r"(\d{1,2})(?=[\]):=, ]|$)",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True)
class Part:
    """One row of parts.json: ``gib`` are the memory sizes of a card, its partitions' included.

    For shared memory they are the sizes that no card has, so that a total alone tells; empty
    where there is none.
    """

    kind: str
    vendor: str
    names: tuple[str, ...]
    gfx: tuple[str, ...]
    source: str
    gib: tuple[int, ...] = ()


@dataclass(frozen=True)
class Mention:
    """A part that a text names, and where in the text."""

    start: int
    end: int
    words: str
    part: Part


@dataclass(frozen=True)
class Listed:
    """A GPU of a posted or captured device list, under the index that the list gives."""

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
    """The name of each part under its squeezed form, the longest first."""
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
    joined = "|".join(re.escape(name).replace(r"\ ", "[ _-]{0,2}") for name in names)
    return re.compile(rf"(?<![A-Za-z0-9])(?:{joined})(?![A-Za-z0-9])", re.IGNORECASE)


def _squeezed(words: str) -> str:
    return words.replace(" ", "").replace("_", "").replace("-", "").lower()


def mentions(text: str) -> list[Mention]:
    """Every known part that a text names, in its order.

    Only the first 60,000 characters are read.
    """
    text = text[:LONGEST]
    flat = _squeezed(text)
    names = tuple(name for squeezed, (name, _) in _names().items() if squeezed in flat)
    if not names:
        return []
    mentioned = []
    for match in _pattern(names).finditer(text):
        _, part = _names()[_squeezed(match.group())]
        mentioned.append(
            Mention(
                start=match.start(), end=match.end(), words=match.group(), part=part
            )
        )
    return mentioned


def gpu_kind(
    names: Iterable[str] = (),
    bundle: Bundle | None = None,
    total_bytes: int | None = None,
) -> str:
    """apu, card, nvidia-unified or unknown. ``names`` are the GPU's own words, never the CPU's.

    Where both a card and an APU are named, ``total_bytes`` (what the failing program sees)
    decides; else the card, because a processor's small GPU stands beside it.
    """
    mentioned = [mention for text in names for mention in mentions(text)]
    # HSA_OVERRIDE_GFX_VERSION lends a chip another's number; a name is its own.
    by_name = [
        mention for mention in mentioned if not mention.words.lower().startswith("gfx")
    ]
    mentioned_parts = [mention.part for mention in by_name or mentioned]
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
        if sizes and not is_card_size(total_bytes, "", sizes):
            return APU
    for kind in (CARD, APU):
        if kind in kinds:
            return kind
    return UNKNOWN


def _kinds_of_box(bundle: Bundle) -> set[str]:
    from helpers.look.gpus import gpus  # only a captured box needs every layer's reader

    kinds = set()
    for gpu in gpus(bundle):
        named = {mention.part.kind for mention in mentions(gpu.name.show())}
        if gpu.vendor == "NVIDIA" and (gpu.integrated or UNIFIED in named):
            kinds.add(UNIFIED)
        elif gpu.integrated is not None:
            kinds.add(APU if gpu.integrated else CARD)
    return kinds


def is_card_size(
    total_bytes: int, vendor: str = "AMD", gib: Iterable[int] | None = None
) -> bool:
    """Whether a runtime's total is the memory size of a discrete card of that vendor (of the
    sizes in ``gib``, if given).
    """
    least = LEAST_SHARE.get(vendor, min(LEAST_SHARE.values()))
    sizes = _sizes_of(CARD, vendor) if gib is None else set(gib)
    return any(
        least * size * GIB <= total_bytes <= size * GIB * 1.001 for size in sizes
    )


def is_unified_size(total_bytes: int) -> bool:
    """Whether a CUDA total is that of a part which shares the RAM, and of no card: the kernel
    keeps up to a tenth.
    """
    sizes = _sizes_of(UNIFIED, "NVIDIA")
    is_shared = any(0.9 * size * GIB <= total_bytes <= size * GIB for size in sizes)
    return is_shared and not is_card_size(total_bytes, "NVIDIA")


def _sizes_of(kind: str, vendor: str) -> set[int]:
    sizes: set[int] = set()
    for part in parts():
        if part.kind == kind and part.vendor == vendor:
            sizes.update(part.gib)
    return sizes


def card_sizes(names: Iterable[str]) -> tuple[int, ...]:
    """The memory sizes, in GiB, that the cards named can have; empty where none is known."""
    sizes: set[int] = set()
    for text in names:
        for mention in mentions(text):
            if mention.part.kind == CARD:
                sizes.update(mention.part.gib)
    return tuple(sorted(sizes))


def device_list(text: str) -> tuple[Listed, ...]:
    """The GPUs that a text lists with an index: "Device 0: NAME, gfx1036" as well as "NAME at
    device 1".
    """
    listed: dict[int, Listed] = {}
    for line in re.split(r"[\n;]", text[:LONGEST]):
        line = line[:400]
        numbers = [(match.start(), int(match[1])) for match in _INDEX.finditer(line)]
        mentioned = mentions(line)
        if not numbers or not mentioned:
            continue
        index_leads = numbers[0][0] < mentioned[0].start
        for mention in mentioned:
            before = [number for at, number in numbers if at < mention.start]
            behind = [number for at, number in numbers if at >= mention.end]
            candidates = before[-1:] if index_leads else behind[:1]
            if candidates:
                gpu = Listed(
                    index=candidates[0],
                    name=mention.words,
                    kind=mention.part.kind,
                    vendor=mention.part.vendor,
                )
                listed.setdefault(gpu.index, gpu)
    return tuple(listed[index] for index in sorted(listed))
