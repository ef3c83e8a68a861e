"""One thin command per verb: ``casebook VERB``.

A command reads arguments and prints; the work is done elsewhere.

Exit code 0: there is an answer, whatever it is. 1: a run gave no answer, or a check failed. 2:
wrong use, which one line explains. ``capture``, and ``diagnose`` of a text or a bundle, need only
the standard library of Python 3.8; the other verbs need the workbook's own packages.
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

READER_GONE = 141
"""The exit code that a shell shows for a program that SIGPIPE ended: 128 + 13."""
INTERRUPTED = 130
"""The same for SIGINT: 128 + 2."""
GROUPS = {
    "Look at a box": ("diagnose", "ttm", "check", "gate"),
    "What fits": ("fits",),
    "The allocator, on your own program": ("record", "rehearse", "fix", "trace"),
    "Try what helps": ("trial", "vpoc"),
    "A night of runs": ("batch", "compare"),
    "Share, and the workbook itself": ("share", "workbook"),
    "For agents": ("agent",),
}
"""The headings of the help, each with the files of helpers/commands whose verbs stand below it."""
ON_OLD_PYTHONS = ("diagnose", "ttm", "check", "gate")
"""Those of them whose verbs run on Python 3.8, too."""
WRITES = ("out", "save", "results", "parquet")
"""Options that name a place to write to."""
MOST_COMPLAINT = 1000
"""Columns of the line of an error, which may quote a file with names of any length."""
LONG_WORD = re.compile(r"(\S{40})\S{80,}(\S{40})")
"""A word of 160 letters or more, twice a terminal's line: an error shows its two ends."""
VERB_COLUMNS = 12
"""Of the help, where the sentence behind a verb begins."""
OF_BATCHES = ("run", "report")
"""Verbs that write into a batch, which contains the kernel's log, so others may not read it."""
NOT_A_NUMBER = {
    "invalid int value:": "expected a whole number, seen",
    "invalid float value:": "expected a number, seen",
}
"""What argparse says about a word that is not a number, and what the command says instead."""
CAPTURE = "write an evidence bundle of this box"
"""The help of the verb that has no file in helpers/commands."""
NEGATIVE = re.compile("-[0-9]")
"""How a value such as -5GiB begins: argparse would take it for an option."""


def main(argv: list[str] | None = None) -> int:
    """Run the command ``argv``, by default this process's own; returns its exit code.

    A ValueError means wrong use: its text says in one line what to do, as all of this package do.
    """
    if argv is None:
        argv = sys.argv[1:]
        _hand_over(argv)
    if not _prepare_output():
        return _refuse(
            "standard output is closed; expected a place for the answer, such as a file"
        )
    try:
        return _with_output_spelt_out(argv)
    except BrokenPipeError:  # the program that reads the output has ended (| head)
        _say_no_more()
        return READER_GONE
    except OSError as error:
        return _refuse(_about_a_file(error))
    except MemoryError:
        return _refuse(
            "no memory is left to read this; expected smaller input, or more memory"
        )
    except ValueError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        if str(error.name).startswith("helpers"):  # a defect of this package
            raise
        return _refuse(_about_a_package(error.name))
    except KeyboardInterrupt:
        return _refuse("interrupted", INTERRUPTED)


