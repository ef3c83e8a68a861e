"""What every command shares: how wrong use is said, and how an answer is printed."""

from __future__ import annotations

import json
import os
import textwrap
from argparse import Namespace
from pathlib import Path


class WrongUse(ValueError):
    """Bad input: one line with what was seen, what was expected and what to do. Exit 2, as for every ValueError of a verb."""


def words_of_command(arguments: Namespace) -> list[str]:
    """The program of the user's own and its arguments, without the dashes before them."""
    words: list[str] = arguments.command
    return words[1:] if words[:1] == ["--"] else words


def may_write(place: Path) -> Path:
    """The place itself. Raises WrongUse, before any work is done, where it or the nearest folder above may not be written."""
    existing = [path for path in (place, *place.absolute().parents) if path.exists()]
    if not os.access(existing[0], os.W_OK):
        raise WrongUse(
            f"{place}: {existing[0]} may not be written; choose a place that you may write to"
        )
    return place


def print_json(value: object) -> None:
    """One JSON value, for people who read it too."""
    print(json.dumps(value, indent=1, ensure_ascii=False, default=str))


def listed(name: str, text: str, width: int = 10) -> str:
    """A name and what it is, in lines of 80 columns: nothing is cut off."""
    return textwrap.fill(
        text, 80, initial_indent=f"{name:<{width}}", subsequent_indent=" " * width
    )


def show(*texts: object) -> None:
    """Print views and prose as wide as the terminal, or 80 columns."""
    from helpers.tell.prose import within
    from helpers.tell.shown import Shown

    for text in texts:
        if isinstance(text, Shown):
            print(text.text(0))
        else:
            print(within(str(text)))


def say(arguments: Namespace, value: object, *texts: object) -> int:
    """Print an answer: as JSON where that was asked for, else its texts, each on lines of its own. The exit code: 0."""
    if arguments.json:
        print_json(value)
    else:
        show(*texts)
    return 0
