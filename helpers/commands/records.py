"""Commands about what is kept: compare, collect, history, schema, and the project's own figures: bench."""

from __future__ import annotations

import argparse
from pathlib import Path

from helpers.commands.use import ROOT, Verb, WrongUse, print_json


def register(verb: Verb) -> None:
    """compare, collect, history, schema and bench."""
    compare = verb(
        "compare",
        _compare,
        "what moved between two batches, runs or evidence bundles, and what did not",
    )
    compare.add_argument("before", help="a batch, the folder of a run, or a bundle")
    compare.add_argument("after", help="another of the same kind")
    collect = verb(
        "collect", _collect, "merge the batches of several boxes into one, for one page over all"
    )
    collect.add_argument(
        "folders", nargs="+", metavar="DIR", help="batch folders, or folders that hold some"
    )
    collect.add_argument(
        "--out",
        required=True,
        metavar="FOLDER",
        help="where the merge goes; may hold an earlier one",
    )
    history = verb("history", _history, "questions over the records of many nights (DuckDB)")
    history.add_argument(
        "question",
        nargs="?",
        default="",
        help="the name of a question, or SQL (default: the names)",
    )
    history.add_argument(
        "--out",
        default="",
        metavar="FOLDER",
        help="the folder that holds the batches (default: outputs)",
    )
    schema = verb(
        "schema", _schema, "the JSON Schema of a shape that commands print and files hold"
    )
    schema.add_argument("shape", nargs="?", default="", help="one shape (default: their names)")
    schema.add_argument(
        "--write", action="store_true", help="write all of them into helpers/run/schema"
    )
    bench = verb("bench", _bench, "figures as ratios within one run")
    bench.add_argument(
        "what",
        nargs="*",
        help="which: capture, imports, judge, batch, replay, vpoc, monitor (default: all)",
    )


def _compare(arguments: argparse.Namespace) -> int:
    from helpers.tell.compare import CompareError, as_json, as_text, compare

    try:
        found = compare(Path(arguments.before), Path(arguments.after))
    except CompareError as error:
        raise WrongUse(str(error)) from error
    print_json(as_json(found)) if arguments.json else print(as_text(found))
    return 0


def _collect(arguments: argparse.Namespace) -> int:
    from helpers.run.collect import CollectError, collect
    from helpers.run.record import read_batch, status_json, status_text
    from helpers.tell.report import write_index

    try:
        merged = collect([Path(folder) for folder in arguments.folders], Path(arguments.out))
    except CollectError as error:
        raise WrongUse(str(error)) from error
    view, page = read_batch(merged.folder), write_index(merged.folder)
    if arguments.json:
        print_json({**status_json(view), "same": merged.same, "page": str(page)})
    else:
        print(status_text(view))
        print(f"{len(merged.runs)} runs, {merged.same} of them here before\nOpen: {page}")
    return 0


def _history(arguments: argparse.Namespace) -> int:
    from helpers.run.history import QUESTIONS, HistoryError, open_history
    from helpers.tell.tables import table

    if not arguments.question:
        print_json(list(QUESTIONS)) if arguments.json else print("\n".join(QUESTIONS))
        return 0
    try:
        history = open_history(Path(arguments.out) if arguments.out else ROOT / "outputs")
        answer = history.ask(arguments.question)
    except HistoryError as error:
        raise WrongUse(str(error)) from error
    if arguments.json:
        print_json(
            {
                "rows": [dict(zip(answer.columns, row, strict=True)) for row in answer.rows],
                "read": history.read,
                "unreadable": list(history.unreadable),
            }
        )
        return 0
    print(
        table(
            [["" if value is None else value for value in row] for row in answer.rows],
            list(answer.columns),
        )
    )
    print(
        "".join(f"not readable: {line}\n" for line in history.unreadable)
        + f"{history.read} records read"
    )
    return 0


def _schema(arguments: argparse.Namespace) -> int:
    from helpers.run import shapes

    if arguments.write:
        shapes.write_schemas()
        print(f"{len(shapes.SHAPES)} schemas in {shapes.SCHEMA_FOLDER}")
    elif not arguments.shape:
        print("\n".join(shapes.SHAPES))
    elif arguments.shape in shapes.SHAPES:
        print(shapes.schema(arguments.shape), end="")
    else:
        raise WrongUse(f"schema {arguments.shape!r}: expected one of {', '.join(shapes.SHAPES)}")
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    import runpy

    bench = runpy.run_path(str(ROOT / "tests" / "bench.py"))
    unknown = [name for name in arguments.what if name not in bench["FIGURES"]]
    if unknown:
        raise WrongUse(f"bench {unknown[0]}: expected some of {', '.join(bench['FIGURES'])}")
    measured = bench["measure"](arguments.what)
    if arguments.json:
        print_json(measured)
    else:
        from helpers.tell.tables import table

        columns = ["name", "value", "unit", "ratio_to", "ratio", "goal"]
        print(table([[row[name] for name in columns] for row in measured], columns, widest=None))
    return 0
