"""The runs of a batch, and the verdict that leads among them."""

from __future__ import annotations

from pathlib import Path

from helpers.batch.batch_table import runs_table
from helpers.batch.leading_verdict import of_batch
from helpers.batch.record import is_batch
from helpers.face.box import Box, as_box
from helpers.face.diagnosis import Answer
from helpers.face.result import Result
from helpers.ground.places import OUTPUTS
from helpers.tell.shown import Shown


class Batch(Result):
    """The runs of one use of a plan, also of one that is not finished."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @property
    def view(self) -> Shown:
        """Each run with its true state and its answer, or why it has none."""
        return runs_table(self.folder)

    def verdict(self, box: Box | str) -> Answer | None:
        """The verdict that leads among the runs on a box; None where none is about the
        box itself.
        """
        verdict = of_batch(self.folder, as_box(box).facts)
        if verdict is None:
            return None
        return Answer(verdict)


def open_batch(folder: str = "") -> Batch:
    """The batch in a folder, given by its path or by its name below outputs.

    An empty name stands for a batch without runs. Raises ValueError in one line for a folder that
    is no batch.
    """
    if not folder:
        return Batch("")
    for path in (Path(folder), OUTPUTS / folder):
        if is_batch(path):
            return Batch(str(path))
    raise ValueError(f"{folder}: no batch; expected the folder of one below {OUTPUTS}")
