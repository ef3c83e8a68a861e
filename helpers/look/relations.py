"""What figures of one thing say of each other: equal, half, a sum, above what can be, free
beside used, and the rest. Pure.

RELATIONS names each relation with its meaning. A relation is hard where none of its figures
was retold; nothing here decides a cause. Tolerances come from the printed digits, and from
what layers are known to round (units.ROUNDED, HALF_SHARE).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from helpers.ground.tables import data
from helpers.ground.units import GIB, MIB, NOT_MEASURED_BYTES, near, show_bytes
from helpers.look.figures import Figure, beside, lone_free
from helpers.look.parts import APU, CARD, UNIFIED, UNKNOWN, is_card_size

if TYPE_CHECKING:
    Named = Iterator[tuple[str, tuple[Figure, ...]]]
    """The names of relations, each with its figures."""

HALF_SHARE = 0.03
"""MemTotal grows a little after TTM took half of it, so half the RAM is met less exactly."""
LOWER_SHARE = 0.05
"""A runtime keeps up to 5 % of a card from its total (firmware, ECC)."""
INSTALLED_SHARE = 0.06
"""What firmware and kernel take of the RAM that was bought, before MemTotal."""
RELATIONS: dict[str, str] = data("look/relations")
"""Each relation's name and what it means."""
RUNTIME = ("runtime", "hsa")
DRIVER = ("kfd", "ttm", "gtt", "vram", "carveout")


@dataclass(frozen=True)
class Relation:
    """One relation (a name of RELATIONS) with its figures, in words with the numbers.

    ``hard``: no figure was retold.
    """

    name: str
    figures: tuple[Figure, ...]
    says: str
    hard: bool


def relations(
    figures: Iterable[Figure], kind: str = UNKNOWN, hip: bool = False
) -> list[Relation]:
    """Every relation between the figures, each name at most once for one set of sources.

    ``kind`` is gpu_kind's answer, ``hip`` whether ROCm's runtime gave the runtime's figures.
    """
    book = _Book(figures, kind, hip)
    by_place: dict[tuple[object, ...], Relation] = {}
    for rule in _RULES:
        for name, related in rule(book):
            places = sorted(
                {(figure.source, figure.pool, figure.measure) for figure in related}
            )
            says = f"{RELATIONS[name]}: " + ", ".join(map(_in_words, related))
            relation = Relation(
                name=name,
                figures=related,
                says=says[:1].upper() + says[1:],
                hard=not any(figure.hearsay for figure in related),
            )
            by_place.setdefault((name, *places), relation)
    return list(by_place.values())


class _Book:
    """Figures sorted for asking."""

    def __init__(self, figures: Iterable[Figure], kind: str, hip: bool):
        figures = tuple(figures)
        self.measured = [figure for figure in figures if figure.bytes is not None]
        self.kind = kind
        self.hip = hip

    def of(self, measure: str, *pools: str) -> list[Figure]:
        """The figures of that measure and of the pools (none named: of any) that can be sizes."""
        return [
            figure
            for figure in self.measured
            if figure.measure == measure
            and (not pools or figure.pool in pools)
            and abs(_bytes(figure)) < NOT_MEASURED_BYTES
        ]

    def totals(self, *pools: str) -> list[Figure]:
        """Totals and live limits of pools, the figures read before those retold."""
        totals = self.of("total", *pools) + self.of("limit", *pools)
        return sorted(totals, key=lambda figure: figure.hearsay)

    @property
    def ram(self) -> Figure | None:
        totals = self.totals("ram") or self.totals("ram-installed")
        return totals[0] if totals else None

    @property
    def installed_bytes(self) -> int | None:
        """The RAM that was bought: as stated, or MemTotal and a carve-out with it, at least."""
        stated = self.totals("ram-installed")
        if stated:
            return _bytes(stated[0])
        linux = max(map(_bytes, self.totals("ram")), default=0)
        carved_out = max(map(_bytes, self.totals("carveout", "vram")), default=0)
        # Linux has what firmware and kernel left of it.
        bought = int((linux + carved_out) / (1 - INSTALLED_SHARE))
        return bought or None


def _bytes(figure: Figure) -> int:
    return figure.bytes or 0


def _in_words(figure: Figure) -> str:
    value = figure.text if figure.bytes is None else show_bytes(figure.bytes)
    device = f" of device {figure.device}" if figure.device else ""
    return f"{figure.pool} {figure.measure}{device} {value} ({figure.source})"


def _same_device(left: Figure, right: Figure) -> bool:
    return not left.device or not right.device or left.device == right.device


def _totals_of_one_thing(book: _Book) -> Named:
    totals = book.totals(*RUNTIME, *DRIVER, "vulkan")
    for left, right in combinations(totals[:40], 2):
        if not _same_device(left, right):
            continue
        same_pool = left.pool == right.pool and left.source != right.source
        if same_pool and not near(left, right, LOWER_SHARE):
            yield "totals-differ", (left, right)


