"""The smallest card that a program finishes on, and the largest batch that a card takes.

Each answer is a pair of rehearsals, one that finished and one that did not; the model of the
allocator only says where to look first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from helpers.allocator.capacity import Runs, prepared, smallest
from helpers.allocator.circumstances import AMPLE_BYTES
from helpers.allocator.driver import GRANULE_BYTES, Card, round_up
from helpers.allocator.trace_file import read_trace
from helpers.ground.units import halved
from helpers.rehearse.rehearsal import STOPPED, Rehearsal

LARGEST = 1 << 20
"""Of an argument; beyond it nothing is proved by more doubling."""


class SearchError(ValueError):
    """Nothing can be searched: one line with what was seen, what was expected and what to do."""


@dataclass
class ValueSearch:
    """Runs of a program with a value, each value once, in order. ``run`` takes it.

    ``best`` is the last value that finished, ``beyond`` the first that ran out, or None.
    """

    run: Callable[[int], Rehearsal]
    done: dict[int, Rehearsal] = field(default_factory=dict)
    best: int | None = None
    beyond: int | None = None

    def fits(self, value: int) -> bool:
        """Whether it finished with that value.

        Raises SearchError where it failed, and not for want of memory.
        """
        if value not in self.done:
            self.done[value] = self.run(value)
        rehearsal = self.done[value]
        if rehearsal.exit_code == STOPPED or rehearsal.failed_otherwise:
            ended = f"ended with {rehearsal.exit_code} without running out of memory"
            why = rehearsal.error or "no error was seen"
            expected = "expected one that runs; try it by itself first"
            raise SearchError(f"with {value:,} the program {ended}: {why}; {expected}")
        return rehearsal.fits

    def between(self, fails: int, passes: int, step: int) -> ValueSearch:
        """Halve the gap between a value that fails and one that passes, whichever is larger.

        Ends where they are ``step`` apart.
        """
        passes, self.beyond = halved(self.fits, passes, fails, step)
        self.best = passes or None
        return self


def find_capacity(run: Callable[[int], Rehearsal], held_bytes: int = 0) -> ValueSearch:
    """The smallest card, to 2 MiB: where the model of the allocator puts it, else by halving.

    ``run`` takes a card's bytes.
    """
    search = ValueSearch(run)
    if not search.fits(AMPLE_BYTES):
        search.beyond = AMPLE_BYTES
        return search
    ample = search.done[AMPLE_BYTES]
    if not ample.peak_reserved_bytes:
        raise SearchError(
            "the program reserved nothing on the GPU; expected one that uses cuda"
        )
    high = round_up(ample.peak_reserved_bytes, GRANULE_BYTES) + held_bytes
    low = held_bytes
    guess = _modelled(ample, held_bytes)
    for size in (guess, guess - GRANULE_BYTES):
        if not low < size <= high:
            continue
        if search.fits(size):
            high = size
        else:
            low = size
    if not search.fits(high):
        # A program that looks at free memory may want more on a small card.
        low = high
        high = 2 * high
    return search.between(low, high, GRANULE_BYTES)


def _modelled(ample: Rehearsal, held_bytes: int) -> int:
    """Where a replay of its trace puts the smallest card; 0 where it cannot say."""
    if ample.trace is None:
        return 0
    try:
        card = Card(AMPLE_BYTES, held_bytes, "topdown")
        stream, _, _ = prepared(read_trace(ample.trace), card, anew=True)
        return smallest(Runs(stream, card, ample.torch), ample.conf)
    except ValueError:
        return 0  # an unknown release, or a trace that was cut at its start


def find_batch(run: Callable[[int], Rehearsal], start: int) -> ValueSearch:
    """The largest value of an argument with which the program finishes.

    It is doubled until the program runs out, then the gap is halved.
    """
    search = ValueSearch(run)
    low = 0
    high = start
    while search.fits(high):
        low = high
        high = 2 * high
        if high > LARGEST:
            search.best = low
            return search
    return search.between(high, low, 1)


def with_argument(command: Sequence[str], argument: str, value: int | str) -> list[str]:
    """The command with that value after ``argument``, with or without its dashes.

    Raises SearchError where it is not there.
    """
    at, before, _ = _place(command, argument)
    return [*command[:at], f"{before}{value}", *command[at + 1 :]]


def start_of(command: Sequence[str], argument: str) -> int:
    """The value that the command gives the argument.

    Raises SearchError where it is no whole number above 0.
    """
    text = _place(command, argument)[2]
    if not text.isdigit() or int(text) < 1:
        raise SearchError(
            f"--find-batch {argument} {text!r}: expected a whole number above 0"
        )
    return int(text)


def _place(command: Sequence[str], argument: str) -> tuple[int, str, str]:
    """Which word has the argument's value, what stands before it in that word (``--name=`` or
    nothing), and the value.
    """
    plain = argument.lstrip("-")
    for at, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name.lstrip("-") == plain and equals:
            return at, name + equals, value
        if name.lstrip("-") == plain and word.startswith("-") and at + 1 < len(command):
            return at + 1, "", command[at + 1]
    expected = f"expected it there with a value to start from, such as --{plain} 8"
    raise SearchError(f"--find-batch {argument}: not in the command; {expected}")
