"""The ceilings between the RAM and torch with a slider: what a reserve for the system would leave to the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from helpers.judge.ceilings import Stack
from helpers.look.reading import GIB, show_bytes
from helpers.tell import ttm

from .frame import Frame, picture_html, present, text_html

NAME = "Ceilings and the reserve"


@dataclass(frozen=True)
class Reserve:
    """A stack, its what-if, and a reserve in GiB."""

    stack: Stack
    what_if: ttm.WhatIf
    reserve_gib: float = 8.0

    def planned(self) -> Stack:
        """The stack with the limit that the reserve leaves drawn on the TTM row, as configured and not live."""
        choice = self.what_if.at(self.reserve_gib)
        rows = tuple(
            replace(row, pending_bytes=choice.limit_bytes, pending_source="the reserve chosen")
            if choice and row.layer == "ttm"
            else row
            for row in self.stack.rows
        )
        return replace(self.stack, rows=rows)

    def says(self) -> str:
        """What the reserve leaves, against what torch gets now; or why there is nothing to choose."""
        choice, now = self.what_if.at(self.reserve_gib), self.stack.decision.binding_bytes
        if choice is None:
            return (
                f"No reserve of {self.reserve_gib:g} GiB to choose here. {self.what_if.why}".strip()
            )
        if now is None:
            return choice.words()
        more = choice.limit_bytes - now
        than = f"{show_bytes(abs(more))} {'more' if more > 0 else 'less'}" if more else "the same"
        return f"{choice.words()}\nNow {self.stack.decision.binding} binds at {show_bytes(now)}: this would be {than}."


def build(frame: Frame, state: Reserve) -> Sequence[Any]:
    """The slider, the words and the ceilings; where nothing can be chosen, the ceilings alone."""
    says, bars, space = frame.widgets.HTML(), frame.widgets.HTML(), state.what_if.space
    controls = (
        [
            frame.field(
                "FloatSlider",
                "Reserve, GiB",
                state.reserve_gib,
                min=1,
                max=max(2, space.ram_bytes // GIB // 2),
                step=1,
                readout_format=".0f",
                tooltip="arrow keys move it by 1 GiB",
            )
        ]
        if space
        else []
    )

    def look() -> None:
        now = replace(state, reserve_gib=controls[0].value) if controls else state
        says.value = text_html(now.says())
        bars.value = picture_html(
            ttm.ceilings_figure(now.planned()), ttm.ceilings_alt(now.planned())
        )

    frame.changed(look, *controls)()
    return [*controls, says, bars]


def show(stack: Stack, what_if: ttm.WhatIf) -> None:
    """The panel, or its first position where nobody is there."""
    state = Reserve(stack, what_if)
    present(
        NAME, lambda: [state.says(), ttm.what_if_table(what_if)], lambda frame: build(frame, state)
    )
