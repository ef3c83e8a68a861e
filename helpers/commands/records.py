"""Commands about the workbook itself: schema, and its own figures, bench."""

from __future__ import annotations

import argparse
import inspect
import json
import pkgutil

from helpers.child import CHECKOUT
from helpers.commands.use import WrongUse, print_json

SHAPES = {
    "reading": "helpers.shapes:Reading",
    "manifest": "helpers.look.bundle:Manifest",
    "verdict": "helpers.shapes:Verdict",
    "plan": "helpers.run.shapes:Plan",
    "run": "helpers.run.shapes:Run",
    "ttm": "helpers.shapes:Ttm",
    "replay": "helpers.shapes:Replay",
    "whatif": "helpers.shapes:WhatIf",
    "trial": "helpers.load.trial:Trial",
}


def schema_text(name: str) -> str:
    """The JSON Schema of one of SHAPES (draft 2020-12), as text."""
    from pydantic import TypeAdapter

    content = TypeAdapter(pkgutil.resolve_name(SHAPES[name])).json_schema()
    return json.dumps(content, indent=1, sort_keys=True)


def schema(arguments: argparse.Namespace) -> int:
    """The JSON Schema of a shape that commands print and files hold.

    [shape]: one shape (default: their names, and what each is)
    Example: schema run
    """
    if arguments.shape and arguments.shape not in SHAPES:
        raise WrongUse(f"schema {arguments.shape!r}: expected one of {', '.join(SHAPES)}")
    if arguments.shape:
        print(schema_text(arguments.shape))
        return 0
    for name, place in SHAPES.items():
        says = inspect.getdoc(pkgutil.resolve_name(place)) or ""
        print(f"{name:<9} {says.splitlines()[0]}")
    return 0


def bench(arguments: argparse.Namespace) -> int:
    """Figures as ratios within one run.

    [what ...]: which: capture, imports, judge, batch, replay, vpoc, monitor (default: all)
    Example: bench replay
    """
    import runpy

    from helpers.tell.shown import table

    program = CHECKOUT / "tests" / "bench.py"
    if not program.is_file():
        raise WrongUse(f"bench: there is no {program}; it needs a checkout: run it in one")

    figures = runpy.run_path(str(program))
    unknown = [name for name in arguments.what if name not in figures["FIGURES"]]
    if unknown:
        raise WrongUse(f"bench {unknown[0]}: expected some of {', '.join(figures['FIGURES'])}")
    measured = figures["measure"](arguments.what)
    columns = ["name", "value", "unit", "ratio_to", "ratio", "goal"]
    rows = [[row[name] for name in columns] for row in measured]
    print_json(measured) if arguments.json else print(table(rows, columns, widest=None))
    return 0


VERBS = (schema, bench)
