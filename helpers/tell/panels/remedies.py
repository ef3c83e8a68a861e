"""The fix table sorted and filtered: which remedies help on this box, by verdict, by measured effect, or by a word."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from helpers.load.remedies import FixRow, FixStudy
from helpers.tell import fixes

from .frame import Frame, present, table_html, text_html

NAME = "Fix table"
ALL = "all"
ORDERS: dict[str, Callable[[FixRow], Any]] = {
    "verdict": lambda row: (fixes.ORDER.index(row.verdict), row.says),
    "remedy": lambda row: row.says.casefold(),
    "memory, best first": lambda row: row.memory.ratio if row.memory else float("inf"),
    "time, best first": lambda row: row.time.ratio if row.time else float("inf"),
}


@dataclass(frozen=True)
class Sorter:
    """The fix table of a study, and what of it is shown in which order."""

    study: FixStudy
    order: str = "verdict"
    verdict: str = ALL
    word: str = ""

    def rows(self) -> list[FixRow]:
        """The rows shown. What was not measured stands after what was."""
        found = [
            row
            for row in self.study.rows
            if self.verdict in (ALL, row.verdict)
            and self.word.casefold()
            in " ".join([row.remedy, row.says, row.argued, row.predicted, *row.claims]).casefold()
        ]
        return sorted(found, key=ORDERS[self.order])

    def detail(self, remedy: str) -> str:
        """All that is known of one remedy, nothing cut."""
        row = next((row for row in self.study.rows if row.remedy == remedy), None)
        if row is None:
            return "No remedy is shown."
        said = (
            ("verdict", row.verdict.replace("_", " ")),
            ("predicted", row.predicted),
            ("measured", row.measured),
            ("argued", row.argued),
            ("claims", ", ".join(row.claims)),
        )
        return "\n".join(
            [
                row.says,
                *(textwrap.indent(f"{name}: {words}", "  ") for name, words in said if words),
            ]
        )


def build(frame: Frame, sorter: Sorter) -> Sequence[Any]:
    """Order, verdict and word, one remedy in full, and the table."""
    verdicts = [
        ALL,
        *(one for one in fixes.ORDER if any(row.verdict == one for row in sorter.study.rows)),
    ]
    order = frame.field("Dropdown", "Order", sorter.order, options=list(ORDERS))
    verdict = frame.field(
        "Dropdown", "Verdict", ALL, options=[(one.replace("_", " "), one) for one in verdicts]
    )
    word = frame.field("Text", "With the word", "", placeholder="such as expandable")
    one = frame.field("Dropdown", "In full", None, wide=True)
    listed, detail = frame.widgets.HTML(), frame.widgets.HTML()

    def look() -> None:
        found = replace(
            sorter, order=order.value, verdict=verdict.value, word=word.value.strip()
        ).rows()
        rows = [
            [
                row.says,
                row.verdict.replace("_", " "),
                row.argued if row.predicted == "not predicted" else row.predicted,
                row.measured,
            ]
            for row in found
        ]
        listed.value = table_html(
            rows,
            ["remedy", "verdict", "predicted or argued", "measured"],
            f"{len(found)} of {len(sorter.study.rows)} remedies",
        )
        one.options = [(row.says, row.remedy) for row in found]
        one.index = 0 if found else None
        read()

    def read() -> None:
        detail.value = text_html(sorter.detail(one.value or ""))

    frame.changed(read, one)
    frame.changed(look, order, verdict, word)()
    return [order, verdict, word, one, detail, listed]


def show(study: FixStudy) -> None:
    """The panel, or the table where nobody is there."""
    sorter = Sorter(study)
    present(NAME, lambda: [fixes.fixes_table(study)], lambda frame: build(frame, sorter))
