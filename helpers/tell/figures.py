"""Figures of memory pools, holders and the kernel log, drawn on a sheet measured in inches.

Each figure has a twin in words (``..._alt``). What is unknown is an empty hatched bar with its reason, never a zero.
No figure says anything by colour alone. Nothing here opens a window or keeps a figure alive.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable

from matplotlib.figure import Figure

from helpers.look.gpus import Gpu, Pool
from helpers.look.kernel_log import Event
from helpers.look.reading import Reading

from .holders import parts_of, short, used_of
from .sheet import (
    ACCENT,
    ALARM,
    BODY,
    MARGIN,
    MUTED,
    PALE,
    RULE,
    SMALL,
    UNKNOWN,
    WIDTH,
    Look,
    Sheet,
    fit,
    inches,
    png,
    wrap,
)
from .tables import HARMLESS, KIND_WORDS, gib, one_source, plain, pools_of, since_boot, size, who

NO_POOL = "No memory pool was found."
NO_EVENTS = "The kernel log holds no GPU or out-of-memory event."


def pools_figure(items: Iterable[Gpu | Pool]) -> Figure:
    """What each layer says of each memory pool, on one scale: the outline is the total, the filled part is in use."""
    groups = pools_of(items)
    known = [
        size(r) or 0
        for _, _, pools in groups
        for pool in pools
        for r in (pool.total, pool.used)
        if size(r) is not None
    ]
    top = max(known, default=0) or 1
    sheet, right = Sheet(), WIDTH - MARGIN
    scale = (right - MARGIN) / top
    for gpu, pci, pools in groups:
        sheet.heading(_title(gpu, pci), _subtitle(gpu, pci))
        if not pools:
            sheet.nothing("No layer gives a pool for it.")
        for pool in pools:
            total, used = size(pool.total), used_of(pool)
            value = _pool_words(pool)
            sheet.y += 0.16
            sheet.text(right, value, ha="right")
            sheet.text(
                MARGIN,
                fit(pool.layer, right - MARGIN - inches(value, BODY) - 0.2, BODY, "bold"),
                weight="bold",
            )
            sheet.y += 0.07
            if total is None and used is None:
                sheet.box(MARGIN, right - MARGIN, 0.17, Look(edge=RULE, hatch=UNKNOWN))
            else:
                if total is not None:
                    sheet.box(
                        MARGIN,
                        total * scale,
                        0.17,
                        Look(face=PALE, edge=MUTED, hatch=UNKNOWN if used is None else ""),
                    )
                if used is not None:
                    sheet.box(MARGIN, used * scale, 0.17, Look(face=ACCENT))
            sheet.y += 0.32
            for line in _pool_small(pool):
                for part in wrap(line, right - MARGIN, SMALL):
                    sheet.text(MARGIN, part, SMALL, MUTED)
                    sheet.y += 0.14
            sheet.y += 0.05
        sheet.y += 0.14
    if groups:
        sheet.y += 0.02
        words = f"Outline: total. Filled: in use. Hatched: not known. One scale; the longest bar is {gib(top)}."
        for line in wrap(words if known else "Hatched: not known.", right - MARGIN, SMALL):
            sheet.text(MARGIN, line, SMALL, MUTED)
            sheet.y += 0.14
    else:
        sheet.nothing(NO_POOL)
    return sheet.done()


def pools_alt(items: Iterable[Gpu | Pool]) -> str:
    """The pools figure in words."""
    parts = [
        f"{_name(gpu, pci)}: " + "; ".join(f"{plain(p.layer)} {_pool_words(p)}" for p in pools)
        for gpu, pci, pools in pools_of(items)
        if pools
    ]
    return "Memory pools of each layer as bars. " + ". ".join(parts) + "." if parts else NO_POOL


def holders_figure(gpus: Iterable[Gpu]) -> Figure:
    """Who holds each GPU's memory: one bar a GPU, a part for each process, one for what no process accounts for, one free."""
    sheet, right = Sheet(), WIDTH - MARGIN
    listed = list(gpus)
    for gpu in listed:
        sheet.heading(_title(gpu, gpu.pci), _subtitle(gpu, gpu.pci))
        pool, parts = parts_of(gpu)
        whole = (
            max(sum(part.held or 0 for part in parts), (size(pool.total) or 0) if pool else 0) or 1
        )
        sheet.y += 0.14
        words = (
            f"of {gib(pool.total.value)} by {pool.layer}" if pool else "the total is not available"
        )
        sheet.text(MARGIN, fit("Held memory, " + words, right - MARGIN, SMALL), SMALL, MUTED)
        sheet.y += 0.07
        sheet.box(
            MARGIN,
            right - MARGIN,
            0.26,
            Look(edge=MUTED if pool else RULE, hatch="" if pool else UNKNOWN),
        )
        x = MARGIN
        for part in parts:
            wide = (part.held or 0) / whole * (right - MARGIN)
            if wide > 0:
                sheet.box(x, wide, 0.26, part.look)
                x += wide
        sheet.y += 0.45
        for part in parts:
            sheet.box(MARGIN, 0.11, 0.11, part.look, dy=-0.10)
            sheet.text(right, part.value, ha="right")
            sheet.text(
                MARGIN + 0.2, fit(part.words, right - MARGIN - 0.4 - inches(part.value, BODY), BODY)
            )
            sheet.y += 0.185
        for spot in gpu.blind_spots:
            for line in wrap("Not seen: " + spot, right - MARGIN - 0.2, SMALL):
                sheet.text(MARGIN + 0.2, line, SMALL, MUTED)
                sheet.y += 0.14
            sheet.y += 0.02
        sheet.y += 0.16
    if not listed:
        sheet.nothing("No GPU was found.")
    return sheet.done()