def _shares_of_ram(book: _Book) -> Named:
    ram = book.ram
    if ram is None or book.kind in (CARD, UNIFIED):
        return
    half = _bytes(ram) // 2
    pools = ["runtime", "hsa", "kfd"]
    if book.kind == APU:
        pools += ["ttm", "gtt"]
    elif not book.hip:
        return
    for total in book.totals(*pools):
        size = _bytes(total)
        of_bought = (
            ram.pool == "ram-installed" and (1 - INSTALLED_SHARE) * half <= size <= half
        )
        if of_bought or near(total, half, HALF_SHARE):
            yield "half-of-ram", (total, ram)
        for block in book.totals("carveout", "vram"):
            rest = ((book.installed_bytes or 0) - _bytes(block)) // 2
            is_half_of_rest = (1 - INSTALLED_SHARE) * rest <= size <= rest
            if is_half_of_rest and _bytes(block) > 1.5 * size:
                yield "half-of-rest", (total, block, ram)


def _no_card_size(book: _Book) -> Named:
    if book.hip and book.kind == UNKNOWN:
        for total in book.totals("runtime"):
            if _bytes(total) > 256 * MIB and not is_card_size(_bytes(total), "AMD"):
                yield "no-card-size", (total,)


def _free(book: _Book) -> Named:
    """Total and free of one pool."""
    for total in book.totals("runtime", "vram", "gtt", "ram", "visible-vram"):
        yield from _free_of_total(book, total)


def _free_of_total(book: _Book, total: Figure) -> Named:
    free_sizes = beside(total, book.measured, "free")
    if not free_sizes and total.pool == "runtime":
        free_sizes = lone_free(book.measured)
    for free in free_sizes:
        if _bytes(free) > _bytes(total) and not near(free, total, 0):
            yield "free-above-total", (free, total)
        elif near(free, total, 0.001):
            least = max(64 * MIB, 4 * free.precision_bytes)
            for used in book.of("used", total.pool, "vram", "process", "gtt"):
                if _same_device(used, total) and _bytes(used) > least:
                    yield "free-is-total", (free, total, used)
                    break


def _between_sources(book: _Book) -> Named:
    for pair in combinations(book.of("free", "runtime", "vram", "gtt")[:40], 2):
        low, high = sorted(pair, key=_bytes)
        if low.source == high.source or not _same_device(low, high):
            continue
        if _is_far_below(low, high):
            yield "frees-differ", (low, high)


def _is_far_below(low: Figure, high: Figure) -> bool:
    return _bytes(high) > 1.5 * _bytes(low) and _bytes(high) - _bytes(low) > 2 * GIB


def _runtime_and_driver(book: _Book) -> Named:
    for total in book.totals(*RUNTIME):
        for driver in book.totals(*DRIVER):
            if _are_compared(book, total, driver) and not near(
                total, driver, LOWER_SHARE
            ):
                is_below = _bytes(total) <= _bytes(driver)
                is_carve_out = driver.pool in ("vram", "carveout") and book.kind == APU
                if is_below:
                    yield "runtime-below-driver", (total, driver)
                elif not is_carve_out:
                    yield "runtime-above-driver", (total, driver)
    yield from _limits_not_live(book)
    for need in book.of("wanted", "runtime"):
        for free in book.of("free", "runtime"):
            same_tool = need.source == free.source and need.origin == "tool"
            if same_tool and _bytes(need) < _bytes(free):
                yield "fits-by-figures", (need, free)


def _are_compared(book: _Book, total: Figure, driver: Figure) -> bool:
    """Whether a runtime's total should be that pool of the driver."""
    if book.kind == CARD and driver.pool not in ("vram", "kfd"):
        return False
    if book.kind == UNKNOWN and driver.pool == "gtt":
        return False
    return _same_device(total, driver)


def _limits_not_live(book: _Book) -> Named:
    live = {total.pool: total for total in book.totals("gtt", "ttm")}
    runtime = book.totals(*RUNTIME)
    # A limit that another interface reaches is live.
    reached = book.totals("vulkan", "kfd")
    for wanted in book.of("wanted", "ttm", "gtt"):
        live_limit = live.get(wanted.pool)
        if live_limit is not None and not near(wanted, live_limit, 0.0001):
            yield "wanted-not-live", (wanted, live_limit)
        elif any(near(wanted, total) for total in reached):
            continue
        # Above the runtime by more than rounding and what firmware keeps.
        elif runtime and _bytes(wanted) > 1.3 * _bytes(runtime[0]):
            yield "wanted-not-live", (wanted, runtime[0])


def _cards(book: _Book) -> Named:
    """Whether a source shows some of its cards full and others empty."""
    full: dict[str, Figure] = {}
    idle: dict[str, Figure] = {}
    for used in book.of("used", "vram", "runtime"):
        if not used.device:
            continue
        for total in beside(used, book.measured, "total"):
            if _bytes(used) > 0.9 * _bytes(total) > 0:
                full.setdefault(used.source, used)
            elif _bytes(used) < 0.05 * _bytes(total):
                idle.setdefault(used.source, used)
    for source in sorted(full.keys() & idle.keys()):
        if full[source].device != idle[source].device:
            yield "some-full", (full[source], idle[source])


def _page_cache(book: _Book) -> Named:
    if book.kind != UNIFIED:
        return
    for available in book.of("free", "available"):
        for free in book.of("free", "runtime") + book.of("free", "hostfree"):
            if _is_far_below(free, available):
                yield "cache-counted-as-used", (free, available)
                break


_RULES: tuple[Callable[[_Book], Named], ...] = (
    _totals_of_one_thing,
    _shares_of_ram,
    _no_card_size,
    _free,
    _between_sources,
    _runtime_and_driver,
    _cards,
    _page_cache,
)
