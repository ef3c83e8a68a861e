"""What every command shares: how its docstring becomes its options, how wrong use is said, how a box is opened.

A verb is one function: the first sentence of its docstring says what it does, and each line below the blank one is an option
as ``--help`` shows it, with a colon before its help (an indented line goes on with it)::

    plan: a word that must be there            [batch]: one that may be, "" without it
    folders DIR ...: one word or more          [what ...]: any number, none too
    --wide: set or not                         --box BOX: text, "" without it
    --device N <int>: a number or None         --events N <int> = 9: a number with a default
    --conf STR ...: may be given again         --resume [BATCH]: "" where no word follows it
    --policy {a,b}: one of these words         --out FOLDER !: must be given
    command -- COMMAND: all that follows       --engine {a,b} = a: hidden
    Example: what follows `casebook`
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import re
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator  # noqa: UP035 -- subscribed when imported, and capture runs on Python 3.8

from helpers.ground.places import PROGRAM

KINDS = {"<int>": int, "<float>": float}

Run = Callable[[argparse.Namespace], int]


class WrongUse(ValueError):
    """Bad input: one line with what was seen, what was expected and what to do. Exit 2, as for every ValueError of a verb."""


@contextlib.contextmanager
def waits_for(work: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Says on a terminal what is being done when that takes more than a second, and takes the line back at its end.

    Call it with how many are done of how many.
    """
    began = time.monotonic()
    drawn = getattr(sys.stderr, "drawn", sys.stderr)
    seen = sys.stderr.isatty() and not quiet

    def tell(done: int = 0, total: int = 0) -> None:
        count = ""
        if done:
            count = f" {done} of {total}"
        if seen and time.monotonic() - began >= 1:
            print(f"\r\x1b[K{work}{count} ...", end="", file=drawn, flush=True)

    timer = threading.Timer(1, tell)
    timer.daemon = True
    timer.start()
    try:
        yield tell
    finally:
        timer.cancel()
        print(end="\r\x1b[K" * seen, file=drawn, flush=True)


def say_other_sizes(arguments: argparse.Namespace) -> None:
    """Says which card --gpu was taken for, where cards of other sizes have that name too."""
    from helpers.look.cards import named_card, other_sizes

    if not arguments.gpu or arguments.capacity or arguments.json:
        return
    others = other_sizes(arguments.gpu)
    if others:
        taken = named_card(arguments.gpu).name
        also = ", ".join(others)
        print(
            f"casebook: --gpu {arguments.gpu} is {taken} here; also: {also}",
            file=sys.stderr,
        )


def says(run: Run) -> str:
    """What a verb does, as the first sentence of its docstring has it."""
    first = re.sub(
        r"\s+", " ", inspect.cleandoc(run.__doc__ or "").partition("\n\n")[0]
    )
    return first[0].lower() + first[1:].rstrip(".")


def described(parser: argparse.ArgumentParser, run: Run, shared: str = "") -> None:
    """Give a verb's parser the options of its docstring; ``shared`` are option lines that come first."""
    description = inspect.cleandoc(run.__doc__ or "").partition("\n\n")[2]
    for line in re.sub(
        r"\n\s+", " ", f"{inspect.cleandoc(shared)}\n{description}"
    ).splitlines():
        head, _, words = line.partition(": ")
        if head == "Example":
            parser.epilog = f"example: {PROGRAM} {words}"
        elif head:
            optional = head[0] == "["
            name, *rest = head[1:-1].split() if optional else head.split()
            options = _option(rest) if name[0] == "-" else _positional(optional, rest)
            hidden = argparse.SUPPRESS if words == "hidden" else words
            parser.add_argument(name, help=hidden, **options)


def _option(rest: list[str]) -> dict[str, Any]:
    """What argparse calls the words that follow the name of an option."""
    if not rest:
        return {"action": "store_true"}
    word = rest[0]
    kind = next((KINDS[word] for word in rest if word in KINDS), None)
    options: dict[str, Any] = (
        {"default": None, "type": kind} if kind else {"default": ""}
    )
    if "=" in rest:
        default = rest[rest.index("=") + 1]
        options["default"] = None if default == "None" else (kind or str)(default)
    if "..." in rest:
        options.update(action="append", default=[])
    if "!" in rest:
        options["required"] = True
    if word[0] == "{":
        return {**options, "choices": word[1:-1].split(",")}
    if word[0] == "[":
        return {"nargs": "?", "const": "", "metavar": word[1:-1]}
    return {**options, "metavar": word}


def _positional(optional: bool, rest: list[str]) -> dict[str, Any]:
    if rest[:1] == ["--"]:
        return {"nargs": argparse.REMAINDER, "metavar": " ".join(rest)}
    named = {"metavar": rest[0]} if rest and rest[0] != "..." else {}
    if "..." in rest:
        return {**named, "nargs": "*" if optional else "+"}
    return {"nargs": "?", "default": ""} if optional else named


def may_write(place: Path) -> Path:
    """The place itself. Raises WrongUse, before any work is done, where it or the nearest folder above may not be written."""
    near = next(one for one in (place, *place.absolute().parents) if one.exists())
    if not os.access(near, os.W_OK):
        raise WrongUse(
            f"{place}: {near} may not be written; choose a place that you may write to"
        )
    return place


def print_json(value: Any) -> None:
    """One JSON value, for people who read it too."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def listed(name: str, text: str, width: int = 10) -> str:
    """A name and what it is, in lines of 80 columns: nothing is cut off."""
    return textwrap.fill(
        text, 80, initial_indent=f"{name:<{width}}", subsequent_indent=" " * width
    )


def show(*texts: Any) -> None:
    """Print views and prose as wide as the terminal, or 80 columns."""
    from helpers.tell.prose import within
    from helpers.tell.shown import Shown

    for text in texts:
        print(text.text(0) if isinstance(text, Shown) else within(str(text)))


def say(arguments: argparse.Namespace, value: Any, *texts: Any) -> int:
    """Print an answer: as JSON where that was asked for, else its texts, each from a line of its own. The exit code: 0."""
    print_json(value) if arguments.json else show(*texts)
    return 0