def holders_alt(gpus: Iterable[Gpu]) -> str:
    """The holders figure in words."""
    said = []
    for gpu in gpus:
        parts = ", ".join(f"{plain(part.words)} {part.value}" for part in parts_of(gpu)[1])
        blind = f"; not seen: {'; '.join(map(plain, gpu.blind_spots))}" if gpu.blind_spots else ""
        said.append(f"{_name(gpu, gpu.pci)}: {parts}{blind}")
    return (
        "Holders of GPU memory as one bar a GPU. " + ". ".join(said) + "."
        if said
        else "No GPU was found."
    )


def timeline_figure(events: Iterable[Event], log: Reading | None = None) -> Figure:
    """What the kernel log tells about the GPUs in this boot and the one before: a row a kind, worst kinds on top.

    ``log`` says where the log was read from, or why it was not: no event seen in a log not read is not "no event".
    """
    sheet, right, left = Sheet(), WIDTH - MARGIN, 2.0
    listed = list(events)
    for boot, title in ((-1, "Boot before"), (0, "This boot")):
        here = [e for e in listed if e.boot == boot]
        if not here:
            continue
        kinds = sorted({e.kind for e in here}, key=_severity)
        times = [t for e in here for t in (_seconds(e.when), _seconds(e.until)) if t is not None]
        end = max(times, default=0) or 1.0
        alarms = _worst(here)
        sheet.heading(title, _lines(here))
        for kind in kinds:
            same = [e for e in here if e.kind == kind]
            sheet.y += 0.2
            count = str(sum(e.count for e in same))
            sheet.text(left - 0.14, count, ha="right")
            sheet.text(MARGIN, fit(_kind(kind), left - MARGIN - 0.3 - inches(count, BODY), BODY))
            if all(_seconds(e.when) is None for e in same):
                sheet.text(left, "the log gives no seconds since boot", SMALL, MUTED)
                continue
            sheet.box(left, right - left, 0.008, Look(face=RULE), dy=-0.035)
            for e in same:
                at = _seconds(e.when)
                if at is not None:
                    tone = ALARM if any(e is alarm for alarm in alarms) else ACCENT
                    scale = (right - left - 0.03) / end
                    wide = (max(_seconds(e.until) or at, at) - at) * scale + 0.03
                    sheet.box(left + at * scale, wide, 0.15, Look(face=tone), dy=-0.11)
        if times:
            sheet.time_axis(left, right - 0.03, end)
        sheet.y += 0.3
        for e in alarms:
            sheet.box(MARGIN, 0.03, 0.15, Look(face=ALARM), dy=-0.11)
            lines = wrap(
                f"{since_boot(e.when)}  {_kind(e.kind)}: {_about(e)}", right - MARGIN - 0.2, SMALL
            )
            for line in lines if len(lines) <= 3 else [*lines[:2], lines[2] + "…"]:
                sheet.text(MARGIN + 0.14, line, SMALL)
                sheet.y += 0.15
            sheet.y += 0.03
        sheet.y += 0.12
    if not any(e.boot in (-1, 0) for e in listed):
        for line in wrap(_no_events(log), right - MARGIN, BODY):
            sheet.nothing(line)
    return sheet.done()


