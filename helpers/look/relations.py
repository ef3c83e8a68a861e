"""How figures of one box or text relate: half the RAM, above what can be, two sources that differ,
and so on. Pure.

RELATIONS names each relation with its meaning; a judge decides what causes it. Two figures are
equal within their printed digits, and within what layers are known to round (units.ROUNDED,
HALF_SHARE).
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
    """(name of a relation, its figures) for each relation that a rule finds."""

HALF_SHARE = 0.03
"""By which half the RAM may be missed: MemTotal grows a little after TTM took half of it."""
LOWER_SHARE = 0.05
"""Of a card, which a runtime leaves out of its total (firmware, ECC)."""
INSTALLED_SHARE = 0.06
"""Of the installed RAM, which firmware and kernel take before MemTotal."""
FREE_IS_TOTAL_SHARE = 0.001
"""By which free and total may differ and still be the same number."""
LIVE_SHARE = 0.0001
"""By which a wanted limit and the live one may differ: both are whole pages."""
# The next ones are chosen wide, so that rounding and what firmware keeps cannot be the reason.
LEAST_CARD_BYTES = 256 * MIB
"""No card is smaller; a total below is some other figure."""
LEAST_USED_BYTES = 64 * MIB
"""In use on a card although all of it is free; a desktop's context alone takes as much."""
FAR_FACTOR = 1.5
FAR_BYTES = 2 * GIB
"""By which one size is far below another: both as a factor and in bytes."""
ABOVE_RUNTIME = 1.3
"""By which factor a wanted limit is above the runtime's total if it is not live."""
FULL_SHARE = 0.9
IDLE_SHARE = 0.05
"""Of a card's total, above and below which it is full and idle."""
RELATIONS: dict[str, str] = data("look/relations")
"""The meaning of each relation, by its name."""
MOST_COMPARED = 40
"""Figures that are compared with each other, which takes the square of their number."""
RUNTIME = ("runtime", "hsa")
"""The pools of HIP, CUDA and ROCm's runtime."""
DRIVER = ("kfd", "ttm", "gtt", "vram", "carveout")
"""The pools of the kernel."""


@dataclass(frozen=True)
class Relation:
    """One relation (a name of RELATIONS) with its figures, and in words with the numbers. ``hard``:
    none of its figures is hearsay.
    """

    name: str
    figures: tuple[Figure, ...]
    says: str
    hard: bool


def relations(
    figures: Iterable[Figure], kind: str = UNKNOWN, hip: bool = False
) -> list[Relation]:
    """Every relation between the figures; of several with the same name between the same sources,
    pools and measures the first.

    ``kind`` is that of parts.gpu_kind; ``hip``: the runtime is ROCm's.
    """
    stated = _StatedFigures(figures, kind, hip)
    by_place: dict[tuple[object, ...], Relation] = {}
    for rule in _RULES:
        for name, related in rule(stated):
            places = {
                (figure.source, figure.pool, figure.measure) for figure in related
            }
            meaning = RELATIONS[name]
            numbers = ", ".join(map(_in_words, related))
            relation = Relation(
                name=name,
                figures=related,
                says=f"{meaning[:1].upper()}{meaning[1:]}: {numbers}",
                hard=not any(figure.hearsay for figure in related),
            )
            by_place.setdefault((name, *sorted(places)), relation)
    return list(by_place.values())


class _StatedFigures:
    """The measured figures of one box or text, with its kind of GPU and runtime."""

    def __init__(self, figures: Iterable[Figure], kind: str, hip: bool):
        self.measured = [figure for figure in figures if figure.bytes is not None]
        self.kind = kind
        self.hip = hip

    def of(self, measure: str, *pools: str) -> list[Figure]:
        """The figures with that measure of these pools, without numbers that cannot be sizes."""
        figures = []
        for figure in self.measured:
            is_size = abs(figure.size) < NOT_MEASURED_BYTES
            if figure.measure == measure and figure.pool in pools and is_size:
                figures.append(figure)
        return figures

    def totals(self, *pools: str) -> list[Figure]:
        """The totals and live limits of these pools, hearsay last."""
        totals = self.of("total", *pools) + self.of("limit", *pools)
        return sorted(totals, key=lambda figure: figure.hearsay)

    @property
    def ram(self) -> Figure | None:
        """MemTotal, or else the installed RAM."""
        return next(iter(self.totals("ram") + self.totals("ram-installed")), None)

    @property
    def installed_ram(self) -> int:
        """The installed RAM in bytes: as stated; else the most that MemTotal and the carve-out
        allow, since firmware and kernel take up to INSTALLED_SHARE; 0 if neither is known.
        """
        for total in self.totals("ram-installed"):
            return total.size
        linux = max((total.size for total in self.totals("ram")), default=0)
        carve_outs = self.totals("carveout", "vram")
        carve_out = max((total.size for total in carve_outs), default=0)
        return int((linux + carve_out) / (1 - INSTALLED_SHARE))


