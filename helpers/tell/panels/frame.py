"""What every panel has: a line that says how it goes, errors at the field they come from, its twin
where nobody is there, and its end.

A panel is opened under its name. The one that was open under that name is closed first, its
threads stopped, so that a cell may be run again; threads are daemons and go with a kernel that
restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, TypeGuard

from helpers.ground.units import plain
from helpers.tell.display import display
from helpers.tell.front_end import is_interactive
from helpers.tell.html_table import MUTED, text_html
from helpers.tell.next_notebook import NextNotebook
from helpers.tell.next_steps import NextSteps
from helpers.tell.resources import template
from helpers.tell.shown import ABOUT, Shown

if TYPE_CHECKING:
    from ipywidgets import Widget  # type: ignore[import-untyped]

Part = str | Shown | NextSteps | NextNotebook
"""A piece of a static twin: words, a view, which stands as its figure where it has one, steps, or a
link.
"""
# JupyterLab 4 takes arrow keys and letters for its own, also while a panel's control has the
# keyboard ("d d" deletes the cell); an element of this attribute keeps them (Lumino's
# commands). ipywidgets 8.1 does not set it.
OWN_KEYS = (
    "setTimeout(() => element.closest('.jp-OutputArea')?.addEventListener('focusin', e => "
    "e.target.setAttribute('data-lm-suppress-shortcuts', 'true')), 50)"
)
WRONG = "var(--jp-error-color1, #b3261e)"
STYLE = """<style>
.casebook-old { opacity: 0.4 }
@media screen and (max-width: 48rem) {
.casebook-field { flex-wrap: wrap; height: auto !important }
.casebook-field > label { width: 100% !important; text-align: left !important }
.casebook-field.widget-checkbox > label:first-child { display: none }
}
</style>"""
"""On a narrow screen the label of a field is above it."""
OLD = "What follows belongs to the last input that worked, not to this one."
NO_REASON = "no reason given"
_OPEN: dict[str, Frame] = {}


class Frame:
    """One open panel.

    ``say`` speaks in its line; an error stands at the field whose change brought it, and the
    answers fade until an input works again. What ``ends`` holds is called when it is closed.
    """

    def __init__(self, name: str):
        import ipywidgets as widgets

        self.name = name
        self.widgets = widgets
        self.closed = False
        self.ends: list[Callable[[], object]] = []
        self.line = widgets.HTML()
        self.box = widgets.VBox()
        self.errors: dict[Widget, Widget] = {}
        """The place for its error below each field."""
        self.refusals: dict[Callable[[], object], tuple[Widget | None, str]] = {}
        """What failed last, by what was to be done: the field that was changed, and why."""
        self.answers: list[Widget] = []
        self.old = widgets.HTML()
        self.say("ready")

    def say(self, words: str, tone: str = MUTED) -> None:
        """Progress or an answer, in the panel's line."""
        self.line.value = _said(words, tone, "status")

    def guarded(self, act: Callable[[], object]) -> Callable[..., None]:
        """``act`` as a widget may call it: the line says working, then what ``act`` said or
        ready. What fails is said in one line.
        """

        def call(change: object = None) -> None:
            self.say("working …")
            before = self.line.value
            try:
                act()
            # An error of a callback reaches nobody but through the panel.
            except Exception as error:  # noqa: BLE001
                field = change["owner"] if isinstance(change, dict) else None
                self._refuse(act, field, f"not done: {_reason(error)}")
                return
            self.refusals.pop(act, None)
            self._show_errors()
            if self.line.value == before:
                self.say("ready")

        return call

    def _refuse(
        self, act: Callable[[], object], field: Widget | None, words: str
    ) -> None:
        """Say an error at its field, or in the panel's line where it comes from none; one that is
        still there stays where it is.
        """
        _, before = self.refusals.get(act, (None, ""))
        if words != before:
            self.refusals[act] = (field, words)
        self._show_errors()
        is_at_a_field = self.refusals[act][0] in self.errors
        self.say("not done: see the field" if is_at_a_field else words, WRONG)

    def _show_errors(self) -> None:
        """Each error at its field, and above answers that are of another input that they are."""
        words = dict(self.refusals.values())
        for field, place in self.errors.items():
            place.value = _said(words[field], WRONG, "alert") if field in words else ""
        is_old = bool(words) and any(answer.value for answer in self.answers)
        self.old.value = _said(OLD, WRONG, "note") if is_old else ""
        for answer in self.answers:
            mark = answer.add_class if is_old else answer.remove_class
            mark("casebook-old")

    def answer(self) -> Widget:
        """A place for an answer, which fades while the input has an error."""
        answer = self.widgets.HTML()
        self.answers.append(answer)
        return answer

    def laid_out(self, controls: Iterable[Widget]) -> list[Widget]:
        """Controls below each other, each with the place for its error, and above the first
        answer the place that says that it is old.
        """
        parts: list[Widget] = []
        for control in controls:
            if control in self.answers and self.old not in parts:
                parts.append(self.old)
            parts.append(control)
            within = (control, *getattr(control, "children", ()))
            parts += [self.errors[field] for field in within if field in self.errors]
        return parts

    def changed(
        self, act: Callable[[], object], *controls: Widget
    ) -> Callable[..., None]:
        """Call ``act``, guarded, whenever the value of a control changes; returned to be called
        once at the start.
        """
        call = self.guarded(act)
        for control in controls:
            control.observe(call, names="value")
        return call

    def button(self, words: str, act: Callable[[], object], tip: str) -> Widget:
        """A button as wide as its words."""
        button = self.widgets.Button(
            description=words, tooltip=tip, layout={"width": "auto"}
        )
        button.on_click(self.guarded(act))
        return button

    def field(
        self, kind: str, words: str, value: object, wide: bool = False, **more: object
    ) -> Widget:
        """A control with its label before it; one of text speaks when it is left or Enter is
        pressed.
        """
        make = getattr(self.widgets, kind)
        if make.class_traits().get("continuous_update"):
            more["continuous_update"] = False
        layout = {"width": "98%" if wide else "32em", "max_width": "98%"}
        label = {"description": words, "style": {"description_width": "8.5em"}}
        control = make(value=value, layout=layout, **label, **more)
        control.add_class("casebook-field")
        self.errors[control] = self.widgets.HTML()
        return control

    def row(self, *controls: Widget) -> Widget:
        """Controls beside each other, in more lines where there is no room."""
        return self.widgets.HBox(controls, layout={"flex_flow": "row wrap"})

    def close(self) -> None:
        """Stop the panel's threads and take its controls away; closing twice is as closing once."""
        if not self.closed:
            self.closed = True
            for end in self.ends:
                end()
            self.say(f"{self.name}: closed, because it was opened again")
            controls = [
                control for control in self.box.children if control is not self.line
            ]
            self.box.children = [self.line]
            for control in controls:
                controls += getattr(control, "children", ())
                control.close()


