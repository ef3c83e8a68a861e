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
import textwrap
from typing import Any

from helpers.commands.use import PROGRAM, Run, WrongUse, described, says

GROUPS = {
    "Look at a box": ("box",),
    "The allocator, on your own program": ("rehearse", "trace"),
    "Try what helps": ("trial", "vpoc"),
    "A night of runs": ("batch",),
    "Share, and the workbook itself": ("share", "records"),
}
"""What the verbs of each file of helpers/commands are for."""
CAPTURE = "write an evidence bundle of this box (its own help: capture --help)"


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code. A ValueError is wrong use: all of the project's say in one line what to do."""
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
    except ValueError as error:
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
    form = argparse.RawDescriptionHelpFormatter
    parser = _OneLine(prog=PROGRAM, formatter_class=form)
    options: dict[str, Any] = {"dest": "verb", "metavar": "VERB", "required": True}
    of_verbs = parser.add_subparsers(**options, parser_class=_OneLine, help="one of those above")
    lines = ["Find out why a GPU is out of memory, with evidence.", ""]
    verbs: dict[str, Run] = {"capture": _elsewhere}
    of_verbs.add_parser("capture")
    for group, modules in GROUPS.items():
        lines += [group, *([_listed("capture", CAPTURE)] if "box" in modules else [])]
        for name in modules:
            module = importlib.import_module(f"helpers.commands.{name}")
            for run in module.VERBS:
                verb = of_verbs.add_parser(run.__name__, description=says(run))
                verb.add_argument("--json", action="store_true", help="print JSON instead of text")
                described(verb, run, getattr(module, "SHARED", ""))
                verbs[run.__name__] = run
                lines.append(_listed(run.__name__, says(run)))
            if asked in verbs:  # the help names them all; one verb needs only its own
                return parser, verbs
        lines.append("")
    parser.description = "\n".join([*lines, f"More of one, with an example: {PROGRAM} VERB --help"])
    return parser, verbs


def _listed(name: str, what: str) -> str:
    """A verb's line in the help, wrapped below itself and never cut off."""
    return textwrap.fill(what, 100, initial_indent=f"  {name:<10}", subsequent_indent=" " * 12)


def _elsewhere(arguments: argparse.Namespace) -> int:
    raise AssertionError("capture has its own parser, and is started before this one is used")
