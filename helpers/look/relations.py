"""What figures of one thing say of each other: equal, half, a sum, above what can be, free beside used, and the rest. Pure.

RELATIONS names each relation with its meaning. A relation is hard where none of its figures was retold; nothing here decides
a cause. Tolerances come from the printed digits, and from what layers are known to round (units.ROUNDED, HALF_SHARE).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from helpers.grammar import data
from helpers.look.figures import HALF, NOT_MEASURED_BYTES, Figure, beside, lone_free
from helpers.look.parts import APU, CARD, UNIFIED, UNKNOWN, is_card_size
from helpers.units import GIB, MIB, near, show_bytes

HALF_SHARE = 0.03
"""MemTotal grows a little after TTM took half of it, so half the RAM is met less exactly."""
LOWER_SHARE = 0.05
"""A runtime keeps up to 5 % of a card from its total (firmware, ECC)."""
INSTALLED_SHARE = 0.06
"""What firmware and kernel take of the RAM that was bought, before MemTotal."""
BUSY_BYTES = 512 * MIB
WORD_BYTES = 4 * GIB
"""What 32 bits hold: Windows' AdapterRAM gives it, or up to 1 MiB less, for every larger card (Win32_VideoController)."""
RELATIONS: dict[str, str] = data("relations")
"""Each relation's name and what it means."""


@dataclass(frozen=True)
class Relation:
    """One relation (a name of RELATIONS) with its figures, in words with the numbers. ``hard``: no figure was retold."""

    name: str
    figures: tuple[Figure, ...]
    says: str
    hard: bool


if TYPE_CHECKING:
    Found = Iterator[tuple[str, tuple[Figure, ...]]]
RUNTIME, DRIVER = ("runtime", "hsa"), ("kfd", "ttm", "gtt", "vram", "carveout")


class _Book:
    """Figures sorted for asking."""

    def __init__(self, figures: Iterable[Figure], kind: str, sizes: tuple[int, ...], hip: bool):
        figures = tuple(figures)
        self.all = [f for f in figures if f.bytes is not None]
        self.blank = [f for f in figures if f.bytes is None]
        self.kind, self.sizes, self.hip = kind, sizes, hip

    def of(self, what: str, *pools: str) -> list[Figure]:
        found = [f for f in self.all if f.what == what and (not pools or f.pool in pools)]
        return [f for f in found if abs(_b(f)) < NOT_MEASURED_BYTES]

    def totals(self, *pools: str) -> list[Figure]:
        """Totals and live limits of pools, the figures read before those retold."""
        return sorted(self.of("total", *pools) + self.of("limit", *pools), key=lambda f: f.hearsay)

    @property
    def ram(self) -> Figure | None:
        return next(iter(self.totals("ram") or self.totals("ram-installed")), None)

    @property
    def installed(self) -> int | None:
        """The RAM that was bought: as stated, or MemTotal and a carve-out with it, at least."""
        stated = self.totals("ram-installed")
        linux = max((_b(f) for f in self.totals("ram")), default=0)
        carved = max((_b(f) for f in self.totals("carveout", "vram")), default=0)
        most = int((linux + carved) / (1 - INSTALLED_SHARE))
        return _b(stated[0]) if stated else (most or None)


def _b(figure: Figure) -> int:
    return figure.bytes or 0


def relations(
    figures: Iterable[Figure], kind: str = UNKNOWN, sizes: Iterable[int] = (), hip: bool = False
) -> list[Relation]:
    """Every relation between the figures, each name at most once for one set of sources.

    ``kind`` is gpu_kind's answer, ``sizes`` the memory sizes (GiB) of the cards named, ``hip`` whether ROCm's runtime
    gave the runtime's figures.
    """
    book = _Book(figures, kind, tuple(sizes), hip)
    found: dict[tuple[Any, ...], Relation] = {}
    for name, of in (pair for rule in _RULES for pair in rule(book)):
        key = (name, *sorted({(f.source, f.pool, f.what) for f in of}))
        says = f"{RELATIONS[name]}: " + ", ".join(map(_words, of))
        says = says[:1].upper() + says[1:]
        found.setdefault(key, Relation(name, of, says, not any(f.hearsay for f in of)))
    return list(found.values())


def _words(figure: Figure) -> str:
    value = figure.text if figure.bytes is None else show_bytes(figure.bytes)
    device = f" of device {figure.device}" if figure.device else ""
    return f"{figure.pool} {figure.what}{device} {value} ({figure.source})"


def _same_device(left: Figure, right: Figure) -> bool:
    return not left.device or not right.device or left.device == right.device


