"""The trace of a command, with the card, release and settings it is to be replayed under."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from helpers.allocator.circumstances import AMPLE_BYTES, with_record
from helpers.allocator.study import Study, study_of
from helpers.allocator.trace import MAX_FILE_BYTES, Trace, start_bytes
from helpers.allocator.trace_file import read_trace
from helpers.commands.use import WrongUse
from helpers.ground.units import parse_capacity, parse_size
from helpers.look.cards import find_card
from helpers.settings.releases import named_release


def size_of(text: str, option: str) -> int:
    """The bytes that an option names. Raises WrongUse where it is no size."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise WrongUse(f"--{option}: {error}") from error


def capacity_of(text: str) -> int:
    """The bytes of the card that --capacity names. Raises WrongUse where it is none."""
    try:
        return parse_capacity(text)
    except ValueError as error:
        raise WrongUse(f"--capacity: {error}") from error


def release_of(text: str, recorded: str) -> str:
    """The torch release that was named, or the recorded one.

    Raises WrongUse for one that is not known: nobody has seen it.
    """
    return named_release(text) or recorded


class Subject:
    """The trace of a command with what it is replayed under, as named or else as recorded.

    ``study`` holds both; ``same_settings``: the settings are those of the recording; ``notes``:
    what was missing or inferred.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        conf = getattr(arguments, "conf", None)
        several = not isinstance(
            conf, str
        )  # whatif tries several beside those of the recording
        self.same_settings = conf is None
        study = study_of(
            _trace(arguments),
            Path(arguments.trace),
            held_bytes=size_of(arguments.held, "held") if arguments.held else None,
            policy=getattr(arguments, "policy", ""),
            conf=None if several else conf,
            torch=release_of(arguments.torch, ""),
            build=arguments.build,
        )
        self.notes = list(study.notes)
        card = replace(study.card, capacity_bytes=_capacity(arguments, study))
        self.study = replace(
            study, card=card, fraction=_fraction(arguments, study.fraction)
        )

    @property
    def remarks(self) -> str:
        """The notes, a line each."""
        return "\n".join(f"note: {note}" for note in self.notes)


def _trace(arguments: argparse.Namespace) -> Trace:
    most = MAX_FILE_BYTES
    if arguments.max_bytes:
        most = size_of(arguments.max_bytes, "max-bytes")
    trace = read_trace(arguments.trace, device=arguments.device, max_bytes=most)
    return with_record(trace, Path(arguments.trace))


def _fraction(arguments: argparse.Namespace, recorded: float | None) -> float | None:
    fraction = recorded if arguments.fraction is None else arguments.fraction
    if fraction is not None and not 0 <= fraction <= 1:
        raise WrongUse(f"--fraction {fraction}: expected a number from 0 to 1")
    return fraction


def _capacity(arguments: argparse.Namespace, study: Study) -> int:
    """The card's bytes: as named, else as recorded, else ample where the verb needs no card."""
    needs_card = arguments.verb not in ("replay", "leaks")
    capacity = study.card.capacity_bytes
    if arguments.gpu:
        capacity = find_card(arguments.gpu).total_bytes
    if arguments.capacity:
        capacity = capacity_of(arguments.capacity)
    named = arguments.gpu or arguments.capacity
    if needs_card and (capacity <= 0 or (capacity >= AMPLE_BYTES and not named)):
        why = "the trace does not say how large the card was"
        raise WrongUse(f"--capacity: {why}; give it, such as --capacity 20GiB")
    if capacity <= 0:
        capacity = AMPLE_BYTES
    reserved_bytes = start_bytes(study.trace.start)
    if reserved_bytes > capacity and not needs_card:
        seen = f"{reserved_bytes} bytes are reserved when the trace begins"
        raise WrongUse(
            f"--capacity {capacity} bytes: {seen}; expected at least as many"
        )
    return capacity
