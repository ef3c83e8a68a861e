"""Panels that answer a question: what an error text says, what a reserve leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from helpers.ground.units import GIB, show_bytes
from helpers.judge.ceilings import Stack
from helpers.judge.diagnosis import diagnose
from helpers.look.boxes import recorded_names
from helpers.tell import figures, message, ttm, verdict

from .frame import Frame, Panel, Part, parts_html

EMPTY = "Paste an error text: from the words out of memory on, as the program printed it."


@dataclass(frozen=True)
class Reader:
    """A text, a box or both, and what they say."""

    text: str = ""
    box: str = ""

    def parts(self) -> list[Part]:
        """The headline, the sums, the numbers, the bars, what comes next.

        Raises BundleError for a box that is not there.
        """
        if not self.text.strip() and not self.box:
            return [EMPTY]
        evidence, books = message.gathered(self.text, self.box)
        made = diagnose(evidence)
        says = [
            f"{made.headline} ({verdict.label(made)})",
            f"Next: {made.next_step.what}",
            message.next_notebook(made),
        ]
        if not any(one.event == "refused" and one.side == "device" for one in evidence.messages):
            says.append("No out-of-memory message with numbers was found in the text.")
        numbers = message.message_table(evidence)
        bars = [figures.ledger(books)] if books else []
        return ["\n".join(says), message.sums(evidence), numbers, *bars]


def build_reader(frame: Frame, reader: Reader) -> Sequence[Any]:
    """A field for the text, one for the box, and the answer below them."""
    text = frame.field("Textarea", "Error text", reader.text, wide=True, rows=8, placeholder=EMPTY)
    names: Any = {"options": ["live", *recorded_names()], "ensure_option": False}
    tip = "none, or a name or path"
    box = frame.field("Combobox", "Box", reader.box, placeholder=tip, **names)
    answers = frame.widgets.HTML()

    def read() -> None:
        answers.value = parts_html(Reader(text.value, box.value.strip()).parts())

    frame.changed(read, text, box)()
    return [text, frame.row(box, frame.button("Read", read, "read the text again")), answers]


@dataclass(frozen=True)
class Reserve:
    """A stack, its what-if, and a reserve in GiB."""

    stack: Stack
    what_if: ttm.WhatIf
    reserve_gib: float = 8.0

    def planned(self) -> Stack:
        """The stack as it would be: every layer that follows TTM's limit with the one that the
        reserve leaves.
        """
        choice = self.what_if.at(self.reserve_gib)
        return ttm.following(self.stack, choice.limit_bytes) if choice else self.stack

    def says(self) -> str:
        """What the reserve leaves, against what torch gets now; or why there is nothing to choose."""
        choice = self.what_if.at(self.reserve_gib)
        made = self.stack.decision
        if choice is None:
            return f"No reserve to choose here. {self.what_if.why}".strip()
        if made.binding_bytes is None:
            return choice.words()
        more = choice.limit_bytes - made.binding_bytes
        than = f"{show_bytes(abs(more))} {'more' if more > 0 else 'less'}" if more else "the same"
        now = f"torch gets {show_bytes(made.binding_bytes)} now, where {made.binding} binds"
        return f"{choice.words()}\n{now}: this would be {than}."

    def parts(self) -> list[Part]:
        """The first position of the slider, and a few others as a table."""
        return [self.says(), *([ttm.what_if_table(self.what_if)] if self.what_if.space else [])]


def build_ceilings(frame: Frame, state: Reserve) -> Sequence[Any]:
    """The slider, the words and the ceilings; where nothing can be chosen, the ceilings alone."""
    answers = frame.widgets.HTML()
    space = state.what_if.space
    controls = []
    if space:
        scale: Any = {"min": 1, "max": max(2, space.ram_bytes // GIB // 2), "step": 1}
        scale |= {"readout_format": ".0f", "tooltip": "arrow keys move it by 1 GiB"}
        controls.append(frame.field("FloatSlider", "Reserve, GiB", state.reserve_gib, **scale))

    def look() -> None:
        now = replace(state, reserve_gib=controls[0].value) if controls else state
        answers.value = parts_html([now.says(), ttm.ceilings_bars(now.planned())])

    frame.changed(look, *controls)()
    return [*controls, answers]


ASK = "In JupyterLab this is a field: paste an error text, and its numbers are added up while you look."
reader = Panel("Message reader", Reader, build_reader, ASK)
ceilings = Panel("Ceilings and the reserve", Reserve, build_ceilings)
