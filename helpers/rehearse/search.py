"""The smallest card on which a program finishes, and the largest batch with which it does.

Each answer is a pair of rehearsals, one that finished and one that did not; a replay in the model
of the allocator only says where to look first.
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
"""The largest value of an argument that is tried: a program that fits with it does not use it for
the size of anything on the card.
"""


class SearchError(ValueError):
    """Why a search cannot go on: one line with what was seen, what was expected and what to do."""


@dataclass
class ValueSearch:
    """Rehearsals of a program with values (of an argument, or bytes of a card), each once. ``run``
    rehearses it with a value; ``done``: the rehearsals, in their order.

    When the search has ended, ``best`` is the best value with which the program finished, and
    ``beyond`` the nearest with which it ran out of memory; None where there is none.
    """

    run: Callable[[int], Rehearsal]
    done: dict[int, Rehearsal] = field(default_factory=dict)
    best: int | None = None
    beyond: int | None = None

    def fits(self, value: int) -> bool:
        """Whether the program finished with that value. Raises SearchError where it failed for
        another reason than memory.
        """
        if value not in self.done:
            self.done[value] = self.run(value)
        rehearsal = self.done[value]
        if rehearsal.exit_code == STOPPED or rehearsal.failed_otherwise:
            ended = f"ended with {rehearsal.exit_code} without running out of memory"
            why = "no error was seen"
            if rehearsal.error:
                why = rehearsal.error
            expected = "expected one that runs; try it by itself first"
            raise SearchError(f"with {value:,} the program {ended}: {why}; {expected}")
        return rehearsal.fits

    def between(self, fails: int, passes: int, step: int) -> ValueSearch:
        """Halve the gap between a value that fails and one that passes (0: none is known to), until
        they are ``step`` apart. Either may be the larger one.
        """
        passes, self.beyond = halved(self.fits, passes, fails, step)
        if passes:
            self.best = passes
        return self


def find_capacity(run: Callable[[int], Rehearsal], held_bytes: int = 0) -> ValueSearch:
    """The smallest card on which a program finishes, to a granule of 2 MiB, the unit in which the
    driver gives memory. ``run`` rehearses it on a card of so many bytes, of which others hold
    ``held_bytes``.
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
    # It fits a card of what it reserved on an ample one, and no card of which others hold all.
    high = round_up(ample.peak_reserved_bytes, GRANULE_BYTES) + held_bytes
    low = held_bytes
    # 0 where there is no guess: it is not above ``low``, so no run is spent on it.
    guess = _modelled(ample, held_bytes)
    # Where the guess is right, these two runs are the answer.
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
    """The bytes of the smallest card by a replay of the program's trace; 0 where it cannot say."""
    if ample.trace is None:
        return 0
    try:
        # topdown: how addresses are given in a rehearsal ("constant" in words.json).
        card = Card(AMPLE_BYTES, held_bytes, "topdown")
        stream, _, _ = prepared(read_trace(ample.trace), card, anew=True)
        return smallest(Runs(stream, card, ample.torch), ample.conf)
    except ValueError:
        return 0  # an unknown release, or a trace that was cut at its start


def find_batch(run: Callable[[int], Rehearsal], start: int) -> ValueSearch:
    """The largest value of an argument with which the program finishes. From ``start`` the value is
    doubled until the program runs out of memory, then the gap is halved.
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
    """The command with another value of ``argument``, which may be given with or without its
    dashes. Raises SearchError where the command does not have it.
    """
    at, before, _ = _place(command, argument)
    return [*command[:at], f"{before}{value}", *command[at + 1 :]]


def start_of(command: Sequence[str], argument: str) -> int:
    """The value that the command gives the argument. Raises SearchError where that is no whole
    number above 0.
    """
    _, _, text = _place(command, argument)
    if not text.isdigit() or int(text) < 1:
        raise SearchError(
            f"--find-batch {argument} {text!r}: expected a whole number above 0"
        )
    return int(text)


def _place(command: Sequence[str], argument: str) -> tuple[int, str, str]:
    """The position of the word with the argument's value, what is before the value in that word
    (``--name=`` or nothing), and the value. Raises SearchError.
    """
    plain = argument.lstrip("-")
    for at, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name.lstrip("-") != plain:
            continue
        if equals:
            return at, name + equals, value
        if word.startswith("-") and at + 1 < len(command):
            return at + 1, "", command[at + 1]
    expected = f"expected it there with a value to start from, such as --{plain} 8"
    raise SearchError(f"--find-batch {argument}: not in the command; {expected}")