def _one_total(book: _Book) -> Found:
    totals = book.totals(*RUNTIME, *DRIVER, "vulkan", "opencl")
    for left, right in combinations(totals[:40], 2):
        if not _same_device(left, right):
            continue
        if left.pool != right.pool:
            if near(left, right):
                yield "equal", (left, right)
        elif left.source != right.source and not near(left, right, LOWER_SHARE):
            yield "totals-differ", (left, right)


def _shares_of_ram(book: _Book) -> Found:
    for figure in book.blank:
        if figure.text == HALF:
            yield "half-of-ram", (figure,)
    if book.kind == CARD or book.kind == UNIFIED or book.ram is None:
        return
    ram, installed = book.ram, book.installed or 0
    for total in book.totals("runtime", "hsa", "kfd", "ttm", "gtt"):
        if book.kind != APU and (total.pool in ("ttm", "gtt") or not book.hip):
            continue
        half = _b(ram) // 2
        bought = ram.pool == "ram-installed" and _b(total) <= half
        if near(total, half, HALF_SHARE) or (bought and _b(total) >= (1 - INSTALLED_SHARE) * half):
            yield "half-of-ram", (total, ram)
        for block in book.totals("carveout", "vram"):
            rest = (installed - _b(block)) // 2
            if _b(block) > 1.5 * _b(total) and (1 - INSTALLED_SHARE) * rest <= _b(total) <= rest:
                yield "half-of-rest", (total, block, ram)


def _sums(book: _Book) -> Found:
    if book.kind == CARD:
        return
    for block in book.totals("vram", "carveout"):
        for gtt in book.totals("gtt"):
            if _b(block) <= 0.01 * _b(gtt):
                continue
            for total in book.totals("runtime", "hsa", "vulkan", "runtime-sum", "vram", "gtt"):
                if total not in (block, gtt) and near(total, _b(block) + _b(gtt), 0.005):
                    yield "sum", (total, block, gtt)


def _beyond(book: _Book) -> Found:
    most = max(book.sizes, default=0) * GIB if book.kind == CARD else 0
    if book.kind in (APU, UNIFIED):
        most = book.installed or 0
    elif not most:
        most = max((_b(f) for f in book.of("total", "stated")), default=0)
    for total in book.totals("vram", "visible-vram") if book.kind == CARD else ():
        if min(book.sizes, default=0) > 4 and near(total, WORD_BYTES, 0.001):
            yield "wrapped", (total,)
    for figure in (f for f in book.all if f.what in ("total", "used", "free")):
        size = _b(figure)
        bounded = figure.pool in ("runtime", "hsa", "kfd", "vram", "gtt", "vulkan")
        if size < 0 or abs(size) >= NOT_MEASURED_BYTES:
            yield "wrapped", (figure,)
        elif most and bounded and size > 1.02 * most:
            if not (figure.pool == "gtt" and book.kind == CARD):
                yield "above-hardware", (figure,)
    for total in book.totals("runtime") if book.hip and book.kind == UNKNOWN else ():
        if _b(total) > 256 * MIB and not is_card_size(_b(total), "AMD"):
            yield "no-card-size", (total,)
    pools = book.of("used", "vram", "gtt") + book.totals("vram", "gtt")
    for low, high in (sorted(pair, key=_b) for pair in combinations(pools, 2)):
        if (low.what, low.pool) == (high.what, high.pool) and low.source != high.source:
            lost = _b(high) - _b(low)
            if lost and _b(low) < 4 * GIB <= _b(high) and near(lost % (4 * GIB), 0, 0):
                yield "wrapped", (low, high)


def _rest(book: _Book) -> Found:
    for total in book.totals("runtime", "vram", "gtt", "ram", "visible-vram"):
        others = lone_free(book.all) if total.pool == "runtime" else []
        for free in beside(total, book.all, "free") or others:
            if _b(free) > _b(total) and not near(free, total, 0):
                yield "free-above-total", (free, total)
            elif near(free, total, 0.001):
                pools = (total.pool, "vram", "process", "gtt")
                use = [f for f in book.of("used", *pools) if _same_device(f, total)]
                use = [f for f in use if _b(f) > max(64 * MIB, 4 * free.precision_bytes)]
                if use:
                    yield "free-is-total", (free, total, use[0])
        for used in beside(total, book.all, "used"):
            if _b(used) > _b(total) and not near(used, total, 0.02):
                yield "used-above-total", (used, total)
            held = sum(_b(f) for f in list(beside(total, book.all, "reserved"))[:1])
            for free in beside(total, book.all, "free"):
                rest = _b(total) - _b(used) - held
                if total.pool != "ram" and abs(rest - _b(free)) > max(0.03 * _b(total), 64 * MIB):
                    yield "rest-differs", (total, used, free)


