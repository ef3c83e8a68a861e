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
"""The word in a table for each value of ``Fit.fits``."""


class Fit(Result):
    """The memory that a server needs for a model, compared with the memory of a card.

    ``answer`` has the rows, the sum and the solved figures as data; sizes are bytes.
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
        """Whether the model fits; None where that cannot be told."""
        return self.answer.fits

    @property
    def longest_context(self) -> int | None:
        """The longest context to ask for, in tokens; None where it cannot be told."""
        return self.answer.contexts.longest_to_ask_for

    @property
    def start(self) -> str:
        """The line that starts the server with these inputs; empty where the model does not fit, or
        its file is incomplete.
        """
        return "\n".join(self.answer.start)

    @property
    def ways(self) -> Shown:
        """Changes with which a model or context fits that does not fit now, the smallest first."""
        return view.ways_table(self.answer)

    @property
    def words(self) -> str:
        """The server, the solved figures (such as the longest context), and the notes,
        a line each.
        """
        lines = [view.server_line(self.answer), *view.solved_lines(self.answer)]
        return "\n".join([*lines, *self.answer.notes])

    def at(self, **inputs: object) -> Fit:
        """The same with other inputs, such as ``n_ctx``, ``n_parallel`` or ``kv_type``."""
        changed = {**self.given.inputs, **inputs}
        return Fit(replace(self.given, inputs=changed))

    def contexts(self, tokens: Sequence[int], slots: Sequence[int]) -> Shown:
        """A map of what fits: tokens of each request against the requests at once."""
        rows: list[list[object]] = []
        for count in slots:
            row: list[object] = [count]
            for size in tokens:
                # n_ctx is the sum over all slots.
                fit = self.at(n_ctx=size * count, n_parallel=count)
                row.append(YES_OR_NO[fit.fits])
            rows.append(row)
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
    """The memory that a server needs for a model, compared with the cards of a box or with one
    card.

    ``model`` is a file or folder, or a name from env/models. The card is ``gpu`` by its name such
    as ``4090``, or has ``capacity`` such as ``20GiB``; else the cards are those of ``box``. Without
    any of them only the need is computed. ``server`` is by default that of the model's file, and
    ``release`` is the server's. ``context`` is in tokens (0: as the model's file says), for
    llama.cpp and ollama over all ``slots``; ``kv`` is the type of the cache. Raises ValueError or
    OSError in one line.
    """
    path = _path_of(model)
    inputs: dict[str, object] = {"n_parallel": slots}
    check_count("slots", slots)
    if context:
        check_count("context", context)
        inputs["n_ctx"] = context
    if kv:
        _refuse_unknown_type(kv)
        inputs["kv_type"] = kv
    facts = read_model(path)
    inputs = {**facts.inputs, **inputs}
    program = facts.program
    if server:
        program = server
    if gpu or capacity:
        inputs.update(_inputs_of_card(gpu, capacity))
    elif box and as_box(box).gpus:
        # A box without a GPU gives no card: only the need is computed, as without a box.
        # vLLM and SGLang run on one card here, the freest; other servers use all cards (0).
        alike = 0
        if family_of(program) in ("vLLM", "SGLang"):
            alike = 1
        inputs.update(cards_of(as_box(box).facts, alike))
    facts = replace(facts, program=program, version=release, inputs=inputs)
    return Fit(replace(facts, assumed=not server))


def _path_of(model: str) -> Path:
    """The file or folder of a model. Raises ValueError where there is none."""
    for path in (MODELS / model, Path(model)):
        if path.exists():
            return path
    raise ValueError(
        f"model {model!r}: expected a file, a folder, or a name from env/models"
    )


def _refuse_unknown_type(kv: str) -> None:
    """Raises ValueError for a type of the cache whose size is not known."""
    # The types of TurboQuant (turbo3) have a range of sizes, which element_bytes does not know.
    if kv.startswith("turbo"):
        return
    try:
        element_bytes(kv.lower())
    except MissingFigure as missing:
        raise ValueError(f"kv: {missing.why}") from None


def _inputs_of_card(gpu: str, capacity: str) -> dict[str, object]:
    """The inputs that a card gives; of a size alone neither name nor chip is known."""
    card = find_card(gpu, capacity)
    inputs: dict[str, object] = {"card_total_bytes": card.total_bytes}
    if gpu:
        return {**inputs, "card_arch": card.arch, "ceiling_words": card.name}
    return {**inputs, "card_arch": None, "ceiling_words": card.words}
