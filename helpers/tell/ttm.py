"""The ceilings between RAM and torch in words, tables and a figure, and what a reserve would
leave for models.

What is set by mistake again and again is listed beside it, so that it is corrected where people
look for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from helpers.ground.shapes import Ttm
from helpers.ground.units import GIB, near, plain, show_bytes
from helpers.judge.ceilings import Ceiling, Stack, ceilings
from helpers.judge.ttm_limit import Room, in_units, plan
from helpers.judge.ttm_verify import VerifyResult
from helpers.look.boxes import open_box, recorded_names
from helpers.look.bundle import Bundle
from helpers.tell.figure_style import ACCENT, ALARM, MUTED, PALE, PALETTE, Look
from helpers.tell.prose import SCREEN, typed, wrapped
from helpers.tell.resources import words
from helpers.tell.shown import Shown
from helpers.tell.values import Column, cell, columns

if TYPE_CHECKING:
    from . import sheet

STATE_LAYERS = "carveout ttm gtt kfd_bank hip_total".split()
STATE_HEADS = ["state", "carve-out", "TTM limit", "GTT", "KFD bank", "torch", "limit"]
KERNEL_LAYERS = ("carveout", "ram", "kfd_limit")
"""Layers drawn pale: the RAM, and what the firmware and the kernel keep of it."""
FOLLOW = ("gtt", "kfd_bank", "hsa_pool", "hip_total")
"""Layers that pass TTM's limit on, unless something else was set for them."""
BYTES_A_PARAMETER = 2
WITHOUT_TTM = ("card", "other vendor", "none")
"""Kinds of stack whose GPU TTM does not limit."""


def applies(stack: Stack) -> bool:
    """Whether TTM can limit the first GPU of a box; also where that is not known."""
    return stack.kind not in WITHOUT_TTM


def as_text(answer: Ttm) -> str:
    """The answer of the command ``ttm`` for a terminal."""
    names = words("layers")
    binding = answer.binding
    rows = []
    for ceiling in answer.ceilings:
        name = names[ceiling.layer]
        if ceiling.layer == binding:
            name += "  <- decides"
        limit: object = ceiling.bytes
        if ceiling.bytes is None:
            limit = ceiling.status.replace("_", " ")
        rows.append([name, limit, ceiling.pending_bytes, ceiling.source])
    binds = "none was found"
    if binding:
        binds = f"{names[binding]}, {show_bytes(answer.binding_bytes)}"
    heads = ["layer", Column("limit", "bytes"), Column("pending", "bytes"), "source"]
    out = [
        f"{answer.box}: every ceiling between the RAM and torch",
        "",
        Shown("The ceilings", heads, rows).text(0),
        "",
        f"The limit that decides: {binds}",
        "",
    ]
    for about, *rest in _planned(answer):
        out += wrapped(
            f"{about}: {'; '.join(map(str, filter(None, rest)))}", "", "  ", SCREEN
        )
    if answer.commands:
        out += ["", command_text(answer)]
        others = ", ".join(block.system for block in answer.commands[1:])
        if others:
            out.append(f"Other ways, in full with --json: {others}")
    return "\n".join([*out, "", mistaken_table().text(0)])


def decision_table(stack: Stack, answer: Ttm) -> Shown:
    """Which layer binds and what would move it, the plan with its size in every unit, and what
    it would meet on this box. A sentence where TTM does not limit the GPU.
    """
    decision = stack.decision
    names = words("layers")
    binds = "none is known"
    step = "to do"
    if decision.binding:
        binds = names.get(decision.binding, decision.binding)
        step = "would move it"
    rows: list[list[object]] = [
        ["decides", binds, decision.says],
        [step, decision.step, ""],
    ]
    rows += [["not read", name, ""] for name in decision.missing]
    rows += _planned(answer)
    if not applies(stack):
        rows = []
    says = f"{answer.plan.action}: {answer.plan.why}"
    if answer.plan.action == "set":
        says = (
            f"{answer.plan.action} {show_bytes(answer.plan.bytes)}: {answer.plan.why}"
        )
    return Shown(
        "Which limit decides, and the plan",
        ["about", "in short", "why"],
        rows,
        none=f"{decision.says} {decision.step}.",
        widest=None,
        result=says,
        label="Plan",
        applies=stack.kind == "apu",
    )


