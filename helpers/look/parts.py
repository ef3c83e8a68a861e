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
PREFIXES = "(?:radeon|instinct|geforce|tesla|rtx|gtx|rx|pro|titan)"


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

    found = []
    for row in data("look/parts"):
        lists = {name: tuple(row[name]) for name in ("names", "gfx", "gib") if name in row}
        found.append(Part(**{**row, **lists}))
    return tuple(found)


@lru_cache(maxsize=1)
def _names() -> dict[str, tuple[str, Part]]:
    """The name of each part under its squeezed form, the longest first."""
    known: dict[str, tuple[str, Part]] = {}
    for part in parts():
        for name in (*part.names, *part.gfx):
            known.setdefault(_squeezed(name), (name, part))
            # "7900 XTX" alone is that card; a bare number such as 580 may be a driver's version.
            bare = re.sub(rf"^(?:{PREFIXES} )+", "", name, flags=re.IGNORECASE)
            if bare != name and re.search(r"\d ?[A-Za-z]|[A-Za-z]\d{2}", bare):
                known.setdefault(_squeezed(bare), (bare, part))
    return dict(sorted(known.items(), key=lambda item: -len(item[1][0])))


@lru_cache(maxsize=64)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    joined = "|".join(re.escape(name).replace(r"\ ", "[ _-]{0,2}") for name in names)
    return re.compile(rf"(?<![A-Za-z0-9])(?:{joined})(?![A-Za-z0-9])", re.IGNORECASE)


def _squeezed(words: str) -> str:
    return words.replace(" ", "").replace("_", "").replace("-", "").lower()


def mentions(text: str) -> list[Mention]:
    """Every known part that a text names, in its order. Only the first 60,000 characters are read."""
    text = text[:LONGEST]
    known = _names()
    flat = _squeezed(text)
    names = tuple(name for squeezed, (name, _) in known.items() if squeezed in flat)
    found = []
    for match in _pattern(names).finditer(text) if names else ():
        part = known[_squeezed(match.group())][1]
        found.append(Mention(*match.span(), match.group(), part))
    return found


def gpu_kind(
    names: Iterable[str] = (),
    gfx: Iterable[str] = (),
    bundle: Bundle | None = None,
    total_bytes: int | None = None,
) -> str:
    """apu, card, nvidia-unified or unknown. ``names`` are the GPU's own words, never the CPU's.

    Where both a card and an APU are named, ``total_bytes`` (what the failing program sees)
    decides; else the card, because a processor's small GPU stands beside it.
    """
    found = [m for text in (*names, *gfx) for m in mentions(text)]
    # HSA_OVERRIDE_GFX_VERSION lends a chip another's number; a name is its own.
    named = [m for m in found if not m.words.lower().startswith("gfx")]
    own = [m.part for m in named or found]
    kinds = {part.kind for part in own}
    if bundle is not None:
        from helpers.look.gpus import gpus  # only a captured box needs every layer's reader

        for gpu in gpus(bundle):
            known = {mention.part.kind for mention in mentions(gpu.name.show())}
            unified = gpu.vendor == "NVIDIA" and (gpu.integrated or UNIFIED in known)
            if unified or gpu.integrated is not None:
                kinds.add(UNIFIED if unified else APU if gpu.integrated else CARD)
    if UNIFIED in kinds:
        return UNIFIED
    if {APU, CARD} <= kinds and total_bytes:
        sizes = [size for part in own if part.kind == CARD for size in part.gib]
        return CARD if is_card_size(total_bytes, "", sizes) or not sizes else APU
    return CARD if CARD in kinds else APU if APU in kinds else UNKNOWN


def is_card_size(total_bytes: int, vendor: str = "AMD", gib: Iterable[int] | None = None) -> bool:
    """Whether a runtime's total is the memory size of a discrete card of that vendor (of the
    sizes in ``gib``, if given).
    """
    least = LEAST_SHARE.get(vendor, min(LEAST_SHARE.values()))
    if gib is None:
        gib = {s for p in parts() if (p.kind, p.vendor) == (CARD, vendor) for s in p.gib}
    return any(least * size * GIB <= total_bytes <= size * GIB * 1.001 for size in set(gib))


def is_unified_size(total_bytes: int) -> bool:
    """Whether a CUDA total is that of a part which shares the RAM, and of no card: the kernel
    keeps up to a tenth.
    """
    sizes = {size for part in parts() if part.kind == UNIFIED for size in part.gib}
    shared = any(0.9 * size * GIB <= total_bytes <= size * GIB for size in sizes)
    return shared and not is_card_size(total_bytes, "NVIDIA")


def card_sizes(names: Iterable[str]) -> tuple[int, ...]:
    """The memory sizes, in GiB, that the cards named can have; empty where none is known."""
    known = {m.part for text in names for m in mentions(text) if m.part.kind == CARD}
    return tuple(sorted({size for part in known for size in part.gib}))


_INDEX = lazy(
    r"(?:\b(?:device|gpu|rocm|hip|cuda|vulkan|index)[ #:\[(=]{0,3}|^[ \t]{0,8})(\d{1,2})(?=[\]):=, ]|$)",
    re.IGNORECASE | re.MULTILINE,
)


def device_list(text: str) -> tuple[Listed, ...]:
    """The GPUs that a text lists with an index: "Device 0: NAME, gfx1036" as well as "NAME at
    device 1".
    """
    found: dict[int, Listed] = {}
    for line in re.split(r"[\n;]", text[:LONGEST]):
        line = line[:400]
        numbers = [(m.start(), int(m.group(1))) for m in _INDEX.finditer(line)]
        named = mentions(line)
        if not numbers or not named:
            continue
        leads = numbers[0][0] < named[0].start
        for mention in named:
            before = [n for at, n in numbers if at < mention.start]
            after = [n for at, n in numbers if at >= mention.end]
            index = (before[-1:] if leads else after[:1]) or [-1]
            if index[0] >= 0:
                row = Listed(index[0], mention.words, mention.part.kind, mention.part.vendor)
                found.setdefault(index[0], row)
    return tuple(found[index] for index in sorted(found))