def _in_words(figure: Figure) -> str:
    """A figure with its source: ``vram total of device 0 16.00 GiB (rocm-smi)``."""
    value = figure.text
    if figure.bytes is not None:
        value = show_bytes(figure.bytes)
    name = f"{figure.pool} {figure.measure}"
    if figure.device:
        name += f" of device {figure.device}"
    return f"{name} {value} ({figure.source})"


def _same_device(left: Figure, right: Figure) -> bool:
    """Whether two figures may be about one device; one without an index may be about any."""
    return not left.device or not right.device or left.device == right.device


def _totals_of_one_thing(stated: _StatedFigures) -> Related:
    """Two sources with different totals of one pool."""
    totals = stated.totals(*RUNTIME, *DRIVER, "vulkan")
    for left, right in combinations(totals[:MOST_COMPARED], 2):
        same_pool = left.pool == right.pool and left.source != right.source
        if not same_pool or not _same_device(left, right):
            continue
        if not near(left, right, LOWER_SHARE):
            yield "totals-differ", (left, right)


def _shares_of_ram(stated: _StatedFigures) -> Related:
    """A total that is half of the RAM, which is TTM's default, or half of what a carve-out leaves."""
    ram = stated.ram
    # A card has memory of its own, and NVIDIA's parts that share the RAM have no TTM.
    if ram is None or stated.kind in (CARD, UNIFIED):
        return
    pools = ["runtime", "hsa", "kfd"]
    if stated.kind == APU:
        pools += ["ttm", "gtt"]
    elif not stated.hip:
        return
    half = ram.size // 2
    for total in stated.totals(*pools):
        is_of_installed = ram.pool == "ram-installed" and _is_most_of(half, total)
        if is_of_installed or near(total, half, HALF_SHARE):
            yield "half-of-ram", (total, ram)
        for carve_out in stated.totals("carveout", "vram"):
            half_of_rest = (stated.installed_ram - carve_out.size) // 2
            is_small = carve_out.size > FAR_FACTOR * total.size
            if is_small and _is_most_of(half_of_rest, total):
                yield "half-of-rest", (total, carve_out, ram)


def _is_most_of(installed_bytes: int, total: Figure) -> bool:
    """Whether a total is what firmware and kernel leave of so much RAM."""
    return (1 - INSTALLED_SHARE) * installed_bytes <= total.size <= installed_bytes


def _no_card_size(stated: _StatedFigures) -> Related:
    """A total of ROCm's runtime that no AMD card has, so an APU's."""
    if stated.hip and stated.kind == UNKNOWN:
        for total in stated.totals("runtime"):
            if total.size > LEAST_CARD_BYTES and not is_card_size(total.size, "AMD"):
                yield "no-card-size", (total,)


def _free(stated: _StatedFigures) -> Related:
    """More free than there is, or as much although some is in use."""
    for total in stated.totals("runtime", "vram", "gtt", "ram", "visible-vram"):
        free_sizes = beside(total, stated.measured, "free")
        if not free_sizes and total.pool == "runtime":
            free_sizes = lone_free(stated.measured)
        for free in free_sizes:
            if free.size > total.size and not near(free, total, 0):
                yield "free-above-total", (free, total)
            elif near(free, total, FREE_IS_TOTAL_SHARE):
                yield from _free_though_used(stated, free, total)


