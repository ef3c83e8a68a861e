"""One thin command per verb: ``python -m helpers VERB``. A command reads arguments and prints; the work is done elsewhere.

Exit 0: answered, whatever the answer. 1: a run did not answer, or a check failed. 2: wrong use, in one line.
``capture``, and ``diagnose`` of a text or a bundle, need nothing but the standard library of Python 3.8; the other verbs need
the workbook's own packages.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

from helpers.commands.use import Run, WrongUse

COMMANDS = ("box", "trace", "rehearse", "vpoc", "trial", "batch", "records", "share")
CAPTURE = "write an evidence bundle of this box (its own help: capture --help)"


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["capture"]:
        from helpers.look.capture import main as capture

        return capture(argv[1:])
    parser, verbs = parsers(argv[0] if argv else "")
    if not argv:
        parser.print_help()
        return 0
    try:
        arguments = parser.parse_args(argv)
        code = verbs[arguments.verb](arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read our output has seen enough (| head); Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except WrongUse as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("helpers"):
            raise
        advice = "run: make setup (or: python3 env/bootstrap.py setup)"
        without = "`capture`, and `diagnose` of a text or a bundle, work without"
        why = f"no package {error.name} for {sys.executable}; expected the workbook's .venv"
        return _refuse(f"{why}; {advice}. {without}")
    except KeyboardInterrupt:
        return _refuse("interrupted", 130)


def _refuse(line: str, code: int = 2) -> int:
    print("casebook: " + line.replace("\n", " "), file=sys.stderr)
    return code


class _OneLine(argparse.ArgumentParser):
    """argparse with one line on wrong use instead of the whole usage."""

    def error(self, message: str) -> Any:
        raise WrongUse(f"{message}; see: {self.prog} --help")


def parsers(asked: str = "") -> tuple[argparse.ArgumentParser, dict[str, Run]]:
    """The parser of the command line and what runs each verb; with ``asked`` only as far as that verb needs it."""
    says = "Find out why a GPU is out of memory, with evidence."
    parser = _OneLine(prog="casebook", description=says)
    of_verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, parser_class=_OneLine
    )
    verbs: dict[str, Run] = {}

    def verb(name: str, run: Run, says: str) -> argparse.ArgumentParser:
        made = of_verbs.add_parser(name, help=says, description=says)
        made.add_argument("--json", action="store_true", help="print JSON instead of text")
        verbs[name] = run
        return made

    verb("capture", _unreachable, CAPTURE)
    for name in COMMANDS:
        importlib.import_module(f"helpers.commands.{name}").register(verb)
        if asked in verbs:  # the help names them all; one verb needs only its own
            break
    return parser, verbs


def _unreachable(arguments: argparse.Namespace) -> int:
    raise AssertionError("capture is dispatched before parsing")
