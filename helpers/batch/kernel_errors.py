"""What the kernel logged since a position in its log that says a box is not well.

Positions are record numbers of /dev/kmsg (Documentation/ABI/testing/dev-kmsg), else a cursor of
the journal: times would not do, since the log's clock drifts from every clock that a program can
read.
"""

from __future__ import annotations

import re

from helpers.look import commands
from helpers.look.kernel_log import LOG_LIMIT, Event, parse
from helpers.look.kernel_log_capture import JOURNAL, kmsg_line, kmsg_records
from helpers.trials.targets import FAULTS

from .look_shapes import Trouble

LOG_S = 2.0
TEXT_LIMIT = 200
# Faults of the program, not of the box (docs.nvidia.com/deploy/xid-errors).
OWN_XIDS = ("13", "31", "43", "45")
# drivers/edac/mce_amd.c decode_error_status, arch/x86/kernel/cpu/mce/core.c print_mce,
# drivers/firmware/efi/cper.c. Corrected and deferred ones are left out.
_HARDWARE = re.compile(
    r"\[Hardware Error\]: (?:System Fatal error|Uncorrected,|CPU \d{1,4}: Machine Check Exception|"
    r"event severity: (?:fatal|recoverable))"
)
CURSOR = "-- cursor: "


def new_errors(root: str, since: str) -> tuple[str, tuple[Trouble, ...], bool]:
    """(position of the log's end, errors after the position ``since``, whether all of the log
    since then was read).

    With an empty ``since`` nothing is judged. The journal is asked only where /dev/kmsg is
    refused and ``root`` is this box.
    """
    position, lines, is_whole = kmsg(root + "/dev/kmsg", since)
    if not position and not root:
        position, lines, is_whole = _journal(since)
    if since[:4] != position[:4]:  # a position of one source says nothing of the other
        return position, (), is_whole
    return position, judged("\n".join(lines)), is_whole


def judged(text: str) -> tuple[Trouble, ...]:
    """The troubles in a piece of kernel log.

    What the killer of a memory cgroup did is none: it stayed inside its limit.
    """
    troubles = [_trouble(event) for event in parse(text) if _is_error(event)]
    hardware = [line for line in text.splitlines() if _HARDWARE.search(line)]
    troubles += [
        Trouble("box", _why("hardware error", 1, line), False) for line in hardware[:3]
    ]
    return tuple(troubles)


def _is_error(event: Event) -> bool:
    if event.kind == "oom_killer":
        return event.detail == "global"
    if event.kind == "pcie_aer":
        return not event.detail.startswith("corrected")
    return event.kind in (*FAULTS, "hung_task")


def _trouble(event: Event) -> Trouble:
    passes = (
        event.kind in ("vm_fault", "oom_killer", "hung_task")
        or event.detail.endswith("soft recovered")
        or (event.kind == "xid" and event.detail in OWN_XIDS)
    )
    why = _why(event.kind.replace("_", " "), event.count, event.text)
    return Trouble(f"gpu {event.pci}" if event.pci else "box", why, passes)


def _why(kind: str, count: int, text: str) -> str:
    often = f" {count} times" if count > 1 else ""
    return f"the kernel logged {kind}{often}, expected no error: {text.strip()[:TEXT_LIMIT]}"


def kmsg(path: str, since: str) -> tuple[str, list[str], bool]:
    """(position, the lines after ``since``, whether none is missing) of /dev/kmsg or of a copy
    of it; no position: refused.
    """
    after = -1
    if since.startswith("kmsg "):
        after = int(since.split()[1])
    numbers = [after]
    lines: list[str] = []
    try:
        for record in kmsg_records(path, LOG_S):
            words = record.split(b",", 2)
            if len(words) == 3 and words[0].isdigit() and words[1].isdigit():
                numbers.append(int(words[1]))
                if numbers[-1] > after:
                    lines.append(kmsg_line(record).decode("utf-8", "replace").rstrip())
    except OSError:
        return "", [], False
    # Of those between, the ring buffer was overwritten before they were read.
    is_whole = not since or len(numbers) < 2 or numbers[1] <= after + 1
    return f"kmsg {max(numbers)}", lines, is_whole


def _journal(since: str) -> tuple[str, list[str], bool]:
    """As ``kmsg``, from the journal; a position is a cursor of it."""
    cursor = ""
    part = ["-n", "1"]
    if since.startswith("journal "):
        cursor = since[len("journal ") :]
        part = ["--after-cursor", cursor]
    done = commands.run([*JOURNAL, "0", "--show-cursor", *part], LOG_S, LOG_LIMIT)
    lines = []
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(CURSOR):
            cursor = line[len(CURSOR) :]
        elif not line.startswith("-- "):
            lines.append(line)
    if done.status != "ok" or not cursor:
        return "", [], False
    return f"journal {cursor}", lines, True
