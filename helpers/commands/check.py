"""The command that checks torch on this box."""

import sys
from argparse import Namespace
from dataclasses import asdict

from helpers.commands.use import say
from helpers.look.capture import Options, capture
from helpers.tell.shown import Shown
from helpers.trials.checks import CheckResult, as_rows, check_box


def check(arguments: Namespace) -> int:
    """Check that torch works on this box; each check is a child process with limits.

    --gpu PCI: check only this GPU, even if another process uses it
    --ladder: find the largest single allocation (loads the card)
    --to-the-limit: let the ladder go beyond half of the free memory
    --torch-python PATH: the Python that has torch
    Example: check --gpu 0000:03:00.0 --ladder
    """

    def on_result(result: CheckResult) -> None:
        print(f"{result.pci} {result.check}: {result.state}", file=sys.stderr)

    python = arguments.torch_python
    results = check_box(
        capture(Options(torch=False, torch_python=python)),
        gpu=arguments.gpu,
        ladder=arguments.ladder,
        to_the_limit=arguments.to_the_limit,
        torch_python=python,
        on_result=on_result,
    )
    head, *rows = as_rows(results)
    shown = Shown("", head, rows, widest=None)
    say(arguments, [asdict(result) for result in results], shown)
    failed = [row for row in results if row.state not in ("passed", "not_run")]
    return int(bool(failed))
