"""A panel in which a person ticks what else may leave this computer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.ground.places import OUTPUTS
from helpers.share.review import Choices, Review, Row, review_of, save_choices
from helpers.share.subject import Subject, subject_of
from helpers.tell.html_table import text_html
from helpers.tell.panels.frame import Frame, Panel, Part

ASK = (
    "In JupyterLab this is a list of the texts that a shared page leaves out, each with a tick box."
)


@dataclass(frozen=True)
class Shared:
    """What is shared, by its path, and the texts that its page leaves out."""

    path: str

    @property
    def subject(self) -> Subject:
        return subject_of(Path(self.path))

    def review(self) -> Review:
        """The texts. Raises ShareError where there is nothing to share."""
        subject = self.subject
        return review_of(subject, subject.evidence().bundle)

    def parts(self) -> list[Part]:
        """How many texts there are, and what opens them in a browser."""
        count = len(self.review().rows)
        return [f"{count} texts are left out. To tick some: share {self.path} --review"]


def build(frame: Frame, shared: Shared) -> Sequence[Any]:
    """A search, the texts of each place with tick boxes, and buttons to tick, look and save."""
    review = shared.review()
    boxes = {row.digest: _box(frame, row) for row in review.rows}
    search = frame.field("Text", "Search", "")
    preview = frame.widgets.HTML()
    items = []
    texts = []
    for where, rows in review.groups().items():
        own = [boxes[row.digest] for row in rows]
        items.append(frame.button(f"Tick all of {where}", _ticker(own), "those without a secret"))
        for row, box in zip(rows, own, strict=True):
            item = frame.widgets.VBox([box, frame.widgets.HTML(text_html(row.shown))])
            items.append(item)
            texts.append((row, item))

    def narrow() -> None:
        for row, item in texts:
            item.layout.display = "none"
            if search.value.lower() in row.shown.lower():
                item.layout.display = ""

    def ticked() -> Choices:
        return frozenset(digest for digest, box in boxes.items() if box.value)

    def look() -> None:
        preview.value = text_html("\n\n".join(row.shown for row in review.ticked(ticked())))

    def save() -> None:
        out = save_choices(OUTPUTS / "shared", review.name, ticked())
        frame.say(f"{len(ticked())} ticked, in {out}: share {shared.path} --include {out}")

    frame.changed(narrow, search)
    buttons = [
        frame.button("Preview", look, "what others would read of these texts"),
        frame.button("Save choices", save, "a file for share --include"),
    ]
    return [frame.row(search, *buttons), preview, *items]


def _box(frame: Frame, row: Row) -> Any:
    words = row.text.kind
    if row.is_secret:
        words += ": looks like a secret, and stays here"
    return frame.widgets.Checkbox(
        value=False, disabled=row.is_secret, description=words, indent=False
    )


def _ticker(boxes: Sequence[Any]) -> Callable[[], None]:
    """What ticks all boxes that can be ticked."""

    def tick() -> None:
        for box in boxes:
            box.value = not box.disabled

    return tick


panel = Panel("Review before sharing", Shared, build, ASK)


def review(path: str) -> None:
    """Show the texts that a shared page leaves out, each with a tick box, and save what was ticked.

    ``path`` is a batch's or a run's folder, a notebook or an evidence bundle. Raises ShareError (a
    ValueError) in one line where there is nothing to share.
    """
    panel.show(path)
