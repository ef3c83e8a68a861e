"""A change of a program: what it edits, whether results stay the same, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

NOTHING = "nothing"
"""The cost of a change that has none."""
ANOTHER_RATE = "the learning rate has to be chosen again"
"""The cost of another optimizer."""


class Results(Enum):
    """What a change does to the program's results, from the least to the most."""

    SAME = "the same"
    ROUNDED = "the same up to rounding"
    OTHER = "different"

    @property
    def severity(self) -> int:
        """0 for SAME, and more the more it changes."""
        return list(Results).index(self)


@dataclass(frozen=True, order=True)
class TextEdit:
    """``text`` in place of the bytes from ``start`` up to ``end`` of the file ``name``; where these
    are equal, it is inserted.
    """

    name: str
    start: int
    end: int
    text: str

    def excludes(self, other: TextEdit) -> bool:
        """Whether the two cannot both be made: they change overlapping bytes differently."""
        if self.name != other.name or self == other:
            return False
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Change:
    """One thing to change."""

    title: str
    """In the imperative, such as "Keep preds on the CPU (train.py:36)"."""
    results: Results
    why: str
    """Why the results are what ``results`` says."""
    costs: str = NOTHING
    """What the program pays for it."""
    edits: tuple[TextEdit, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set."""
    replaces: Mapping[int, str] = field(default_factory=dict)
    """What stands in the place of words of the command line, by their position."""
    only_if_measured: bool = False
    """The results are as said where both programs were run and compared; else they count as
    different.
    """
    cuts_graphs: bool = False
    """Gradients end where they went on before, so it is measured whether every weight still has
    one.
    """
    only_on_a_gpu: bool = False
    """On the CPU both programs do the same, so comparing them there shows nothing."""
    shows_late: bool = False
    """What it changes may be read only at the end, so a comparison that did not come there shows
    nothing.
    """

    @property
    def is_setting(self) -> bool:
        """Whether it sets variables alone, and the program stays as it is."""
        return not (self.edits or self.replaces)

    @property
    def comes_late(self) -> bool:
        """Whether it is tried only when no other change is left: it trains differently, and does
        not cut the graph whose growth is the cause.
        """
        return self.results is Results.OTHER and not self.cuts_graphs

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing: a rule found no place for it."""
        return self.is_setting and not self.environment


Changes = Iterator[Change]
"""What a rule proposes, one after the other."""


def together(changes: Sequence[Change]) -> Change | None:
    """All these changes as one; None where two of them change the same place, variable or word."""
    edits: dict[TextEdit, None] = {}
    for change in changes:
        for edit in change.edits:
            if any(edit.excludes(earlier) for earlier in edits):
                return None
            edits[edit] = None
    # What they do together to the results is taken from the one that does the most.
    worst = max(changes, key=lambda change: change.results.severity)
    environment: dict[str, str] = {}
    replaces: dict[int, str] = {}
    for change in changes:
        if environment.keys() & change.environment or replaces.keys() & change.replaces:
            return None
        environment |= change.environment
        replaces |= change.replaces
    return Change(
        title="; ".join(change.title for change in changes),
        results=worst.results,
        why=worst.why,
        costs="; ".join(
            dict.fromkeys(change.costs for change in changes if change.costs)
        ),
        edits=tuple(edits),
        environment=environment,
        replaces=replaces,
        only_if_measured=any(change.only_if_measured for change in changes),
        cuts_graphs=any(change.cuts_graphs for change in changes),
        only_on_a_gpu=any(change.only_on_a_gpu for change in changes),
        shows_late=any(change.shows_late for change in changes),
    )


def edited(text: bytes, edits: Iterable[TextEdit]) -> bytes:
    """A file's bytes with the edits made. Insertions at one place are made in their order, before
    a replacement that begins there.
    """
    pieces = []
    done = 0  # bytes of the file before this one are in the pieces, or replaced
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        pieces += [text[done : edit.start], edit.text.encode()]
        done = edit.end
    pieces.append(text[done:])
    return b"".join(pieces)
