"""Which ceiling binds: the decision table over pages_limit, GTT, carve-out, KFD bank and total.

Pure.

The same total has several causes, so no one number decides. Which of carve-out and TTM the pool is
goes by the kernel: the carve-out alone before Linux 6.10; TTM's limit, even where the carve-out is
larger, until 6.14 (89773b85599a); from 6.15 on TTM's limit where the GTT is larger than the
carve-out, else the carve-out (759e764f7d58; amd-gfx, 2025-01-30).

The table is ceilings.json. ``decisions`` has the words, the cause and the source of each
answer. ``rules`` find the answer: groups in the order in which they are asked, of each the
first rule that holds; a rule without an answer ends its group. A condition is a fact of
``_facts``, a figure that is known, ``no`` and one of these, or one of COMPARISONS between two
figures. ``size`` is the figure that binds, ``words`` are figures that a sentence names by
another word, and the confidence ``read`` is ``confirmed`` where the driver's own pool was read,
else ``likely``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from helpers.ground.units import GIB, MIB, NOT_MEASURED_BYTES, near, show_bytes
from helpers.judge import table
from helpers.look.figures import Figure, beside, lone_free
from helpers.look.parts import APU, CARD, UNIFIED, UNKNOWN, is_card_size
from helpers.look.relations import HALF_SHARE, INSTALLED_SHARE

if TYPE_CHECKING:
    from helpers.ground.shapes import Cause, Confidence, Layer

KFD_RESERVE_BYTES = 3 << 29
NEW_KFD_LIMIT = (6, 7)
GTT_AS_VRAM = (6, 10)
GTT_IF_LARGER = (6, 15)
FAR = 1.3
"""A layer this much above another is no rounding, and no share that firmware keeps."""
MENU = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
CARVE_OUTS = tuple(512 * MIB * size for size in MENU)
"""Sizes that firmware menus offer for the frame buffer of an APU (AMD, Ryzen AI system guides)."""
SMALL_CARVE_OUTS = (256 * MIB, 512 * MIB, GIB, 2 * GIB)
"""Sizes of a frame buffer that no system with a desktop has as its whole RAM (firmware menus of
APUs).
"""


@dataclass(frozen=True)
class Numbers:
    """The readings of the decision table, in bytes; None is not known.

    ``ram`` is what the carve-out left to Linux.

    ``wanted`` is the pages_limit that is configured, ``free`` what HIP or CUDA says is free,
    ``installed`` the RAM as bought; ``bare_free`` and ``available`` are MemFree and
    MemAvailable. ``out_of_tree``: a DKMS driver. ``kind`` is gpu_kind's answer or empty.
    ``filled`` and ``hearsay`` name the fields that no machine printed, or that somebody retold;
    ``precision`` is how exact ``torch`` was printed. ``other_total`` is what another program or
    build sees, ``vulkan`` the largest heap, ``failed`` whether an allocation failed.
    """

    pages_limit: int | None = None
    gtt: int | None = None
    vram: int | None = None
    kfd: int | None = None
    hsa: int | None = None
    torch: int | None = None
    free: int | None = None
    ram: int | None = None
    wanted: int | None = None
    kernel: tuple[int, int] | None = None
    out_of_tree: bool = False
    installed: int | None = None
    gtt_wanted: int | None = None
    bare_free: int | None = None
    available: int | None = None
    kind: str = ""
    filled: tuple[str, ...] = ()
    hearsay: tuple[str, ...] = ()
    precision: int = 0
    hip: bool = True
    other_total: int | None = None
    vulkan: int | None = None
    failed: bool = True


@dataclass(frozen=True)
class Decision:
    """Which layer binds and why.

    ``pattern`` names the row of the decision table; ``step`` is the one next thing to do.

    ``rests`` names the fields of Numbers that the answer rests on; ``filled``: one of them was
    filled in for a recorded box.
    """

    pattern: str
    binding: Layer | None
    binding_bytes: int | None
    cause: Cause
    confidence: Confidence
    says: str
    step: str
    missing: tuple[str, ...] = ()
    rests: tuple[str, ...] = ()
    filled: bool = False


def decisions() -> dict[str, dict[str, Any]]:
    """The decision table as data: layer, cause, what it rests on, words, step, source."""
    return table("ceilings")["decisions"]


def kernel_release(text: str) -> tuple[int, int] | None:
    """The first two numbers of a kernel release: (6, 17) of "6.17.4-200.fc42"."""
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,3})", text)
    return (int(match.group(1)), int(match.group(2))) if match else None


def kfd_limit(ram_bytes: int, kernel: tuple[int, int] | None) -> int:
    """Bytes of system memory that KFD lets compute programs take together
    (amdgpu_amdkfd_gpuvm_init_mem_limits).

    Since October 2023 RAM less a 64th less 1.5 GiB, or half where that leaves under 1.5 GiB;
    before, 15/16 of what was free at load, of which 15/16 of the RAM is an upper bound. With an
    unknown kernel the lower of both.
    """
    left = ram_bytes - (ram_bytes >> 6)
    new = left >> 1 if left < 2 * KFD_RESERVE_BYTES else left - KFD_RESERVE_BYTES
    old = ram_bytes - (ram_bytes >> 4)
    return min(new, old) if kernel is None else new if kernel >= NEW_KFD_LIMIT else old


def far(left: int | None, right: float | None) -> bool:
    """Whether the left size is known and far above the right."""
    return left is not None and right is not None and left > FAR * right


def _below(size: int | None, other: int | None) -> bool:
    """Whether both are known, and the first is the smaller by more than two layers' rounding."""
    return size is not None and other is not None and size < other and not near(size, other)


