"""One thin command per verb: ``casebook VERB``.

A command reads arguments and prints; the work is done elsewhere.

Exit 0: answered, whatever the answer. 1: a run did not answer, or a check failed. 2: wrong use,
in one line. ``capture``, and ``diagnose`` of a text or a bundle, need nothing but the standard
library of Python 3.8; the other verbs need the workbook's own packages.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import platform
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import NoReturn, TextIO, cast

from helpers.commands import gone
from helpers.commands.options import described, says, verbs_of
from helpers.commands.use import WrongUse, listed, may_write
from helpers.ground import umask
from helpers.ground.places import CHECKOUT, IN_CHECKOUT, OUTPUTS, PROGRAM, SET_UP
from helpers.ground.units import cut, plain

GROUPS = {
    "Look at a box": ("diagnose", "ttm", "check", "gate"),
    "What fits": ("fits",),
    "The allocator, on your own program": ("record", "rehearse", "fix", "trace"),
    "Try what helps": ("trial", "vpoc"),
    "A night of runs": ("batch", "compare"),
    "Share, and the workbook itself": ("share", "workbook"),
    "For agents": ("agent",),
}
"""What the verbs of each file of helpers/commands are for."""
ON_OLD_PYTHONS = ("diagnose", "ttm", "check", "gate")
"""Files whose verbs run on Python 3.8, too."""
WRITES = ("out", "save", "results", "parquet")
"""Options that name a place to write to."""
MOST_COMPLAINT = 1000
"""Columns of an error's line, whatever a file has for names."""
LONG_WORD = re.compile(r"(\S{40})\S{80,}(\S{40})")
"""A word of which an error shows both ends."""
OF_BATCHES = ("run", "report")
"""Verbs that write into a batch, which holds the kernel's log."""
NOT_A_NUMBER = {
    "invalid int value:": "expected a whole number, seen",
    "invalid float value:": "expected a number, seen",
}
"""What argparse says of a word where a number belongs, and how it is said here."""
CAPTURE = "write an evidence bundle of this box"
NEGATIVE = re.compile("-[0-9]")
"""How a value may begin, such as -5GiB, that argparse would take for an option."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code.

    A ValueError is wrong use: all of the project's say in one line what to do.
    """
    if argv is None:
        argv = sys.argv[1:]
        _hand_over(argv)
    if not _has_output():
        return _refuse(
            "standard output is closed; expected a place for the answer, such as a file"
        )
    try:
        return _with_output_spelt_out(argv)
    except BrokenPipeError:
        _say_no_more()  # whoever read our output has seen enough (| head)
        return 141
    except OSError as error:
        return _refuse(_about_a_file(error))
    except MemoryError:
        return _refuse(
            "no memory is left to read this; expected smaller input, or more memory"
        )
    except ValueError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("helpers"):
            raise
        return _refuse(_about_a_package(error.name))
    except KeyboardInterrupt:
        return _refuse("interrupted", 130)


def _has_output() -> bool:
    """Whether standard output is open. What the terminal's encoding lacks, and half letters, are
    spelt out on it from now on.
    """
    if sys.stderr is None:  # closed (2>&-)
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  it stays open
    if sys.stdout is None:
        return False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a test's own stream may be another
            stream.reconfigure(errors="backslashreplace")
    return True


