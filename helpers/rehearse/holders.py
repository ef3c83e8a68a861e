"""What each process of a rehearsal held of each card, and what those that share a card need."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# The file that all processes of a rehearsal write (struct holders in device.c) has numbers of 64
# bits: how many processes there were, and the most bytes of each card that all held together; then
# for each process what ABOUT counts, what it holds of each card now, and the most that it held of
# each.
MOST_CARDS = 16
HEAD = 1 + MOST_CARDS
ABOUT = 4
"""Its number, its parent's, when it began, and when it last took or gave back memory."""
EACH = ABOUT + 2 * MOST_CARDS


@dataclass(frozen=True)
class RehearsedProcess:
    """A process. ``parent``: the number of the one that started it; ``born``, ``last``: when it
    began, and when it last took or gave back memory (nanoseconds); ``peaks``: the most bytes that
    it held of each card.
    """

    pid: int
    parent: int
    born: int
    last: int
    peaks: tuple[int, ...]


@dataclass(frozen=True)
class CardUse:
    """What a rehearsal held of the card ``index``.

    ``peak_bytes``: the most that each process held that counts, by the number of the process;
    ``sum_bytes``: what these need together; ``in_step``: they are taken to reach their peaks at the
    same time, so that ``sum_bytes`` is the sum of the peaks.
    """

    index: int
    peak_bytes: dict[int, int]
    sum_bytes: int
    in_step: bool = True


def holders_of(folder: Path) -> tuple[list[RehearsedProcess], list[int]]:
    """The processes of the record in ``folder`` that used a card, and for each card the most bytes
    that all held at one moment. Both are empty where no process used one.
    """
    path = folder / "holders"
    if not path.exists():
        return [], []
    numbers = array("Q", path.read_bytes())
    rows = [numbers[at : at + EACH] for at in range(HEAD, len(numbers), EACH)]
    holders = []
    for row in rows:
        pid, parent, born, last = row[:ABOUT]
        peaks = tuple(row[ABOUT + MOST_CARDS :])
        if pid:  # else the row was not used
            holders.append(RehearsedProcess(pid, parent, born, last, peaks))
    return holders, list(numbers[1:HEAD])


def uses_of_cards(folder: Path, cards: int) -> tuple[CardUse, ...]:
    """What was held of each of so many cards.

    Processes that one parent started and that ran at the same time, such as the ranks of a job,
    count with the sum of their peaks: on a real card they reach them in step. Where all processes
    together held more at one moment, that counts.
    """
    holders, together = holders_of(folder)
    if not holders:
        return ()
    uses = []
    for index in range(cards):
        counted = _side_by_side(holders, index)
        sum_bytes = sum(holder.peaks[index] for holder in counted)
        in_step = together[index] <= sum_bytes
        if not in_step:
            counted = holders
            sum_bytes = together[index]
        peaks = {holder.pid: holder.peaks[index] for holder in counted}
        held = {pid: peak for pid, peak in peaks.items() if peak}
        uses.append(CardUse(index, held, sum_bytes, in_step))
    return tuple(uses)


def _side_by_side(
    holders: Sequence[RehearsedProcess], index: int
) -> list[RehearsedProcess]:
    """The processes of one parent that ran at the same time; of several such groups the one whose
    peaks on the card ``index`` have the highest sum.
    """
    groups = []
    for newest in holders:
        siblings = [row for row in holders if row.parent == newest.parent]
        # Those that ran at the moment when ``newest`` began.
        group = [row for row in siblings if row.born <= newest.born <= row.last]
        groups.append(group)
    return max(groups, key=lambda group: sum(holder.peaks[index] for holder in group))
