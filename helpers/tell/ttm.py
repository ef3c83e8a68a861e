"""The ceilings between the RAM and torch in words, tables and a figure; what a reserve of RAM for
the system would leave for models; and the settings that people often make by mistake.

``columns`` takes headings with the rules by which cells may leave this machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from helpers.ground.shapes import Reading, Ttm
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

# Layers of ceilings.json that differ between the states of a box, and the headings of their table.
STATE_LAYERS = "carveout ttm gtt kfd_bank hip_total".split()
STATE_HEADS = ["state", "carve-out", "TTM limit", "GTT", "KFD bank", "torch", "limit"]
KERNEL_LAYERS = ("carveout", "ram", "kfd_limit")
"""Layers drawn pale: the RAM, and what the firmware and the kernel keep of it."""
FOLLOW = ("gtt", "kfd_bank", "hsa_pool", "hip_total")
"""Layers that pass TTM's limit on, unless something else was set for them."""
BYTES_A_PARAMETER = 2
"""Of weights in float16 or bfloat16, in which models are published."""
WITHOUT_TTM = ("card", "other vendor", "none")
"""Kinds of stack whose GPU TTM does not limit."""


def applies(stack: Stack) -> bool:
    """Whether TTM may limit the GPU of a stack; also where the kind of the GPU is not known."""
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
    for about, short, why in _plan_rows(answer):
        parts = [part for part in (short, why) if part]
        out += wrapped(f"{about}: {'; '.join(parts)}", "", "  ", SCREEN)
    if answer.commands:
        out += ["", command_text(answer)]
        others = ", ".join(block.system for block in answer.commands[1:])
        if others:
            out.append(f"Other ways, in full with --json: {others}")
    return "\n".join([*out, "", mistaken_table().text(0)])


def decision_table(stack: Stack, answer: Ttm) -> Shown:
    """Which layer decides and what would raise its limit, the plan, and the warnings. Where TTM
    does not limit the GPU, the table is empty and the sentence in its place says why.
    """
    decision = stack.decision
    binds = "none is known"
    step = "to do"
    if decision.binding:
        binds = words("layers").get(decision.binding, decision.binding)
        step = "would move it"
    rows = []
    if applies(stack):
        rows.append(["decides", binds, decision.says])
        rows.append([step, decision.step, ""])
        rows += [["not read", name, ""] for name in decision.missing]
        rows += _plan_rows(answer)
    action: str = answer.plan.action
    if action == "set":
        action = f"set {show_bytes(answer.plan.bytes)}"
    return Shown(
        "Which limit decides, and the plan",
        ["about", "in short", "why"],
        rows,
        none=f"{decision.says} {decision.step}.",
        widest=None,
        result=f"{action}: {answer.plan.why}",
        label="Plan",
        applies=stack.kind == "apu",
    )


def _plan_rows(answer: Ttm) -> list[list[str]]:
    """The plan, its size in every unit where it sets one, and the warnings: a row for each, of what
    it is, its words in short, and why.
    """
    planned = answer.plan
    rows = [["plan", planned.action, planned.why]]
    if planned.action == "set" and planned.pages_limit and planned.bytes:
        page_bytes = planned.bytes // planned.pages_limit
        units = in_units(planned.pages_limit, page_bytes)
        rows.append(["its size", show_bytes(planned.bytes), units])
    rows += [["warning", "", line] for line in answer.warnings]
    return rows


