"""The ceilings between RAM and torch in words, tables and a figure, and what a reserve would leave for models.

What is set by mistake again and again stands in MISTAKEN, so that it is corrected where people look for it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.figure import Figure

from helpers.judge.ceilings import Ceiling, Stack, ceilings
from helpers.judge.ttm_plan import Room, in_units, plan
from helpers.judge.ttm_verify import VerifyResult, verify
from helpers.look.boxes import open_box, recorded_names
from helpers.look.bundle import Bundle
from helpers.look.reading import GIB, show_bytes
from helpers.shapes import Ttm

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
    wrap,
)
from .tables import plain, table
from .verdict import WIDE

MISTAKEN = (
    ("amdgpu.gttsize", "moves the GTT of graphics, in MiB; the compute pool does not follow"),
    ("amdgpu.vm_size", "is GiB of address space (131072 is 128 TiB); it sizes no pool"),
    ("ttm.page_pool_size", "is a cache of freed pages; it need not match pages_limit"),
    ("three settings", "are not needed: ttm.pages_limit alone is enough"),
    ("carve-out plus GTT", "is no total: they are alternatives, out of the same RAM"),
)
LAYER_NAMES = {
    "carveout": "firmware carve-out",
    "ram": "RAM left to Linux",
    "ttm": "TTM pages_limit",
    "gtt": "GTT",
    "kfd_bank": "KFD memory bank",
    "kfd_limit": "KFD system limit",
    "hsa_pool": "HSA pool",
    "hip_total": "torch total",
    "fraction": "per-process fraction",
    "cgroup": "control group",
    "ulimit": "ulimit memlock",
}
STATE_LAYERS = (
    ("carveout", "carve-out"),
    ("ttm", "TTM limit"),
    ("gtt", "GTT"),
    ("kfd_bank", "KFD bank"),
    ("hip_total", "torch"),
)
RESERVES_GIB = (4, 8, 12, 16, 24, 32, 48)
BYTES_A_PARAMETER = 2


def as_text(answer: Ttm) -> str:
    """The answer of the command ``ttm`` for a terminal."""
    rows = [
        [
            LAYER_NAMES[c.layer] + ("  <- binds" if c.layer == answer.binding else ""),
            c.status.replace("_", " ") if c.bytes is None else show_bytes(c.bytes),
            show_bytes(c.pending_bytes) if c.pending_bytes is not None else None,
            c.source,
        ]
        for c in answer.ceilings
    ]
    binds = (
        f"{LAYER_NAMES[answer.binding]}, {show_bytes(answer.binding_bytes or 0)}"
        if answer.binding
        else "none was found"
    )
    out = [
        f"{answer.box}: every ceiling between the RAM and torch",
        "",
        table(rows, ["layer", "limit", "pending", "source"]),
        "",
        f"The one that binds: {binds}",
        "",
        *plan_lines(answer),
    ]
    if answer.commands:
        out += ["", command_text(answer)]
        others = [c.system for c in answer.commands[1:]]
        out += [f"Other ways, in full with --json: {', '.join(others)}"] if others else []
    return "\n".join([*out, "", mistaken_table()])


def decision_text(stack: Stack) -> str:
    """What the ceilings of one GPU say about each other: which layer binds and what would move it. No verdict on a failure."""
    made = stack.decision
    missing = [f"Not read: {name}" for name in made.missing]
    return "\n".join(
        [
            "The ceilings",
            *(
                row
                for line in (made.says, made.step, *missing)
                if line
                for row in _wrapped(plain(line), "  ")
            ),
        ]
    )


def plan_lines(answer: Ttm) -> list[str]:
    """The plan in words, its size in every unit."""
    made = answer.plan
    head = {
        "set": "Plan: set the TTM limit",
        "leave": "Plan: leave the TTM limit as it is",
        "remove": "Plan: remove a setting",
    }[made.action]
    lines = [head, *_wrapped(plain(made.why), "  ")]
    if made.action == "set" and made.pages_limit and made.bytes:
        lines += _wrapped(in_units(made.pages_limit, made.bytes // made.pages_limit), "  ")
    if answer.warnings:
        lines += [
            "",
            "Mind",
            *(
                line
                for warning in answer.warnings
                for line in _wrapped("- " + plain(warning), "  ")
            ),
        ]
    return lines


def command_text(answer: Ttm, number: int = 0) -> str:
    """One block of commands with its undo and its check; what is printed here is never run by the workbook."""
    if not answer.commands:
        return "Nothing needs doing: there is no command to print."
    block = answer.commands[number]
    parts = (
        ("Keep what is there first", "python -m helpers capture --out before.tar.gz"),
        (f"To run, as {block.system} does it; printed here and never run", block.run),
        ("To undo", block.undo),
        ("To verify", block.verify),
    )
    return "\n".join(
        line
        for title, text in parts
        for line in (title, *("    " + plain(part) for part in text.splitlines()), "")
    )


def mistaken_table() -> str:
    """What is often set instead, and what it really does."""
    return table([list(row) for row in MISTAKEN], ["often believed", "what is true"], widest=None)


def ceilings_table(stack: Stack, sources: bool = True) -> str:
    """Every row of a stack: value, as its source writes it, what is pending, and whether it binds."""
    rows = []
    for row in stack.rows:
        mark = (
            "binds"
            if row.layer and row.layer == stack.decision.binding
            else ""
            if row.layer
            else "no ceiling"
        )
        native = f"{row.native} {row.unit}".removesuffix(" text") if row.native else None
        pending = show_bytes(row.pending_bytes) if row.pending_bytes is not None else None
        rows.append(
            [
                row.name,
                row.value,
                native,
                pending,
                mark,
                *([row.value.source or None] if sources else []),
            ]
        )
    notes = [f"{row.name}: {row.note}" for row in stack.rows if row.note and not row.layer]
    head = ["layer", "value", "as written", "pending", "", *(["source"] if sources else [])]
    return "\n".join(
        [table(rows, head), *(line for note in notes for line in _wrapped(plain(note), "", "  "))]
    )


def states_table(bundles: Iterable[Bundle]) -> str:
    """Several states of one box side by side, a row each: what every layer said, and which one bound."""
    rows = []
    for bundle in bundles:
        stack = ceilings(bundle)[0]
        found = [stack.row(layer) for layer, _ in STATE_LAYERS]
        rows.append(
            [bundle.box, *(row.value if row else None for row in found), stack.decision.binding]
        )
    return table(rows, ["state", *(name for _, name in STATE_LAYERS), "binds"])


def verify_text(result: VerifyResult) -> str:
    """What a change did, layer by layer."""
    words = {True: "took", False: "did not take", None: "-"}
    out = _wrapped(plain(result.says), "", " ")
    if result.rows:
        rows = [[r.name, r.before, r.intended, r.now, words[r.took]] for r in result.rows]
        out += ["", table(rows, ["layer", "before", "intended", "now", ""])]
        out += [
            line
            for r in result.rows
            if r.why
            for line in _wrapped(f"{r.name}: {plain(r.why)}", "", "  ")
        ]
        out.append(f"Intended: {result.intended_source or 'nothing'}")
    return "\n".join(
        [
            *out,
            *(
                line
                for warning in result.warnings
                for line in _wrapped("Mind: " + plain(warning), "")
            ),
        ]
    )


def _figure_rows(stack: Stack) -> list[Ceiling]:
    return [
        row
        for row in stack.rows
        if (row.layer and row.layer not in ("ulimit", "cgroup"))
        or (row.layer == "cgroup" and row.value.ok)
        or row.name in ("VRAM of the card", "nvidia-smi")
    ]


def ceilings_figure(stack: Stack) -> Figure:
    """The ceilings from the RAM upwards as bars on one scale; a line marks the one that binds, and its name says so."""
    rows = _figure_rows(stack)
    sizes = [int(row.value.value or 0) for row in rows if row.value.ok]
    top, sheet, right = max(sizes, default=0) or 1, Sheet(), WIDTH - MARGIN
    scale = (right - MARGIN) / top
    sheet.heading(plain(stack.name) or "This box", stack.pci or "no GPU")
    started, binding = sheet.y, stack.decision.binding
    for row in rows:
        binds = bool(row.layer) and row.layer == binding
        value = show_bytes(int(row.value.value or 0)) if row.value.ok else "not known"
        sheet.y += 0.17
        sheet.text(right, value, ha="right", weight="bold" if binds else "normal")
        name = row.name + (": this one binds" if binds else "")
        sheet.text(
            MARGIN,
            fit(
                name,
                right - MARGIN - inches(value, BODY) - 0.25,
                BODY,
                "bold" if binds else "normal",
            ),
            weight="bold" if binds else "normal",
            color=ALARM if binds else "#1c2126",
        )
        sheet.y += 0.06
        if row.value.ok:
            sheet.box(
                MARGIN,
                max(int(row.value.value or 0) * scale, 0.02),
                0.15,
                Look(
                    face=ALARM
                    if binds
                    else ACCENT
                    if row.layer not in ("carveout", "ram", "kfd_limit")
                    else PALE,
                    edge=MUTED,
                ),
            )
            if row.pending_bytes is not None:
                sheet.box(
                    MARGIN,
                    min(row.pending_bytes * scale, right - MARGIN),
                    0.15,
                    Look(edge=MUTED, hatch=UNKNOWN),
                )
        else:
            sheet.box(MARGIN, right - MARGIN, 0.15, Look(edge=RULE, hatch=UNKNOWN))
        sheet.y += 0.19
        if not row.value.ok:
            sheet.y += 0.1
            sheet.text(MARGIN, fit(plain(row.value.show()), right - MARGIN, SMALL), SMALL, MUTED)
            sheet.y += 0.03
    if stack.decision.binding_bytes is not None:
        x = MARGIN + min(stack.decision.binding_bytes, top) * scale
        sheet.box(
            min(x, right) - 0.006, 0.012, sheet.y - started, Look(face=ALARM), dy=started - sheet.y
        )
    sheet.y += 0.14
    _footnote(
        sheet,
        f"One scale; the longest bar is {show_bytes(top)}. Pale: the RAM and what the kernel keeps of it. "
        "Hatched: not known, or configured and not live.",
    )
    return sheet.done()


def _footnote(sheet: Sheet, words: str) -> None:
    for line in wrap(words, WIDTH - 2 * MARGIN, SMALL):
        sheet.text(MARGIN, line, SMALL, MUTED)
        sheet.y += 0.14


def ceilings_alt(stack: Stack) -> str:
    """The ceilings figure in words."""
    parts = [
        f"{row.name} {row.value.show()}"
        + (", which binds" if row.layer and row.layer == stack.decision.binding else "")
        for row in _figure_rows(stack)
    ]
    return plain(
        f"Ceilings of {stack.name or 'this box'} from the RAM upwards as bars: "
        + "; ".join(parts)
        + "."
    )


@dataclass(frozen=True)
class Choice:
    """What one reserve would leave: the limit in bytes and pages, and the weights that fit at 2 bytes a parameter."""

    reserve_bytes: int
    limit_bytes: int
    pages: int
    action: str

    @property
    def parameters_billion(self) -> float:
        return self.limit_bytes / BYTES_A_PARAMETER / 1e9

    def words(self) -> str:
        return (
            f"A reserve of {show_bytes(self.reserve_bytes)} leaves a limit of {show_bytes(self.limit_bytes)} "
            f"({self.pages} pages; {self.action}): weights of at most {self.parameters_billion:.1f} billion parameters at "
            f"{BYTES_A_PARAMETER} bytes each, before activations and caches."
        )


@dataclass(frozen=True)
class WhatIf:
    """The reserve against the largest model, on one box. It holds no widgets; the slider and the static twin both ask it."""

    space: Room | None
    why: str = ""

    def at(self, reserve_gib: float) -> Choice | None:
        """What a reserve would leave, or None where the box has no TTM limit to set or not that much RAM."""
        if self.space is None or not 0 < int(reserve_gib * GIB) < self.space.ram_bytes:
            return None
        made = plan(
            Room(
                self.space.ram_bytes,
                self.space.page_bytes,
                self.space.kernel,
                None,
                self.space.carveout_bytes,
            ),
            reserve_bytes=int(reserve_gib * GIB),
        )
        if made.bytes is None or made.pages_limit is None:
            return None
        return Choice(int(reserve_gib * GIB), made.bytes, made.pages_limit, made.action)

    def choices(self) -> list[Choice]:
        return [choice for choice in map(self.at, RESERVES_GIB) if choice is not None]


def what_if(stack: Stack, space: Room | None) -> WhatIf:
    """The what-if of a stack; a GPU that TTM does not limit has none, and says why."""
    if stack.kind != "apu" or space is None:
        return WhatIf(
            None,
            stack.decision.says if stack.kind != "apu" else "RAM or page size were not captured",
        )
    return WhatIf(space)


def what_if_table(state: WhatIf) -> str:
    """The static twin of the slider: a few reserves, the limit each leaves, and the largest model."""
    choices = state.choices()
    if not choices:
        return f"No reserve to choose here. {state.why}".strip()
    rows = [
        [
            show_bytes(c.reserve_bytes),
            show_bytes(c.limit_bytes),
            c.pages,
            c.action,
            f"{c.parameters_billion:.1f}",
        ]
        for c in choices
    ]
    return table(
        rows,
        ["reserve for the system", "TTM limit", "pages", "plan", "parameters, 10^9, at 2 bytes"],
    )


def what_if_figure(state: WhatIf) -> Figure:
    """The same as bars: the GPU's part of the RAM, and what stays for the system."""
    sheet, right = Sheet(), WIDTH - MARGIN
    sheet.heading("Reserve against the largest model", "2 bytes a parameter")
    choices = state.choices()
    if not choices or state.space is None:
        for line in wrap(f"No reserve to choose here. {state.why}", right - MARGIN, BODY):
            sheet.nothing(line)
        return sheet.done()
    scale = (right - MARGIN) / state.space.ram_bytes
    for choice in choices:
        sheet.y += 0.17
        value = f"{choice.parameters_billion:.1f} billion parameters"
        sheet.text(right, value, ha="right")
        sheet.text(MARGIN, f"reserve {show_bytes(choice.reserve_bytes)}")
        sheet.y += 0.06
        sheet.box(MARGIN, right - MARGIN, 0.15, Look(face=PALE, edge=MUTED))
        sheet.box(MARGIN, choice.limit_bytes * scale, 0.15, Look(face=ACCENT))
        sheet.y += 0.2
    sheet.y += 0.14
    _footnote(
        sheet,
        f"Whole bar: {show_bytes(state.space.ram_bytes)} of RAM. Filled: the TTM limit. The rest stays for "
        "the system.",
    )
    return sheet.done()


