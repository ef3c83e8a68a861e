"""What every command shares: how wrong use is said, and how an answer is printed."""

from __future__ import annotations

import json
import os
import textwrap
from argparse import Namespace
from pathlib import Path


class WrongUse(ValueError):
    """Bad input: one line with what was seen, what was expected and what to do.

    The exit code is 2, as after every ValueError of a verb.
    """


def words_of_command(arguments: Namespace) -> list[str]:
    """The user's own program and its arguments, without the ``--`` that argparse leaves before
    them.
    """
    words: list[str] = arguments.command
    if words[:1] == ["--"]:
        return words[1:]
    return words


def may_write(place: Path) -> Path:
    """The place itself. Raises WrongUse, before any work is done, where nothing can be written
    there: where it, or the nearest folder above that exists, is not writable.
    """
    upwards = (place, *place.absolute().parents)
    nearest = next(path for path in upwards if path.exists())
    if not os.access(nearest, os.W_OK):
        raise WrongUse(
            f"{place}: {nearest} may not be written; choose a place that you may write to"
        )
    return place


def print_json(value: object) -> None:
    """Print a value as JSON, indented for people; what JSON has no type for, such as a path, as
    text.
    """
    print(json.dumps(value, indent=1, ensure_ascii=False, default=str))


def listed(name: str, text: str, width: int = 10) -> str:
    """A name in a column of ``width`` and beside it what it is, wrapped at 80 columns."""
    return textwrap.fill(
        text, 80, initial_indent=f"{name:<{width}}", subsequent_indent=" " * width
    )


def show(*texts: object) -> None:
    """Print views and prose as wide as the terminal, or 80 columns."""
    from helpers.tell.prose import within
    from helpers.tell.shown import Shown

    for text in texts:
        if isinstance(text, Shown):
            print(text.text(0))  # 0: as wide as the terminal
        else:
            print(within(str(text)))


def say(arguments: Namespace, value: object, *texts: object) -> int:
    """Print an answer: ``value`` as JSON with --json, else its ``texts``. Returns the
    exit code, 0.
    """
    if arguments.json:
        print_json(value)
    else:
        show(*texts)
    return 0
