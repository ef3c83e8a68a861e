"""Searches by rehearsals: the largest batch, the smallest card, or all cards with which a program
fits.
"""

import sys
import tempfile
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from helpers.commands.rehearse_bench import RehearsalBench, worst_run
from helpers.commands.signs import print_notes
from helpers.commands.use import print_json
from helpers.ground.units import show_bytes
from helpers.rehearse import search
from helpers.rehearse.every_card import Fitting, cards_that_fit, fitting_table
from helpers.rehearse.rehearsal import STOPPED, Rehearsal
from helpers.rehearse.view import outside_in_words, tried_table


class _Tries:
    """The rehearsals of a search for a batch or for a card.

    ``argument`` is the program's argument that --find-batch names; empty where the size of a card
    is searched. ``rehearsals`` has every run so far, by the name of its value.
    """

    def __init__(self, bench: RehearsalBench, folder: Path) -> None:
        self.argument: str = bench.arguments.find_batch
        self.bench = bench
        self.folder = folder
        self.rehearsals: dict[str, Rehearsal] = {}

    def name_of(self, value: int) -> str:
        """A tried value in words, such as ``batch 8`` or a card's size."""
        if self.argument:
            return f"{self.argument} {value}"
        return f"a card of {show_bytes(value)} ({value:,} bytes)"

    def attempt(self, value: int) -> Rehearsal:
        """Rehearse with ``value`` for the argument, or on a card of ``value`` bytes."""
        command = self.bench.command
        card = self.bench.card
        if self.argument:
            command = search.with_argument(command, self.argument, value)
        else:
            card = replace(card, total_bytes=value)
        name = self.name_of(value)
        out = self.folder / f"run{len(self.rehearsals)}"
        log = out.with_suffix(".log")
        self.rehearsals[name] = self.bench.run(command, card, out, name, log=log)
        return self.rehearsals[name]

    def find(self) -> search.ValueSearch:
        """Search for the largest batch, or the smallest card, with which the program fits."""
        if self.argument:
            start = search.start_of(self.bench.command, self.argument)
            return search.find_batch(self.attempt, start)
        return search.find_capacity(self.attempt, self.bench.card.held_bytes)

    def in_words(self, result: search.ValueSearch) -> str:
        """The value with which the program fits, and the next one, with which it does not."""
        beyond = "larger was not tried"
        if result.beyond:
            beyond = f"{self.name_of(result.beyond)} runs out"
        if result.best is None:
            return beyond
        return f"{self.name_of(result.best)} finishes; {beyond}"


def search_for_size(bench: RehearsalBench) -> int:
    """Find a batch or a card, and print what was tried, without the output of the program.

    Returns the exit code: 1 where nothing fits, STOPPED where SIGTERM ended the search.
    """
    with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
        tries = _Tries(bench, Path(folder))
        try:
            result = tries.find()
            exit_code = int(result.best is None)
            says = tries.in_words(result)
        except search.SearchError:
            # SIGTERM ends a rehearsal before its answer, which the search takes for an error.
            runs = tries.rehearsals.values()
            was_stopped = any(run.exit_code == STOPPED for run in runs)
            if not was_stopped:
                raise
            exit_code = STOPPED
            says = "ended by SIGTERM: what follows was not tried"
    if bench.arguments.json:
        shapes = {name: as_shape(run) for name, run in tries.rehearsals.items()}
        print_json({"runs": shapes, "says": says})
    else:
        _print_search(tries.rehearsals, says)
    return exit_code


def _print_search(rehearsals: dict[str, Rehearsal], says: str) -> None:
    """Print the table of a search, what was found, and what the last rehearsal that
    fits relies on.
    """
    runs = list(rehearsals.values())
    print(tried_table(list(rehearsals), runs).text(0))
    notes = [says]
    last = runs[-1]
    fitting = [run for run in runs if run.fits]
    if fitting:
        last = fitting[-1]
        notes.append(outside_in_words(last))
    notes.append(f"measured by the real allocator, {last.label}")
    # The last line of trust is about memory outside the allocator, as is outside_in_words.
    notes += last.trust[:-1]
    print_notes(*notes, file=sys.stdout)


def as_shape(rehearsal: Rehearsal) -> dict[str, object]:
    """A rehearsal as JSON prints it."""
    return {
        **asdict(rehearsal),
        "label": rehearsal.label,
        "fits": rehearsal.fits,
        "reserved_between_bytes": rehearsal.reserved_between,
    }


def answer_for_all_cards(bench: RehearsalBench) -> int:
    """Print the cards on which the model can be trained. Returns the exit code: 1 where
    none can.
    """
    with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
        run = partial(worst_run, bench, Path(folder))
        rows = cards_that_fit(run, bench.card.held_bytes)
    if bench.arguments.json:
        print_json([_card_as_shape(row) for row in rows])
    elif rows:
        print(fitting_table(rows).text(0))
    else:
        print("It fits on no card of the table.")
    return int(not rows)


def _card_as_shape(row: Fitting) -> dict[str, object]:
    """A card on which the model fits, as --json prints it."""
    return {
        "name": row.name,
        "card": row.card.name,
        "total_bytes": row.card.total_bytes,
        "peak_reserved_bytes": row.rehearsal.peak_reserved_bytes,
        "left_bytes": row.left_bytes,
        "rehearsed_on": row.rehearsal.device.name,
    }