def _less(size: int | None, other: int | None) -> bool:
    return size is not None and other is not None and size < other


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    " far above ": far,
    " below ": _below,
    " less than ": _less,
    " near ": near,
}


def decide(n: Numbers) -> Decision:
    """The binding layer by the decision table, of a bundle's readings and of posted numbers alike.

    One number never decides. Where layers that would discriminate are missing, the answer is
    ``cannot-tell`` with their names. ``confirmed`` needs two layers that a machine printed and
    that agree; a reading that was filled in counts towards ``likely`` only, and what was retold
    alone is ``weak``.
    """
    sizes = _sizes(n)
    beside = _beside(n)
    rule = _first_rule({**_facts(n, sizes), "small beside the rest": bool(beside)}, sizes)
    if rule is None:
        return _graded(_undecided(n), n)
    shown = {name: show_bytes(size) for name, size in sizes.items()}
    words = {"beside": beside, "pool": shown["low"]}
    words.update(vram_words=_known(n.vram or None), available_words=_known(n.available))
    words["release"] = ".".join(map(str, n.kernel or ()))
    words["pool_words"] = f": they have {shown['total']}" if sizes["total"] else ""
    words.update({word: shown[figure] for word, figure in rule.get("words", {}).items()})
    sure = rule["sure"]
    if sure == "read":
        sure = "likely" if sizes["pool"] is None else "confirmed"
    found = row(rule["row"], n, sizes.get(rule.get("size", "")), sure, **words)
    missing = tuple(rule.get("missing", ()))
    # By default a capture does not ask torch; without its total a faulty HIP build above the
    # kernel stays unseen.
    if n.torch is None and not missing and n.kind not in (UNIFIED, CARD):
        missing = ("torch total",)
    return _graded(replace(found, missing=missing), n)


def row(
    pattern: str, n: Numbers, size: int | None, confidence: Confidence, **words: str
) -> Decision:
    """The decision that a row of the table words, with the readings put in.

    ``size`` is what binds, in bytes.
    """
    data = decisions()[pattern]
    either = table("ceilings")["either"]
    values = {k: show_bytes(v) for k, v in vars(n).items() if type(v) is int}
    says = data["says"].format(**{**values, "ram_any": show_bytes(_ram(n)), **words})
    rests = []
    for name in data["rests"]:
        fields = either.get(name, [name])
        rests.append(next((f for f in fields if getattr(n, f) is not None), fields[0]))
    layer = data["layer"]
    step = data["step"]
    bound = size if layer else None
    answer = (pattern, layer, bound, data["cause"], confidence, says, step)
    return Decision(*answer, rests=tuple(rests))


def _first_rule(facts: dict[str, bool], sizes: dict[str, int | None]) -> dict[str, Any] | None:
    """The first rule that holds, of the first group that has one."""

    def holds(condition: str) -> bool:
        if condition.startswith("no "):
            return not holds(condition[3:])
        for sign, compare in COMPARISONS.items():
            left, found, right = condition.partition(sign)
            if found:
                return compare(sizes[left], sizes[right])
        return facts[condition] if condition in facts else sizes[condition] is not None

    for group in table("ceilings")["rules"]:
        if all(map(holds, group["when"])):
            rule: dict[str, Any] = next(
                (one for one in group["rules"] if all(map(holds, one["when"]))), {}
            )
            if rule.get("row"):
                return dict(rule)
    return None