def command_text(answer: Ttm) -> str:
    """The commands of the plan with what undoes and what checks them; the workbook never runs
    them.
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
    """Every row of a stack: its value, how its source writes it, the value that is configured but
    not live yet, and its state: that it decides, or limits nothing ("no ceiling").
    """
    rows = []
    notes = []
    result = stack.decision.says
    for row in stack.rows:
        state = ""
        if _decides(stack, row):
            state = "decides"
            result = f"{row.name} decides: {row.value.show()}"
        elif not row.layer and not _is_card(row):
            state = "no ceiling"
        native = None
        if row.native:
            # a word has the unit "text", which is not shown
            native = f"{row.native} {row.unit}".removesuffix(" text")
        source = row.value.source or None
        rows.append([row.name, row.value, native, row.pending_bytes, state, source])
        if row.note and not row.layer:
            notes.append(f"{row.name}: {row.note}")
    head = columns(
        "layer:word, value:number, as written:native, pending:number:bytes, state:word, source:source"
    )
    return Shown(
        "The ceilings",
        head,
        rows,
        notes,
        result=result,
        label="Limits",
        applies=stack.kind == "apu",
    )


def _decides(stack: Stack, row: Ceiling) -> bool:
    """Whether a row is the ceiling that decides: the lowest one."""
    return bool(row.layer) and row.layer == stack.decision.binding


def states_table(bundles: Iterable[Bundle]) -> Shown:
    """Several states of one box, a row for each: the value of every layer, and which layer decided.

    The result names what torch had in the first and in the last state.
    """
    rows = []
    for_torch = []
    for bundle in bundles:
        stack = ceilings(bundle)[0]
        readings: dict[str | None, Reading] = {}
        for row in stack.rows:
            readings.setdefault(row.layer, row.value)  # the first of a layer counts
        values = [readings.get(layer) for layer in STATE_LAYERS]
        rows.append([bundle.box, *values, stack.decision.binding])
        total = cell(readings.get("hip_total"))
        for_torch.append(f"{bundle.box}: {total.words} for torch")
    result = f"{for_torch[0]}; {for_torch[-1]}"
    return Shown("States of one box", STATE_HEADS, rows, result=result)


def verify_table(result: VerifyResult) -> Shown:
    """What a change of the limit did, layer by layer."""
    # None: nothing was intended for the layer, or it was not read.
    effects = {True: "took effect", False: "no effect", None: "-"}
    rows = []
    for row in result.rows:
        effect = effects[row.took]
        rows.append([row.name, row.before, row.intended, row.now, effect, row.why])
    notes = []
    before = []
    if rows:
        intended = result.intended_source
        if not intended:
            intended = "nothing"
        notes.append(f"Intended: {intended}")
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
    """The recorded states of one box: as found, after vm_size, after gttsize, after the TTM limit."""
    names = recorded_names()
    return [open_box(name) for name in names if name.startswith("strix-halo-")]


def ceilings_bars(stack: Stack) -> Shown:
    """The ceilings from the RAM upwards as bars on one scale; a line marks the one that decides,
    and the name of its bar says so.

    A value that is pending (configured, or would follow from a reserve) is a lighter piece.
    """
    rows = [row for row in stack.rows if _is_drawn(row)]
    cells = []
    for row in rows:
        state = ""
        if _decides(stack, row):
            state = "which decides"
        cells.append([row.name, row.value, row.pending_bytes, state])
    # At least 1 byte: the scale of the bars divides by it.
    most_bytes = max([1, *(row.value.bytes for row in rows if row.value.ok)])
    title = _bars_title(stack, rows, most_bytes)
    return Shown(
        title,
        columns("layer:word, value:number, would be:number:bytes, :word"),
        cells,
        draw=partial(_draw_ceilings, stack, rows, most_bytes, title),
        label="Limits",
        applies=stack.kind == "apu",
    )


def _bars_title(stack: Stack, rows: list[Ceiling], most_bytes: int) -> str:
    """The title of a figure of ceilings: the last layer with a pending value, which is the nearest
    to torch, else the layer that decides, else why none does.
    """
    # here: it loads matplotlib, which the command does not need
    from .figures import out_of

    for row in reversed(rows):
        if row.pending_bytes is not None:
            would_be = out_of(row.pending_bytes, most_bytes)
            return f"{row.name} would be {would_be}, now {row.value.show()}"
    decision = stack.decision
    if decision.binding_bytes is None:
        return decision.says.rstrip(".")
    name = next((row.name for row in rows if _decides(stack, row)), decision.binding)
    return f"{out_of(decision.binding_bytes, most_bytes)}: {name} decides"


def _is_drawn(row: Ceiling) -> bool:
    """Whether a row has a bar: a layer between the RAM and torch does, a control group with a
    limit, and a card's own memory; ulimit, which limits no GPU, does not.
    """
    if row.layer == "cgroup":
        return row.value.ok
    return row.layer not in ("", None, "ulimit") or _is_card(row)


def _is_card(row: Ceiling) -> bool:
    """Whether it is a card's own memory, which no layer between the RAM and torch limits."""
    return row.name in ("VRAM of the card", "nvidia-smi")


