"""One change of a line of the program, as a person writes it: ``train.py:82 / 8``."""

from __future__ import annotations

import re
from dataclasses import dataclass

CHUNKS = "/"
CHECKPOINT = "checkpoint"
DROP = "drop"
ASSUMED = {
    CHUNKS: "the line works on one of {n} chunks at a time, and what is computed from it and its "
    "gradients shrink with it; to be exact, change the line and rehearse the program",
    CHECKPOINT: "what the line keeps for the backward pass is freed and computed again there; its "
    "output stays; to be exact, change the line and rehearse the program",
    DROP: "the line is never run",
}
"""What the prediction of each kind of edit takes for granted."""
MOST_CHUNKS = 4096
"""No batch or sequence has more parts that are worth a kernel each."""
_CHANGE = re.compile(
    r"(?P<path>[^\s:]+\.py):(?P<line>\d+)\s*"
    r"(?:/\s*(?P<chunks>\d+)|(?P<kind>checkpoint|drop))\s*"
)
_NO_LONGER_PREDICTED = re.compile(r"[^\s:]+\.py:\d+\s*(free-earlier|offload|dtype)\b.*")
"""Edits that earlier releases predicted."""


@dataclass(frozen=True)
class Edit:
    """One change of the line ``line`` of ``file``.

    ``kind``: CHUNKS, CHECKPOINT or DROP. ``chunks``: into how many parts CHUNKS cuts it.
    """

    file: str
    line: int
    kind: str
    chunks: int = 1

    @property
    def words(self) -> str:
        """The edit as ``parse`` reads it."""
        words = f"{self.file}:{self.line} {self.kind}"
        if self.kind == CHUNKS:
            words += f" {self.chunks}"
        return words

    @property
    def change(self) -> str:
        """What it does to its line, for people."""
        if self.kind == CHUNKS:
            return f"in {self.chunks} chunks"
        if self.kind == CHECKPOINT:
            return "with checkpointing"
        return "dropped"

    @property
    def assumes(self) -> str:
        """What the prediction takes for granted."""
        return ASSUMED[self.kind].format(n=self.chunks)

    def is_line_of(self, frame: str) -> bool:
        """Whether a frame of a stack is at the edited line. A frame may have folders before the
        name of the file; the slash keeps "other_train.py" from being taken for "train.py".
        """
        return f"/{self.file}:{self.line} " in f"/{frame} "


def parse(text: str) -> Edit:
    """The edit in words such as "train.py:82 / 8". Raises ValueError in one line."""
    change = _CHANGE.fullmatch(text.strip())
    if change is None:
        raise ValueError(_refusal(text))
    _folders, _, file = change["path"].rpartition("/")
    line = int(change["line"])
    if change["kind"]:
        return Edit(file, line, change["kind"])
    chunks = int(change["chunks"])
    if not 2 <= chunks <= MOST_CHUNKS:
        raise ValueError(_refusal(text))
    return Edit(file, line, CHUNKS, chunks)


def _refusal(text: str) -> str:
    """Why a text is no edit, in one line. Edits of earlier releases are told what to do instead."""
    old = _NO_LONGER_PREDICTED.fullmatch(text.strip())
    if old is not None:
        return (
            f"--edit {text!r}: {old[1]} is no longer predicted from a trace; make the change in "
            "the program and rehearse it: casebook rehearse -- COMMAND"
        )
    return (
        f"--edit {text!r}: expected FILE.py:LINE and one of: / 8, {CHECKPOINT}, {DROP}"
    )
