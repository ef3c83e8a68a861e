"""The parts of a GPU's memory: what each process holds, what no process accounts for, and what is free.

Every byte of the pool stands in one part, and what is not known stands as not known.
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.look.gpus import Gpu, Holder, Pool
from helpers.look.reading import MIB, Reading, not_available, seen

from .sheet import INK, MUTED, PALE, SERIES, UNKNOWN, Look
from .tables import gib, one_each, size


@dataclass(frozen=True)
class Part:
    """One part of a holder bar: its words, its bytes where they are known, how it looks, its value in words."""

    words: str
    held: int | None
    look: Look
    value: str


def _part(words: str, reading: Reading, look: Look) -> Part:
    held = size(reading)
    if held is None:
        return Part(words, None, Look(edge=MUTED, hatch=UNKNOWN), short(reading))
    return Part(words, held, look, gib(held))


def parts_of(gpu: Gpu) -> tuple[Pool | None, list[Part]]:
    """The pool whose use the holders explain best, and the parts of its bar."""
    holders = one_each(gpu.holders)
    parts = [
        _part(_holder_words(h), h.memory, Look(color, "white"))
        for color, h in zip(SERIES, holders, strict=False)
    ]
    rest = holders[len(SERIES) :]
    if rest:
        held = sum(size(h.memory) or 0 for h in rest)
        unknown = sum(size(h.memory) is None for h in rest)
        value = gib(held) + (f" and {unknown} unknown" if unknown else "")
        parts.append(Part(f"{len(rest)} more processes", held, Look(MUTED, "white"), value))
    parts.append(
        _part("held, by no process seen here", gpu.unattributed, Look("white", INK, "xxxx"))
    )
    held = sum(part.held or 0 for part in parts)
    known = [
        pool for pool in gpu.pools if size(pool.total) is not None and used_of(pool) is not None
    ]
    own = [pool for pool in known if pool.layer in ("sysfs VRAM", "sysfs GTT")]
    if gpu.integrated and len(own) == 2:
        known.insert(0, _together(*own))
    pool = min(known, key=lambda p: abs((used_of(p) or 0) - held), default=None)
    if size(gpu.unattributed) is None and known:
        pool = known[0]
    if pool:
        total, free = size(pool.total) or 0, size(pool.free)
        free = free if free is not None else max(total - max(used_of(pool) or 0, held), 0)
        if total - held - free >= MIB:
            words = (
                "in use, by whom is not known"
                if size(gpu.unattributed) is None
                else "neither in use nor free"
            )
            parts.append(
                Part(
                    words,
                    total - held - free,
                    Look("white", MUTED, "..."),
                    gib(total - held - free),
                )
            )
        parts.append(Part("free", free, Look(PALE, MUTED), gib(free)))
    return pool, parts


def _together(one: Pool, other: Pool) -> Pool:
    """An integrated GPU takes memory from its carve-out and from the RAM alike: two pools, one use."""
    total = seen((size(one.total) or 0) + (size(other.total) or 0), "bytes", one.total.source)
    used = seen((used_of(one) or 0) + (used_of(other) or 0), "bytes", one.used.source)
    free = not_available("see the parts", "bytes", one.total.source)
    return Pool(one.pci, f"{one.layer} and {other.layer}", total, used, free)


def _holder_words(holder: Holder) -> str:
    odd = {"Z": "zombie", "D": "waits in the kernel"}.get(holder.state[:1], "")
    extra = ", ".join(word for word in (odd, holder.note) if word)
    return f"{holder.name or 'unnamed'} ({holder.pid})" + (f": {extra}" if extra else "")


def short(reading: Reading) -> str:
    """Why there is no value, in two words."""
    return reading.status.replace("_", " ")


def used_of(pool: Pool) -> int | None:
    """Bytes in use, or total less free where the layer gives only these; None where it is not known."""
    total, used, free = size(pool.total), size(pool.used), size(pool.free)
    return (
        used
        if used is not None
        else total - free
        if total is not None and free is not None
        else None
    )
