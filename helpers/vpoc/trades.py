"""Trades of many sessions: prices as whole numbers of ticks, beside their volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class TradesError(ValueError):
    """Trades or a tick cannot be used; one line says what was seen, what was expected and what to
    do.
    """


@dataclass(frozen=True, eq=False)
class Trades:
    """Trades in memory or mapped from a file. Session i has the trades ``starts[i]:starts[i + 1]``.

    ``price``: int32 numbers of ticks of size ``tick``. ``volume``: int32, int64 or (with fractions)
    float64. ``labels``: the sessions' names. ``notes``: what was guessed, converted or left out, a
    sentence each.
    """

    price: Array
    volume: Array
    starts: Array
    tick: float
    labels: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.price)

    @property
    def sessions(self) -> int:
        """The number of sessions."""
        return len(self.starts) - 1

    def in_memory(self, trades: int | None = None) -> Trades:
        """A copy in memory of the first so many trades, or of all."""
        price = np.array(self.price[:trades])
        volume = np.array(self.volume[:trades])
        starts = np.minimum(self.starts, len(price))  # sessions beyond these are empty
        return replace(self, price=price, volume=volume, starts=starts)


def from_sessions(sessions: Sequence[tuple[Array, Array]], tick: float) -> Trades:
    """Trades of sessions, each a pair of arrays: its prices in ticks, and its volumes."""
    lengths = [len(price) for price, _ in sessions]
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    price = np.zeros(0, np.int32)
    volume = np.zeros(0, np.int32)
    if sessions:
        price = np.concatenate([price for price, _ in sessions])
        volume = np.concatenate([volume for _, volume in sessions])
    labels = tuple(map(str, range(len(sessions))))
    return Trades(price, volume, starts, tick, labels)


def generated(sessions: int = 1014, trades: int = 20_000, seed: int = 0) -> Trades:
    """Generated trades with a tick of 0.25: 19 of 20 have the price of the one before.

    ``trades`` is the number in each session. The same arguments give the same trades.
    """
    rng = np.random.default_rng(seed)
    # Six in a thousand of the moves go two ticks, as in a thin order book.
    steps = np.arange(-2, 3, dtype=np.int8)
    odds = [0.00015, 0.02485, 0.95, 0.02485, 0.00015]
    walks = []
    for _ in range(sessions):
        moves = rng.choice(steps, trades, p=odds)
        # From 1,500 to 1,600 points, each session elsewhere.
        first_price = np.int32(6000 + rng.integers(0, 400))
        price = np.cumsum(moves, dtype=np.int32) + first_price
        # Mostly one contract, 3.7 in the mean.
        volume = rng.geometric(0.27, trades).astype(np.int32)
        walks.append((price, volume))
    return from_sessions(walks, 0.25)