def _prepare_output() -> bool:
    """Make standard output and standard error spell out the characters that the terminal's encoding
    lacks. Returns whether standard output is open.
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
    """Run a command while its output is made harmless for a terminal; returns its exit code."""
    out = cast(TextIO, _Spelt(sys.stdout))
    err = cast(TextIO, _Spelt(sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        code = _verb(argv)
    sys.stdout.flush()
    return code


def _about_a_file(error: OSError) -> str:
    """Which file could not be read or written, why, and what was expected.

    Standard output is named where it cannot be written now, whatever file the error names: else
    Python's own flush at the exit would fail, and complain a second time. Where neither the error
    nor this test says which file it is, the text says a file.
    """
    name = error.filename
    why = error.strerror
    if isinstance(error, FileNotFoundError) and name:
        return _not_there(Path(os.fsdecode(name)))
    if _stdout_is_broken(has_to_print=not name):
        name = "standard output"
        _say_no_more()
    if not name:
        name = "a file"
    if not why:
        why = str(error)
    expected = "expected what may be read, and a place that may be written and has room"
    return f"{name}: {why}; {expected}"


def _stdout_is_broken(has_to_print: bool) -> bool:
    """Whether standard output cannot be written, as on a full disk: what is still to be written is
    flushed.

    ``has_to_print``: print an empty line first. An error that names no file may come from an
    earlier flush, after which nothing is left to be written, and only a new line fails again.
    """
    try:
        if has_to_print:
            print()
        sys.stdout.flush()
    except OSError:
        return True
    return False


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
    """Replace this process by one under the set-up's own Python, if there is a set-up and another
    Python started this one.

    The environment stays as it is, for the programs that a verb starts; -I makes Python itself
    ignore it. ``capture`` needs no package, and -S says that none is wanted.
    """
    python = SET_UP / "bin" / "python"
    is_set_up = (SET_UP / "casebook.json").exists() and os.access(python, os.X_OK)
    if not is_set_up or sys.flags.no_site or argv[:1] == ["capture"]:
        return
    # Else it would start itself again without end.
    if sys.executable == str(python) or os.path.samefile(sys.prefix, SET_UP):
        return
    program = str(CHECKOUT / "helpers" / "__main__.py")
    os.execv(python, [str(python), "-I", program, *argv])


class _Spelt:
    """A text stream that spells out control characters as JSON does, since a text of a box could
    steer the terminal with them; bold, which the commands print, is let through.

    ``drawn`` is the stream below, for code that draws on the terminal itself.
    """

    def __init__(self, stream: TextIO) -> None:
        self.drawn = stream
        self.bold = stream.isatty()

    def write(self, text: str) -> int:
        for char in set(text):
            if plain(char, keep="\n\t") not in (char, " "):
                # json.dumps puts quotes around it, and leaves DEL as it is.
                spelt = json.dumps(char)[1:-1].replace("\x7f", "\\u007f")
                text = text.replace(char, spelt)
        if self.bold:
            for mark in ("[1m", "[0m"):  # bold, and its end
                text = text.replace(f"\\u001b{mark}", f"\x1b{mark}")
        return self.drawn.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self.drawn, name)


def _verb(argv: list[str]) -> int:
    """Run the verb of a command line and return its exit code; without a verb, print the help."""
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
    if unknown:  # argparse itself would point to the help of all verbs
        seen = f"unrecognized arguments: {' '.join(unknown)}"
        raise WrongUse(f"{seen}; see: {PROGRAM} {verb} --help")
    for name in WRITES:
        place = getattr(arguments, name, "")
        if place and place != "-":  # standard output
            may_write(Path(place))
    # The folder of the checkout is for its owner alone; one that the user names keeps its mode.
    if OUTPUTS.parent == CHECKOUT:
        with suppress(OSError):  # it is somebody else's, or not there yet
            OUTPUTS.chmod(0o700)
    if sys.version_info < (3, 10) and files[verb] not in ON_OLD_PYTHONS:
        seen = f"Python {platform.python_version()}"
        raise WrongUse(f"{verb}: seen {seen}; expected 3.10 or later; run: make setup")
    module = importlib.import_module(f"helpers.commands.{files[verb]}")
    run: Callable[[argparse.Namespace], int] = getattr(module, verb)
    if _is_private(arguments):
        return _run_privately(run, arguments)
    return run(arguments)


def _run_privately(
    run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace
) -> int:
    """Run a verb whose files only their owner may read. Programs of the user's that it starts get
    the user's own umask back.
    """
    umask.users_umask = os.umask(0o077)
    try:
        return run(arguments)
    finally:
        os.umask(umask.users_umask)
        umask.users_umask = -1


def _is_private(arguments: argparse.Namespace) -> bool:
    """Whether only its owner may read what a verb writes: below outputs, which is where a verb
    writes without an option, and a batch everywhere.
    """
    out = OUTPUTS
    for name in ("study", "save", "out"):  # no verb has two of them
        place = getattr(arguments, name, "")
        if place:
            out = Path(place)
    out = out.resolve()
    is_below_outputs = OUTPUTS.resolve() in (out, *out.parents)
    return is_below_outputs or arguments.verb in OF_BATCHES


def _not_there(path: Path) -> str:
    """That a file does not exist, with the files beside it whose names differ in the ending."""
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
    """Discard all further output: at its end Python flushes standard output, and would complain
    once more that it cannot be written.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(line: str, code: int = 2) -> int:
    """Print an error in one line; returns the exit code."""
    line = plain(LONG_WORD.sub(r"\1…\2", line).replace("\n", " "))
    with suppress(OSError):
        print(f"{PROGRAM}: {cut(line, MOST_COMPLAINT)}", file=sys.stderr, flush=True)
    return code


class _OneLine(argparse.ArgumentParser):
    """argparse with one line about wrong use instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        for words_of_argparse, words in NOT_A_NUMBER.items():
            message = message.replace(words_of_argparse, words)
        raise WrongUse(f"{message}; see: {self.prog} --help")

    def print_help(self, _file: object = None) -> None:
        # argparse's own is silent if it cannot write.
        print(self.format_help(), end="", flush=True)


def parsers(needed_verb: str = "") -> tuple[argparse.ArgumentParser, dict[str, str]]:
    """The parser of the command line, and for each verb the file of helpers/commands that has it.

    With ``needed_verb`` it stops at that verb's group, which saves reading the other files.
    """
    parser = _OneLine(
        prog=PROGRAM, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verb_parsers = parser.add_subparsers(
        dest="verb",
        metavar="VERB",
        required=True,
        parser_class=_OneLine,
        help="one of the commands above",
    )
    help_lines = ["Find out why a GPU is out of memory, with evidence.", ""]
    files = {"capture": ""}  # in helpers/look, with a parser of its own
    verb_parsers.add_parser("capture")
    for group, modules in GROUPS.items():
        help_lines.append(group)
        if "diagnose" in modules:
            help_lines.append(listed("  capture", CAPTURE, VERB_COLUMNS))
        for module in modules:
            for verb, docstring in verbs_of(module).items():
                files[verb] = module
                help_lines.append(listed(f"  {verb}", says(docstring), VERB_COLUMNS))
                verb_parser = verb_parsers.add_parser(verb, conflict_handler="resolve")
                verb_parser._negative_number_matcher = NEGATIVE
                described(verb_parser, docstring)
            if needed_verb in files:
                return parser, files
        help_lines.append("")
    help_lines.append(f"Details and an example of each: {PROGRAM} VERB --help")
    parser.description = "\n".join(help_lines)
    return parser, files
