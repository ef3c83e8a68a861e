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
    Related = Iterator[tuple[str, tuple[Figure, ...]]]
    """Names of relations, each with the figures that stand in it."""

HALF_SHARE = 0.03
"""MemTotal grows a little after TTM took half of it, so half the RAM is met less exactly."""
LOWER_SHARE = 0.05
"""A runtime keeps up to 5 % of a card from its total (firmware, ECC)."""
INSTALLED_SHARE = 0.06
"""What firmware and kernel take of the RAM that was bought, before MemTotal."""
RELATIONS: dict[str, str] = data("look/relations")
"""Each relation's name and what it means."""
MOST_COMPARED = 40
"""Figures that are compared with each other."""
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
    stated = _StatedFigures(figures, kind, hip)
    by_place: dict[tuple[object, ...], Relation] = {}
    for rule in _RULES:
        for name, related in rule(stated):
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


class _StatedFigures:
    """The figures of one box or text, by what they measure and of which pool."""

    def __init__(self, figures: Iterable[Figure], kind: str, hip: bool):
        self.measured = [figure for figure in figures if figure.bytes is not None]
        self.kind = kind
        self.hip = hip

    def of(self, measure: str, *pools: str) -> list[Figure]:
        """The figures of that measure and of the pools that can be sizes."""
        return [
            figure
            for figure in self.measured
            if figure.measure == measure
            and figure.pool in pools
            and abs(figure.size) < NOT_MEASURED_BYTES
        ]

    def totals(self, *pools: str) -> list[Figure]:
        """Totals and live limits of pools, the figures read before those retold."""
        totals = self.of("total", *pools) + self.of("limit", *pools)
        return sorted(totals, key=lambda figure: figure.hearsay)

    @property
    def ram(self) -> Figure | None:
        return next(iter(self.totals("ram") + self.totals("ram-installed")), None)

    @property
    def bought_ram(self) -> int:
        """The RAM that was bought, in bytes: as stated, or at least MemTotal and a carve-out with
        it; 0 where nothing says.
        """
        for stated in self.totals("ram-installed"):
            return stated.size
        linux = max((total.size for total in self.totals("ram")), default=0)
        carve_outs = self.totals("carveout", "vram")
        carved_out = max((total.size for total in carve_outs), default=0)
        # Linux has what firmware and kernel left of it.
        return int((linux + carved_out) / (1 - INSTALLED_SHARE))


def _in_words(figure: Figure) -> str:
    value = figure.text
    if figure.bytes is not None:
        value = show_bytes(figure.bytes)
    device = f" of device {figure.device}" if figure.device else ""
    return f"{figure.pool} {figure.measure}{device} {value} ({figure.source})"


def _same_device(left: Figure, right: Figure) -> bool:
    return not left.device or not right.device or left.device == right.device


def _totals_of_one_thing(stated: _StatedFigures) -> Related:
    totals = stated.totals(*RUNTIME, *DRIVER, "vulkan")
    for left, right in combinations(totals[:MOST_COMPARED], 2):
        same_pool = left.pool == right.pool and left.source != right.source
        if not same_pool or not _same_device(left, right):
            continue
        if not near(left, right, LOWER_SHARE):
            yield "totals-differ", (left, right)


def _shares_of_ram(stated: _StatedFigures) -> Related:
    ram = stated.ram
    if ram is None or stated.kind in (CARD, UNIFIED):
        return
    pools = ["runtime", "hsa", "kfd"]
    if stated.kind == APU:
        pools += ["ttm", "gtt"]
    elif not stated.hip:
        return
    half = ram.size // 2
    for total in stated.totals(*pools):
        is_of_bought = ram.pool == "ram-installed" and _is_most_of(half, total)
        if is_of_bought or near(total, half, HALF_SHARE):
            yield "half-of-ram", (total, ram)
        for block in stated.totals("carveout", "vram"):
            half_of_rest = (stated.bought_ram - block.size) // 2
            if _is_most_of(half_of_rest, total) and block.size > 1.5 * total.size:
                yield "half-of-rest", (total, block, ram)


def _is_most_of(bought_bytes: int, total: Figure) -> bool:
    """Whether a total is what firmware and kernel leave of so much RAM."""
    return (1 - INSTALLED_SHARE) * bought_bytes <= total.size <= bought_bytes


def _no_card_size(stated: _StatedFigures) -> Related:
    if stated.hip and stated.kind == UNKNOWN:
        for total in stated.totals("runtime"):
            if total.size > 256 * MIB and not is_card_size(total.size, "AMD"):
                yield "no-card-size", (total,)