def _planned(answer: Ttm) -> list[list[object]]:
    """The plan with its size in every unit, and what it would meet on this box: of each what it is
    about, in short, and why.
    """
    planned = answer.plan
    rows: list[list[object]] = [["plan", planned.action, planned.why]]
    if planned.action == "set" and planned.pages_limit and planned.bytes:
        units = in_units(planned.pages_limit, planned.bytes // planned.pages_limit)
        rows.append(["its size", show_bytes(planned.bytes), units])
    rows += [["warning", "", line] for line in answer.warnings]
    return rows


def command_text(answer: Ttm) -> str:
    """One block of commands with its undo and its check; what is printed here is never run by
    the workbook.
    """
    if not answer.commands:
        return "Nothing needs doing: there is no command to print."
    block = answer.commands[0]
    parts = (
        ("First keep the current state", "casebook capture --out before.tar.gz"),
        (f"To run, by {block.system}; printed here and never run", block.run),
        ("To undo", block.undo),
        ("To verify", block.verify),
    )
    lines = []
    for title, text in parts:
        lines += [title, *typed(text, "    "), ""]
    return "\n".join(lines)


def mistaken_table() -> Shown:
    """What is often set instead, and what it really does."""
    return Shown(
        "Settings often made by mistake",
        ["often believed", "what is true"],
        words("rows")["mistaken"],
        widest=None,
        label="Common mistakes",
    )


def ceilings_table(stack: Stack) -> Shown:
    """Every row of a stack: its value, how its source writes it, what is pending, and whether it
    binds.
    """
    rows = []
    says = stack.decision.says
    for row in stack.rows:
        mark = ""
        if _binds(stack, row):
            mark = "decides"
            says = f"{row.name} decides: {row.value.show()}"
        elif not row.layer and not _is_card(row):
            mark = "no ceiling"
        native = None
        if row.native:
            native = f"{row.native} {row.unit}".removesuffix(" text")
        source = row.value.source or None
        rows.append([row.name, row.value, native, row.pending_bytes, mark, source])
    sentences = [
        f"{row.name}: {row.note}" for row in stack.rows if row.note and not row.layer
    ]
    head = columns(
        "layer:word, value:number, as written:native, pending:number:bytes, state:word, source:source"
    )
    return Shown(
        "The ceilings",
        head,
        rows,
        sentences,
        result=says,
        label="Limits",
        applies=stack.kind == "apu",
    )


def _binds(stack: Stack, row: Ceiling) -> bool:
    return bool(row.layer) and row.layer == stack.decision.binding


def states_table(bundles: Iterable[Bundle]) -> Shown:
    """Several states of one box side by side, a row each: what every layer said, and which one
    bound.
    """
    rows = []
    for bundle in bundles:
        stack = ceilings(bundle)[0]
        layers = [stack.row(layer) for layer in STATE_LAYERS]
        values = [row.value if row else None for row in layers]
        rows.append([bundle.box, *values, stack.decision.binding])
    # The last but one is torch's total, the last of STATE_LAYERS.
    says = "; ".join(
        f"{row[0]}: {cell(row[-2]).words} for torch" for row in (rows[0], rows[-1])
    )
    return Shown("States of one box", STATE_HEADS, rows, result=says)


def verify_table(result: VerifyResult) -> Shown:
    """What a change did, layer by layer."""
    took = {True: "took effect", False: "no effect", None: "-"}
    rows = [
        [r.name, r.before, r.intended, r.now, took[r.took], r.why] for r in result.rows
    ]
    notes = []
    before = []
    if rows:
        notes.append(f"Intended: {result.intended_source or 'nothing'}")
        before.append(result.says)
    notes += [f"Mind: {warning}" for warning in result.warnings]
    return Shown(
        "What a change did",
        ["layer", "before", "intended", "now", "result", "why"],
        rows,
        notes,
        before,
        result.says,
        widest=None,
        label="After the change",
    )


def four_states() -> list[Bundle]:
    """The recorded states of the Strix Halo box: as found, after vm_size, after gttsize, after
    the TTM limit.
    """
    return [
        open_box(name) for name in recorded_names() if name.startswith("strix-halo-")
    ]


def ceilings_bars(stack: Stack) -> Shown:
    """The ceilings from the RAM upwards as bars on one scale; a line marks the one that binds,
    and its name says so.

    What is configured, or would follow a reserve, stands in a lighter piece with its number
    beside the live one.
    """
    # Here, as the command needs no figure, and so no matplotlib.
    from .figures import out_of

    rows = [row for row in stack.rows if _is_drawn(row)]
    top = max([1, *(row.value.bytes for row in rows if row.value.ok)])
    decision = stack.decision
    title = decision.says.rstrip(".")
    would = next((row for row in reversed(rows) if row.pending_bytes is not None), None)
    if would is not None and would.pending_bytes is not None:
        title = f"{would.name} would be {out_of(would.pending_bytes, top)}"
        title += f", now {would.value.show()}"
    elif decision.binding_bytes is not None:
        binds = next((row.name for row in rows if _binds(stack, row)), decision.binding)
        title = f"{out_of(decision.binding_bytes, top)}: {binds} decides"
    cells = [
        [
            row.name,
            row.value,
            row.pending_bytes,
            "which decides" if _binds(stack, row) else "",
        ]
        for row in rows
    ]
    draw = partial(_draw_ceilings, stack, rows, top, title)
    head = columns("layer:word, value:number, would be:number:bytes, :word")
    return Shown(
        title, head, cells, draw=draw, label="Limits", applies=stack.kind == "apu"
    )


def _is_drawn(row: Ceiling) -> bool:
    """Whether a row is a bar: a layer between the RAM and torch, a control group where it has a
    limit, or a card's own memory; not what limits nothing, and no ulimit, which is not of the GPU.
    """
    if row.layer == "cgroup":
        return row.value.ok
    return row.layer not in ("", None, "ulimit") or _is_card(row)


def _is_card(row: Ceiling) -> bool:
    """Whether it is a card's own memory, which no layer between the RAM and torch limits."""
    return row.name in ("VRAM of the card", "nvidia-smi")


def _draw_ceilings(
    stack: Stack, rows: list[Ceiling], top: int, title: str
) -> sheet.Drawing:
    # Here, as the command needs no figure, and so no matplotlib.
    from . import sheet

    page = sheet.FigurePage(title)
    page.heading(plain(stack.name) or "This box", stack.pci or "no GPU")
    bars = [_ceiling_bar(row, _binds(stack, row)) for row in rows]
    page.bars(bars, top, stack.decision.binding_bytes)
    legend = "Pale: the RAM and what the kernel keeps of it. Light blue: a change that is not live. "
    page.footnote(legend + "Hatched stub: not known.")
    return page.done()


def _ceiling_bar(row: Ceiling, binds: bool) -> sheet.Bar:
    """A layer's bar; what is to change and is not live yet is the lighter piece at its end."""
    from . import sheet

    if not row.value.ok:
        return sheet.Bar(
            row.name, "not known", [(None, PALETTE["not known"])], [row.value.show()]
        )
    live = row.value.bytes
    face = PALE if row.layer in KERNEL_LAYERS else ACCENT
    look = Look(ALARM if binds else face, MUTED)
    value = show_bytes(live)
    fills: list[tuple[float | None, Look]] = [(live, look)]
    if row.pending_bytes is not None:
        value = f"{value} → {show_bytes(row.pending_bytes)}"
        fills.insert(0, (max(live, row.pending_bytes), PALETTE["pending"]))
        fills[1] = (min(live, row.pending_bytes), look)
    if binds:
        return sheet.Bar(
            f"{row.name}: this one decides", value, fills, (), "bold", ALARM
        )
    return sheet.Bar(row.name, value, fills)


def following(stack: Stack, limit_bytes: int) -> Stack:
    """The stack under another TTM limit: every layer that passes the present one on would
    follow it, torch's total last.
    """
    ttm = stack.row("ttm")
    now = ttm.value.bytes if ttm and ttm.value.ok else None
    rows = []
    for row in stack.rows:
        follows = row.layer in FOLLOW and row.value.ok and near(row.value.bytes, now)
        if row.layer == "ttm" or follows:
            row = replace(
                row, pending_bytes=limit_bytes, pending_source="the reserve chosen"
            )
        rows.append(row)
    return replace(stack, rows=tuple(rows))


@dataclass(frozen=True)
class ReserveChoice:
    """What one reserve would leave: the limit in bytes and pages, and the weights that fit at 2
    bytes a parameter.
    """

    reserve_bytes: int
    limit_bytes: int
    pages: int
    action: str

    @property
    def parameters_billion(self) -> float:
        return self.limit_bytes / BYTES_A_PARAMETER / 1e9

    def words(self) -> str:
        """The choice in a sentence."""
        return (
            f"A reserve of {show_bytes(self.reserve_bytes)} leaves "
            f"{show_bytes(self.limit_bytes)}: weights of up to "
            f"{self.parameters_billion:.1f} billion parameters at {BYTES_A_PARAMETER} bytes each, "
            "without activations."
        )


def choice(space: Room, reserve_gib: float) -> ReserveChoice | None:
    """What a reserve would leave; None where the box has not that much RAM, or no limit to set."""
    reserve = int(reserve_gib * GIB)
    if not 0 < reserve < space.ram_bytes:
        return None
    planned = plan(replace(space, live_pages=None), reserve_bytes=reserve)
    if planned.bytes is None or planned.pages_limit is None:
        return None
    return ReserveChoice(reserve, planned.bytes, planned.pages_limit, planned.action)


def reserves_table(space: Room | None, reserves_gib: Iterable[float]) -> Shown:
    """Reserves in GiB, the limit each leaves, and the largest model; none where no limit can be
    chosen. It comes to what the reserve that is advised leaves.
    """
    rows: list[list[object]] = []
    result = "No reserve to choose here"
    for reserve_gib in reserves_gib:
        left = choice(space, reserve_gib) if space else None
        if left is not None:
            billion = round(left.parameters_billion, 1)
            rows.append(
                [left.reserve_bytes, left.limit_bytes, left.pages, left.action, billion]
            )
    if space and rows:
        advised = plan(replace(space, live_pages=None)).reserve_bytes or 0
        left = choice(space, advised / GIB)
        if left is not None:
            billion_words = f"{left.parameters_billion:.1f} billion parameters"
            result = f"{billion_words} with {show_bytes(advised)} kept for the system"
    head = [
        Column("reserve for the system", "bytes"),
        Column("TTM limit", "bytes"),
        "pages",
    ]
    heads = [*head, "plan", "parameters, 10^9, at 2 bytes"]
    return Shown(
        result,
        heads,
        rows,
        none=f"{result}.",
        result=result,
        label="What if",
        applies=bool(rows),
        again=not rows,
    )
