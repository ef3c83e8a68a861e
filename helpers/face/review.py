"""A panel in which a person ticks what else may leave this computer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from helpers.ground.places import OUTPUTS
from helpers.ground.shell import word
from helpers.share.page import review_of
from helpers.share.review import Choices, Review, Row, save_choices
from helpers.share.subject import subject_of
from helpers.tell.html_table import text_html
from helpers.tell.panels.frame import Frame, Panel, Part

ASK = (
    "In JupyterLab this is a list of the texts that a shared page leaves out, each with a tick box."
)
Widget = Any
"""A widget of ipywidgets, which has no types."""
SHOWN = ""
HIDDEN = "none"
PARAGRAPH = "\n\n"
BORDER = "1px solid var(--jp-border-color2, #ccc)"
ALL = {"display": "block", "max_height": "36em", "overflow": "auto", "border": BORDER}
SINGLE = {"max_height": "16em", "overflow": "auto"}


@dataclass(frozen=True)
class Shared:
    """What is shared, by its path, and the texts that its page leaves out."""

    path: str

    @cached_property
    def review(self) -> Review:
        """The texts. Raises ShareError where there is nothing to share."""
        about = subject_of(Path(self.path), whole=True)
        return review_of(about)

    @property
    def command(self) -> str:
        """The command that makes the page for others."""
        return f"casebook share {word(self.path)}"

    def parts(self) -> list[Part]:
        """How many texts there are, and what opens them in a browser."""
        count = len(self.review.rows)
        return [f"{count} texts are left out. To tick some: {self.command} --review"]


@dataclass(frozen=True)
class _Item:
    """A text of the panel, with its tick box and what shows both."""

    row: Row
    box: Widget
    view: Widget

    @property
    def is_shown(self) -> bool:
        return str(self.view.layout.display) != HIDDEN


@dataclass(frozen=True)
class _Group:
    """The texts of one place, and what shows them."""

    items: Sequence[_Item]
    view: Widget

    def narrow(self, words: str) -> None:
        """Hide the texts without these words, and the place where none is left."""
        for item in self.items:
            _show(item.view, words in item.row.shown.lower())
        _show(self.view, any(item.is_shown for item in self.items))


def build(frame: Frame, shared: Shared) -> Sequence[Widget]:
    """A search, the texts of each place with tick boxes, and buttons to tick, look and save."""
    review = shared.review
    groups = [_group(frame, where, rows) for where, rows in review.groups().items()]
    items = list(chain.from_iterable(group.items for group in groups))
    search = frame.field("Text", "Search", "")
    preview = frame.widgets.HTML(layout=SINGLE)

    def ticked() -> Choices:
        return frozenset(item.row.digest for item in items if item.box.value)

    def count() -> None:
        preview.value = ""
        shown = [item for item in items if item.is_shown]
        frame.say(f"{len(shown)} of {len(items)} texts shown, {len(ticked())} ticked")

    def narrow() -> None:
        for group in groups:
            group.narrow(search.value.lower())
        count()

    def look() -> None:
        texts = [
            f"{row.text.where}, {row.text.kind}:\n{row.shown}" for row in review.ticked(ticked())
        ]
        heading = "As others will read it"
        if not texts:
            heading = "Nothing is ticked"
        preview.value = f"<b>{heading}</b>{text_html(PARAGRAPH.join(texts))}"

    def save() -> None:
        out = save_choices(OUTPUTS / "shared", review.name, ticked())
        frame.say(
            f"{len(ticked())} ticked, saved. Then: {shared.command} --include {word(str(out))}"
        )

    frame.changed(narrow, search)
    frame.changed(count, *(item.box for item in items))
    buttons = [
        frame.button("Preview", look, "what others would read of these texts"),
        frame.button("Save choices", save, "a file for share --include"),
    ]
    count()
    texts = frame.widgets.VBox([group.view for group in groups], layout=ALL)
    return [frame.row(search, *buttons), preview, texts]


def _group(frame: Frame, where: str, rows: Sequence[Row]) -> _Group:
    items = [_item(frame, row) for row in rows]

    def tick() -> None:
        boxes = [item.box for item in items if item.is_shown and not item.box.disabled]
        is_any_left = not all(box.value for box in boxes)
        for box in boxes:
            box.value = is_any_left

    button = frame.button(
        f"Tick all of {where}", tick, "those without a secret; again: untick them"
    )
    views = [frame.row(button), *(item.view for item in items)]
    return _Group(items, frame.widgets.VBox(views))


def _item(frame: Frame, row: Row) -> _Item:
    words = row.about
    if row.is_secret:
        words += ": looks like a secret, and stays here"
    box = frame.widgets.Checkbox(
        value=False,
        disabled=row.is_secret,
        description=words,
        indent=False,
        layout={"width": "auto"},
    )
    text = frame.widgets.HTML(text_html(row.shown), layout=SINGLE)
    return _Item(row, box, frame.widgets.VBox([box, text]))


def _show(view: Widget, is_shown: bool) -> None:
    display = HIDDEN
    if is_shown:
        display = SHOWN
    view.layout.display = display


panel = Panel("Review before sharing", Shared, build, ASK)


def review(path: str) -> None:
    """Show the texts that a shared page leaves out, each with a tick box, and save what was ticked.

    ``path`` is a batch's or a run's folder, a notebook or an evidence bundle. Raises ShareError (a
    ValueError) in one line where there is nothing to share.
    """
    panel.show(path)
