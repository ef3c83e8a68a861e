"""A panel in which a person ticks what else may leave this computer."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from helpers.ground.places import OUTPUTS
from helpers.ground.shell import word
from helpers.share.page import review_of
from helpers.share.review import Review, ReviewRow, save_choices
from helpers.share.subject import subject_of
from helpers.tell.html_table import text_html
from helpers.tell.panels.frame import Frame, Panel, Part

ASK = "In JupyterLab this is a list of the texts that a shared page leaves out, each with a tick box."
Widget = Any
"""A widget of ipywidgets, which has no types."""
TEXTS_OF_A_PAGE = 40
"""JupyterLab takes a second to show so many tick boxes."""
PARAGRAPH = "\n\n"
BORDER = "1px solid var(--jp-border-color2, #ccc)"
"""In the colour that JupyterLab's theme has for borders, else in grey."""
LIST = {"display": "block", "max_height": "36em", "overflow": "auto", "border": BORDER}
"""The layout of the list of texts, which scrolls."""
SINGLE = {"max_height": "16em", "overflow": "auto"}
"""The layout of each text in the list, and of the preview."""


@dataclass(frozen=True)
class Shared:
    """The subject of a shared page, by its path, and the texts that the page leaves out."""

    path: str

    @cached_property
    def review(self) -> Review:
        """The texts. Raises ShareError where there is nothing to share."""
        about = subject_of(Path(self.path), with_notebooks=True)
        return review_of(about)

    @property
    def command(self) -> str:
        """The command that makes the page for others."""
        return f"casebook share {word(self.path)}"

    def parts(self) -> list[Part]:
        """Without widgets: how many texts there are, and the command that shows them in
        a browser.
        """
        count = len(self.review.rows)
        return [f"{count} texts are left out. To tick some: {self.command} --review"]


def build(frame: Frame, shared: Shared) -> Sequence[Widget]:
    """The panel: a search, a page of the texts that it finds with tick boxes, a preview, and a
    button that saves the ticks.
    """
    review = shared.review
    ticks: set[str] = set()
    search = frame.field("Text", "Search", "")
    page = frame.field("BoundedIntText", "Page", 1, min=1)
    preview = frame.widgets.HTML(layout=SINGLE)
    texts = frame.widgets.VBox(layout=LIST)

    def matching_rows() -> list[ReviewRow]:
        words = search.value.lower()
        return [row for row in review.rows if words in row.shown.lower()]

    def say_counts() -> None:
        count = len(matching_rows())
        says = f"{count} of {len(review.rows)} texts found"
        frame.say(f"{says}{_shown_range(page.value, count)}, {len(ticks)} ticked")

    def tick(row: ReviewRow, is_ticked: bool) -> None:
        ticks.discard(row.digest)
        if is_ticked:
            ticks.add(row.digest)
        preview.value = ""  # it shows earlier ticks
        say_counts()

    def show() -> None:
        rows = matching_rows()
        page.max = max(1, math.ceil(len(rows) / TEXTS_OF_A_PAGE))
        first = TEXTS_OF_A_PAGE * (page.value - 1)
        part = Review(review.name, tuple(rows[first : first + TEXTS_OF_A_PAGE]))
        for view in texts.children:
            view.close()
        texts.children = [
            _group(frame, where, rows, ticks, tick)
            for where, rows in part.groups().items()
        ]
        say_counts()

    def show_first_page() -> None:
        page.value = 1
        show()

    def look() -> None:
        preview.value = _preview(review.ticked(frozenset(ticks)))
        say_counts()

    def save() -> None:
        out = save_choices(OUTPUTS / "shared", review.name, frozenset(ticks))
        command = f"{shared.command} --include {word(str(out))}"
        frame.say(f"{len(ticks)} ticked, saved. Then: {command}")

    frame.changed(show, page)
    frame.changed(show_first_page, search)
    buttons = [
        frame.button("Preview", look, "what others would read of these texts"),
        frame.button("Save choices", save, "a file for share --include"),
    ]
    show()
    return [frame.row(search, page, *buttons), preview, texts]


def _shown_range(page: int, count: int) -> str:
    """Which of ``count`` texts are on a page, numbered from 1; empty where there are none."""
    if not count:
        return ""
    first = TEXTS_OF_A_PAGE * (page - 1)
    last = min(first + TEXTS_OF_A_PAGE, count)
    return f", {first + 1} to {last} shown"


def _preview(rows: Iterable[ReviewRow]) -> str:
    """The ticked texts as others would read them, as HTML."""
    texts = [f"{row.text.where}, {row.text.kind}:\n{row.shown}" for row in rows]
    heading = "As others will read it"
    if not texts:
        heading = "Nothing is ticked"
    return f"<b>{heading}</b>{text_html(PARAGRAPH.join(texts))}"


def _group(
    frame: Frame,
    where: str,
    rows: Sequence[ReviewRow],
    ticks: Container[str],
    tick: Callable[[ReviewRow, bool], None],
) -> Widget:
    """The texts of one place, such as a cell, each with a tick box, and a button that ticks them
    all.

    ``ticks``: the digests of the texts that are ticked now; ``tick`` is called for each change.
    """
    boxes = [_box(frame, row, ticks, tick) for row in rows]

    def tick_all() -> None:
        enabled = [box for box in boxes if not box.disabled]
        are_all_ticked = all(box.value for box in enabled)
        for box in enabled:
            box.value = not are_all_ticked

    button = frame.button(
        f"Tick all of {where}", tick_all, "those without a secret; again: untick them"
    )
    views = [button]
    for row, box in zip(rows, boxes, strict=True):
        views += [box, frame.widgets.HTML(text_html(row.shown), layout=SINGLE)]
    return frame.widgets.VBox(views)


def _box(
    frame: Frame,
    row: ReviewRow,
    ticks: Container[str],
    tick: Callable[[ReviewRow, bool], None],
) -> Widget:
    """The tick box of a text; what looks like a secret cannot be ticked."""
    words = row.about
    if row.is_secret:
        words += ": looks like a secret, and stays here"
    box = frame.widgets.Checkbox(
        value=row.digest in ticks,
        disabled=row.is_secret,
        description=words,
        indent=False,
        layout={"width": "auto"},
    )
    frame.changed(lambda: tick(row, box.value), box)
    return box


panel = Panel("Review before sharing", Shared, build, ASK)


def review(path: str) -> None:
    """Show the texts that a shared page leaves out, each with a tick box, and save what was ticked.

    ``path`` is a batch's or a run's folder, by its path or its name below outputs; a notebook or an
    evidence bundle. Raises ShareError (a ValueError) in one line where there is nothing to share.
    """
    panel.show(path)