def _draw_ceilings(
    stack: Stack, rows: list[Ceiling], most_bytes: int, title: str
) -> sheet.Drawing:
    """Draw the figure of ``ceilings_bars``."""
    from . import sheet  # here: it loads matplotlib, which the command does not need

    page = sheet.FigurePage(title)
    name = plain(stack.name) or "This box"
    page.heading(name, stack.pci or "no GPU")
    bars = [_ceiling_bar(row, _decides(stack, row)) for row in rows]
    page.bars(bars, most_bytes, stack.decision.binding_bytes)
    legend = "Pale: the RAM and what the kernel keeps of it. Light blue: a change that is not live. "
    page.footnote(legend + "Hatched stub: not known.")
    return page.done()


def _ceiling_bar(row: Ceiling, binds: bool) -> sheet.Bar:
    """A layer's bar, in another colour where it is the one that decides. What a pending value would
    add or take away is a lighter piece; a layer that is not known is a stub with the reason.
    """
    from . import sheet

    if not row.value.ok:
        stub: tuple[None, Look] = (None, PALETTE["not known"])
        return sheet.Bar(row.name, "not known", [stub], [row.value.show()])
    live = row.value.bytes
    value = show_bytes(live)
    face = ACCENT
    if binds:
        face = ALARM
    elif row.layer in KERNEL_LAYERS:
        face = PALE
    look = Look(face, MUTED)
    fills: list[tuple[float | None, Look]] = [(live, look)]
    if row.pending_bytes is not None:
        value = f"{value} → {show_bytes(row.pending_bytes)}"
        longer = (max(live, row.pending_bytes), PALETTE["pending"])
        fills = [longer, (min(live, row.pending_bytes), look)]
    if binds:
        name = f"{row.name}: this one decides"
        return sheet.Bar(name, value, fills, weight="bold", tone=ALARM)
    return sheet.Bar(row.name, value, fills)


def following(stack: Stack, limit_bytes: int) -> Stack:
    """The stack with another TTM limit pending, in TTM and in each layer of FOLLOW that has the
    present limit now; a layer with another value was set by itself and stays.
    """
    ttm = stack.row("ttm")
    live_bytes = None
    if ttm is not None and ttm.value.ok:
        live_bytes = ttm.value.bytes
    rows = []
    for row in stack.rows:
        follows = row.layer == "ttm"
        if row.layer in FOLLOW and row.value.ok:
            follows = near(row.value.bytes, live_bytes)
        if follows:
            row = replace(
                row, pending_bytes=limit_bytes, pending_source="the reserve chosen"
            )
        rows.append(row)
    return replace(stack, rows=tuple(rows))


@dataclass(frozen=True)
class ReserveChoice:
    """What a reserve of RAM for the system would leave: the TTM limit in bytes and in pages, and
    what the plan would do (``action``).
    """

    reserve_bytes: int
    limit_bytes: int
    pages: int
    action: str

    @property
    def parameters_billion(self) -> float:
        """How many parameters have their weights within the limit, in 10^9."""
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
    """What a reserve would leave; None where the RAM is no larger, or there is no limit to set."""
    reserve = int(reserve_gib * GIB)
    if not 0 < reserve < space.ram_bytes:
        return None
    # Without the present limit: a plan would else say that nothing needs to change.
    planned = plan(replace(space, live_pages=None), reserve_bytes=reserve)
    if planned.bytes is None or planned.pages_limit is None:
        return None
    return ReserveChoice(reserve, planned.bytes, planned.pages_limit, planned.action)


def reserves_table(space: Room | None, reserves_gib: Iterable[float]) -> Shown:
    """Each reserve with the limit and the largest model that it leaves; the result is about the
    reserve that the plan advises. Empty where there is no limit to choose (``space`` is None).
    """
    rows: list[list[object]] = []
    result = "No reserve to choose here"
    if space is not None:
        choices = [choice(space, reserve_gib) for reserve_gib in reserves_gib]
        for left in filter(None, choices):
            row = [left.reserve_bytes, left.limit_bytes, left.pages, left.action]
            rows.append([*row, round(left.parameters_billion, 1)])
        advised_bytes = plan(replace(space, live_pages=None)).reserve_bytes
        if rows and advised_bytes:
            advised = choice(space, advised_bytes / GIB)
            if advised is not None:
                parameters = f"{advised.parameters_billion:.1f} billion parameters"
                kept = show_bytes(advised_bytes)
                result = f"{parameters} with {kept} kept for the system"
    heads = [
        Column("reserve for the system", "bytes"),
        Column("TTM limit", "bytes"),
        "pages",
        "plan",
        "parameters, 10^9, at 2 bytes",
    ]
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
