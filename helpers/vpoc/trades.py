"""Trades of many sessions: prices as whole numbers of ticks, beside their volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class TradesError(ValueError):
    """Trades or a tick that cannot be used: one line with what was seen, expected, and to do."""


@dataclass(frozen=True, eq=False)
class Trades:
    """Trades in memory or mapped from a file. Session i is ``starts[i]:starts[i + 1]``.

    ``price`` is int32 ticks of ``tick``; ``volume`` is int32, int64 or (with fractions)
    float64. ``labels`` name the sessions; ``notes`` say what was guessed, promoted or left out,
    one sentence each.
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
        return len(self.starts) - 1

    def in_memory(self, trades: int | None = None) -> Trades:
        """Copies of the first so many trades, or of all, whatever file they are mapped from."""
        price = np.array(self.price[:trades])
        volume = np.array(self.volume[:trades])
        return replace(
            self, price=price, volume=volume, starts=np.minimum(self.starts, len(price))
        )


def from_sessions(sessions: Sequence[tuple[Array, Array]], tick: float) -> Trades:
    """Trades from one (price, volume) pair of arrays a session."""
    empty = np.zeros(0, np.int32)
    starts = np.cumsum([0, *(len(price) for price, _ in sessions)], dtype=np.int64)
    price = np.concatenate([empty, *(price for price, _ in sessions)])
    volume = np.concatenate([volume for _, volume in sessions] or [empty])
    labels = tuple(map(str, range(len(sessions))))
    return Trades(price, volume, starts, tick, labels)


def generated(sessions: int = 1014, trades: int = 20_000, seed: int = 0) -> Trades:
    """A seeded walk on a grid of 0.25: 19 of 20 trades print at the price of the one before.

    ``trades`` is the number in each session. The same arguments give the same trades.
    """
    rng = np.random.default_rng(seed)
    # Six in a thousand of the moves go two ticks, as through a thin book.
    steps = np.arange(-2, 3, dtype=np.int8)
    odds = [0.00015, 0.02485, 0.95, 0.02485, 0.00015]
    walks = []
    for _ in range(sessions):
        moves = rng.choice(steps, trades, p=odds)
        price = np.cumsum(moves, dtype=np.int32) + np.int32(6000 + rng.integers(0, 400))
        walks.append((price, rng.geometric(0.27, trades).astype(np.int32)))
    return from_sessions(walks, 0.25)
