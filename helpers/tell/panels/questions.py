"""Panels that answer a question: what an error text says, and what a reserve of RAM leaves."""

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
"""Seconds. A press of Read leaves the field first, which reads the text; the press comes within
this time and asks for nothing new.
"""
EMPTY = (
    "Paste an error text: from the words out of memory on, as the program printed it."
)


@dataclass(frozen=True)
class Reader:
    """What is read: an error text, the name of a box, or both. Either is empty where it was not
    given.
    """

    text: str = ""
    box: str = ""

    def parts(self) -> list[Part]:
        """The answer: the headline, the next step and notebook, the sums, and the ledgers' bars.

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
        # A press of the button reads once when the field is left, and once for the press.
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
    """The ceilings of a box (``stack``), what a TTM limit depends on (``room``; None where RAM or
    page size were not captured), and how much RAM to reserve for the system.
    """

    stack: Stack
    room: Room | None
    reserve_gib: float = 8.0

    @property
    def choice(self) -> ttm.ReserveChoice | None:
        """What the reserve leaves; None where the box has no TTM limit to choose."""
        if self.room is None or self.stack.kind != "apu":
            return None
        return ttm.choice(self.room, self.reserve_gib)

    def planned(self) -> Stack:
        """The ceilings with the limit that the reserve leaves, in TTM and in the layers that pass
        it on.
        """
        choice = self.choice
        if choice is None:
            return self.stack
        return ttm.following(self.stack, choice.limit_bytes)

    def says(self) -> str:
        """What the reserve leaves, compared with what torch gets now, if that is known; or why
        there is nothing to choose.
        """
        choice = self.choice
        decision = self.stack.decision
        if choice is None:
            why = "RAM or page size were not captured"
            if self.stack.kind != "apu":
                why = decision.says
            return f"No reserve to choose here. {why}".strip()
        now_bytes = decision.binding_bytes
        if now_bytes is None:
            return choice.words()
        change = "the same"
        if choice.limit_bytes > now_bytes:
            change = f"{show_bytes(choice.limit_bytes - now_bytes)} more"
        elif choice.limit_bytes < now_bytes:
            change = f"{show_bytes(now_bytes - choice.limit_bytes)} less"
        now = (
            f"torch gets {show_bytes(now_bytes)} now, where {decision.binding} decides"
        )
        return f"{choice.words()}\n{now}: this would be {change}."

    def parts(self) -> list[Part]:
        """The answer for the reserve at which the slider begins."""
        return [self.says()]


def build_ceilings(frame: Frame, state: ReserveQuestion) -> Sequence[object]:
    """The slider, the answer and the ceilings; no slider where there is nothing to choose."""
    answers = frame.answer()
    controls = []
    if state.room and state.choice:
        slider = frame.field(
            "FloatSlider",
            "Reserve, GiB",
            state.reserve_gib,
            min=1,
            # Up to half the RAM: more than that Linux keeps by itself.
            max=max(2, state.room.ram_bytes // GIB // 2),
            step=1,
            readout_format=".0f",
            tooltip="arrow keys move it by 1 GiB",
        )
        controls.append(slider)

    def answer() -> None:
        question = state
        if controls:
            question = replace(state, reserve_gib=slider.value)
        figure = ttm.ceilings_bars(question.planned())
        answers.value = parts_html([question.says(), figure])

    frame.changed(answer, *controls)()
    return [*controls, answers]


ASK = "In JupyterLab this is a field: paste an error text, and its numbers are added up while you look."
reader = Panel("Message reader", Reader, build_reader, ASK)
ceilings = Panel("Ceilings and the reserve", ReserveQuestion, build_ceilings)