def _with_output_spelt_out(argv: list[str]) -> int:
    out = cast(TextIO, _Spelt(sys.stdout))
    err = cast(TextIO, _Spelt(sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        code = _verb(argv)
    sys.stdout.flush()
    return code


def _about_a_file(error: OSError) -> str:
    """Which file could not be read or written, why, and what was expected."""
    name = error.filename
    if isinstance(error, FileNotFoundError) and name:
        return _not_there(Path(os.fsdecode(name)))
    # Is it the answer that cannot be written?
    probe = "" if name else "\n"
    try:
        print(end=probe, flush=True)
    except OSError:
        name = "standard output"
        _say_no_more()
    expected = "expected what may be read, and a place that may be written and has room"
    return f"{name or 'a file'}: {error.strerror or error}; {expected}"


def _about_a_package(name: str | None) -> str:
    """That a package is missing, and how to get it."""
    how = "the extra [notebooks]; run: pip install 'vram-casebook[notebooks]'"
    if IN_CHECKOUT:
        how = (
            "the workbook's .venv; run: make setup (or: python3 env/bootstrap.py setup)"
        )
    without = "`capture`, and `diagnose` of a text or a bundle, work without"
    return f"no package {name} for {sys.executable}; expected {how}. {without}"


def _hand_over(argv: list[str]) -> None:
    """Go on under the set-up's own Python, where there is one and another one started this.

    The caller's environment stays as it is, for the programs that a verb starts; -I keeps what it
    says to Python from this one. ``capture`` needs no package, nor does who asks for none (-S).
    """
    python = SET_UP / "bin" / "python"
    is_there = (SET_UP / "casebook.json").exists() and os.access(python, os.X_OK)
    if not is_there or sys.flags.no_site or argv[:1] == ["capture"]:
        return
    if sys.executable == str(python) or os.path.samefile(sys.prefix, SET_UP):
        return
    os.execv(
        python, [str(python), "-I", str(CHECKOUT / "helpers" / "__main__.py"), *argv]
    )


class _Spelt:
    """A stream on which what could steer a terminal, in whatever a box says, is spelt out, as
    JSON does; bold is let through.

    Whoever draws on a terminal itself has the bare stream in ``drawn``.
    """

    def __init__(self, stream: TextIO) -> None:
        self.drawn = stream
        self.bold = stream.isatty()

    def write(self, text: str) -> int:
        for char in set(text):
            if plain(char, keep="\n\t") not in (char, " "):
                spelt = json.dumps(char)[1:-1].replace("\x7f", "\\u007f")
                text = text.replace(char, spelt)
        if self.bold:
            for mark in ("[1m", "[0m"):
                text = text.replace(f"\\u001b{mark}", f"\x1b{mark}")
        return self.drawn.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self.drawn, name)


def _verb(argv: list[str]) -> int:
    """Run the verb of a command line; the help of all verbs without one."""
    replaced = gone.instead(argv)
    if replaced:
        raise WrongUse(replaced)
    if argv[:1] == ["capture"]:
        return int(importlib.import_module("helpers.look.capture").main(argv[1:]))
    if not argv:
        parsers()[0].print_help()
        return 0
    parser, files = parsers(argv[0])
    arguments, unknown = parser.parse_known_args(argv)
    verb: str = arguments.verb
    if unknown:  # argparse would point to the help of all verbs
        seen = f"unrecognized arguments: {' '.join(unknown)}"
        raise WrongUse(f"{seen}; see: {PROGRAM} {verb} --help")
    for name in WRITES:
        place = getattr(arguments, name, "")
        if place and place != "-":
            may_write(Path(place))
    # A folder that the user names keeps the user's own mode.
    if OUTPUTS.parent == CHECKOUT:
        with suppress(OSError):  # it is somebody else's, or not there yet
            OUTPUTS.chmod(0o700)
    if sys.version_info < (3, 10) and files[verb] not in ON_OLD_PYTHONS:
        seen = f"Python {platform.python_version()}"
        raise WrongUse(f"{verb}: seen {seen}; expected 3.10 or later; run: make setup")
    module = importlib.import_module(f"helpers.commands.{files[verb]}")
    run: Callable[[argparse.Namespace], int] = getattr(module, verb)
    if not _is_private(arguments):
        return run(arguments)
    umask.users_umask = os.umask(0o077)
    try:
        return run(arguments)
    finally:
        os.umask(umask.users_umask)
        umask.users_umask = -1


def _is_private(arguments: argparse.Namespace) -> bool:
    """Whether what a verb writes is its owner's alone: below outputs, and a batch wherever it lies.

    A program of the user's keeps the user's own umask.
    """
    named = (getattr(arguments, name, "") for name in ("out", "save", "study"))
    out = Path(next(filter(None, named), OUTPUTS)).resolve()
    is_below = OUTPUTS.resolve() in (out, *out.parents)
    return is_below or arguments.verb in OF_BATCHES


def _not_there(path: Path) -> str:
    """That a file is not there, with what lies beside its place and differs in the ending alone."""
    if not path.parent.is_dir():
        return f"{path}: there is no folder {path.parent}"
    beside = []
    with suppress(OSError):  # a folder that may not be listed
        beside = sorted(
            file.name for file in path.parent.iterdir() if file.stem == path.stem
        )
    if beside:
        return f"{path} does not exist; beside it: {', '.join(beside)}"
    return f"{path} does not exist"


def _say_no_more() -> None:
    """Python would complain once more at its end of what cannot be written to standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(line: str, code: int = 2) -> int:
    line = plain(LONG_WORD.sub(r"\1…\2", line).replace("\n", " "))
    with suppress(OSError):
        print(f"{PROGRAM}: {cut(line, MOST_COMPLAINT)}", file=sys.stderr, flush=True)
    return code


class _OneLine(argparse.ArgumentParser):
    """argparse with one line on wrong use instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        for of_argparse, plainly in NOT_A_NUMBER.items():
            message = message.replace(of_argparse, plainly)
        raise WrongUse(f"{message}; see: {self.prog} --help")

    def print_help(self, _file: object = None) -> None:
        # argparse is silent where it cannot write.
        print(self.format_help(), end="", flush=True)


def parsers(needed_verb: str = "") -> tuple[argparse.ArgumentParser, dict[str, str]]:
    """The parser of the command line, and the file of each verb; with ``needed_verb`` only as far as
    that verb needs it.
    """
    parser = _OneLine(
        prog=PROGRAM, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    of_verbs = parser.add_subparsers(
        dest="verb",
        metavar="VERB",
        required=True,
        parser_class=_OneLine,
        help="one of the commands above",
    )
    lines = ["Find out why a GPU is out of memory, with evidence.", ""]
    files = {"capture": ""}  # it has a parser of its own
    of_verbs.add_parser("capture")
    for group, modules in GROUPS.items():
        lines.append(group)
        if "diagnose" in modules:
            lines.append(listed("  capture", CAPTURE, 12))
        for module in modules:
            for verb, docstring in verbs_of(module).items():
                files[verb] = module
                lines.append(listed(f"  {verb}", says(docstring), 12))
                of_verb = of_verbs.add_parser(verb, conflict_handler="resolve")
                of_verb._negative_number_matcher = NEGATIVE
                described(of_verb, docstring)
            # The help names them all; one verb needs only its own.
            if needed_verb in files:
                return parser, files
        lines.append("")
    lines.append(f"Details and an example of each: {PROGRAM} VERB --help")
    parser.description = "\n".join(lines)
    return parser, files
