"""The command that finds a change with which a program fits."""

import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

from helpers.commands.card import card_of, say_which_card
from helpers.commands.signs import says_it_runs
from helpers.commands.use import WrongUse, print_json, words_of_command
from helpers.fix.answer import (
    FailedProgram,
    NoFix,
    SearchLimits,
    change_for,
    failure_of,
)
from helpers.fix.bench import TorchChoice, rehearsals
from helpers.fix.change import Change
from helpers.fix.live import free_gpu, in_words, run_for_real
from helpers.fix.notebook import NoNotebook, Notebook, command_of, why_no_papermill
from helpers.fix.program import Program, changed_files
from helpers.fix.proof import Proof, Prover
from helpers.fix.search import Start, TriedChange
from helpers.fix.view import (
    as_shape,
    how_to_make,
    in_lines,
    none_in_lines,
    outcome,
    tried_table,
)
from helpers.ground.contract import as_dict
from helpers.ground.places import OUTPUTS, PROGRAM
from helpers.rehearse import torches
from helpers.rehearse.box_settings import settings_of
from helpers.rehearse.commits import CommitError, git
from helpers.rehearse.forks import Forks
from helpers.rehearse.rehearsal import Rehearsal, RehearsalLimits
from helpers.trials.record import TrialError
from helpers.trials.targets import Target
from helpers.trials.user_program import check_script

MOST_NESTED_CALLS = 5_000
"""Python's own limit is 1,000. A sum of a few hundred terms in the user's source is a tree as deep
as it is long, and libcst visits a tree with several calls a level.
"""


def fix(arguments: Namespace) -> int:
    """Find a change that makes your program fit a card; each change is rehearsed, not predicted.

    --gpu NAME: the card, such as 4090 or a100-40; `rehearse --gpu list` lists all
    --capacity SIZE: the card's memory, such as 20GiB, instead of --gpu
    --box B: rehearse on the largest card of this box or bundle, with the memory that is in use
        there and the box's allocator settings
    --notebook FILE: fix this notebook, whose cells papermill runs
    --live: in the end, also run the changed program on a GPU of this machine, with limits
    --held SIZE: memory that the GPU context and other processes use, such as 500MiB
    --gpus N <int> = 1: the number of such cards
    --steps N <int> = 0: end each run after N steps of an optimizer
    --torch VER: the release of torch (default: your own CUDA torch, else 2.14.1)
    --torch-python PATH: the Python to use for a leading `python` in COMMAND
    --cache FOLDER: the folder of the files that rehearsals need
    --seconds S <float> = 180: end the search after S seconds
    --tries N <int> = 9: try at most N changes
    --write: make the change in this folder, if its working tree is clean under git
    command -- COMMAND: the program and its arguments
    Example: fix --gpu 4090 -- python train.py
    """
    sys.setrecursionlimit(MOST_NESTED_CALLS)
    command = words_of_command(arguments)
    if arguments.notebook:
        command = _of_notebook(arguments, command)
    if not command:
        raise WrongUse("fix: no command; expected: fix --gpu 4090 -- python train.py")
    check_script(command)
    if arguments.write:
        _refuse_changed_files()
    card = card_of(arguments)
    say_which_card(arguments, card)
    target = None
    if arguments.live:
        target = _free_gpu()
    torches = TorchChoice(arguments.torch, arguments.torch_python, arguments.cache)
    settings = settings_of(arguments.box)
    for line in settings.taken:
        _say(line)
    limits = RehearsalLimits(steps=arguments.steps, gpus=arguments.gpus)
    with tempfile.TemporaryDirectory(prefix="fix-") as scratch, Forks() as forks:
        run_in_silence, prover = rehearsals(command, torches, settings, forks)
        run = partial(_run, run_in_silence)
        _say("running your program unchanged on a simulated GPU")
        try:
            failure = failure_of(command, card, run, Path(scratch), limits)
        except NoFix as why:
            print(f"{PROGRAM}: {why}", file=sys.stderr)
            return 1
        _say(failure.verdict.title)
        winner, trials = change_for(
            failure,
            run,
            partial(_prove, prover),
            SearchLimits(limits, arguments.seconds, arguments.tries),
            on_start=_say_start,
            on_trial=lambda trial: _say(f"    {outcome(trial, failure.first)}"),
        )
    if arguments.json:
        print_json(_shape(failure, winner, trials))
    else:
        _print_answer(failure, winner, trials)
    if winner and target and not _runs_for_real(arguments, failure, winner, target):
        return 1
    if winner and arguments.write:
        _write(failure, winner)
    return int(winner is None)


