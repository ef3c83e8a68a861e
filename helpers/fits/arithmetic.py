"""Arithmetic that the rules of several servers share."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import cast


def listed(figure: float | str | list[float]) -> list[float]:
    """A figure that is one number, or a number for each card, as a list."""
    if isinstance(figure, list):
        return figure
    return [cast(float, figure)]


def whole(figure: float | None) -> int | None:
    """A figure without its fraction; None, which is one that is not known, stays None."""
    if figure is None:
        return None
    return int(figure)


def up(size: float, step: float) -> float:
    """How many steps ``size`` takes, rounded up."""
    return -(-size // step)


def pad(size: float, step: float) -> float:
    """``size`` rounded up to a whole number of steps."""
    return up(size, step) * step


def longest(sizes: Sequence[float], cells: Sequence[float]) -> float:
    """The bytes of all caches that have the most cells, together. ``sizes`` (bytes) and ``cells``
    have a number for each cache, in the same order.
    """
    most = max(cells)
    return sum(size for size, count in zip(sizes, cells, strict=True) if count == most)


def layers_in(
    cards: Sequence[float],
    fixed: float,
    first: float,
    layer: float,
    last: float,
    count: float,
) -> float:
    """How many layers cards hold: up to ``count`` layers of ``layer`` bytes and, once those are all
    there, one last layer of ``last`` bytes (the output).

    ``cards`` are the bytes of each card. Each keeps ``fixed`` bytes for other things, the first one
    also ``first``. No layer is divided between cards.
    """
    rooms = [max(0, size - fixed) for size in cards]
    rooms[0] = max(0, cards[0] - fixed - first)
    layers_that_fit = sum(int(room // layer) for room in rooms)
    if layers_that_fit < count:
        return layers_that_fit
    # The last one goes where it displaces the fewest layers: those that fit a card without it, less
    # those that fit beside it.
    displaced = min(int(room // layer) - (room - last) // layer for room in rooms)
    if layers_that_fit - displaced < count:
        return count
    return count + 1


def fullest_card(
    cards: Sequence[float],
    shares: Sequence[float],
    fixed: float,
    layer: float,
    count: int,
    off: int,
) -> float:
    """The bytes that ``count`` layers of ``layer`` bytes leave on the card with the least room;
    below 0 where they do not fit. Cards without a layer do not count.

    ``cards`` are the bytes of each card, of which it keeps ``fixed`` for other things. The layers
    are dealt in their order: each card gets a run of them that is as long as its part of all
    ``shares``. Then each card is counted with ``off`` layers fewer (more, where ``off`` is below
    0).
    """
    # A layer's place from 0 to 1 is compared with where each card's run ends, from 0 to 1, too.
    ends = [share / sum(shares) for share in accumulate(shares)]
    layers_on: Counter[int] = Counter()
    for number in range(count):
        layers_on[bisect_right(ends[:-1], number / count)] += 1
    rooms = []
    for card, layers in layers_on.items():
        taken = fixed + max(0, layers - off) * layer
        rooms.append(cards[card] - taken)
    return min(rooms)
