"""Panels that answer a question: what an error text says, what a reserve leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic

from helpers.ground.units import GIB, show_bytes
from helpers.judge.ceilings import Stack
from helpers.judge.diagnosis import diagnose
from helpers.judge.ttm_limit import Room
from helpers.look.boxes import recorded_names
from helpers.tell import figures, message, ttm, verdict
from helpers.tell.next_notebook import after
from helpers.tell.next_steps import NextSteps

from .frame import Frame, Panel, Part, parts_html

AT_ONCE_S = 0.5
"""Seconds. To press Read is to leave the field first, which reads: a press that is handled so soon
after that asks for nothing new.
"""
EMPTY = (
    "Paste an error text: from the words out of memory on, as the program printed it."
)


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
        evidence = message.gathered(self.text, self.box)
        books = message.books(evidence)
        diagnosis = diagnose(evidence)
        parts: list[Part] = [
            f"{diagnosis.headline} ({verdict.label(diagnosis)})",
            NextSteps(diagnosis),
            after(diagnosis, self.box),
            message.sums(evidence),
        ]
        if books:
            parts.append(figures.ledger(books))
        return parts


def build_reader(frame: Frame, reader: Reader) -> Sequence[object]:
    """A field for the text, one for the box, and the answer below them."""
    text = frame.field(
        "Textarea", "Error text", reader.text, wide=True, rows=8, placeholder=EMPTY
    )
    box = frame.field(
        "Combobox",
        "Box",
        reader.box,
        placeholder="none, or a name or path",
        options=["live", *recorded_names()],
        ensure_option=False,
    )
    answers = frame.answer()
    answered: dict[Reader, float] = {}

    def read() -> None:
        reader = Reader(text.value, box.value.strip())
        if reader in answered and monotonic() - answered[reader] < AT_ONCE_S:
            return
        answers.value = parts_html(reader.parts())
        answered.clear()
        answered[reader] = monotonic()

    frame.changed(read, text, box)()
    return [
        text,
        frame.row(box, frame.button("Read", read, "read the text again")),
        answers,
    ]


@dataclass(frozen=True)
class ReserveQuestion:
    """A stack, the room for a limit (None where RAM or page size were not captured), and a reserve
    in GiB.
    """

    stack: Stack
    room: Room | None
    reserve_gib: float = 8.0

    @property
    def choice(self) -> ttm.ReserveChoice | None:
        """What the reserve leaves; None where there is none to choose."""
        if self.room is None or self.stack.kind != "apu":
            return None
        return ttm.choice(self.room, self.reserve_gib)

    def planned(self) -> Stack:
        """The stack as it would be: every layer that follows TTM's limit with the one that the
        reserve leaves.
        """
        choice = self.choice
        if choice is None:
            return self.stack
        return ttm.following(self.stack, choice.limit_bytes)

    def says(self) -> str:
        """What the reserve leaves, against what torch gets now; or why there is nothing to choose."""
        choice = self.choice
        decision = self.stack.decision
        if choice is None:
            why = "RAM or page size were not captured"
            if self.stack.kind != "apu":
                why = decision.says
            return f"No reserve to choose here. {why}".strip()
        if decision.binding_bytes is None:
            return choice.words()
        more = choice.limit_bytes - decision.binding_bytes
        than = "the same"
        if more:
            than = f"{show_bytes(abs(more))} {'more' if more > 0 else 'less'}"
        now = f"torch gets {show_bytes(decision.binding_bytes)} now, where {decision.binding} decides"
        return f"{choice.words()}\n{now}: this would be {than}."

    def parts(self) -> list[Part]:
        """The first position of the slider."""
        return [self.says()]


def build_ceilings(frame: Frame, state: ReserveQuestion) -> Sequence[object]:
    """The slider, the words and the ceilings; where nothing can be chosen, the ceilings alone."""
    answers = frame.answer()
    controls = []
    if state.room and state.choice:
        slider = frame.field(
            "FloatSlider",
            "Reserve, GiB",
            state.reserve_gib,
            min=1,
            max=max(2, state.room.ram_bytes // GIB // 2),
            step=1,
            readout_format=".0f",
            tooltip="arrow keys move it by 1 GiB",
        )
        controls.append(slider)

    def look() -> None:
        now = state
        for slider in controls:
            now = replace(state, reserve_gib=slider.value)
        answers.value = parts_html([now.says(), ttm.ceilings_bars(now.planned())])

    frame.changed(look, *controls)()
    return [*controls, answers]


ASK = "In JupyterLab this is a field: paste an error text, and its numbers are added up while you look."
reader = Panel("Message reader", Reader, build_reader, ASK)
ceilings = Panel("Ceilings and the reserve", ReserveQuestion, build_ceilings)
