"""Commands about batches and the project's own figures: run, status, report, schema, bench."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from helpers.commands.use import ROOT, Verb, WrongUse, print_json


def register(verb: Verb) -> None:
    """schema, run, status, report and bench."""
    schema = verb("schema", _schema, "the JSON Schema of a shape that commands print and files hold")
    schema.add_argument("shape", nargs="?", default="", help="one shape (default: their names)")
    schema.add_argument("--write", action="store_true", help="write all of them into helpers/run/schema")
    run = verb("run", _run, "run a plan: every notebook of it, one record each, and one page at the end")
    run.add_argument("plan", help="a plan file, such as notebooks/plans/quick.yaml")
    run.add_argument("--box", default="", help="run the plan's live runs on this bundle or recorded box instead")
    run.add_argument("--out", default="", metavar="FOLDER", help="where batches go (default: outputs)")
    run.add_argument("--dry-run", action="store_true", help="print the runs and their limits, run nothing")
    status = verb("status", _status, "the state of every run of a batch, read from its records alone")
    status.add_argument("batch", nargs="?", default="", help="a batch folder (default: the newest below outputs)")
    report = verb("report", _report, "write the page of a batch, partial batches included")
    report.add_argument("batch", nargs="?", default="", help="a batch folder (default: the newest below outputs)")
    bench = verb("bench", _bench, "figures as ratios within one run")
    bench.add_argument("what", nargs="*", help="which: capture, imports, batch, replay, vpoc (default: all)")


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


def _run(arguments: argparse.Namespace) -> int:
    from helpers.run.batch import run_plan
    from helpers.run.plan import PlanError, load_plan
    from helpers.run.progress import for_terminal
    from helpers.run.record import read_batch, status_json, status_text
    from helpers.tell.report import write_index

    plan = Path(arguments.plan)
    try:
        if arguments.dry_run:
            checked = load_plan(plan, arguments.box)
            rows = [{"run_id": s.run_id, "notebook": s.notebook, "box": s.box_name, "parameters": s.parameters,
                     "cell_s": s.cell_s, "run_s": s.run_s} for s in checked.steps]
            if arguments.json:
                print_json(rows)
            else:
                print("\n".join(f"{r['run_id']}  box {r['box']}, at most {r['run_s']:g} s" for r in rows))
            return 0
        result = run_plan(plan, _outputs(arguments.out), box=arguments.box, capture=_capture_into, progress=for_terminal())
    except PlanError as error:
        raise WrongUse(str(error)) from error
    page = write_index(result.folder)
    if arguments.json:
        print_json({**status_json(read_batch(result.folder)), "page": str(page)})
    else:
        print(status_text(read_batch(result.folder)))
        print(f"Open: {page}")
    return result.exit_code


def _outputs(out: str) -> Path:
    folder = Path(out) if out else ROOT / "outputs"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise WrongUse(f"{folder}: {error.strerror}; expected a folder to write batches into; choose another --out") from error
    return folder


def _capture_into(path: Path) -> Path:
    from helpers.look.capture import Options, measure

    return measure(Options()).writer.write(path)


def _batch(name: str) -> Path:
    if name:
        folder = Path(name)
        if not folder.is_dir():
            raise WrongUse(f"{folder}: no such folder; expected a batch below outputs")
        return folder
    batches = sorted((ROOT / "outputs").glob("*/plan.yaml"), key=lambda path: path.stat().st_mtime)
    if not batches:
        raise WrongUse("no batch below outputs; expected one; run: make diagnose")
    return batches[-1].parent


def _status(arguments: argparse.Namespace) -> int:
    from helpers.run.record import read_batch, status_json, status_text

    view = read_batch(_batch(arguments.batch))
    print(json.dumps(status_json(view), indent=1) if arguments.json else status_text(view))
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from helpers.tell.report import write_index

    page = write_index(_batch(arguments.batch))
    print(json.dumps({"page": str(page)}) if arguments.json else f"Open: {page}")
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