def _no_events(log: Reading | None) -> str:
    if log is None or log.ok:
        return NO_EVENTS
    return f"The kernel log was not read ({log.show()}), so no event here proves nothing."


def timeline_alt(events: Iterable[Event], log: Reading | None = None) -> str:
    """The time line in words: how many of each kind in each boot, and the worst."""
    said, listed = [], list(events)
    for boot, title in ((-1, "boot before"), (0, "this boot")):
        here = [e for e in listed if e.boot == boot]
        if here:
            kinds = sorted({e.kind for e in here}, key=_severity)
            said.append(
                f"{title}: "
                + ", ".join(f"{_kind(k)} {_lines(e for e in here if e.kind == k)}" for k in kinds)
                + "".join(f"; the first of the worst: {_about(e)}" for e in _worst(here)[:1])
            )
    return "Kernel log events on a time line. " + ". ".join(said) + "." if said else _no_events(log)


def show(figure: Figure, alt: str) -> None:
    """Show a figure in a notebook with its words for those who cannot see it; outside a notebook the words are printed."""
    from IPython import get_ipython
    from IPython.display import display

    if get_ipython() is None:
        print(alt)
        return
    data, width, height = png(figure)
    figure.clear()
    display(
        {"image/png": base64.b64encode(data).decode("ascii"), "text/plain": alt},
        raw=True,
        metadata={"image/png": {"alt": alt, "width": width, "height": height}},
    )


def _title(gpu: Gpu | None, pci: str) -> str:
    return plain(gpu.name.show()) if gpu and gpu.name.ok else "GPU" if pci else "Host"


def _subtitle(gpu: Gpu | None, pci: str) -> str:
    return "  ".join(part for part in (pci, gpu.driver if gpu else "") if part)


def _name(gpu: Gpu | None, pci: str) -> str:
    return f"{_title(gpu, pci)} ({pci})" if pci else _title(gpu, pci)


def _pool_words(pool: Pool) -> str:
    total, used = size(pool.total), used_of(pool)
    if total is None and used is None:
        return short(pool.total) if not pool.total.ok else plain(pool.total.show())
    if total is None:
        return f"{gib(used)} used, total {short(pool.total)}"
    if used is None:
        return f"{gib(total)}, used: {short(pool.used)}"
    return f"{gib(used)} of {gib(total)} used"


def _pool_small(pool: Pool) -> list[str]:
    """Where the figures came from, and why one is missing."""
    read = [r for r in (pool.total, pool.used) if r.ok]
    said = [one_source(read)] if read else []
    if not pool.total.ok:
        said.append(("total " if read else "") + pool.total.show())
    if read and used_of(pool) is None and pool.used.show() != pool.total.show():
        said.append("used " + pool.used.show())
    return said


def _seconds(when: Reading) -> float | None:
    if (
        not when.ok
        or isinstance(when.value, str)
        or when.value is None
        or not math.isfinite(when.value)
    ):
        return None
    return max(float(when.value), 0.0)


def _severity(kind: str) -> tuple[int, str]:
    order = list(KIND_WORDS)
    return order.index(kind) if kind in order else len(order), kind


def _worst(events: Iterable[Event]) -> list[Event]:
    """The first event of each of the three worst kinds: what came later is often its echo. Harmless kinds have no worst."""
    first: dict[str, Event] = {}
    for event in events:
        if event.kind in KIND_WORDS and event.kind not in HARMLESS:
            first.setdefault(event.kind, event)
    return [first[kind] for kind in sorted(first, key=_severity)[:3]]


def _lines(events: Iterable[Event]) -> str:
    count = sum(e.count for e in events)
    return f"{count} line" if count == 1 else f"{count} lines"


def _kind(kind: str) -> str:
    return KIND_WORDS.get(kind) or plain(kind).replace("_", " ")


def _about(event: Event) -> str:
    named = who(event)
    words = (f"{named}: " if named else "") + " ".join(event.text[:600].split())
    return plain(f"{words} ({event.meaning})" if event.meaning else words)
