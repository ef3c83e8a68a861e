"""What every panel has: a line about what it does, errors at the fields that caused them, a static
twin for a notebook at which nobody sits, and an end.

A twin is the panel's first answer as words and views without controls. A field is a control with a
label, in which a person types or picks something.

Opening a panel closes the one that is open under the same name and stops its threads, so that a
cell may be run again. The threads are daemons, so they end with the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

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
"""A piece of a static twin: words, a view (its figure, where it has one), steps, or a link."""
# JupyterLab 4 takes arrow keys and letters for its own, also while a panel's control has the
# keyboard ("d d" deletes the cell); an element of this attribute keeps them (Lumino's
# commands). ipywidgets 8.1 does not set it.
# 50 ms: by then JupyterLab has put the output into the page; before, there is no OutputArea.
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
"""The open panel of each name."""


class Frame:
    """One open panel.

    ``say`` writes its line. An error is shown at the field whose change caused it, and answers
    fade until an input works again. ``ends`` are functions that are called when it is closed.
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
        """For each field the element below it that shows its error."""
        self.refusals: dict[Callable[[], object], tuple[Widget | None, str]] = {}
        """For each action that failed last time: the field whose change caused it, and why."""
        self.answers: list[Widget] = []
        self.old = widgets.HTML()
        """Says, above the answers, that they are of an earlier input."""
        self.say("ready")

    def say(self, words: str, colour: str = MUTED) -> None:
        """Write progress or an answer into the panel's line."""
        self.line.value = _message(words, colour, "status")

    def guarded(self, act: Callable[[], object]) -> Callable[..., None]:
        """``act`` as a function for a widget to call. While ``act`` runs, the panel's line says
        that it works, and then that it is ready, unless ``act`` wrote the line itself. An error of
        ``act`` is said in one line, at the field whose change called it.
        """

        def call(change: object = None) -> None:
            self.say("working …")
            before = self.line.value
            try:
                act()
            # An error of a callback reaches nobody but through the panel.
            except Exception as error:  # noqa: BLE001
                field = None
                if isinstance(change, dict):  # a trait's; a button calls with itself
                    field = change["owner"]
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
        """Show an error of ``act`` at the field that caused it, or in the panel's line where no
        field did (None).

        The same error again stays at the field where it was shown first: a change of another field
        calls ``act``, too, and did not cause it.
        """
        first_field, first_words = self.refusals.get(act, (None, ""))
        if words == first_words:
            field = first_field
        self.refusals[act] = (field, words)
        self._show_errors()
        if field in self.errors:
            words = "not done: see the field"
        self.say(words, WRONG)

    def _show_errors(self) -> None:
        """Show each error at its field, and remove those that are gone. Where there is an error,
        fade the answers and say above them that they are of an earlier input.
        """
        words_of_field = dict(self.refusals.values())
        for field, place in self.errors.items():
            place.value = ""
            if field in words_of_field:
                place.value = _message(words_of_field[field], WRONG, "alert")
        self.old.value = ""
        if self.refusals and any(answer.value for answer in self.answers):
            self.old.value = _message(OLD, WRONG, "note")
        for answer in self.answers:
            if self.old.value:
                answer.add_class("casebook-old")
            else:
                answer.remove_class("casebook-old")

    def answer(self) -> Widget:
        """An element for an answer, which fades while the input has an error."""
        answer = self.widgets.HTML()
        self.answers.append(answer)
        return answer

    def laid_out(self, controls: Iterable[Widget]) -> list[Widget]:
        """Controls to be shown below each other, each followed by the elements for the errors of
        its fields. Before the first answer comes the element that says that answers are of an
        earlier input.
        """
        parts: list[Widget] = []
        for control in controls:
            if control in self.answers and self.old not in parts:
                parts.append(self.old)
            parts.append(control)
            fields = (control, *getattr(control, "children", ()))
            parts += [self.errors[field] for field in fields if field in self.errors]
        return parts

    def changed(
        self, act: Callable[[], object], *controls: Widget
    ) -> Callable[..., None]:
        """Call ``act``, guarded, whenever the value of a control changes. Returns the guarded
        function, which the caller calls once for the first answer.
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
        """A control with its label before it. ``kind`` is the name of a class of ipywidgets,
        ``more`` are further arguments of it.

        A field of text acts when it is left or Enter is pressed, not at every letter.
        """
        make = getattr(self.widgets, kind)
        # Fields of text and sliders have this trait.
        if make.class_traits().get("continuous_update"):
            more["continuous_update"] = False
        width = "32em"
        if wide:
            width = "98%"  # a scroll bar needs the rest
        control = make(
            value=value,
            layout={"width": width, "max_width": "98%"},
            description=words,
            style={"description_width": "8.5em"},
            **more,
        )
        control.add_class("casebook-field")
        self.errors[control] = self.widgets.HTML()
        return control

    def row(self, *controls: Widget) -> Widget:
        """Controls beside each other, in more lines where there is no room."""
        return self.widgets.HBox(controls, layout={"flex_flow": "row wrap"})

    def close(self) -> None:
        """Stop the panel's threads and close all its controls but the line, which says why. Closing
        it again does nothing.
        """
        if self.closed:
            return
        self.closed = True
        for end in self.ends:
            end()
        self.say(f"{self.name}: closed, because it was opened again")
        to_close = [child for child in self.box.children if child is not self.line]
        self.box.children = [self.line]
        while to_close:
            control = to_close.pop()
            to_close += getattr(control, "children", ())
            control.close()


def _message(words: str, colour: str, role: str) -> str:
    """A message as HTML that a screen reader reads out when it changes; ``role`` is that of ARIA:
    status, alert or note.
    """
    about = f"role='{role}' aria-live='polite'"
    style = f"color:{colour};overflow-wrap:anywhere"
    return f"<div {about} style='{style}'>{escape(plain(words))}</div>"


def _reason(error: Exception) -> str:
    """What an error says, in one line. Errors of wrong input (ValueError, OSError) have sentences
    of their own; before those of any other type its name stands.
    """
    reason = " ".join(str(error).split())
    if not reason:
        reason = NO_REASON
    if isinstance(error, (ValueError, OSError)):
        return reason
    return f"{type(error).__name__}: {reason}"


def open_panel(name: str, build: Callable[[Frame], Sequence[Widget]]) -> Frame:
    """Open the panel that ``build`` fills; the open one of that name is closed first."""
    before = _OPEN.pop(name, None)
    if before is not None:
        before.close()
    frame = Frame(name)
    title = frame.widgets.HTML(f"<h4 style='margin:2px 0'>{escape(name)}</h4>{STYLE}")
    frame.box.children = [title, frame.line, *frame.laid_out(build(frame))]
    _OPEN[name] = frame
    return frame


@dataclass(frozen=True)
class Panel:
    """A kind of panel.

    ``state`` makes a state of the arguments of ``show``: a question with its first answer, whose
    ``parts()`` are the static twin. ``build`` returns the controls and answers for a state.

    ``again`` is true where the twin shows what its notebook or a page has elsewhere: a page then
    leaves it out. As a sentence it means the same, and the sentence is shown in place of the twin.
    """

    name: str
    state: Callable[..., Any]
    build: Callable[[Frame, Any], Sequence[Widget]]
    again: str | bool = False

    def show(self, *arguments: object) -> None:
        """Show the panel where a person sits at the notebook, else its static twin.

        A saved notebook has the twin's words beside the panel.
        """
        state = self.state(*arguments)
        parts: list[Part] = list(state.parts())
        if not is_interactive():
            if isinstance(self.again, str):
                parts = [self.again]
            for part in parts:
                display(part, again=bool(self.again))
            return
        from IPython.display import display as front

        scripts = f"{OWN_KEYS};\n{template('table.js', 'figure.js')}"
        words = "\n\n".join(map(_words_of, parts))
        front(
            {"application/javascript": scripts, "text/plain": words},
            raw=True,
            metadata={ABOUT: {"again": bool(self.again)}},
        )
        frame = open_panel(self.name, lambda frame: self.build(frame, state))
        view = frame.box._repr_mimebundle_()
        view["text/plain"] = "The panel itself shows in JupyterLab only."
        front(view, raw=True, metadata={ABOUT: {"again": True}})


def _words_of(part: Part) -> str:
    """A part as text: of a figure its alt text."""
    if isinstance(part, Shown) and part.draw is not None:
        return part.alt
    return str(part)


def parts_html(parts: Iterable[Part]) -> str:
    """Parts below each other as HTML; a wide table or figure does not make the panel wider."""
    pieces = []
    for part in parts:
        if isinstance(part, str):
            pieces.append(text_html(part))
        elif isinstance(part, (NextSteps, NextNotebook)):
            pieces.append(part._repr_html_())
        elif part.draw:
            pieces.append(part.figure_html())
        else:
            pieces.append(part.html())
    return f"<div style='width:0;min-width:100%'>{''.join(pieces)}</div>"