def _between_sources(book: _Book) -> Found:
    for what, name in (("used", "used-differs"), ("free", "frees-differ")):
        for pair in combinations(book.of(what, "runtime", "vram", "gtt")[:40], 2):
            low, high = sorted(pair, key=_b)
            alike = low.pool == high.pool or what == "free"
            if alike and low.source != high.source and _same_device(low, high):
                if _b(high) > 1.5 * _b(low) and _b(high) - _b(low) > 2 * GIB:
                    yield name, (low, high)
    unmeasured = [f for f in book.blank if f.text != HALF]
    for blank in unmeasured + [f for f in book.all if f.bytes == 0 and f.pool != "swap"]:
        others = {"vram": ("vram", "runtime", "process")}.get(blank.pool, (blank.pool, "process"))
        for other in book.of(blank.what) + book.of("used", "process"):
            same = blank.pool == "process" or other.pool in others
            if same and blank.source != other.source and _b(other) > BUSY_BYTES:
                if _same_device(blank, other):
                    yield "not-measured", (blank, other)
                    break


def _runtime_and_driver(book: _Book) -> Found:
    drivers = [f for f in book.totals(*DRIVER) if book.kind != CARD or f.pool in ("vram", "kfd")]
    for total in book.totals(*RUNTIME):
        for driver in drivers:
            if not _same_device(total, driver) or (driver.pool == "gtt" and book.kind == UNKNOWN):
                continue
            below = _b(total) <= _b(driver)
            carved = not below and driver.pool in ("vram", "carveout") and book.kind == APU
            if not near(total, driver, LOWER_SHARE) and not carved:
                yield f"runtime-{'below' if below else 'above'}-driver", (total, driver)
    live = {f.pool: f for f in book.totals("gtt", "ttm")}
    runtime = next(iter(book.totals(*RUNTIME)), None)
    for wanted in book.of("wanted", "ttm", "gtt"):
        seen = live.get(wanted.pool)
        if seen is not None and not near(wanted, seen, 0.0001):
            yield "wanted-not-live", (wanted, seen)
        elif any(near(wanted, reached) for reached in book.totals("vulkan", "kfd")):
            continue  # a limit that another interface reaches is live
        elif runtime is not None and _b(wanted) > 1.3 * _b(runtime):
            yield "wanted-not-live", (wanted, runtime)
    for need in book.of("wanted", "runtime"):
        for free in book.of("free", "runtime"):
            if need.source == free.source and need.origin == "tool" and _b(need) < _b(free):
                yield "fits-by-figures", (need, free)


def _cards(book: _Book) -> Found:
    sources = {f.source for f in book.of("used", "vram", "runtime")}
    for source in sorted(sources):
        own = [f for f in book.of("used", "vram", "runtime") if f.source == source]
        pairs = [(f, t) for f in own for t in beside(f, book.all, "total") if _b(t) > 0]
        pairs = list({used.device: (used, total) for used, total in pairs if used.device}.values())
        busy = [(f, total) for f, total in pairs if _b(f) > max(BUSY_BYTES, 0.05 * _b(total))]
        full = [used for used, total in pairs if _b(used) > 0.9 * _b(total)]
        idle = [used for used, total in pairs if _b(used) < 0.05 * _b(total)]
        if full and idle:
            yield "some-full", (full[0], idle[0])
        if len(busy) < 2:
            continue
        uses, sizes = [_b(u) for u, _ in busy], [_b(t) for _, t in busy]
        shares = [_b(u) / _b(t) for u, t in busy]
        alike = max(shares) - min(shares) < 0.02
        same = max(uses) // 500 + 2 * busy[0][0].precision_bytes
        first = tuple(used for used, _ in busy[:4])
        if max(sizes) > 1.1 * min(sizes) and alike and min(shares) > 0.3:
            yield "equal-fractions", first
        if len(busy) >= 3 and max(uses) - min(uses) <= same:
            yield "equal-amounts", first


def _page_cache(book: _Book) -> Found:
    if book.kind != UNIFIED:
        return
    for available in book.of("free", "available"):
        for bare in book.of("free", "runtime") + book.of("free", "hostfree"):
            if _b(available) > 1.5 * _b(bare) and _b(available) - _b(bare) > 2 * GIB:
                yield "cache-counted-as-used", (bare, available)
                break


_RULES: tuple[Callable[[_Book], Found], ...] = (
    _one_total,
    _shares_of_ram,
    _sums,
    _beyond,
    _rest,
    _between_sources,
    _runtime_and_driver,
    _cards,
    _page_cache,
)
