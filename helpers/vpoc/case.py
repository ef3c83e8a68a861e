"""The case study of the volume profiles: what its own numbers come to, and what it expected."""

from __future__ import annotations

from typing import NamedTuple

from helpers.ground.units import show_bytes
from helpers.vpoc.answer import best_strategy
from helpers.vpoc.free import Free
from helpers.vpoc.measure import measure
from helpers.vpoc.planner import BOUNDS, NoRoomError, plan, shape_of
from helpers.vpoc.store import Store

SESSIONS = 1014
BINS = 1000
"""Its trading days, and the prices of each."""
BARS = 1380
"""One-minute bars of a Globex session."""
MOST_BYTES = 18 * 10**9
LEAST_SHARE = 0.75
MOST_SHARE = 0.85
MOST_S = 120
"""What it expects: a peak below 18 GB, 75 to 85 % of the card, at most 120 seconds."""


class Sum(NamedTuple):
    """A claim of the case, the sum of its own numbers that answers it, and the result."""

    claim: str
    computed: str
    value: float
    unit: str


def case_arithmetic() -> list[Sum]:
    """What the case study's own numbers come to."""
    result = SESSIONS * BINS * 4
    cells = SESSIONS * BARS * BINS
    bug = "a bug of ROCm fills the card"
    one_hot = "one-minute bars: one_hot x float volume"
    blocks = "volume histograms need large contiguous blocks"
    return [
        Sum(blocks, "sessions x bins x 4 bytes", result / 1e6, "MB"),
        Sum("the pool needs 10 to 15 GB", "of 10 GB that matrix is", 100 * result / 1e10, "%"),
        Sum("chunk_size=50 is 20 % of the sessions", "50 of them are", 5000 / SESSIONS, "%"),
        Sum(bug, f"{one_hot}, 12 bytes a cell", cells * 12 / 1e9, "GB"),
        Sum(bug, "the same with a float copy, 16 bytes", cells * 16 / 1e9, "GB"),
    ]


class Expectation(NamedTuple):
    """What the case expects, what comes of it here, how that is known, and the state."""

    expected: str
    seen: str | None
    known: str | None
    state: str | None


def expectations(store: Store, free: Free) -> list[Expectation]:
    """What the case expects of its profiles, and what comes of it.

    The plan is for the box's memory; its chunk is measured on this machine's CPU.
    """
    shape = shape_of(store.trades, store.layout)
    trades = f"{shape.trades:,} trades"
    is_alike = (shape.sessions, shape.bins) == (SESSIONS, BINS)
    rows = [
        Expectation(
            f"{SESSIONS:,} sessions of {BINS:,} prices",
            f"{shape.sessions:,} of {shape.bins:,}, {trades}",
            "the trades above",
            "as in the case" if is_alike else "another size",
        )
    ]
    try:
        chosen = plan(best_strategy(free), shape, free)
    except NoRoomError as error:
        return [*rows, Expectation("which chunk", None, str(error), "not met")]
    take = f"{chosen.strategy}: {chosen.take}"
    rows.append(Expectation("which chunk", take, BOUNDS[chosen.bound], None))
    peak = shape.trades * shape.bytes_a_trade + chosen.peak_bytes
    model = "closed form, its trades included"
    rows.append(Expectation("below 18 GB", show_bytes(peak), model, _state(peak < MOST_BYTES)))
    rows.append(_share_of_card(peak, free, model))
    here = "measured on this machine's CPU"
    measured = measure(chosen.strategy, store, chunk_trades=chosen.chunk_trades, repeats=3)
    best_s = measured.best_s
    if not best_s or measured.peak_bytes is None:
        why = f"not measured because {measured.why or measured.status}"
        return [*rows, Expectation(f"at most {MOST_S} s", None, None, why)]
    longest = MOST_S * shape.trades / shape.sessions / best_s / 1e6
    line = f"extrapolated in a straight line from {trades}"
    return [
        *rows,
        Expectation(f"at most {MOST_S} s", f"{best_s:.2g} s", here, _state(best_s <= MOST_S)),
        Expectation("its peak beyond the trades", show_bytes(measured.peak_bytes), here, None),
        Expectation(
            f"{MOST_S} s would do for", f"{longest:,.1f} million trades a session", line, None
        ),
    ]


def _state(is_met: bool) -> str:
    return "met" if is_met else "not met"


def _share_of_card(peak: int, free: Free, model: str) -> Expectation:
    expected = "75 to 85 % of the card"
    if not free.card_bytes:
        why = "not measured because this box tells the size of no card"
        return Expectation(expected, None, None, why)
    share = peak / free.card_bytes
    known = f"{model}, of {show_bytes(free.card_bytes)}"
    state = "less is needed" if share < LEAST_SHARE else _state(share <= MOST_SHARE)
    return Expectation(expected, f"{share:.1%}", known, state)
