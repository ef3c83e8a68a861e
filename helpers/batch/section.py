"""One run on the page of a batch, and the runs there that had the same trouble."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from helpers.ground.shapes import Verdict
from helpers.ground.units import cut
from helpers.tell.resources import words
from helpers.tell.values import duration

from .shapes import Run
from .which_runs import differences, grouped

MOST_TEXTS = 6
"""Names of text files that a run's hint lists, such that they fit into one line."""
MOST_CAUSE = 120
"""Letters of a cause in a cell of a table."""
STATE_WORDS: dict[str, str] = words("states")
"""The states of a run in words, the worst first."""
NUMBER = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")
"""A decimal or hexadecimal number, such as a pid or an address, which differs between runs."""


@dataclass(frozen=True)
class Section:
    """One run on the page: its record, and its executed notebook as HTML or why there is none.

    ``anchor`` is its place on the page, ``folder`` its folder in that of its batch, and ``link``
    leads to a page of its own. ``gone`` says why a run that has not ended does not run any more
    (``record.gone``). ``apart`` are the parameters that tell it from the other runs of its notebook
    on its box. ``machine`` and ``question`` are what its notebook says of the machine and asks.
    ``html`` is its notebook; ``without`` says why there is none. ``notes`` are shown below its
    ``last_words``.

    ``own_verdict`` is its verdict, unless the page shows that as the answer of the only box;
    ``agrees``: it says the same as the leading verdict of its box; ``few``: the page has few runs
    and shows them unfolded.
    """

    run: Run
    anchor: str
    folder: Path
    gone: str
    link: str = ""
    apart: tuple[str, ...] = ()
    machine: str = ""
    question: str = ""
    html: Markup = Markup("")
    without: str = ""
    last_words: str = ""
    notes: str = ""
    own_verdict: Verdict | None = None
    agrees: bool = False
    few: bool = False

    @property
    def batch(self) -> Path:
        """The folder of its batch."""
        return self.folder.parent

    @property
    def title(self) -> str:
        """The name of its notebook without .ipynb."""
        return Path(self.run.notebook).stem or self.run.run_id

    @property
    def name(self) -> str:
        """Its title, and the parameters that tell it apart."""
        return ", ".join([self.title, *self.apart])

    @property
    def state(self) -> str:
        """Its state in a reader's words."""
        return STATE_WORDS[self.run.state]

    @property
    def cause(self) -> str:
        """Why it came to no answer, in one line; empty if it answered or waits."""
        return self.run.cause or self.gone

    @property
    def time(self) -> str:
        """How long it took, such as "12 s"; empty if it has not ended."""
        if self.run.seconds is None:
            return ""
        return duration(self.run.seconds)

    @property
    def ran(self) -> bool:
        """Whether it started."""
        return self.run.state not in ("planned", "skipped")

    @property
    def lost(self) -> bool:
        """Whether it started and has ended without an answer, or is gone without an end."""
        if self.gone:
            return True
        return self.ran and self.run.state not in ("answered", "started")

    @property
    def kind(self) -> str:
        """The mark of its state on the page, a class of its style sheet: lost, answered or
        waiting.
        """
        if self.lost:
            return "lost"
        if self.run.state == "answered":
            return "answered"
        return "waiting"

    @property
    def open(self) -> bool:
        """Whether the page shows it unfolded: it is lost and has a notebook, or there are few runs.

        A run with another value of a parameter is folded: its answer is at the top of the page.
        """
        if self.lost and self.html:
            return True
        is_another_value = self.apart and self.own_verdict
        return self.few and not is_another_value

    @property
    def is_rows(self) -> bool:
        """Whether the page shows its tables and figures only, without a heading: it answered, and
        its answer is the verdict at the top of the page.
        """
        has_more_to_tell = (
            self.lost
            or self.cause
            or self.not_clean
            or self.own_verdict
            or self.without
        )
        return self.few and not has_more_to_tell

    @property
    def outcome(self) -> str:
        """Its answer in a few words, else its state."""
        if self.run.verdict:
            return self.run.verdict.short
        return self.run.state.replace("_", " ")

    @property
    def says(self) -> str:
        """Its answer in a sentence, or why there is none; empty if the page has said it above."""
        if self.run.verdict is None:
            return cut(self.cause, MOST_CAUSE)
        if self.agrees:
            return ""
        return self.run.verdict.headline

    @property
    def not_clean(self) -> str:
        """Why its box was not clean afterwards, empty if it was; first the part of the box that
        stays so until a reboot, if there is one.
        """
        run = self.run
        if run.quarantined:
            return f"{run.quarantined}: {run.gate}"
        return run.gate

    @property
    def about(self) -> list[str]:
        """Facts of the run, each in a few words: its id, parameters, cells, attempts, text
        files.
        """
        run = self.run
        lines = [run.run_id]
        for name, value in run.parameters.items():
            is_batch_folder = "{batch}" in str(value)
            if value != "" and not is_batch_folder:
                lines.append(f"{name}={value}")
        total = sum(run.cells.values())
        done = run.cells.get("completed", 0)
        if done < total:
            lines.append(f"{done} of {total} cells")
        if run.failing_cell is not None:
            lines.append(f"stopped in cell {run.failing_cell}")
        if run.attempt > 1:
            lines.append(f"attempt {run.attempt}")
        if run.strikes:
            lines.append(run.strikes_in_words)
        texts = [
            name for name in run.files if name.endswith((".txt", ".log", ".stderr"))
        ]
        if texts:
            lines.append(f"beside it: {', '.join(texts[:MOST_TEXTS])}")
        return lines


Sections = tuple[Section, ...]


def told_apart(sections: Sequence[Section]) -> list[Section]:
    """The sections with ``apart`` set (``which_runs.differences``)."""
    apart = differences([section.run for section in sections])
    return [
        replace(section, apart=parts)
        for section, parts in zip(sections, apart, strict=True)
    ]


def troubles(sections: list[Section]) -> list[Sections]:
    """Runs that need attention, the worst state first; those with the same trouble together."""
    needing = [s for s in sections if s.lost or s.cause or s.not_clean]
    kinds = [members for _, members in grouped(needing, _trouble)]
    worst_first = list(STATE_WORDS)
    return sorted(kinds, key=lambda members: worst_first.index(members[0].run.state))


def _trouble(section: Section) -> tuple[str, str, str, str]:
    """What runs with the same trouble have in common: state, notebook, signal, and the reason, in
    which numbers may differ.
    """
    run = section.run
    reason = NUMBER.sub("#", f"{section.cause} {section.not_clean}")
    return run.state, run.notebook, run.signal, reason
