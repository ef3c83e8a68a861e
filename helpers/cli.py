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
import re
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO, cast

from helpers.commands import gone
from helpers.commands.use import Run, WrongUse, described, listed, may_write, says
from helpers.ground import umask
from helpers.ground.places import CHECKOUT, IN_CHECKOUT, OUTPUTS, PROGRAM, SET_UP
from helpers.ground.units import cut, plain

GROUPS = {
    "Look at a box": ("box",),
    "What fits": ("fits",),
    "The allocator, on your own program": ("rehearse", "fix", "trace"),
    "Try what helps": ("trial",),
    "A night of runs": ("batch",),
    "Share, and the workbook itself": ("share", "workbook"),
    "For agents": ("agent",),
}
"""What the verbs of each file of helpers/commands are for."""
WRITES = "out", "save", "results", "parquet"  # options that name a place to write to
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
    try:
        print(
            end="" if name else "\n", flush=True
        )  # is it the answer that cannot be written?
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
        for odd in {c for c in set(text) - {"\n", "\t"} if plain(c) not in (c, " ")}:
            text = text.replace(odd, json.dumps(odd)[1:-1].replace("\x7f", "\\u007f"))
        for mark in ("[1m", "[0m") * self.bold:
            text = text.replace(f"\\u001b{mark}", f"\x1b{mark}")
        return self.drawn.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drawn, name)


def _verb(argv: list[str]) -> int:
    replaced = gone.instead(argv)
    if replaced:
        raise WrongUse(replaced)
    if argv[:1] == ["capture"]:
        return int(importlib.import_module("helpers.look.capture").main(argv[1:]))
    parser, verbs = parsers(argv[0] if argv else "")
    if not argv:
        parser.print_help()
        return 0
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:  # argparse would point to the help of all verbs
        arguments.error(f"unrecognized arguments: {' '.join(unknown)}")
    for place in {getattr(arguments, name, "") for name in WRITES} - {"", "-", None}:
        may_write(Path(place))
    named = (getattr(arguments, name, "") for name in ("out", "save", "study"))
    out = Path(next(filter(None, named), OUTPUTS)).resolve()
    with suppress(OSError):  # it is somebody else's, or not there yet
        if (
            OUTPUTS.parent == CHECKOUT
        ):  # a folder that the user names keeps the user's own mode
            OUTPUTS.chmod(0o700)
    below = OUTPUTS.resolve() in (out, *out.parents)
    # What lies below outputs is its owner's alone, and a batch wherever it lies; a program of the
    # user's keeps the user's own umask.
    if not below and arguments.verb not in OF_BATCHES:
        return verbs[arguments.verb](arguments)
    umask.users_umask = os.umask(0o077)
    try:
        return verbs[arguments.verb](arguments)
    finally:
        os.umask(umask.users_umask)
        umask.users_umask = -1


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
    line = plain(LONG_WORD.sub(r"\1…\2", line)[:MOST_COMPLAINT].replace("\n", " "))
    with suppress(OSError):
        print(f"{PROGRAM}: {cut(line, MOST_COMPLAINT)}", file=sys.stderr, flush=True)
    return code


class _OneLine(argparse.ArgumentParser):
    """argparse with one line on wrong use instead of the whole usage."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._negative_number_matcher = re.compile("-[0-9]")  # -5GiB is a value, too

    def error(self, message: str) -> Any:
        for of_argparse, plainly in NOT_A_NUMBER.items():
            message = message.replace(of_argparse, plainly)
        raise WrongUse(f"{message}; see: {self.prog} --help")

    def print_help(
        self, _file: Any = None
    ) -> None:  # argparse is silent where it cannot write
        print(self.format_help(), end="", flush=True)


def parsers(needed_verb: str = "") -> tuple[argparse.ArgumentParser, dict[str, Run]]:
    """The parser of the command line and what runs each verb; with ``needed_verb`` only as far as
    that verb needs it.
    """
    form = argparse.RawDescriptionHelpFormatter
    parser = _OneLine(prog=PROGRAM, formatter_class=form)
    options: dict[str, Any] = {"dest": "verb", "metavar": "VERB", "required": True}
    of_verbs = parser.add_subparsers(
        **options, parser_class=_OneLine, help="one of the commands above"
    )
    lines = ["Find out why a GPU is out of memory, with evidence.", ""]
    verbs: dict[str, Run] = {"capture": lambda _arguments: 2}  # it has its own parser
    of_verbs.add_parser("capture")
    for group, modules in GROUPS.items():
        lines += [
            group,
            *([listed("  capture", CAPTURE, 12)] if "box" in modules else []),
        ]
        for name in modules:
            module = importlib.import_module(f"helpers.commands.{name}")
            for run in module.VERBS:
                verb = of_verbs.add_parser(
                    run.__name__, description=says(run), conflict_handler="resolve"
                )
                verb.set_defaults(error=verb.error)
                verb.add_argument(
                    "--json", action="store_true", help="print JSON instead of text"
                )
                described(verb, run, getattr(module, "SHARED", ""))
                verbs[run.__name__] = run
                lines.append(listed(f"  {run.__name__}", says(run), 12))
            if (
                needed_verb in verbs
            ):  # the help names them all; one verb needs only its own
                return parser, verbs
        lines.append("")
    parser.description = "\n".join(
        [*lines, f"Details and an example of each: {PROGRAM} VERB --help"]
    )
    return parser, verbs
