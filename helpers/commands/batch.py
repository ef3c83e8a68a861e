"""Commands about batches: run, status, report."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from helpers.commands.use import ROOT, Verb, WrongUse, print_json


def register(verb: Verb) -> None:
    """run, status and report."""
    run = verb(
        "run", _run, "run a plan: every notebook of it, one record each, and one page at the end"
    )
    run.add_argument("plan", help="a plan file, such as notebooks/plans/quick.yaml")
    run.add_argument(
        "--box", default="", help="run the plan's live runs on this bundle or recorded box instead"
    )
    run.add_argument(
        "--out", default="", metavar="FOLDER", help="where batches go (default: outputs)"
    )
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="print the runs in order, the danger and estimated time of each, gates and stop rules; run nothing",
    )
    run.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="BATCH",
        help="go on with a batch of this plan that was stopped (default: the newest)",
    )
    run.add_argument(
        "--again",
        action="append",
        default=[],
        metavar="RUN",
        help="with --resume: repeat this run whatever it did; may be given more than once",
    )
    run.add_argument(
        "--scheduler",
        default="",
        metavar="ADDRESS",
        help="carry the runs out on the workers of a dask scheduler (tcp://host:8786; see env/FLEET.md)",
    )
    run.add_argument(
        "--print-service",
        action="store_true",
        help="with --resume: print how to go on by itself after a logout or a reboot; run nothing",
    )
    status = verb(
        "status", _status, "the state of every run of a batch, read from its records alone"
    )
    status.add_argument(
        "batch", nargs="?", default="", help="a batch folder (default: the newest below outputs)"
    )
    report = verb("report", _report, "write the page of a batch, partial batches included")
    report.add_argument(
        "batch", nargs="?", default="", help="a batch folder (default: the newest below outputs)"
    )


def _run(arguments: argparse.Namespace) -> int:
    from helpers.run import gate
    from helpers.run.batch import run_plan
    from helpers.run.estimate import dry_run, dry_run_text
    from helpers.run.one import Stop
    from helpers.run.plan import PlanError, load_plan
    from helpers.run.progress import for_terminal
    from helpers.run.record import read_batch, status_json, status_text
    from helpers.tell.report import write_index

    plan, stop = Path(arguments.plan), Stop()
    try:
        if arguments.dry_run:
            checked = load_plan(plan, arguments.box)
            print_json(dry_run(checked)) if arguments.json else print(dry_run_text(checked))
            return 0
        outputs = _outputs(arguments.out)
        resume = _resumed(arguments, outputs)
        if arguments.print_service:
            load_plan(plan, arguments.box)
            return _service(plan, resume)
        carrier = None
        if arguments.scheduler:
            from helpers.run.fleet import Fleet

            carrier = Fleet(arguments.scheduler, stop=stop)
        result = run_plan(
            plan,
            outputs,
            box=arguments.box,
            capture=_capture_into,
            progress=for_terminal(),
            gate=gate,
            carrier=carrier,
            resume=resume,
            again=arguments.again,
            stop=stop,
        )
    except PlanError as error:
        raise WrongUse(str(error)) from error
    view = read_batch(result.folder)
    try:
        page = str(write_index(result.folder))
    except OSError as error:
        page = (
            f"no page: {error.strerror}; make room, then: python -m helpers report {result.folder}"
        )
    if arguments.json:
        print_json({**status_json(view), "unrecorded": list(result.unrecorded), "page": page})
    else:
        print(status_text(view))
        print("".join(f"  {line}\n" for line in result.unrecorded) + f"Open: {page}")
    return result.exit_code


def _resumed(arguments: argparse.Namespace, outputs: Path) -> Path | None:
    """The batch to go on with, or None for a new one."""
    if arguments.resume is None:
        given = (
            "--again" if arguments.again else "--print-service" if arguments.print_service else ""
        )
        if given:
            raise WrongUse(f"{given}: expected --resume beside it; add --resume, or --resume BATCH")
        return None
    if arguments.resume:
        return _batch(arguments.resume)
    text = Path(arguments.plan).read_bytes() if Path(arguments.plan).is_file() else b""
    batches = sorted(outputs.glob("*/plan.yaml"), key=lambda path: path.stat().st_mtime)
    same = [path for path in batches if path.read_bytes() == text]
    if not same:
        raise WrongUse(
            f"--resume: no batch of {arguments.plan} as it stands below {outputs}; name the batch, or run without"
        )
    return same[-1].parent


def _service(plan: Path, batch: Path | None) -> int:
    """Print the texts that have the batch resumed by itself."""
    from helpers.run import service

    assert batch is not None
    try:
        for text in (service.user_unit, service.at_reboot_line, service.detached_lines):
            print(text(plan, ROOT, batch))
    except ValueError as error:
        raise WrongUse(str(error)) from error
    return 0


def _outputs(out: str) -> Path:
    folder = Path(out) if out else ROOT / "outputs"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise WrongUse(
            f"{folder}: {error.strerror}; expected a folder to write batches into; choose another --out"
        ) from error
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
