"""What each process of a rehearsal held of each card, and what those that share a card need."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_CARDS = 16
HEAD = 1 + MOST_CARDS
ABOUT = 4
EACH = ABOUT + 2 * MOST_CARDS
"""How many numbers the file begins with, and each process has (holders in device.c)."""


@dataclass(frozen=True)
class RehearsedProcess:
    """A process: its number and its parent's, when it began and last took or gave back memory
    (nanoseconds), and the most bytes that it held of each card.
    """

    pid: int
    parent: int
    born: int
    last: int
    peaks: tuple[int, ...]


@dataclass(frozen=True)
class CardUse:
    """What a rehearsal held of one card: the most bytes of each process that was there when it was
    fullest, by its number, and what these need together.

    ``in_step``: one parent started them side by side, so that the sum is that of their peaks.
    """

    index: int
    peak_bytes: dict[int, int]
    sum_bytes: int
    in_step: bool = True


def holders_of(folder: Path) -> tuple[list[RehearsedProcess], list[int]]:
    """The processes that used a card, and the most bytes of each card that all held at one
    moment. Both are empty where none did.
    """
    path = folder / "holders"
    if not path.exists():
        return [], []
    numbers = array("Q", path.read_bytes())
    rows = [numbers[at : at + EACH] for at in range(HEAD, len(numbers), EACH)]
    holders = []
    for row in rows:
        pid, parent, born, last = row[:ABOUT]
        if pid:
            holders.append(
                RehearsedProcess(
                    pid, parent, born, last, tuple(row[ABOUT + MOST_CARDS :])
                )
            )
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
        peaks = {
            holder.pid: holder.peaks[index] for holder in counted if holder.peaks[index]
        }
        uses.append(CardUse(index, peaks, sum_bytes, in_step))
    return tuple(uses)


def _side_by_side(
    holders: Sequence[RehearsedProcess], index: int
) -> list[RehearsedProcess]:
    """The siblings that ran at the same time and whose peaks are the highest sum."""
    groups = []
    for newest in holders:
        group = [
            holder
            for holder in holders
            if holder.parent == newest.parent
            and holder.born <= newest.born <= holder.last
        ]
        groups.append(group)
    return max(groups, key=lambda group: sum(holder.peaks[index] for holder in group))
