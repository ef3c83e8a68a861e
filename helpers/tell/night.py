"""What a batch came to: its runs counted, what needs a person, and the answers notebook by notebook and box by box."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from markupsafe import Markup

from helpers.run.record import EARLIER, RecordUnreadable, read_run
from helpers.run.shapes import Run

from .tables import duration

MOST_ALIKE = 6
STATE_WORDS = {
    "planned": "not started",
    "started": "started, no end recorded",
    "answered": "answered",
    "failed": "failed",
    "died": "died: its kernel was lost",
    "timed_out": "stopped: over its time limit",
    "stuck": "stuck in the kernel or driver",
    "rebooted": "the machine restarted during it",
    "node_lost": "its machine was lost",
    "skipped": "skipped",
}
WORST = (
    "rebooted",
    "stuck",
    "node_lost",
    "died",
    "timed_out",
    "started",
    "failed",
    "answered",
    "planned",
    "skipped",
)


@dataclass(frozen=True)
class Section:
    """One run on the page: its record, its executed notebook as HTML, or why there is none. ``link`` leads to its notebook."""

    run: Run
    anchor: str
    folder: Path
    gone: str
    link: str = ""
    machine: str = ""
    html: Markup = Markup("")
    without: str = ""
    last_words: str = ""

    @property
    def title(self) -> str:
        return Path(self.run.notebook).stem or self.run.run_id

    @property
    def state(self) -> str:
        return STATE_WORDS[self.run.state]

    @property
    def cause(self) -> str:
        return self.run.cause or self.gone

    @property
    def cells(self) -> str:
        done, total = self.run.cells.get("completed", 0), sum(self.run.cells.values())
        return f"{done} of {total}" if total else ""

    @property
    def time(self) -> str:
        return duration(self.run.seconds) if self.run.seconds is not None else ""

    @property
    def lost(self) -> bool:
        """Whether the run began and came to no answer."""
        return bool(self.gone) or self.run.state not in (
            "answered",
            "planned",
            "skipped",
            "started",
        )

    @property
    def answer(self) -> str:
        verdict = self.run.verdict
        return verdict.short if verdict else ""

    @property
    def evidence(self) -> list[str]:
        """What a person reads next: texts that the run left in its folder."""
        return [name for name in self.run.files if name.endswith((".txt", ".log", ".stderr"))][:6]


@dataclass(frozen=True)
class Trouble:
    """Runs that need a person for the same reason; the first stands for all."""

    runs: tuple[Section, ...]

    @property
    def first(self) -> Section:
        return self.runs[0]

    @property
    def alike(self) -> tuple[Section, ...]:
        return self.runs[1 : 1 + MOST_ALIKE]


@dataclass(frozen=True)
class Group:
    """What the runs of one notebook on one box came to."""

    box: str
    runs: tuple[Section, ...]

    @property
    def answers(self) -> list[tuple[str, int, Section]]:
        """(answer, how often, a run that gave it), the most frequent first."""
        counts = Counter(section.answer for section in self.runs if section.answer)
        return [
            (answer, n, next(s for s in self.runs if s.answer == answer))
            for answer, n in counts.most_common()
        ]

    @property
    def states(self) -> list[str]:
        return counted(self.runs)

    @property
    def time(self) -> str:
        took = [section.run.seconds for section in self.runs if section.run.seconds is not None]
        return duration(median(took)) if took else ""


def counted(sections: Iterable[Section]) -> list[str]:
    """How many runs came to what, in words; the good state first, then the worst."""
    counts = Counter[str](section.run.state for section in sections)
    order = (state for state in dict.fromkeys(("answered", *WORST)) if counts[state])
    return [
        f"{counts[state]} {'not started' if state == 'planned' else state.replace('_', ' ')}"
        for state in order
    ]


def by(
    sections: Iterable[Section], key: Callable[[Section], Any]
) -> list[tuple[Any, tuple[Section, ...]]]:
    """Sections under their key, both in order of first appearance."""
    found: dict[Any, list[Section]] = {}
    for section in sections:
        found.setdefault(key(section), []).append(section)
    return [(name, tuple(here)) for name, here in found.items()]


def troubles(sections: list[Section]) -> list[Trouble]:
    """What needs a person, worst first; runs that ended alike (numbers aside) stand together."""
    needing = [
        section
        for section in sections
        if section.lost or section.cause or section.run.quarantined or section.run.gate
    ]
    alike = by(
        needing,
        lambda s: (
            s.run.state,
            s.run.notebook,
            s.run.signal,
            re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "#", s.cause),
        ),
    )
    return sorted(
        (Trouble(here) for _, here in alike),
        key=lambda trouble: WORST.index(trouble.first.run.state),
    )


def groups(sections: list[Section]) -> list[tuple[str, list[Group]]]:
    """Notebook by notebook, what its runs came to on each box."""
    return [
        (title, [Group(box, runs) for box, runs in by(here, lambda section: section.run.box)])
        for title, here in by(sections, lambda section: section.title)
    ]


def earlier(section: Section) -> list[str]:
    """How the earlier attempts at a run ended, in one line each."""
    said = []
    for path in sorted(section.folder.glob(f"{EARLIER}/*/run.json")):
        try:
            run = read_run(path)
            said.append(
                f"attempt {run.attempt}: {STATE_WORDS[run.state]}"
                + f"; {run.cause}" * bool(run.cause)
            )
        except RecordUnreadable:
            said.append(f"{path.parent.name}: its record cannot be read")
    return said