def _said(words: str, tone: str, role: str) -> str:
    about = (
        f"role='{role}' aria-live='polite' style='color:{tone};overflow-wrap:anywhere'"
    )
    return f"<div {about}>{escape(plain(words))}</div>"


def _reason(error: Exception) -> str:
    reason = " ".join(str(error).split()) or NO_REASON
    if isinstance(error, (ValueError, OSError)):
        return reason
    return f"{type(error).__name__}: {reason}"


def open_panel(name: str, build: Callable[[Frame], Sequence[Widget]]) -> Frame:
    """The panel that ``build`` fills, after the one of that name was closed."""
    before = _OPEN.pop(name, None)
    if before:
        before.close()
    frame = Frame(name)
    title = frame.widgets.HTML(f"<h4 style='margin:2px 0'>{escape(name)}</h4>{STYLE}")
    frame.box.children = [title, frame.line, *frame.laid_out(build(frame))]
    _OPEN[name] = frame
    return frame


@dataclass(frozen=True)
class Panel:
    """A kind of panel.

    ``state`` makes of the arguments of ``show`` what it looks at, whose ``parts()`` are the
    static twin.

    ``build`` fills a frame with the controls and answers of such a state. ``again``: it shows
    again what its notebook or a page has; a sentence of it stands where nobody is there in
    place of the parts.
    """

    name: str
    state: Callable[..., Any]
    build: Callable[[Frame, Any], Sequence[Widget]]
    again: str | bool = False

    def show(self, *arguments: object) -> None:
        """The panel where somebody is there to use it, else its twin.

        A saved notebook holds the twin's words beside the panel.
        """
        state = self.state(*arguments)
        parts: list[Part] = list(state.parts())
        if is_interactive():
            from IPython.display import display as front

            words = "\n\n".join(
                part.alt if is_drawn(part) else str(part) for part in parts
            )
            acts = f"{OWN_KEYS};\n{template('table.js', 'figure.js')}"
            about = {ABOUT: {"again": bool(self.again)}}
            front(
                {"application/javascript": acts, "text/plain": words},
                raw=True,
                metadata=about,
            )
            frame = open_panel(self.name, lambda frame: self.build(frame, state))
            view = frame.box._repr_mimebundle_()
            view["text/plain"] = "The panel itself shows in JupyterLab only."
            front(view, raw=True, metadata={ABOUT: {"again": True}})
            return
        if isinstance(self.again, str):
            parts = [self.again]
        for part in parts:
            display(part, again=bool(self.again))


def is_drawn(part: Part) -> TypeGuard[Shown]:
    """Whether a part is a view with a figure, which then stands for it."""
    return isinstance(part, Shown) and part.draw is not None


def parts_html(parts: Iterable[Part]) -> str:
    """Pieces of a twin below each other, as wide as the panel, whatever is in them: words,
    figures that say more, tables.
    """
    pieces = []
    for part in parts:
        if isinstance(part, str):
            pieces.append(text_html(part))
        elif isinstance(part, (NextSteps, NextNotebook)):
            pieces.append(part._repr_html_())
        elif part.draw:
            pieces.append(part.figure_html())
        else:
            pieces.append(part.html() or text_html(str(part)))
    return f"<div style='width:0;min-width:100%'>{''.join(pieces)}</div>"