def _free_though_used(stated: _StatedFigures, free: Figure, total: Figure) -> Related:
    """A pool of which all is free, although a source has something in use there: the first of
    these.
    """
    # More than free can hide by its rounding.
    least = max(LEAST_USED_BYTES, 4 * free.precision_bytes)
    for used in stated.of("used", total.pool, "vram", "process", "gtt"):
        if _same_device(used, total) and used.size > least:
            yield "free-is-total", (free, total, used)
            return


def _between_sources(stated: _StatedFigures) -> Related:
    """Two sources of which one says that far less is free."""
    free_sizes = stated.of("free", "runtime", "vram", "gtt")
    for pair in combinations(free_sizes[:MOST_COMPARED], 2):
        low, high = sorted(pair, key=lambda free: free.size)
        if low.source == high.source or not _same_device(low, high):
            continue
        if _is_far_below(low, high):
            yield "frees-differ", (low, high)


def _is_far_below(low: Figure, high: Figure) -> bool:
    """Whether one size is far below another (FAR_FACTOR and FAR_BYTES)."""
    return high.size > FAR_FACTOR * low.size and high.size - low.size > FAR_BYTES


def _runtime_and_driver(stated: _StatedFigures) -> Related:
    """A runtime whose total is below or above that of the driver."""
    for total in stated.totals(*RUNTIME):
        for driver in stated.totals(*DRIVER):
            if not _are_compared(stated.kind, total, driver):
                continue
            if near(total, driver, LOWER_SHARE):
                continue
            # On an APU the runtime's total is GTT, which is usually larger than the carve-out.
            is_carve_out = driver.pool in ("vram", "carveout") and stated.kind == APU
            if total.size <= driver.size:
                yield "runtime-below-driver", (total, driver)
            elif not is_carve_out:
                yield "runtime-above-driver", (total, driver)


def _are_compared(kind: str, total: Figure, driver: Figure) -> bool:
    """Whether a runtime's total should be the total of that pool of the driver."""
    if kind == CARD and driver.pool not in ("vram", "kfd"):
        return False
    if kind == UNKNOWN and driver.pool == "gtt":
        return False
    return _same_device(total, driver)


def _limits_not_live(stated: _StatedFigures) -> Related:
    """A limit that was configured and is not in force."""
    live = {total.pool: total for total in stated.totals("gtt", "ttm")}
    runtime = stated.totals(*RUNTIME)
    # A limit that another interface reaches is live.
    reached = stated.totals("vulkan", "kfd")
    for wanted in stated.of("wanted", "ttm", "gtt"):
        live_limit = live.get(wanted.pool)
        if live_limit is not None and not near(wanted, live_limit, LIVE_SHARE):
            yield "wanted-not-live", (wanted, live_limit)
        elif any(near(wanted, total) for total in reached):
            continue
        elif runtime and wanted.size > ABOVE_RUNTIME * runtime[0].size:
            yield "wanted-not-live", (wanted, runtime[0])


def _refused_though_free(stated: _StatedFigures) -> Related:
    """A request that a program refused although it was smaller than what the program calls free."""
    for wanted in stated.of("wanted", "runtime"):
        for free in stated.of("free", "runtime"):
            same_tool = wanted.source == free.source and wanted.origin == "tool"
            if same_tool and wanted.size < free.size:
                yield "fits-by-figures", (wanted, free)


def _cards(stated: _StatedFigures) -> Related:
    """A source with a card that is full beside one that is idle."""
    full: dict[str, Figure] = {}
    idle: dict[str, Figure] = {}
    for used in stated.of("used", "vram", "runtime"):
        if not used.device:
            continue
        for total in beside(used, stated.measured, "total"):
            if used.size > FULL_SHARE * total.size > 0:
                full.setdefault(used.source, used)
            elif used.size < IDLE_SHARE * total.size:
                idle.setdefault(used.source, used)
    for source in sorted(full.keys() & idle.keys()):
        if full[source].device != idle[source].device:
            yield "some-full", (full[source], idle[source])


def _page_cache(stated: _StatedFigures) -> Related:
    """A GPU that shares the RAM, whose runtime calls far less free than Linux calls available: it
    does not count the page cache, which the kernel gives back.
    """
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
