"""The answer of `rehearse` for one card: whether the program fits, why not, and what to
run next.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from helpers.allocator.circumstances import add_to_record
from helpers.commands.recording import (
    ANALYSED,
    record_folder,
    recorded,
    verdict_on_recording,
)
from helpers.commands.rehearse_bench import (
    RehearsalBench,
    all_runs,
    output_file,
    trace_of_run,
)
from helpers.commands.rehearse_search import as_shape
from helpers.commands.signs import print_notes, says_if_slow
from helpers.commands.use import print_json
from helpers.ground import shell
from helpers.ground.contract import as_dict
from helpers.ground.places import PROGRAM
from helpers.ground.shapes import Verdict
from helpers.ground.units import plain
from helpers.look import files
from helpers.rehearse import view
from helpers.rehearse.counterfactual import Counterfactual, Repeats, why_no_repeats
from helpers.rehearse.rehearsal import STOPPED, Rehearsal

LAST_LINES = 20
"""How many lines are shown of the output of a program that failed by itself: enough for the end of
a traceback.
"""


def answer_for_card(bench: RehearsalBench) -> int:
    """Rehearse the program on the card, and print whether it fits.

    Returns the program's exit code, or 1 where its processes together need more than the card has.
    """
    arguments = bench.arguments

    def rehearse_at(out: Path) -> tuple[Path, list[Rehearsal]]:
        return out, all_runs(bench, out)

    out, runs = recorded(arguments, "rehearsal", rehearse_at)
    rehearsal = runs[-1]
    out = trace_of_run(out, rehearsal.limits, bench.limits)
    counterfactual = _counterfactual(bench, rehearsal, out)
    verdict = None
    if rehearsal.trace and rehearsal.exit_code != STOPPED:
        with says_if_slow(ANALYSED, quiet=arguments.json):
            verdict = verdict_on_recording(rehearsal.trace, bench.command)
    if arguments.json:
        _print_json(runs, counterfactual, verdict)
    else:
        _print_text(bench, runs, counterfactual, verdict, output_file(out))
    if rehearsal.too_much and not rehearsal.exit_code:
        return 1
    return rehearsal.exit_code


def _counterfactual(
    bench: RehearsalBench, first: Rehearsal, out: Path
) -> Counterfactual:
    """Run a program that ran out of memory twice more: without a limit and with expandable
    segments.

    The result, or why there is none, is also added to the record of the first run.
    """
    why_not = why_no_repeats(first, Path.cwd())
    if bench.arguments.no_counterfactual:
        why_not = "--no-counterfactual left it out"
    counterfactual = Counterfactual(why_not=why_not)
    if not why_not:
        repeats = Repeats(
            run=bench.run,
            command=bench.command,
            first=first,
            record=record_folder(out),
            conf=bench.settings.conf,
            extra=bench.settings.extra,
        )
        if not bench.arguments.json:
            print_notes(repeats.announcement())
        counterfactual = repeats.both()
    add_to_record(out, counterfactual=counterfactual.as_shape())
    return counterfactual


def _print_json(
    runs: Sequence[Rehearsal], counterfactual: Counterfactual, verdict: Verdict | None
) -> None:
    """Print one run as an object, several as a list of objects; only the last has the answer."""
    rehearsal = runs[-1]
    verdict_shape = None
    if verdict:
        verdict_shape = as_dict(verdict)
    answer = {
        "says": view.headline(rehearsal, verdict),
        **as_shape(rehearsal),
        "fits": rehearsal.fits and not view.will_run_out(rehearsal, verdict),
        "may_not_fit": view.may_not_fit(rehearsal),
        "counterfactual": counterfactual.as_shape(),
        "verdict": verdict_shape,
    }
    if len(runs) == 1:
        print_json(answer)
        return
    earlier = [as_shape(run) for run in runs[:-1]]
    print_json([*earlier, answer])


def _print_text(
    bench: RehearsalBench,
    runs: Sequence[Rehearsal],
    counterfactual: Counterfactual,
    verdict: Verdict | None,
    output: Path,
) -> None:
    """Print the answer, and where the recording and the program's output are.

    If the program failed for another reason than memory, the end of its output follows.
    """
    rehearsal = runs[-1]
    remarks = view.several(runs)
    missing = counterfactual.what_is_missing
    if missing and rehearsal.ooms and not bench.arguments.no_counterfactual:
        remarks.append(missing)
    run_next = what_to_run_next(bench.arguments, bench.command)
    lines = view.answer(rehearsal, verdict, run_next, remarks)
    if rehearsal.trace:
        recording = shell.word(str(rehearsal.trace))
        lines.append(f"All evidence: {PROGRAM} diagnose {recording} --wide")
    lines.append(f"The program's output: {output}")
    if rehearsal.failed_otherwise:
        text = plain(files.text("", str(output)), keep="\n\t")
        lines += ["", "The end of it:", *text.splitlines()[-LAST_LINES:]]
    print("\n".join(lines))


def what_to_run_next(arguments: Namespace, command: list[str]) -> tuple[str, str]:
    """What can be done about a program that does not fit: a lead-in, and the command that does it.

    Both are empty for --world: neither `fix` nor a search rehearses ranks. For --model the command
    is a search, because there is no source that `fix` could change.
    """
    if arguments.world:
        return "", ""
    card = _options(arguments, "gpu", "capacity", "box", "held")
    torch = _options(arguments, "torch", "torch-python")
    if not arguments.model:
        if arguments.gpus > 1:
            card += _options(arguments, "gpus")
        fix = shell.line([PROGRAM, "fix", *card, *torch, "--", *command])
        return "To have this and other changes tried until one fits:", fix
    model = _options(arguments, "model", "train", "sequence", "batch", "precision")
    model += torch
    if arguments.checkpointing:
        model.append("--checkpointing")
    if arguments.batch == 1:
        all_cards = shell.line([PROGRAM, "rehearse", "--gpu", "all", *model])
        return "To see the cards on which it fits:", all_cards
    largest = shell.line([PROGRAM, "rehearse", *card, *model, "--find-batch", "batch"])
    return "To find the largest batch that fits:", largest


def _options(arguments: Namespace, *names: str) -> list[str]:
    """The words of those of the named options that were given, as for a command line."""
    words = []
    for name in names:
        value = getattr(arguments, name.replace("-", "_"))
        if value:
            words += [f"--{name}", str(value)]
    return words
