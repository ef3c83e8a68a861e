"""Commands about the workbook itself: schema, and its own figures, bench."""

import json
import pkgutil
from argparse import Namespace

from helpers.commands.use import WrongUse, listed, say
from helpers.ground.child import CHECKOUT
from helpers.tell.resources import words
from helpers.tell.shown import Shown

SHAPES: dict[str, tuple[str, str]] = words("shapes")
"""By the name of a shape: the type that defines it, as module:name, and what it is."""


def schema_text(name: str) -> str:
    """The JSON Schema of one of SHAPES (draft 2020-12), as text."""
    from pydantic import TypeAdapter

    defined_in, _ = SHAPES[name]
    adapter = TypeAdapter(pkgutil.resolve_name(defined_in))
    return json.dumps(adapter.json_schema(), indent=1, sort_keys=True)


def schema(arguments: Namespace) -> int:
    """Print the JSON Schema of a shape, which commands print and files contain.

    [shape]: the shape (default: list all)
    Example: schema run
    """
    if arguments.shape and arguments.shape not in SHAPES:
        raise WrongUse(
            f"schema {arguments.shape!r}: expected one of {', '.join(SHAPES)}"
        )
    if arguments.shape:
        print(schema_text(arguments.shape))
        return 0
    lines = [listed(name, meaning) for name, (_, meaning) in SHAPES.items()]
    return say(arguments, list(SHAPES), *lines)


def bench(arguments: Namespace) -> int:
    """Measure the workbook itself, as ratios within one run.

    [what ...]: one or more of capture, imports, judge, batch, replay, vpoc, monitor (default: all)
    Example: bench replay
    """
    import runpy

    program = CHECKOUT / "tests" / "bench.py"
    if not program.is_file():
        raise WrongUse(
            f"bench: there is no {program}; it needs a checkout: run it in one"
        )

    figures = runpy.run_path(str(program))
    unknown = [name for name in arguments.what if name not in figures["FIGURES"]]
    if unknown:
        raise WrongUse(
            f"bench {unknown[0]}: expected some of {', '.join(figures['FIGURES'])}"
        )
    measured = figures["measure"](arguments.what)
    columns = ["name", "value", "unit", "ratio_to", "ratio", "goal"]
    rows = [[row[name] for name in columns] for row in measured]
    return say(arguments, measured, Shown("", columns, rows, widest=None))