def what_if_alt(state: WhatIf) -> str:
    """The what-if figure in words."""
    said = [
        f"reserve {show_bytes(c.reserve_bytes)}: limit {show_bytes(c.limit_bytes)}, {c.parameters_billion:.1f} billion "
        "parameters"
        for c in state.choices()
    ]
    return (
        "Reserve against the largest model as bars. " + "; ".join(said) + "."
        if said
        else plain(f"No reserve to choose here. {state.why}").strip()
    )


def four_states() -> list[Bundle]:
    """The recorded states of the Strix Halo box: as found, after vm_size, after gttsize, after the TTM limit."""
    return [open_box(name) for name in recorded_names() if name.startswith("strix-halo-")]


def verify_with(now: Bundle, earlier: str, target_bytes: int | None = None) -> str:
    """``verify_text`` against an earlier bundle by name or path; without one, how to keep one."""
    if not earlier:
        return (
            "Not compared: no earlier bundle was given. Before a change run\n"
            "    python -m helpers capture --out before.tar.gz\nand after the reboot give that file as `earlier`."
        )
    return verify_text(verify(open_box(earlier), now, target_bytes=target_bytes))


def _wrapped(text: str, indent: str, then: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDE,
        initial_indent=indent,
        subsequent_indent=indent + (then or "  "),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [indent]
