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
    position, lines, whole = kmsg(root + "/dev/kmsg", since)
    if not position and not root:
        position, lines, whole = _journal(since)
    # A position of one source says nothing of the other.
    errors = judged("\n".join(lines)) if since[:4] == position[:4] else ()
    return position, errors, whole


def judged(text: str) -> tuple[Trouble, ...]:
    """The troubles in a piece of kernel log.

    What the killer of a memory cgroup did is none: it stayed inside its limit.
    """
    troubles = [_trouble(event) for event in parse(text) if _is_error(event)]
    hardware = [line for line in text.splitlines() if _HARDWARE.search(line)]
    troubles += [Trouble("box", _why("hardware error", 1, line), False) for line in hardware[:3]]
    return tuple(troubles)


def _is_error(event: Event) -> bool:
    if event.kind == "oom_killer":
        return event.detail == "global"
    if event.kind == "pcie_aer":
        return not event.detail.startswith("corrected")
    return event.kind in (*FAULTS, "hung_task")


def _trouble(event: Event) -> Trouble:
    passes = event.kind in ("vm_fault", "oom_killer", "hung_task")
    passes = passes or event.detail.endswith("soft recovered")
    passes = passes or (event.kind == "xid" and event.detail in OWN_XIDS)
    why = _why(event.kind.replace("_", " "), event.count, event.text)
    return Trouble(f"gpu {event.pci}" if event.pci else "box", why, passes)


def _why(kind: str, count: int, text: str) -> str:
    often = f" {count} times" if count > 1 else ""
    return f"the kernel logged {kind}{often}, expected no error: {text.strip()[:TEXT_LIMIT]}"


def kmsg(path: str, since: str) -> tuple[str, list[str], bool]:
    """(position, the lines after ``since``, whether none is missing) of /dev/kmsg or of a copy
    of it; no position: refused.
    """
    after = int(since.split()[1]) if since.startswith("kmsg ") else -1
    last = -1
    first = -1
    lines: list[str] = []
    try:
        for record in kmsg_records(path, LOG_S):
            words = record.split(b",", 2)
            if len(words) == 3 and words[0].isdigit() and words[1].isdigit():
                last = int(words[1])
                first = last if first < 0 else first
                if last > after:
                    lines.append(kmsg_line(record).decode("utf-8", "replace").rstrip())
    except OSError:
        return "", [], False
    # Of those between, the ring buffer was overwritten before they were read.
    return f"kmsg {max(last, after)}", lines, not since or first <= after + 1


def _journal(since: str) -> tuple[str, list[str], bool]:
    """As ``kmsg``, from the journal; a position is a cursor of it."""
    cursor = since[len("journal ") :] if since.startswith("journal ") else ""
    part = ["--after-cursor", cursor] if cursor else ["-n", "1"]
    done = commands.run([*JOURNAL, "0", "--show-cursor", *part], LOG_S, LOG_LIMIT)
    lines = done.stdout.decode("utf-8", "replace").splitlines() if done.status == "ok" else []
    ends = [line[len(CURSOR) :] for line in lines if line.startswith(CURSOR)] or [cursor]
    position = f"journal {ends[-1]}" if done.status == "ok" and ends[-1] else ""
    return position, [one for one in lines if one[:3] != "-- "] if position else [], bool(position)
