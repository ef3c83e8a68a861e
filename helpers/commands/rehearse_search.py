"""Looks for the largest batch, or the smallest card, with which a rehearsed program fits."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.commands.signs import print_lines
from helpers.ground.units import show_bytes

if TYPE_CHECKING:
    from helpers.commands.rehearse_bench import RehearsalBench
    from helpers.rehearse.rehearsal import Rehearsal


class _Tries:
    """The rehearsals of a search for a batch or a card, under the value that each had."""

    def __init__(
        self, argument: str, command: list[str], bench: RehearsalBench, folder: Path
    ) -> None:
        self.argument = argument
        self.command = command
        self.bench = bench
        self.folder = folder
        self.rehearsals: dict[str, Rehearsal] = {}

    def name_of(self, value: int) -> str:
        if self.argument:
            return f"{self.argument} {value}"
        return f"a card of {show_bytes(value)} ({value:,} bytes)"

    def attempt(self, value: int) -> Rehearsal:
        """Rehearse with a value of the argument, or on a card of so many bytes."""
        from helpers.rehearse.search import with_argument

        words = self.command
        card = self.bench.card
        if self.argument:
            words = with_argument(words, self.argument, value)
        else:
            card = replace(card, total_bytes=value)
        out = self.folder / f"run{len(self.rehearsals)}"
        rehearsal = self.bench.run(words, card, out, log=out.with_suffix(".log"))
        self.rehearsals[self.name_of(value)] = rehearsal
        return rehearsal

    def find(self) -> tuple[bool, str]:
        """Whether a value was found with which it fits, and which, in words."""
        from helpers.rehearse import search

        if self.argument:
            result = search.find_batch(
                self.attempt, search.start_of(self.command, self.argument)
            )
        else:
            result = search.find_capacity(self.attempt, self.bench.card.held_bytes)
        beyond = "larger was not tried"
        if result.beyond:
            beyond = f"{self.name_of(result.beyond)} runs out"
        if result.best is None:
            return False, beyond
        return True, f"{self.name_of(result.best)} finishes; {beyond}"


def search_for_size(
    arguments: argparse.Namespace,
    command: list[str],
    bench: RehearsalBench,
    folder: Path,
) -> int:
    """Find a batch or a card: the program's output is put aside, and stdout has the table."""
    from helpers.rehearse.rehearsal import STOPPED
    from helpers.rehearse.search import SearchError

    tries = _Tries(arguments.find_batch, command, bench, folder)
    try:
        is_found, says = tries.find()
        exit_code = 0 if is_found else 1
    except SearchError:
        if all(
            rehearsal.exit_code != STOPPED for rehearsal in tries.rehearsals.values()
        ):
            raise
        says = "ended by SIGTERM: what follows was not tried"
        exit_code = STOPPED
    if arguments.json:
        shapes = {
            name: as_shape(rehearsal) for name, rehearsal in tries.rehearsals.items()
        }
        print(json.dumps({"runs": shapes, "says": says}, indent=1, default=str))
        return exit_code
    _print_search(tries.rehearsals, says)
    return exit_code


def _print_search(rehearsals: Mapping[str, Rehearsal], says: str) -> None:
    """The table of a search, what was found, and what the last rehearsal that fitted rests on."""
    from helpers.rehearse.view import outside_in_words, tried_table

    runs = list(rehearsals.values())
    print(tried_table(list(rehearsals), runs).text(0))
    shown = next((run for run in reversed(runs) if run.fits), runs[-1])
    measured = f"measured by the real allocator, {shown.label}"
    outside = outside_in_words(shown) if shown.fits else ""
    print_lines([says, outside, measured, *shown.trust[:-1]], sys.stdout)


def as_shape(rehearsal: Rehearsal) -> dict[str, Any]:
    """A rehearsal as JSON prints it."""
    return {
        **asdict(rehearsal),
        "label": rehearsal.label,
        "fits": rehearsal.fits,
        "reserved_between_bytes": rehearsal.reserved_between,
    }
