"""What fits: weights, cache and buffers of a model against what a box or a card can give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from helpers.face.box import Box, as_box
from helpers.face.diagnosis import Answer
from helpers.face.result import Result
from helpers.fits import panel, view
from helpers.fits.answer import answer
from helpers.fits.cards import cards_of
from helpers.fits.model import read_model
from helpers.fits.servers import family_of
from helpers.fits.sheet import MissingFigure, ServerFacts, check_count, element_bytes
from helpers.ground.child import CHECKOUT
from helpers.look.cards import find_card
from helpers.tell.shown import Shown
from helpers.tell.values import Column

MODELS = CHECKOUT / "env" / "models"
YES_OR_NO = {True: "fits", False: "no", None: "cannot tell"}


class Fit(Result):
    """What a server needs of a model beside what a card can give.

    ``answer`` holds the rows, the sum and what is solved for as data; sizes are bytes.
    """

    def __init__(self, server: ServerFacts) -> None:
        self.given = server
        self.answer = answer(server)

    @property
    def view(self) -> Shown:
        return view.rows_table(self.answer)

    @property
    def bar(self) -> Shown:
        """The parts side by side as one stacked bar against the ceiling."""
        return view.bar(self.answer)

    @property
    def fits(self) -> bool | None:
        """Yes, no, or None where it cannot be told."""
        return self.answer.fits

    @property
    def longest_context(self) -> int | None:
        """The longest context to ask for, in tokens; None where it cannot be told."""
        return self.answer.contexts.longest_to_ask_for

    @property
    def start(self) -> str:
        """The line that starts the server so, to paste; empty where the model does not fit or is cut off."""
        return "\n".join(self.answer.start)

    @property
    def ways(self) -> Shown:
        """What would work where the model or the context does not fit, the smallest change first."""
        return view.ways_table(self.answer)

    @property
    def words(self) -> str:
        """The server, what is solved for, in the steps in which it rounds, and what is to be said."""
        lines = [view.server_line(self.answer), *view.solved_lines(self.answer)]
        return "\n".join([*lines, *self.answer.notes])

    def at(self, **inputs: object) -> Fit:
        """The same with other inputs, such as ``n_ctx``, ``n_parallel`` or ``kv_type``."""
        return Fit(replace(self.given, inputs={**self.given.inputs, **inputs}))

    def contexts(self, tokens: Sequence[int], slots: Sequence[int]) -> Shown:
        """A map of what fits: tokens of each request against the requests at once."""
        rows: list[list[object]] = []
        for count in slots:
            fits = [
                self.at(n_ctx=size * count, n_parallel=count).fits for size in tokens
            ]
            rows.append([count, *(YES_OR_NO[is_fitting] for is_fitting in fits)])
        columns = ["at once", *(f"{size:,}" for size in tokens)]
        return Shown("What fits, by tokens of each request", columns, rows)

    def cache_types(self, kinds: Sequence[str] = ("f16", "q8_0", "q4_0")) -> Shown:
        """The longest context for each type of the cache."""
        rows = [[kind, self.at(kv_type=kind).longest_context] for kind in kinds]
        title = "The longest context that fits, by the type of the cache"
        return Shown(title, ["type", Column("tokens", "1,000")], rows)

    def beside_others(self, held_bytes: Mapping[str, int]) -> Shown:
        """Whether it fits, and the longest context, with so much of the card held by others."""
        rows: list[list[object]] = []
        for name, size in held_bytes.items():
            fit = self.at(others_bytes=size)
            rows.append([name, size, YES_OR_NO[fit.fits], fit.longest_context])
        longest = Column("longest context, tokens", "1,000")
        columns = ["the card has", Column("held", "bytes"), "as asked", longest]
        return Shown("What fits, by what others hold", columns, rows)

    def panel(self) -> None:
        """Show sliders for the context and the slots, or their static twin."""
        panel.PANEL.show(self.given)

    def verdict(self) -> Answer:
        """The verdict: whether it fits, and the one next step."""
        return Answer(view.verdict_on_fit(self.answer))


def what_fits(
    model: str,
    *,
    box: Box | str = "",
    gpu: str = "",
    capacity: str = "",
    server: str = "",
    release: str = "",
    context: int = 0,
    slots: int = 1,
    kv: str = "",
) -> Fit:
    """What a server needs of a model, against the cards of a box or a card by its name.

    ``model`` is a file or folder, or a name from env/models; ``gpu`` a name such as ``4090`` or
    ``capacity`` its memory such as ``20GiB``, in place of the box; ``context`` tokens (0: none
    is asked for) over all ``slots`` of llama.cpp and ollama; ``kv`` the type of the cache.
    Without a GPU only the need is told. Raises ValueError or OSError in one line.
    """
    recorded = MODELS / model
    path = recorded if recorded.exists() else Path(model)
    if not path.exists():
        raise ValueError(
            f"model {model!r}: expected a file, a folder, or a name from env/models"
        )
    # The types of TurboQuant (turbo3) have a range of sizes, which element_bytes does not know.
    if kv and not kv.startswith("turbo"):
        try:
            element_bytes(kv.lower())
        except MissingFigure as missing:
            raise ValueError(f"kv: {missing.why}") from None
    check_count("slots", slots)
    check_count("context", context or None)
    facts = read_model(path)
    program = server or facts.program
    wanted: Mapping[str, object] = {
        "n_ctx": context,
        "n_parallel": slots,
        "kv_type": kv,
    }
    inputs = {
        **facts.inputs,
        **{name: value for name, value in wanted.items() if value},
    }
    if gpu or capacity:
        card = find_card(gpu, capacity)
        inputs.update(
            card_total_bytes=card.total_bytes,
            card_arch=card.arch if gpu else None,
            ceiling_words=card.name if gpu else card.words,
        )
    elif box and as_box(box).gpus:
        # How many cards have to give the same: vLLM and SGLang take the same of each, and the
        # freest one counts.
        alike = 1 if family_of(program) in ("vLLM", "SGLang") else 0
        inputs.update(cards_of(as_box(box).facts, alike))
    assumed = not server
    return Fit(
        replace(facts, program=program, version=release, inputs=inputs, assumed=assumed)
    )
