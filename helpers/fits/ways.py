"""The ways out where a model, or the context that was asked for, does not fit: single changes and
pairs of them. Each is computed as a sheet of its own, so that none is named that does not fit.

A change has a kind, such as cache or quantisation (LOSSES of changes.py has them in the order of
what they cost). What is wanted are the tokens that have to fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from helpers.fits.changes import LOSSES, SOLVED, OptionChange, changes_of, other_cards
from helpers.fits.contexts import Contexts, contexts_of
from helpers.fits.sheet import HIGH, LIKELY, Figure, Sheet
from helpers.fits.solving import holds
from helpers.fits.start import start_lines
from helpers.ground.units import show_bytes

MOST_CARDS = 3
"""Other cards that are named: enough to see where sizes begin that suffice."""
WORTH_IT = 1.1
"""A change is named that makes the context longer by at least a tenth, though it stays shorter than
the one that was asked for: our choice.
"""


@dataclass
class Way:
    """One or two changes with which the model fits. Its fields are part of an answer's JSON.

    - ``kind``, ``option``: those of the changes, with *and* between them; ``says``: what they do
    - ``context``: the tokens to start with; ``certain``: whether these certainly fit
    - ``total_bytes``: the sum of the rows, likely; ``most_bytes``: at most, None where the context
      is not certain; both are those of one of ``cards_alike``
    - ``start``: the lines to paste
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
    """What is to fit: the sheets by the ends of their ranges, the contexts, and the model's path."""

    sheets: Mapping[str, Sheet]
    contexts: Contexts
    path: str

    @property
    def wanted(self) -> int:
        """The tokens that have to fit: what was asked for, else the fewest that are of use."""
        return self.contexts.asked or self.contexts.least

    def changed(self, changes: Sequence[OptionChange]) -> dict[str, Sheet]:
        """The sheets by the ends of their ranges, with these changes and the context asked for."""
        inputs: dict[str, Figure | None] = {"n_ctx": self.contexts.asked}
        for change in changes:
            inputs.update(change.inputs)
        return {end: sheet.at(inputs) for end, sheet in self.sheets.items()}

    def way(self, changes: Sequence[OptionChange]) -> Way:
        """A way of these changes, with the context and the sizes that they lead to."""
        sheets = self.changed(changes)
        sheet = sheets[LIKELY]
        contexts = contexts_of(sheets)
        tokens = contexts.to_start_with
        is_certain = tokens <= contexts.certain
        most_bytes = None
        if is_certain:
            most_bytes = _total(sheets[HIGH], tokens)
        gaps: dict[str, object] = {}
        for change in changes:
            gaps.update(change.gaps)
        # The weights come first, then the options with which they are started.
        in_order = sorted(changes, key=lambda change: change.kind != "quantisation")
        return Way(
            kind=" and ".join(change.kind for change in in_order),
            option=" and ".join(change.option for change in in_order),
            says=", ".join(change.says for change in in_order),
            context=tokens,
            certain=is_certain,
            total_bytes=_total(sheet, tokens),
            most_bytes=most_bytes,
            cards_alike=sheet.cards_alike,
            start=start_lines(self.path, sheet, contexts, gaps),
        )


