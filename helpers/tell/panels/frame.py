"""What every panel has: a line that says how it goes, errors in that line, its twin where nobody is there, and its end.

A panel is opened under its name. The one that was open under that name is closed first, its threads stopped, so that a cell
may be run again; threads are daemons and go with a kernel that restarts.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from matplotlib.figure import Figure

from helpers.run.kernel import MARK
from helpers.tell import figures
from helpers.tell.sheet import png
from helpers.tell.tables import plain

Part = str | tuple[Figure, str]
"""A piece of a static twin: text, or a figure with its words."""
# JupyterLab 4 takes arrow keys and letters for its own, also while a panel's control has the keyboard ("d d" deletes the cell);
# an element of this attribute keeps them (Lumino's commands). ipywidgets 8.1 does not set it.
OWN_KEYS = (
    "setTimeout(() => element.closest('.jp-OutputArea')?.addEventListener('focusin', e => "
    "e.target.setAttribute('data-lm-suppress-shortcuts', 'true')), 50)"
)
MUTED, WRONG = "var(--jp-ui-font-color2, #5c6670)", "var(--jp-error-color1, #b3261e)"
SHEET = "margin:4px 0;overflow-x:auto;line-height:1.35;font-size:12px"
_OPEN: dict[str, Frame] = {}


class Frame:
    """One open panel. ``say`` and ``guarded`` speak in its line; what ``ends`` holds is called when it is closed."""

    def __init__(self, name: str):
        import ipywidgets as widgets  # type: ignore[import-untyped]

        self.name, self.widgets, self.closed = name, widgets, False
        self.ends: list[Callable[[], object]] = []
        self.line, self.box = widgets.HTML(), widgets.VBox()
        self.say("ready")

    def say(self, words: str, tone: str = MUTED) -> None:
        """Progress or an answer, in the panel's line."""
        self.line.value = f"<div role='status' aria-live='polite' style='color:{tone}'>{escape(plain(words))}</div>"

    def guarded(self, act: Callable[[], object]) -> Callable[..., None]:
        """``act`` as a widget may call it: the line says working, then what ``act`` said, ready, or in one line what failed."""

        def call(*arguments: object) -> None:
            self.say("working …")
            before = self.line.value
            try:
                act()
            except Exception as error:  # noqa: BLE001 - an error of a callback reaches nobody but through this line
                kind = (
                    "" if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: "
                )
                self.say(
                    f"not done: {kind}{' '.join(str(error).split()) or 'no reason given'}", WRONG
                )
            if self.line.value == before:
                self.say("ready")

        return call

    def changed(self, act: Callable[[], object], *controls: Any) -> Callable[..., None]:
        """Call ``act``, guarded, whenever the value of a control changes; returned to be called once at the start."""
        call = self.guarded(act)
        for control in controls:
            control.observe(call, names="value")
        return call

    def button(self, words: str, act: Callable[[], object], tip: str) -> Any:
        """A button as wide as its words."""
        made = self.widgets.Button(description=words, tooltip=tip, layout={"width": "auto"})
        made.on_click(self.guarded(act))
        return made

    def field(self, kind: str, words: str, value: Any, wide: bool = False, **more: Any) -> Any:
        """A control with its label before it; one of text speaks when it is left or Enter is pressed."""
        make = getattr(self.widgets, kind)
        if make.class_traits().get("continuous_update"):
            more["continuous_update"] = False
        return make(
            value=value,
            description=words,
            style={"description_width": "8.5em"},
            layout={"width": "98%" if wide else "32em", "max_width": "98%"},
            **more,
        )

    def close(self) -> None:
        """Stop the panel's threads and take its controls away; closing twice is as closing once."""
        if not self.closed:
            self.closed = True
            for end in self.ends:
                end()
            self.say(f"{self.name}: closed, because it was opened again")
            taken, self.box.children = (
                [one for one in self.box.children if one is not self.line],
                [self.line],
            )
            for one in taken:
                taken += getattr(one, "children", ())
                one.close()


def open_panel(name: str, build: Callable[[Frame], Sequence[Any]]) -> Frame:
    """The panel that ``build`` fills, after the one of that name was closed."""
    if before := _OPEN.pop(name, None):
        before.close()
    frame = Frame(name)
    title = frame.widgets.HTML(f"<h4 style='margin:2px 0'>{escape(name)}</h4>")
    frame.box.children = [title, frame.line, *build(frame)]
    _OPEN[name] = frame
    return frame


def present(
    name: str, static: Callable[[], Iterable[Part]], build: Callable[[Frame], Sequence[Any]]
) -> None:
    """Show a panel where somebody is there to use it, else draw its static twin.

    A saved notebook holds the twin's text beside the panel, so that a page made from it is not blank.
    """
    parts = list(static())
    if somebody_is_there():
        from IPython.display import display

        words = "\n\n".join(part if isinstance(part, str) else part[1] for part in parts)
        display({"application/javascript": OWN_KEYS, "text/plain": words}, raw=True)
        view = open_panel(name, build).box._repr_mimebundle_()
        display({**view, "text/plain": "The panel itself shows in JupyterLab only."}, raw=True)
        return
    for part in parts:
        if isinstance(part, str):
            print(part)
        else:
            figures.show(*part)


def somebody_is_there() -> bool:
    """Whether a person can answer: no run of the workbook's own, and a front end that lets a cell ask (runners do not)."""
    if os.environ.get(MARK) or "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    kernel: Any = getattr(get_ipython(), "kernel", None)
    try:
        return bool(kernel.get_parent("shell")["content"]["allow_stdin"])
    except (AttributeError, KeyError, TypeError):
        return False


def text_html(text: str, wrap: bool = True) -> str:
    """Text with its lines; ``wrap`` off keeps the columns of a wide table, which then scrolls."""
    return (
        f"<pre style='{SHEET};word-break:normal;max-width:97%;"
        f"white-space:pre{'-wrap' * wrap}'>{escape(plain(text, keep=chr(10)))}</pre>"
    )


def picture_html(figure: Figure, alt: str) -> str:
    """A figure inside the page, with its words for those who cannot see it."""
    data, width, height = png(figure)
    figure.clear()
    return (
        f"<img alt='{escape(plain(alt))}' width={width} height={height} style='max-width:100%;height:auto' "
        f"src='data:image/png;base64,{base64.b64encode(data).decode('ascii')}'>"
    )


def table_html(rows: Iterable[Sequence[object]], head: Sequence[str], caption: str) -> str:
    """A table below its caption. A cell of a number stands right, a short one is not broken, an empty one is a dash."""

    def cell(value: object) -> str:
        words = plain(value) if value not in (None, "") else "-"
        digits = words.split()[0].replace(",", "").replace(".", "").isdigit()
        return (
            f"<td style='padding:2px 12px 2px 0;vertical-align:top;text-align:{'right' if digits else 'left'};white-space:"
            f"{'nowrap' if len(words) < 28 else 'normal'}'>{escape(words)}</td>"
        )

    body = (
        "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
        or "<tr><td colspan=9>nothing to show</td></tr>"
    )
    titles = "".join(
        f"<th scope='col' style='padding-right:12px;text-align:left'>{escape(title)}</th>"
        for title in head
    )
    said = escape(plain(caption))
    return (
        f"<div style='{SHEET}'><div style='color:{MUTED}'>{said}</div><table aria-label='{said}' style='border-collapse:"
        f"collapse'><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )
