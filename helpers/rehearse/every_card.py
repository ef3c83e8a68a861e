"""Which cards of the table a program fits. Each answer comes from a rehearsal on a card of the same
capability.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from helpers.look.cards import CONTEXT_IN_WORDS, GpuCard, cards
from helpers.rehearse.rehearsal import STOPPED, Rehearsal
from helpers.rehearse.search import SearchError
from helpers.tell.shown import Shown
from helpers.tell.values import Column


@dataclass(frozen=True)
class Fitting:
    """A card on which a program fits. ``name``: its key in the table of cards; ``rehearsal``: on
    it, or on a larger card of the same capability whose reserved peak this one can hold.
    """

    name: str
    card: GpuCard
    rehearsal: Rehearsal

    @property
    def left_bytes(self) -> int:
        """What the card has left at the peak, with the most that workspaces may take."""
        return replace(self.rehearsal, device=self.card).left_bytes


def cards_that_fit(
    run: Callable[[GpuCard], Rehearsal], held_bytes: int = 0
) -> list[Fitting]:
    """The cards of the table on which a program fits, the smallest first. ``run`` rehearses it on a
    card.

    ``held_bytes``: what others hold of each card. Raises SearchError where the program fails for
    another reason than memory.
    """
    by_capability: dict[int, list[tuple[str, GpuCard]]] = defaultdict(list)
    for name, card in cards().items():
        if card.total_bytes > held_bytes:
            shared = replace(card, held_bytes=held_bytes)
            by_capability[card.capability].append((name, shared))
    fitting: list[Fitting] = []
    for group in by_capability.values():
        group.sort(key=lambda pair: pair[1].total_bytes, reverse=True)
        fitting += _fitting(group, run)
    return sorted(fitting, key=lambda row: (row.card.total_bytes, row.name))


def _fitting(
    group: Sequence[tuple[str, GpuCard]], run: Callable[[GpuCard], Rehearsal]
) -> list[Fitting]:
    """The cards on which a program fits, of a ``group`` of one capability, the largest first.

    Where a card has as much as the program reserved on a larger one, no rehearsal is needed:
    torch's allocator gets the same requests and answers the same.
    """
    fitting: list[Fitting] = []
    last: Rehearsal | None = None
    for name, card in group:
        usable_bytes = card.total_bytes - card.held_bytes
        if last is None or last.most_reserved_bytes > usable_bytes:
            if last is not None and last.allocated_bytes > usable_bytes:
                break  # no allocator could fit that into this card, nor into a smaller one
            last = run(card)
            if last.exit_code == STOPPED:  # somebody wants the whole search to end
                raise SearchError(
                    f"SIGTERM ended it on {card.name}; the other cards were not tried"
                )
            if last.failed_otherwise:
                why = f"it ended with {last.exit_code}"
                if last.error:
                    why = last.error
                raise SearchError(f"on {card.name} the program failed: {why}")
            if not last.fits:  # the cards that follow are smaller
                break
        fitting.append(Fitting(name, card, last))
    return fitting


def fitting_table(rows: Sequence[Fitting]) -> Shown:
    """The cards, one a line, with what is left of each."""
    sizes = [Column(name, "bytes") for name in ("memory", "peak reserved", "left")]
    header = ["name", "card", *sizes]
    lines = [
        [
            row.name,
            row.card.name,
            row.card.total_bytes,
            row.rehearsal.peak_reserved_bytes,
            row.left_bytes,
        ]
        for row in rows
    ]
    rehearsed = dict.fromkeys(row.rehearsal.device.name for row in rows)
    notes = [
        f"Rehearsed on {', '.join(rehearsed)}; other cards have the capability of one of them."
    ]
    if any(not row.card.held_bytes for row in rows):
        notes.append(
            f"Not counted: the GPU context ({CONTEXT_IN_WORDS}); --held 600MiB counts it."
        )
    return Shown("", header, lines, notes=notes, widest=None)
