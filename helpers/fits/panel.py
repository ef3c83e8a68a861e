"""Sliders for the context and the slots of a server, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from helpers.fits.answer import answer
from helpers.fits.contexts import LEAST_CONTEXT
from helpers.fits.sheet import ServerFacts
from helpers.fits.view import bar, solved_lines
from helpers.tell.panels.frame import Frame, Panel, Part, parts_html


@dataclass(frozen=True)
class Wish:
    """A server, its model and a card, and what is asked of them."""

    server: ServerFacts

    def parts(self) -> list[Part]:
        """What is solved for, and the bar."""
        fitted = answer(self.server)
        return ["\n".join(solved_lines(fitted)), bar(fitted)]


def build_fits(frame: Frame, wish: Wish) -> Sequence[Any]:
    """Sliders for the context and the slots, and what they come to."""
    inputs = wish.server.inputs
    answers = frame.answer()
    tokens = answer(wish.server).contexts.counted or LEAST_CONTEXT
    most = max(tokens, inputs.get("n_ctx_train", 0))
    context = frame.field("IntSlider", "Context", tokens, min=256, max=most, step=256)
    slots = frame.field(
        "IntSlider", "Slots", inputs.get("n_parallel", 1), min=1, max=64
    )

    def look() -> None:
        changed = {**inputs, "n_ctx": context.value, "n_parallel": slots.value}
        answers.value = parts_html(Wish(replace(wish.server, inputs=changed)).parts())

    frame.changed(look, context, slots)()
    return [context, slots, answers]


ASK = "In JupyterLab these are two sliders, for the context and the slots, with what they come to."
PANEL = Panel("What fits", Wish, build_fits, ASK)