def _free(stated: _StatedFigures) -> Related:
    """Total and free of one pool."""
    for total in stated.totals("runtime", "vram", "gtt", "ram", "visible-vram"):
        free_sizes = beside(total, stated.measured, "free")
        if not free_sizes and total.pool == "runtime":
            free_sizes = lone_free(stated.measured)
        for free in free_sizes:
            if free.size > total.size and not near(free, total, 0):
                yield "free-above-total", (free, total)
            elif near(free, total, 0.001):
                yield from _free_though_used(stated, free, total)


def _free_though_used(stated: _StatedFigures, free: Figure, total: Figure) -> Related:
    least = max(64 * MIB, 4 * free.precision_bytes)
    for used in stated.of("used", total.pool, "vram", "process", "gtt"):
        if _same_device(used, total) and used.size > least:
            yield "free-is-total", (free, total, used)
            return


def _between_sources(stated: _StatedFigures) -> Related:
    free_sizes = stated.of("free", "runtime", "vram", "gtt")
    for pair in combinations(free_sizes[:MOST_COMPARED], 2):
        low, high = sorted(pair, key=lambda free: free.size)
        if low.source == high.source or not _same_device(low, high):
            continue
        if _is_far_below(low, high):
            yield "frees-differ", (low, high)


def _is_far_below(low: Figure, high: Figure) -> bool:
    return high.size > 1.5 * low.size and high.size - low.size > 2 * GIB


def _runtime_and_driver(stated: _StatedFigures) -> Related:
    for total in stated.totals(*RUNTIME):
        for driver in stated.totals(*DRIVER):
            if not _are_compared(stated.kind, total, driver):
                continue
            if near(total, driver, LOWER_SHARE):
                continue
            is_carve_out = driver.pool in ("vram", "carveout") and stated.kind == APU
            if total.size <= driver.size:
                yield "runtime-below-driver", (total, driver)
            elif not is_carve_out:
                yield "runtime-above-driver", (total, driver)


def _are_compared(kind: str, total: Figure, driver: Figure) -> bool:
    """Whether a runtime's total should be that pool of the driver."""
    if kind == CARD and driver.pool not in ("vram", "kfd"):
        return False
    if kind == UNKNOWN and driver.pool == "gtt":
        return False
    return _same_device(total, driver)


def _limits_not_live(stated: _StatedFigures) -> Related:
    live = {total.pool: total for total in stated.totals("gtt", "ttm")}
    runtime = stated.totals(*RUNTIME)
    # A limit that another interface reaches is live.
    reached = stated.totals("vulkan", "kfd")
    for wanted in stated.of("wanted", "ttm", "gtt"):
        live_limit = live.get(wanted.pool)
        if live_limit is not None and not near(wanted, live_limit, 0.0001):
            yield "wanted-not-live", (wanted, live_limit)
        elif any(near(wanted, total) for total in reached):
            continue
        # Above the runtime by more than rounding and what firmware keeps.
        elif runtime and wanted.size > 1.3 * runtime[0].size:
            yield "wanted-not-live", (wanted, runtime[0])


def _refused_though_free(stated: _StatedFigures) -> Related:
    for wanted in stated.of("wanted", "runtime"):
        for free in stated.of("free", "runtime"):
            same_tool = wanted.source == free.source and wanted.origin == "tool"
            if same_tool and wanted.size < free.size:
                yield "fits-by-figures", (wanted, free)


def _cards(stated: _StatedFigures) -> Related:
    """Whether a source shows some of its cards full and others empty."""
    full: dict[str, Figure] = {}
    idle: dict[str, Figure] = {}
    for used in stated.of("used", "vram", "runtime"):
        if not used.device:
            continue
        for total in beside(used, stated.measured, "total"):
            if used.size > 0.9 * total.size > 0:
                full.setdefault(used.source, used)
            elif used.size < 0.05 * total.size:
                idle.setdefault(used.source, used)
    for source in sorted(full.keys() & idle.keys()):
        if full[source].device != idle[source].device:
            yield "some-full", (full[source], idle[source])


def _page_cache(stated: _StatedFigures) -> Related:
    if stated.kind != UNIFIED:
        return
    for available in stated.of("free", "available"):
        for free in stated.of("free", "runtime") + stated.of("free", "hostfree"):
            if _is_far_below(free, available):
                yield "cache-counted-as-used", (free, available)
                break


_RULES: tuple[Callable[[_StatedFigures], Related], ...] = (
    _totals_of_one_thing,
    _shares_of_ram,
    _no_card_size,
    _free,
    _between_sources,
    _runtime_and_driver,
    _limits_not_live,
    _refused_though_free,
    _cards,
    _page_cache,
)
