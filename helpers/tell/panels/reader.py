"""The message reader: paste what a failing program printed, and see its numbers, their sums and what they prove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from helpers.judge.diagnosis import diagnose
from helpers.look.boxes import recorded_names
from helpers.tell import ledger_figure, message, verdict

from .frame import Frame, Part, picture_html, present, text_html

NAME = "Message reader"
EMPTY = "Paste an error text: from the words out of memory on, as the program printed it."


@dataclass(frozen=True)
class Reader:
    """A text, a box or both, and what they say."""

    text: str = ""
    box: str = ""

    def parts(self) -> list[Part]:
        """The headline, the sums, the numbers, the bars, what comes next. Raises BundleError for a box that is not there."""
        if not self.text.strip() and not self.box:
            return [EMPTY]
        evidence, books = message.gathered(self.text, self.box)
        found = diagnose(evidence)
        says = (
            f"{verdict.headline(found)} ({verdict.named(found)}; {verdict.label(found)})\nNext: {found.next_step.what}\n"
            f"{message.next_notebook(found)}"
        )
        if not any(one.event == "refused" and one.side == "device" for one in evidence.messages):
            says += "\nNo out-of-memory message with numbers was found in the text."
        bars: list[Part] = (
            [(ledger_figure.ledger_figure(books), ledger_figure.ledger_alt(books))] if books else []
        )
        return [says, message.sums(evidence), message.message_table(evidence), *bars]


def build(frame: Frame, reader: Reader) -> Sequence[Any]:
    """A field for the text, one for the box, and the answer below them."""
    text = frame.field("Textarea", "Error text", reader.text, wide=True, rows=8, placeholder=EMPTY)
    box = frame.field(
        "Combobox",
        "Box",
        reader.box,
        options=["live", *recorded_names()],
        ensure_option=False,
        placeholder="none, or a name or path",
    )
    answer = frame.widgets.HTML()

    def read() -> None:
        parts = Reader(text.value, box.value.strip()).parts()
        answer.value = "".join(
            text_html(part) if isinstance(part, str) else picture_html(*part) for part in parts
        )

    frame.changed(read, text, box)()
    return [
        text,
        frame.widgets.HBox([box, frame.button("Read", read, "read the text again")]),
        answer,
    ]


def show(text: str = "", box: str = "") -> None:
    """The panel, or its answer where nobody is there."""
    reader = Reader(text, box)
    present(NAME, reader.parts, lambda frame: build(frame, reader))