def _of_notebook(arguments: Namespace, command: list[str]) -> list[str]:
    """The command that runs the cells of --notebook by papermill. Raises WrongUse."""
    name = arguments.notebook
    if command:
        raise WrongUse(
            f"fix: seen --notebook {name} and a command; expected one of them"
        )
    try:
        Notebook(name, Path(name).read_bytes())  # raises where it is no notebook
    except OSError as error:
        raise WrongUse(
            f"--notebook {name}: {error.strerror}; expected an .ipynb file"
        ) from error
    except NoNotebook as error:
        raise WrongUse(f"--notebook {error}") from error
    words = command_of(name)
    why = why_no_papermill(torches.interpreter(words, arguments.torch_python))
    if why:
        raise WrongUse(f"--notebook: {why}")
    return words


def _free_gpu() -> Target:
    """A GPU of this machine for --live. Raises WrongUse where none is free."""
    target, why = free_gpu()
    if target is None:
        raise WrongUse(
            f"fix --live: {why}; leave --live out to have the change rehearsed alone"
        )
    return target


def _runs_for_real(
    arguments: Namespace,
    failure: FailedProgram,
    winner: TriedChange,
    target: Target,
) -> bool:
    """Whether the changed program came to its end, or to its time limit, on a GPU."""
    _say(f"running the changed program for real on {target.device}")
    out = OUTPUTS / "trials"
    try:
        record = run_for_real(
            failure.program, winner.change, target, out, arguments.seconds
        )
    except TrialError as error:
        raise WrongUse(f"fix --live: {error}") from error
    _say(in_words(record, target))
    return record.outcome == "ok"


def _say(line: str) -> None:
    """Print a line of progress to standard error, apart from the program's own output."""
    print(f"{PROGRAM}: {line}", file=sys.stderr)


def _say_start(start: Start) -> None:
    """Print which change is tried now, what is left of the limits, and which change comes next."""
    left = f"tries left: {start.tries}, seconds left: {start.seconds:.0f}"
    _say(f"trying: {start.change.title} ({left})")
    if start.following:
        _say(f"    next, if that is not enough: {start.following}")


def _run(
    run_in_silence: Callable[..., Rehearsal], *words: object, **options: object
) -> Rehearsal:
    """Rehearse a command, with signs of life where that takes long."""
    with says_it_runs():
        return run_in_silence(*words, **options)


def _prove(prover: Prover, program: Program, change: Change) -> Proof:
    """Compare the results of the program with and without a change."""
    _say("    fits; comparing what it computes with your program, on the CPU")
    with says_it_runs():
        return prover.prove(program, change)


def _print_answer(
    failure: FailedProgram, winner: TriedChange | None, trials: list[TriedChange]
) -> None:
    """Print the cause, the change that fits or that none was found, and what was tried."""
    print(failure.verdict.title)
    print()
    if winner is None:
        print("\n".join(none_in_lines(trials)))
    else:
        print("\n".join(in_lines(winner, failure.first)))
        print()
        print(how_to_make(failure.program, winner.change))
    if trials:
        print(tried_table(trials, failure.first).text(0))


def _shape(
    failure: FailedProgram, winner: TriedChange | None, trials: list[TriedChange]
) -> dict[str, object]:
    """The answer as --json prints it: the cause, the change that fits (or None), and all tries."""
    winner_shape = None
    if winner:
        winner_shape = as_shape(failure, winner)
    return {
        "verdict": as_dict(failure.verdict),
        "found": winner_shape,
        "tried": [as_shape(failure, trial) for trial in trials],
    }


def _refuse_changed_files() -> None:
    """Raises WrongUse where git does not say that all files here are as committed."""
    try:
        changed = git("status", "--porcelain")
    except CommitError as error:
        raise WrongUse(
            f"fix --write: {error}; without --write the change is printed"
        ) from error
    if changed:
        seen = f"{len(changed)} files differ from the last commit"
        raise WrongUse(
            f"fix --write: {seen}; commit or put them aside first, or leave --write out"
        )


def _write(failure: FailedProgram, winner: TriedChange) -> None:
    """Write the changed files into the folder. Raises WrongUse; if one is read-only, none is
    written.
    """
    files = changed_files(failure.program, winner.change)
    for name in files:
        if not os.access(name, os.W_OK):
            raise WrongUse(
                f"fix --write: {name} cannot be written; nothing was changed"
            )
    for name, text in files.items():
        try:
            Path(name).write_bytes(text)
        except OSError as error:
            raise WrongUse(
                f"fix --write: {name}: {error.strerror}; see git status"
            ) from error
    if files:
        _say(f"changed: {', '.join(files)}")
    else:
        _say("no file is to be changed; start it as shown")
