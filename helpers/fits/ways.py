"""What would work where a model, or the context that was asked for, does not fit: changes alone and
two at once, each computed anew, so that none is named that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from helpers.fits.changes import LOSSES, SOLVED, OptionChange, changes_of, other_cards
from helpers.fits.contexts import Contexts, contexts_of
from helpers.fits.sheet import HIGH, LIKELY, Figure, Sheet
from helpers.fits.solving import holds
from helpers.fits.start import start_lines
from helpers.ground.units import show_bytes

CARDS = 3
"""Other cards that are named."""
WORTH_IT = 1.1
"""How many times as long a context must be that is still shorter than the one asked for."""


@dataclass
class Way:
    """Changes with which it fits: their ``kind``, the ``option`` to give, what they do (``says``),
    the ``context`` to start with, and whether that is ``certain``, what all rows likely come to then
    (``total_bytes``) and at most (``most_bytes``, None where it is not certain) on each of
    ``cards_alike``, and the lines to paste (``start``).
    """

    kind: str
    option: str
    says: str
    context: int | None = None
    certain: bool = False
    total_bytes: int | None = None
    most_bytes: int | None = None
    cards_alike: int = 1
    start: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FitsQuestion:
    """What is asked: the sheets at the ends of their ranges, the contexts, and the model's path."""

    sheets: Mapping[str, Sheet]
    contexts: Contexts
    path: str

    @property
    def wanted(self) -> int:
        """The tokens that have to fit."""
        return self.contexts.asked or self.contexts.least

    def changed(self, changes: Sequence[OptionChange]) -> dict[str, Sheet]:
        """The sheets with changes."""
        inputs: dict[str, Figure | None] = {"n_ctx": self.contexts.asked}
        for change in changes:
            inputs.update(change.inputs)
        return {end: sheet.at(inputs) for end, sheet in self.sheets.items()}

    def way(self, changes: Sequence[OptionChange]) -> Way:
        """The changes as a way, with what results."""
        sheets = self.changed(changes)
        sheet = sheets[LIKELY]
        contexts = contexts_of(sheets)
        tokens = contexts.to_start_with
        is_certain = tokens <= contexts.certain
        gaps: dict[str, object] = {}
        for change in changes:
            gaps.update(change.gaps)
        # the weights first, then the options that they are started with
        named = sorted(changes, key=lambda change: change.kind != "quantisation")
        return Way(
            kind=" and ".join(change.kind for change in named),
            option=" and ".join(change.option for change in named),
            says=", ".join(change.says for change in named),
            context=tokens,
            certain=is_certain,
            total_bytes=_total(sheet, tokens),
            most_bytes=_total(sheets[HIGH], tokens) if is_certain else None,
            cards_alike=sheet.cards_alike,
            start=start_lines(self.path, sheet, contexts, gaps),
        )


def ways_that_work(
    sheets: Mapping[str, Sheet], contexts: Contexts, path: str
) -> list[Way]:
    """The ways, on this card first; none where what was asked for certainly fits, or no card is
    given. Where it likely fits, they are those with which it certainly does.
    """
    sheet = sheets[LIKELY]
    if sheet.family == "Diffusers":
        return list(_parts_one_by_one(sheet))
    question = FitsQuestion(sheets, contexts, path)
    is_certain = contexts.certain >= question.wanted
    if contexts.longest is None or is_certain or not sheet.has("ceiling"):
        return []
    ways = [question.way(changes) for changes in _alone_and_in_pairs(question)]
    ways += _with_a_shorter_context(question)
    ways += map(question.way, _on_other_cards(question))
    # on this card first: "card" is in the kinds card and cards, alone or in a pair
    return sorted(ways, key=lambda way: "card" in way.kind)


def _total(sheet: Sheet, tokens: int) -> int:
    """What all rows come to with a context of so many tokens."""
    spare = sheet.at({"n_ctx": tokens}).value_or("spare", 0)
    return int(sheet.ceiling - spare)


