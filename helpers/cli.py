"""One thin command per verb: ``python -m helpers VERB``. A command reads arguments and prints; the work is done elsewhere.

Exit 0: answered, whatever the answer. 1: a run did not answer, or a check failed. 2: wrong use, in one line.
``capture`` needs nothing but the standard library; the other verbs need the workbook's own packages.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class WrongUse(Exception):
    """Bad input: one line with what was seen, what was expected and what to do. Exit 2."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["capture"]:
        from helpers.look.capture import main as capture

        return capture(argv[1:])
    parser, verbs = _parser()
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
        return _refuse(f"no package {error.name} for {sys.executable}; expected the workbook's .venv; run: make setup "
                       "(or: python3 env/bootstrap.py setup). `python3 -m helpers capture` works without")
    except KeyboardInterrupt:
        return _refuse("interrupted", 130)


def _refuse(line: str, code: int = 2) -> int:
    print("casebook: " + line.replace("\n", " "), file=sys.stderr)
    return code


class _OneLine(argparse.ArgumentParser):
    """argparse with one line on wrong use instead of the whole usage."""

    def error(self, message: str) -> Any:
        raise WrongUse(f"{message}; see: {self.prog} --help")


def _parser() -> tuple[argparse.ArgumentParser, dict[str, Callable[[argparse.Namespace], int]]]:
    parser = _OneLine(prog="casebook", description="Find out why a GPU is out of memory, with evidence.")
    parsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_OneLine)
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {}

    def verb(name: str, run: Callable[[argparse.Namespace], int], says: str) -> argparse.ArgumentParser:
        made = parsers.add_parser(name, help=says, description=says)
        made.add_argument("--json", action="store_true", help="print JSON instead of text")
        verbs[name] = run
        return made

    verb("capture", _unreachable, "write an evidence bundle of this box (its own help: capture --help)")
    diagnose = verb("diagnose", _diagnose, "the cause of a failure with its evidence, from a box, an error message, or both")
    diagnose.add_argument("box", nargs="?", default="", help="live (default), a bundle, or a name from env/boxes")
    diagnose.add_argument("--message", default="", metavar="FILE", help="an error text or a log; - reads standard input")
    diagnose.add_argument("--case", default="", metavar="FILE", help="a posted case as JSON, in place of a box")
    ttm = verb("ttm", _ttm, "every ceiling between the RAM and torch, the one that binds, and a safe way to raise it")
    ttm.add_argument("box", nargs="?", default="live", help="live (default), a bundle, or a name from env/boxes")
    ttm.add_argument("--reserve", default="", metavar="SIZE", help="RAM to keep for the system, such as 8GiB")
    ttm.add_argument("--target", default="", metavar="SIZE", help="the limit itself, such as 120GiB")
    ttm.add_argument("--verify", default="", metavar="EARLIER", help="a bundle from before the change: did it take?")
    schema = verb("schema", _schema, "the JSON Schema of a shape that commands print and files hold")
    schema.add_argument("shape", nargs="?", default="", help="one shape (default: their names)")
    schema.add_argument("--write", action="store_true", help="write all of them into helpers/run/schema")
    verb("boxes", _boxes, "the recorded boxes")
    check = verb("check", _check, "functional checks of torch on this box, each in a child process with limits")
    check.add_argument("--gpu", default="", metavar="PCI", help="only this GPU, and even if somebody holds it")
    check.add_argument("--ladder", action="store_true", help="find the largest single allocation (loads the card)")
    check.add_argument("--pairs", action="store_true", help="peer access, copies, all-reduce and DataParallel per pair of GPUs")
    check.add_argument("--to-the-limit", action="store_true", help="let the ladder go beyond half of the free memory")
    check.add_argument("--torch-python", default="", metavar="PATH", help="the interpreter that owns torch")
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
    bench.add_argument("what", nargs="*", help="which: capture, imports, batch (default: all)")
    return parser, verbs


def _unreachable(arguments: argparse.Namespace) -> int:
    raise AssertionError("capture is dispatched before parsing")


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, ensure_ascii=False))


def _open_box(name: str) -> Any:
    from helpers.look.archive import BundleError
    from helpers.look.boxes import open_box

    try:
        return open_box(name)
    except BundleError as error:
        raise WrongUse(str(error)) from error


def _boxes(arguments: argparse.Namespace) -> int:
    from helpers.look.boxes import recorded_names

    print(json.dumps(recorded_names()) if arguments.json else "\n".join(recorded_names()))
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


