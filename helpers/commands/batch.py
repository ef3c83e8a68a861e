"""Commands about batches: run, status, report."""

import os
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from helpers.batch.box_state import measure
from helpers.batch.dry_run import dry_run, dry_run_text
from helpers.batch.earlier_times import seconds_by_notebook
from helpers.batch.plan import load_plan
from helpers.batch.progress import Plain
from helpers.batch.record import read_batch
from helpers.batch.report import write_index
from helpers.batch.resumption import NEVER_RAN
from helpers.batch.status import status_json, status_text
from helpers.batch.stop import Stop
from helpers.batch.supervisor import run_plan
from helpers.commands.use import WrongUse, print_json, say, show
from helpers.ground.places import CHECKOUT, OUTPUTS, kept
from helpers.ground.shell import line
from helpers.look import capture
from helpers.look.files import read

SAY_LAST = "CASEBOOK_SAY_LAST"
"""The variable in which the first `make diagnose` hands over how `casebook` is called."""


def run(arguments: Namespace) -> int:
    """Run a plan of notebooks and write the page of the batch.

    plan: a plan file, such as notebooks/plans/quick.yaml (an example over three boxes:
        notebooks/README.md)
    --box BOX: run the plan's live runs on this bundle or recorded box instead
    --out FOLDER: the folder of the batches (default: outputs)
    --dry-run: list the runs in order, what each does to the box and how long it took here before;
        nothing runs
    --resume [BATCH]: continue an interrupted batch of this plan (default: the newest)
    --again RUN ...: with --resume: repeat this run, whatever its state; can be repeated
    --scheduler ADDRESS: run on the workers of a Dask scheduler (tls://host:8786; see env/FLEET.md)
    Example: run notebooks/plans/quick.yaml --dry-run
    """
    plan = own_file(arguments.plan)
    stop = Stop()
    carrier = None
    outputs = Path(arguments.out or OUTPUTS)
    if arguments.dry_run:
        checked = load_plan(plan, arguments.box, seconds_by_notebook(outputs))
        return say(arguments, dry_run(checked), dry_run_text(checked))
    outputs.mkdir(exist_ok=True)
    resume = _resumed(arguments, outputs)
    if arguments.scheduler:
        from helpers.batch.cluster import Cluster

        carrier = Cluster(arguments.scheduler, stop=stop)
    result = run_plan(
        plan,
        outputs,
        box=arguments.box,
        capture=_capture_into,
        progress=Plain(sys.stderr),
        measure=measure,
        carrier=carrier,
        resume=resume,
        again=arguments.again,
        stop=stop,
    )
    # On a full disk some records were not written: the runs are those that the batch itself kept.
    view = replace(read_batch(result.folder), runs=result.runs)
    try:
        page = str(write_index(result.folder))
    except OSError as error:
        advice = f"make room, then: casebook report {result.folder}"
        page = f"no page: {error.strerror}; {advice}"
    state = {**status_json(view), "unrecorded": list(result.unrecorded), "page": page}
    if arguments.json:
        print_json(state)
        return result.exit_code
    show(status_text(view), *(f"  {why}" for why in result.unrecorded))
    left = sum(run.stopped_by in NEVER_RAN for run in view.runs)
    if left:
        show(f"Runs left: {left}. Go on: {_resuming(arguments, result.folder)}")
    last = os.environ.get(SAY_LAST)
    if last:
        print(last)  # not wrapped, because it is a command to copy
    show(f"Open: {page}")
    return result.exit_code


def _resuming(arguments: Namespace, batch: Path) -> str:
    """The command that goes on with a batch, with the options that it began with."""
    words = ["casebook", "run", arguments.plan, "--resume", str(batch)]
    for option in ("box", "scheduler"):
        value = getattr(arguments, option)
        if value:
            words += [f"--{option}", value]
    return line(words)


def own_file(name: str) -> Path:
    """The file of that name as seen from the current folder, else as seen from the checkout."""
    path = Path(name)
    ours = CHECKOUT / name
    if ours.is_file() and not path.exists():
        return ours
    return path


def _resumed(arguments: Namespace, outputs: Path) -> Path | None:
    """The folder of the batch to go on with, or None for a new batch. Raises WrongUse.

    For --resume without a name it is the newest batch whose plan has the same text as the plan has
    now: another text may have other runs.
    """
    if arguments.resume is None:  # without --resume
        if arguments.again:
            raise WrongUse(
                "--again: expected --resume beside it; add --resume, or --resume BATCH"
            )
        return None
    if arguments.resume:  # empty: --resume without a name
        return named_batch(arguments.resume)
    plan = own_file(arguments.plan)
    text = load_plan(plan, arguments.box).text.encode()
    of_this_plan = [
        batch
        for batch in _batches(outputs)
        if text == read("", f"{batch.absolute()}/plan.yaml")[0]  # None: unreadable
    ]
    if not of_this_plan:
        seen = f"no batch of {plan} in its present form below {outputs}"
        raise WrongUse(f"--resume: {seen}; name the batch, or run without")
    return of_this_plan[-1]


def _capture_into(path: Path) -> Path:
    """Write a bundle of this machine to a path. Returns where it is."""
    return capture.measure(capture.Options()).writer.write(path)


def _batches(outputs: Path) -> list[Path]:
    """The batches below a folder, the newest last."""
    plans = sorted(outputs.glob("*/plan.yaml"), key=lambda path: path.stat().st_mtime)
    return [plan.parent for plan in plans]


def named_batch(name: str) -> Path:
    """The folder of a batch. Raises WrongUse where it has no plan and no run.

    Without a name it is the newest batch, and standard error says which.
    """
    if name:
        folder = kept(Path(name))
        if not (folder / "plan.yaml").is_file() and not any(folder.glob("*/run.json")):
            seen = "no such folder"
            if folder.is_dir():
                seen = "contains no plan and no run"
            raise WrongUse(f"{name}: {seen}; expected a batch below outputs")
        return folder
    batches = _batches(OUTPUTS)
    if not batches:
        raise WrongUse("no batch below outputs; expected one; run: make diagnose")
    print(f"The newest batch: {batches[-1]}", file=sys.stderr)
    return batches[-1]


def status(arguments: Namespace) -> int:
    """Show the state of every run of a batch; exit code 1 if no record can be read.

    [batch]: a batch folder (default: the newest below outputs)
    Example: status
    """
    view = read_batch(named_batch(arguments.batch))
    say(arguments, status_json(view), status_text(view))
    if view.unreadable and not view.runs:
        return 1
    return 0


def report(arguments: Namespace) -> int:
    """Write the page of a batch, also of an unfinished one, or one page of several batches.

    [folders ...]: batch folders, or folders that contain some (default: the newest batch below
        outputs)
    Example: report outputs/20260301T210000Z-overnight
    """
    folders = [kept(Path(name)) for name in arguments.folders]
    if not folders:
        folders = [named_batch("")]
    for folder in folders:
        holds_batches = any(folder.glob("*/*/run.json"))
        if not holds_batches:
            named_batch(str(folder))  # raises where it is no batch itself
    page = str(write_index(*folders))
    return say(arguments, {"page": page}, f"Open: {page}")
