"""Commands that watch this box: whether it is ready for the next job, and what it does now."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from helpers.batch import box_state, clean
from helpers.batch.look_shapes import BoxState, Gates, Trouble, read_state
from helpers.commands.use import WrongUse, print_json
from helpers.ground.contract import to_json
from helpers.ground.units import pci_address
from helpers.look import files
from helpers.tell.panels import terminal


def gate(arguments: Namespace) -> int:
    """Check whether this box is ready for the next job: exit code 0 if it is, 1 with a line for
    each reason, 3 if it shows no GPU and --gpus is not given.

    --gpu PCI ...: look only at this GPU and not at the RAM, because other jobs may run; can be
        repeated
    --gpus N <int>: the number of GPUs that must be seen; 0 for a node without any
    --save FILE: save this look, for a later --since
    --since FILE: compare with a saved look: memory that was in use then is allowed, and the kernel
        log counts from then on
    --settle S <float> = 10: wait at most S seconds for memory to be freed (default: 10)
    --disk FOLDER = .: the folder whose disk must be writable, with 1 GiB free (default: this one)
    Example: gate --gpus 8 --save /run/gate.json
    """
    gpus = [pci_address(gpu) or gpu for gpu in arguments.gpu]
    since = arguments.since
    before = None
    try:
        if since:
            before = read_state(files.read_whole(since))
            if gpus:  # the RAM is not compared, because other jobs may run
                before = replace(before, available_bytes=None)
        os.stat(arguments.disk)  # raises where there is no such folder
        state = box_state.measure(gpus, folder=arguments.disk, since=before)
        if arguments.save:
            files.write_atomic(Path(arguments.save), to_json(state))
    except (OSError, ValueError) as error:
        name = getattr(error, "filename", "")
        why = getattr(error, "strerror", "") or error
        expected = "expected a file written by gate --save, and an existing folder"
        raise WrongUse(f"{name or since}: {why}; {expected}") from error

    def looks() -> Iterator[BoxState]:
        """The look that was taken above, then one after another, each with what happened since."""
        nonlocal state
        while True:
            yield state
            state = box_state.measure(gpus, folder=arguments.disk, since=state)

    # A job says itself how much RAM it needs; here only GPUs, processes and the disk count.
    limits = Gates(settle_s=arguments.settle, host_free_bytes=0)
    look = partial(next, looks())
    if before is None:
        troubles = [*clean.settle(clean.idle(state), limits, look)]
    else:
        troubles = [*clean.settle(before, limits, look)]
    troubles += clean.missing(state, gpus, arguments.gpus)
    exit_code = int(bool(troubles))
    if not troubles and not state.gpus and arguments.gpus is None:
        troubles = [clean.NOTHING_SEEN]
        exit_code = 3
    _print_gate(arguments, [gpu.pci for gpu in state.gpus], troubles, exit_code)
    if before is not None and not state.log and not arguments.json:
        unread = "not looked at: the kernel log, which this user may not read"
        print(unread, file=sys.stderr)
    return exit_code


def _print_gate(
    arguments: Namespace, seen: list[str], troubles: list[Trouble], exit_code: int
) -> None:
    """Print that the box is ready, with the ``seen`` GPUs by PCI address, or a line for each
    trouble.
    """
    if arguments.json:
        reasons = [asdict(trouble) for trouble in troubles]
        answer = {
            "clean": not troubles,
            "exit": exit_code,
            "gpus": seen,
            "reasons": reasons,
        }
        print_json(answer)
        return
    for trouble in troubles:
        print(f"not clean: {trouble.scope}: {trouble.why}")
    if troubles:
        return
    if seen:
        print(f"clean: {', '.join(seen)}")
    else:
        print("clean: no GPU, as expected")


def monitor(arguments: Namespace) -> int:
    """Watch GPU memory, RAM and the processes that use them, live; uses no GPU memory itself.

    [pid]: the process to watch
    --every S <float>: seconds between samples (default: 0.5 in a terminal, else 2)
    --count N <int>: end after N samples
    Example: monitor 4711
    """
    if arguments.pid and not arguments.pid.isdigit():
        raise WrongUse(f"monitor: seen {arguments.pid}; expected a PID as a number")
    if arguments.every is not None and not 0.1 <= arguments.every <= 3600:
        raise WrongUse(
            f"monitor: seen --every {arguments.every:g}; expected 0.1 to 3600 seconds"
        )
    pid = 0  # none
    if arguments.pid:
        pid = int(arguments.pid)
    return terminal.watch(pid, arguments.every, arguments.count, arguments.json)