def _alone_and_in_pairs(question: FitsQuestion) -> Iterator[tuple[OptionChange, ...]]:
    """Sets of one or two changes with which what is wanted fits. Of each kind, or pair of kinds, it
    is the set that loses least, and the usual one; no pair has a change that suffices alone.
    """
    taken = set[tuple[str, ...]]()
    alone = set[str]()
    for changes in sorted(_sets(question), key=_loss):
        kinds = tuple(change.kind for change in changes)
        is_usual = any(change.usual for change in changes)
        if (kinds in taken and not is_usual) or not _suffices(question, changes):
            continue
        if alone.isdisjoint(change.option for change in changes):
            taken.add(kinds)
            yield changes
        if len(changes) == 1:
            alone.add(changes[0].option)


def _sets(question: FitsQuestion) -> Iterator[tuple[OptionChange, ...]]:
    """Each change, and each with one that loses more; beside quantised weights in RAM or on several
    cards only the usual ones, as those are taken for speed.
    """
    sheet = question.changed(())[LIKELY]
    for first in changes_of(sheet, question.wanted):
        yield (first,)
        if first.kind in SOLVED:
            continue
        for second in changes_of(sheet.at(first.inputs), question.wanted):
            is_further = LOSSES.index(second.kind) > LOSSES.index(first.kind)
            is_slow = (
                first.kind == "quantisation"
                and second.kind == "host"
                and not first.usual
            )
            if is_further and not is_slow:
                yield first, second


def _suffices(question: FitsQuestion, changes: Sequence[OptionChange]) -> bool:
    """Whether what is wanted fits with changes: certainly where it likely does without."""
    is_likely = question.contexts.likely >= question.wanted
    end = HIGH if is_likely else LIKELY
    return holds(question.changed(changes)[end], question.wanted)


def _on_other_cards(question: FitsQuestion) -> list[tuple[OptionChange]]:
    """The smallest cards of the table that it fits on alone."""
    fitting = ((change,) for change in other_cards() if _suffices(question, (change,)))
    return list(islice(fitting, CARDS))


def _loss(changes: Sequence[OptionChange]) -> tuple[list[int], int]:
    """What is lost by changes, to sort by: the worst kind first, and how far each goes."""
    kinds = sorted((LOSSES.index(change.kind) for change in changes), reverse=True)
    return kinds, sum(change.level for change in changes)


def _with_a_shorter_context(question: FitsQuestion) -> Iterator[Way]:
    """What a smaller cache, or smaller weights, bring of a context that was asked for and is not
    reached with them alone.
    """
    contexts = question.contexts
    if contexts.asked is None or contexts.asked <= contexts.likely:
        return
    without = replace(contexts, asked=None)
    shorter = replace(question, contexts=without)
    least = max(without.least, WORTH_IT * without.to_start_with)
    named = set[str]()
    for change in changes_of(question.changed(())[LIKELY], contexts.asked):
        if change.kind not in ("cache", "quantisation") or change.kind in named:
            continue
        way = shorter.way((change,))
        if _suffices(question, (change,)):
            named.add(change.kind)  # the whole context is a way
        elif way.context is not None and way.context >= least:
            named.add(change.kind)
            kind = f"{way.kind} and context"
            yield replace(way, kind=kind, says=f"{way.says}, a shorter context")


def _parts_one_by_one(sheet: Sheet) -> Iterator[Way]:
    """The parts of a pipeline on the card in turn, where all at once are too much."""
    largest = sheet.value("largest_part_bytes")
    spare = sheet.value("spare")
    if largest is None or spare is None or spare >= 0:
        return
    option = "pipe.enable_sequential_cpu_offload()"
    says = "each layer alone on the card: it fits, very slow"
    if spare + sheet.weights >= largest:
        option = "pipe.enable_model_cpu_offload()"
        size = show_bytes(int(largest))
        says = f"one part at a time on the card, the largest {size}: it fits, slower"
    yield Way("host", option, says)