def ways_that_work(
    sheets: Mapping[str, Sheet], contexts: Contexts, path: str
) -> list[Way]:
    """The ways out, those on this card first; an empty list where what was asked for certainly
    fits, or where no card is given. Where it likely fits already, a way is one with which it
    certainly does.
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
    # The kinds card and cards, alone or in a pair, are not on this card.
    return sorted(ways, key=lambda way: "card" in way.kind)


def _total(sheet: Sheet, tokens: int) -> int:
    """The sum of all rows in bytes, with a context of so many tokens."""
    spare = sheet.at({"n_ctx": tokens}).value_or("spare", 0)
    return int(sheet.ceiling - spare)


def _alone_and_in_pairs(question: FitsQuestion) -> Iterator[tuple[OptionChange, ...]]:
    """The changes, alone and in pairs, with which what is wanted fits, those that lose least first.

    Of each kind, and of each pair of kinds, only the first one that suffices is named, and besides
    it the usual ones. A pair is left out where one of its changes suffices alone.
    """
    named_kinds = set[tuple[str, ...]]()
    sufficient_alone = set[str]()
    for changes in sorted(_singles_and_pairs(question), key=_loss):
        kinds = tuple(change.kind for change in changes)
        is_usual = any(change.usual for change in changes)
        if kinds in named_kinds and not is_usual:
            continue
        if not _suffices(question, changes):
            continue
        if sufficient_alone.isdisjoint(change.option for change in changes):
            named_kinds.add(kinds)
            yield changes
        if len(changes) == 1:
            sufficient_alone.add(changes[0].option)


def _singles_and_pairs(question: FitsQuestion) -> Iterator[tuple[OptionChange, ...]]:
    """Each change alone, and each pair of a change with another one that loses more.

    A change of SOLVED is never the first of a pair, as it goes as far as is needed by itself.
    Beside weights in RAM (host), which are slow, only the usual quantisation is tried.
    """
    sheet = question.changed(())[LIKELY]
    for first in changes_of(sheet, question.wanted):
        yield (first,)
        if first.kind in SOLVED:
            continue
        is_unusual = first.kind == "quantisation" and not first.usual
        for second in changes_of(sheet.at(first.inputs), question.wanted):
            loses_more = LOSSES.index(second.kind) > LOSSES.index(first.kind)
            is_left_out = is_unusual and second.kind == "host"
            if loses_more and not is_left_out:
                yield first, second


def _suffices(question: FitsQuestion, changes: Sequence[OptionChange]) -> bool:
    """Whether what is wanted fits with these changes: certainly, where it likely fits without them
    already; else it is enough that it likely does.
    """
    is_likely = question.contexts.likely >= question.wanted
    end = HIGH if is_likely else LIKELY
    return holds(question.changed(changes)[end], question.wanted)


def _on_other_cards(question: FitsQuestion) -> list[tuple[OptionChange]]:
    """The smallest cards of the table on which what is wanted fits without another change."""
    cards = []
    for change in other_cards():
        if _suffices(question, (change,)):
            cards.append((change,))
            if len(cards) == MOST_CARDS:
                break
    return cards


def _loss(changes: Sequence[OptionChange]) -> tuple[list[int], int]:
    """The sort key of changes by what they lose: first the places of their kinds in LOSSES, the
    worst kind before the other, then the sum of their levels, which is how far they go.
    """
    kinds = sorted((LOSSES.index(change.kind) for change in changes), reverse=True)
    return kinds, sum(change.level for change in changes)


def _with_a_shorter_context(question: FitsQuestion) -> Iterator[Way]:
    """The ways with a smaller cache, or smaller weights, that reach a context longer than now by
    WORTH_IT, but not the one that was asked for; at most one of either kind. Where what was asked
    for likely fits, there are none.
    """
    contexts = question.contexts
    if contexts.asked is None or contexts.asked <= contexts.likely:
        return
    none_asked = replace(contexts, asked=None)
    shorter = replace(question, contexts=none_asked)
    least = max(none_asked.least, WORTH_IT * none_asked.to_start_with)
    done = set[str]()
    for change in changes_of(question.changed(())[LIKELY], contexts.asked):
        if change.kind not in ("cache", "quantisation") or change.kind in done:
            continue
        if _suffices(question, (change,)):
            # With it the whole context fits, which is another way.
            done.add(change.kind)
            continue
        way = shorter.way((change,))
        if way.context is not None and way.context >= least:
            done.add(change.kind)
            kind = f"{way.kind} and context"
            yield replace(way, kind=kind, says=f"{way.says}, a shorter context")


def _parts_one_by_one(sheet: Sheet) -> Iterator[Way]:
    """The way for a pipeline of diffusers that is too large as a whole: its parts on the card one
    after the other, or its layers where the largest part is too large. Nothing where the whole
    fits.
    """
    largest = sheet.value("largest_part_bytes")
    spare = sheet.value("spare")
    if largest is None or spare is None or spare >= 0:
        return
    option = "pipe.enable_sequential_cpu_offload()"
    says = "each layer alone on the card: it fits, very slow"
    room = spare + sheet.weights
    if room >= largest:
        option = "pipe.enable_model_cpu_offload()"
        size = show_bytes(int(largest))
        says = f"one part at a time on the card, the largest {size}: it fits, slower"
    yield Way("host", option, says)