def _diagnose(arguments: argparse.Namespace) -> int:
    from helpers.judge.diagnosis import diagnose, recovery
    from helpers.tell import verdict

    evidence = _evidence(arguments)
    answer = diagnose(evidence)
    if arguments.json:
        print(answer.model_dump_json(indent=1))
        return 0
    if evidence.bundle is not None:
        from helpers.judge.ledger import ledger
        from helpers.look.gpus import gpus, host_pools
        from helpers.tell import box as words
        from helpers.tell import tables
        from helpers.tell.ledger_figure import ledger_table

        found, messages = gpus(evidence.bundle), [m for m in evidence.messages if m.kind == "oom"][:1]
        books = ledger(evidence.bundle, *messages)
        print("\n\n".join([words.machine_line(evidence.bundle), tables.gpus_table(found),
                           tables.pools_table([*found, *host_pools(evidence.bundle)]), tables.holders_table(found),
                           *([ledger_table(books)] if books else [])]) + "\n")
    print(verdict.as_text(answer))
    if evidence.unused:
        print("\nNot used: " + evidence.unused)
    for number, step in enumerate(recovery(answer, evidence), 1):
        print(("\nIf it comes to that, mildest first (printed, never run)\n" if number == 1 else "")
              + f"  {number}. {step.what}: {step.command}\n"
              f"     before it: {step.precondition}; it may harm: {step.blast_radius}")
    return 0


def _evidence(arguments: argparse.Namespace) -> Any:
    from dataclasses import replace

    from helpers.judge.signals import evidence_from_bundle, evidence_from_case, evidence_from_message

    if arguments.case and (arguments.box or arguments.message):
        raise WrongUse("--case: expected alone, without a box or --message")
    try:
        if arguments.case:
            return evidence_from_case(arguments.case)
        if not arguments.message:
            return evidence_from_bundle(_open_box(arguments.box or "live"))
        if arguments.message == "-":
            said = evidence_from_message(sys.stdin)
        else:
            with open(arguments.message, encoding="utf-8", errors="replace") as lines:
                said = evidence_from_message(lines)
    except OSError as error:
        raise WrongUse(f"{arguments.message}: {error.strerror}; expected a file with the error text, or -") from error
    except ValueError as error:
        raise WrongUse(str(error)) from error
    return replace(said, bundle=_open_box(arguments.box)) if arguments.box else said


def _ttm(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from helpers.judge.ttm_plan import ttm, wanted_bytes
    from helpers.judge.ttm_verify import verify
    from helpers.tell.ttm import as_text, verify_text

    now = _open_box(arguments.box)
    try:
        reserve, target = wanted_bytes(arguments.reserve), wanted_bytes(arguments.target)
        if arguments.verify:
            result = verify(_open_box(arguments.verify), now, reserve, target)
            print(json.dumps(asdict(result), indent=1) if arguments.json else verify_text(result))
            return 0 if result.took else 1
        answer = ttm(now, reserve, target)
    except ValueError as error:
        raise WrongUse(str(error)) from error
    print(answer.model_dump_json(indent=1) if arguments.json else as_text(answer))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from helpers.load.box import check_box
    from helpers.load.checks import as_rows
    from helpers.look.capture import Options, capture
    from helpers.tell.tables import table

    bundle = capture(Options(torch=False, torch_python=arguments.torch_python))
    try:
        results = check_box(bundle, gpu=arguments.gpu, ladder=arguments.ladder, pairs=arguments.pairs,
                            to_the_limit=arguments.to_the_limit, torch_python=arguments.torch_python,
                            on_result=lambda result: print(f"{result.pci} {result.check}: {result.state}", file=sys.stderr))
    except ValueError as error:
        raise WrongUse(str(error)) from error
    if arguments.json:
        _print_json([asdict(result) for result in results])
    else:
        rows = as_rows(results, people=True)
        print(table(rows[1:], rows[0], widest=None))
    return int(any(result.state not in ("passed", "not_run") for result in results))


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
                _print_json(rows)
            else:
                print("\n".join(f"{r['run_id']}  box {r['box']}, at most {r['run_s']:g} s" for r in rows))
            return 0
        result = run_plan(plan, _outputs(arguments.out), box=arguments.box, capture=_capture_into, progress=for_terminal())
    except PlanError as error:
        raise WrongUse(str(error)) from error
    page = write_index(result.folder)
    if arguments.json:
        _print_json({**status_json(read_batch(result.folder)), "page": str(page)})
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
        _print_json(measured)
    else:
        from helpers.tell.tables import table

        columns = ["name", "value", "unit", "ratio_to", "ratio", "goal"]
        print(table([[row[name] for name in columns] for row in measured], columns, widest=None))
    return 0