def _sizes(n: Numbers) -> dict[str, int | None]:
    """The figures that rules compare, by name: those of Numbers and what follows from them, in
    bytes.

    ``pool`` is what the driver gives, ``low`` torch's total where that is not known,
    ``ram_any`` the RAM by the best reading.
    """
    found = {name: value for name, value in vars(n).items() if value is None or type(value) is int}
    ram = _ram(n)
    pool = n.kfd if n.kfd is not None else n.hsa
    free = n.free if n.free is not None else n.bare_free
    found.update(ram_any=ram, pool=pool, low=n.torch if pool is None else pool, free_any=free)
    found.update(total=n.kfd or n.hsa or n.torch or None, half=None if ram is None else ram // 2)
    found["kfd_limit"] = None if n.ram is None else kfd_limit(n.ram, n.kernel)
    found["twice_torch"] = None if n.torch is None else 2 * n.torch
    return found


def _facts(n: Numbers, sizes: dict[str, int | None]) -> dict[str, bool]:
    """What rules ask beside comparing two figures."""
    pool = sizes["pool"]
    low = sizes["low"] or 0
    total = sizes["total"]
    heap = n.vulkan or 0
    torch = n.torch or 0
    gtt = n.gtt or 0
    vram = n.vram or 0
    kernel = n.kernel or (0, 0)
    is_ttm = near(sizes["low"], n.pages_limit)
    is_carveout = near(sizes["low"], n.vram)
    older = n.out_of_tree or kernel < GTT_IF_LARGER
    if is_ttm and is_carveout:
        # Both would give this number; Linux 6.15 and later take GTT only where it is larger
        # than the carve-out.
        known = n.kernel is not None and n.gtt is not None
        is_ttm = known and kernel >= GTT_AS_VRAM and (kernel < GTT_IF_LARGER or vram < gtt)
        is_carveout = known and not is_ttm
    asked = n.kind == UNKNOWN and n.hip and not is_card_size(torch)
    whole = int((n.ram + vram) / (1 - INSTALLED_SHARE)) if n.ram else 0
    available = n.available or 0
    free = sizes["free_any"]
    free = available if free is None else free
    largest = max(gtt, total or 0, sizes["ram_any"] or 0)
    given = (gtt, n.gtt_wanted or 0, n.wanted or 0, gtt + vram)
    return {
        **{kind: n.kind == kind for kind in (APU, CARD, UNIFIED)},
        "failed": n.failed,
        "asked": asked,
        "posted": bool(torch) and pool is None and (asked or n.kind != UNKNOWN),
        "page cache": available > FAR * 1.15 * free and available - free > 2 * GIB,
        "TTM": is_ttm,
        "carve-out": is_carveout,
        "before 6.10": (0, 0) < kernel < GTT_AS_VRAM,
        "older rule": older,
        "another wanted": n.wanted is not None and not near(n.wanted, n.pages_limit, 0.0001),
        "is half": _is_half(n, low),
        "sum": vram > 0.01 * gtt > 0 and near(torch, vram + gtt, 0.005),
        "above the RAM": torch > 1.02 * (n.installed or whole or torch),
        "as the carve-out": near(n.torch, n.vram, 0.05 if "vram" in n.hearsay else 0.005),
        "of a menu": n.kind == APU and any(abs(torch - s) <= n.precision for s in CARVE_OUTS),
        "small": _is_small(n, torch),
        "half of the rest": _is_half_of_rest(n, torch),
        "half of Linux's": n.ram is not None and _is_half(n, torch),
        "heap alone": heap > 0 and sizes["low"] is None,
        "two thirds": any(near(heap, 2 * size // 3, 0.02) for size in given),
        "carve-out is small": 0 < 4 * vram < largest and not near(total, n.vram),
        "GTT is half": gtt > 0 and _is_half(n, gtt),
    }


def _is_small(n: Numbers, size: int) -> bool:
    """Whether a total is a carve-out of a size that no RAM has.

    ROCm runs on no card of so little memory (parts.json).
    """
    return size in SMALL_CARVE_OUTS and (n.kind == APU or size <= GIB)


def _beside(n: Numbers) -> str:
    """What a total stands far below, in words; empty where nothing is known to be far above it."""
    torch = n.torch or 0
    if far(_ram(n), 3 * torch):
        return f"the RAM of {show_bytes(_ram(n))}"
    if far(n.vulkan, torch):
        return f"what Vulkan is given, {show_bytes(n.vulkan)}"
    return "the RAM of any system with a desktop" if _is_small(n, torch) else ""


def _known(size: int | None) -> str:
    return "" if size is None else f" ({show_bytes(size)})"


def _graded(found: Decision, n: Numbers) -> Decision:
    """The confidence that the readings behind a decision allow."""
    rests = [field for field in found.rests if getattr(n, field) is not None]
    told = [field for field in rests if field in n.hearsay]
    steps: list[Confidence] = ["weak", "likely", "confirmed"]
    filled = any(field in n.filled for field in rests)
    unread = told or filled or len(rests) == 1
    most = 0 if rests and len(told) == len(rests) else 1 if unread else 2
    sure = steps[min(steps.index(found.confidence), most)]
    return replace(found, confidence=sure, filled=filled)


def _ram(n: Numbers) -> int | None:
    return n.ram if n.ram is not None else n.installed


def _is_half(n: Numbers, size: int) -> bool:
    """Whether a size is half of the RAM: of MemTotal closely, of the RAM as bought less what
    firmware takes.
    """
    if n.ram is not None and near(size, n.ram // 2, HALF_SHARE):
        return True
    half = (n.installed or 0) // 2
    return n.ram is None and (1 - INSTALLED_SHARE) * half <= size <= half and half > 0


def _is_half_of_rest(n: Numbers, size: int) -> bool:
    """Whether a size is half of what a larger carve-out leaves of the RAM."""
    rest = ((n.installed or 0) - (n.vram or 0)) // 2
    return rest > 0 and (1 - 2 * INSTALLED_SHARE) * rest <= size <= rest


def _undecided(n: Numbers) -> Decision:
    names = {field: data.get("missing") for field, data in table("ceilings")["numbers"].items()}
    missing = tuple(name for field, name in names.items() if name and getattr(n, field) is None)
    says = "Too few layers were read to say which one binds."
    if n.torch is not None and n.ram is not None and _is_half(n, n.torch):
        total = show_bytes(n.torch)
        says = f"torch's total of {total} is half the RAM, which TTM's default and a HIP build both give."
    elif not missing:
        says = "The readings match none of the known patterns."
    return replace(row("undecided", n, None, "weak", undecided=says), missing=missing)


def numbers_of(
    figures: Iterable[Figure],
    kind: str = UNKNOWN,
    kernel: str = "",
    hip: bool = True,
    failed: bool | None = None,
) -> Numbers:
    """Posted figures as the decision takes them.

    What the failing message says comes first, then what a machine printed.

    ``kind`` is gpu_kind's answer, ``kernel`` the release as posted, ``hip`` whether the runtime
    is ROCm's, ``failed`` whether an allocation failed (by default: whether a message gives a
    total).
    """
    figures = tuple(figures)
    known = [f for f in figures if f.bytes is not None and 0 < f.bytes < NOT_MEASURED_BYTES]
    known.sort(key=lambda f: (f.origin != "message", f.hearsay))
    chosen: dict[str, Figure] = {}
    for field, data in table("ceilings")["numbers"].items():
        for place in data["posted"]:
            fitting = [f for f in known if f"{f.what}@{f.pool}" == place]
            if fitting and field not in chosen:
                # Without its agents rocminfo's pools are the processor's first.
                chosen[field] = fitting[-1 if field == "hsa" else 0]
            if fitting and field == "vulkan":
                chosen[field] = max(fitting, key=lambda f: f.bytes or 0)
    totals = [f for f in known if (f.what, f.pool) == ("total", "runtime")]
    said = any(f.origin == "message" for f in totals)
    if totals and not said:
        chosen["torch"] = min(totals, key=lambda f: (f.hearsay, f.bytes or 0))
    told = chosen.get("torch")
    if told is not None and "free" in chosen:
        # Free and total are compared, so they must be of one program.
        rest = beside(told, known, "free") or lone_free(known)
        chosen.update(free=rest[0]) if rest else chosen.pop("free")
    told_at = (told.source, told.line) if told else None
    others = [
        f.bytes for f in totals if told_at and not f.hearsay and (f.source, f.line) != told_at
    ]
    return Numbers(
        **{field: f.bytes for field, f in chosen.items()},  # type: ignore[arg-type]
        kernel=kernel_release(kernel),
        kind=kind,
        hearsay=tuple(field for field, f in chosen.items() if f.hearsay),
        precision=chosen["torch"].precision_bytes if "torch" in chosen else 0,
        hip=hip,
        other_total=max((size for size in others if size), default=None),
        failed=said if failed is None else failed,
    )
