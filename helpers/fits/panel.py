"""A panel with sliders for the context and the slots of a server, and the answer for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from helpers.fits.answer import answer
from helpers.fits.contexts import LEAST_CONTEXT
from helpers.fits.sheet import ServerFacts
from helpers.fits.view import bar, solved_lines
from helpers.tell.panels.frame import Frame, Panel, Part, parts_html


@dataclass(frozen=True)
class Wish:
    """What a person wants to run: a server with its model, the card, and the context and slots that
    are asked for; all of it is within the facts about the server.
    """

    server: ServerFacts

    def parts(self) -> list[Part]:
        """The answer: what fits at most, and the bar."""
        fitted = answer(self.server)
        return ["\n".join(solved_lines(fitted)), bar(fitted)]


def build_fits(frame: Frame, wish: Wish) -> Sequence[object]:
    """Sliders for the context and the slots, and the answer below them. The slider of the context
    begins where the rows are counted, and ends at the model's own maximum.
    """
    inputs = wish.server.inputs
    answers = frame.answer()
    tokens = answer(wish.server).contexts.counted
    if not tokens:
        tokens = LEAST_CONTEXT
    most = max(tokens, inputs.get("n_ctx_train", 0))
    # llama.cpp rounds a context to 256 cells; more than 64 slots are rare on one card.
    context = frame.field("IntSlider", "Context", tokens, min=256, max=most, step=256)
    slots = frame.field(
        "IntSlider", "Slots", inputs.get("n_parallel", 1), min=1, max=64
    )

    def show_answer() -> None:
        changed = {**inputs, "n_ctx": context.value, "n_parallel": slots.value}
        server = replace(wish.server, inputs=changed)
        answers.value = parts_html(Wish(server).parts())

    frame.changed(show_answer, context, slots)()
    return [context, slots, answers]


ASK = "In JupyterLab these are two sliders, for the context and the slots, with what they come to."
PANEL = Panel("What fits", Wish, build_fits, ASK)
