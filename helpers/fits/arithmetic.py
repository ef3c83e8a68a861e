"""Sums that the rules of several servers share."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import cast


def listed(figure: float | str | list[float]) -> list[float]:
    """One number or one for each card, as a list."""
    if isinstance(figure, list):
        return figure
    return [cast(float, figure)]


def whole(figure: float | None) -> int | None:
    """A figure without its fraction, None where it is not known."""
    return None if figure is None else int(figure)


def up(size: float, step: float) -> float:
    """``size`` in whole steps, rounded up."""
    return -(-size // step)


def pad(size: float, step: float) -> float:
    """``size`` rounded up to a whole number of steps."""
    return up(size, step) * step


def longest(sizes: Sequence[float], cells: Sequence[float]) -> float:
    """The sizes of those caches that have most cells, added up."""
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
    """How many of ``count`` layers of a size, and of a last one, cards hold beside what is
    fixed on each and on the first.
    """
    rooms = [max(0, size - fixed) for size in cards]
    rooms[0] = max(0, cards[0] - fixed - first)
    layers_that_fit = sum(int(room // layer) for room in rooms)
    if layers_that_fit < count:
        return layers_that_fit
    lost = min(int(room // layer) - (room - last) // layer for room in rooms)
    return count + 1 if layers_that_fit - lost >= count else count


def fullest_card(
    cards: Sequence[float],
    shares: Sequence[float],
    fixed: float,
    layer: float,
    count: int,
    off: int,
) -> float:
    """What layers of a size leave on the fullest card, were its count ``off`` less.

    A layer goes to the first card whose share, added up, passes the layer's place among all.
    """
    ends = [share / sum(shares) for share in accumulate(shares)]
    layers_of_card = Counter(
        bisect_right(ends[:-1], number / count) for number in range(count)
    )
    return min(
        cards[at] - fixed - max(0, layers - off) * layer
        for at, layers in layers_of_card.items()
    )
