"""Errors in the kernel log since an earlier position in it.

A position is "kmsg NUMBER", the sequence number of a record of /dev/kmsg
(Documentation/ABI/testing/dev-kmsg), or "journal CURSOR" (journalctl --show-cursor). A time would
not do: the clock of the log drifts from every clock that a program can read.
"""

from __future__ import annotations

import re

from helpers.look import commands
from helpers.look.kernel_log import LOG_LIMIT, Event, parse
from helpers.look.kernel_log_capture import JOURNAL, kmsg_line, kmsg_records
from helpers.trials.targets import FAULTS

from .look_shapes import Trouble

LOG_S = 2.0
"""Reading all of the kernel's ring buffer takes some ten milliseconds."""
TEXT_LIMIT = 200
"""Characters of a line of the log that a trouble quotes."""
MOST_HARDWARE_LINES = 3
"""One hardware error makes a line for each processor; the first few say what it is."""
OWN_XIDS = ("13", "31", "43", "45")
"""Xids that a program's own fault causes (docs.nvidia.com/deploy/xid-errors): graphics engine
exception, memory page fault, a channel reset after an error, a channel ended with its program.
"""
# How drivers/edac/mce_amd.c (decode_error_status), arch/x86/kernel/cpu/mce/core.c (print_mce) and
# drivers/firmware/efi/cper.c print an uncorrected error. Corrected and deferred ones do no harm.
_HARDWARE = re.compile(
    r"\[Hardware Error\]: (?:System Fatal error|Uncorrected,|CPU \d{1,4}: Machine Check Exception|"
    r"event severity: (?:fatal|recoverable))"
)
CURSOR = "-- cursor: "  # how journalctl --show-cursor begins its last line


def new_errors(root: str, since: str) -> tuple[str, tuple[Trouble, ...], bool]:
    """(position of the log's end, errors after the position ``since``, whether all of the log
    since then was read).

    If ``since`` is empty, or a position in the other source than the one read now, there are no
    errors. The journal is read only if /dev/kmsg is refused and ``root`` is this box.
    """
    position, lines, is_whole = kmsg(root + "/dev/kmsg", since)
    if not position and not root:
        position, lines, is_whole = _journal(since)
    source_before, _, _ = since.partition(" ")
    source, _, _ = position.partition(" ")
    if source != source_before:  # positions of two sources cannot be compared
        return position, (), is_whole
    return position, judged("\n".join(lines)), is_whole


def judged(text: str) -> tuple[Trouble, ...]:
    """The troubles in a piece of kernel log."""
    troubles = [_trouble(event) for event in parse(text) if _is_error(event)]
    hardware = [line for line in text.splitlines() if _HARDWARE.search(line)]
    for line in hardware[:MOST_HARDWARE_LINES]:
        why = _why("hardware error", 1, line)
        troubles.append(Trouble("box", why, passes=False))
    return tuple(troubles)


def _is_error(event: Event) -> bool:
    """Whether an event of the kernel log says that the box is not well: not for an OOM kill within
    a memory cgroup, nor for an error on the PCI bus that the hardware corrected.
    """
    if event.kind == "oom_killer":
        # That of a memory cgroup ended what was above the cgroup's own limit, not the box's.
        return event.detail == "global"
    if event.kind == "pcie_aer":
        return not event.detail.startswith("corrected")
    return event.kind in (*FAULTS, "hung_task")


def _trouble(event: Event) -> Trouble:
    """The trouble of an event. It passes, and a later look may find it gone, if a program caused it
    or the driver recovered; else it lasts until a reboot.
    """
    is_own_xid = event.kind == "xid" and event.detail in OWN_XIDS
    is_recovered = event.detail.endswith("soft recovered")
    is_of_program = event.kind in ("vm_fault", "oom_killer", "hung_task")
    scope = "box"
    if event.pci:
        scope = f"gpu {event.pci}"
    why = _why(event.kind.replace("_", " "), event.count, event.text)
    return Trouble(scope, why, passes=is_of_program or is_recovered or is_own_xid)


def _why(kind: str, count: int, text: str) -> str:
    """A trouble in words: the kind of error, how often it was logged, and its line of the log."""
    times = ""
    if count > 1:
        times = f" {count} times"
    line = text.strip()[:TEXT_LIMIT]
    return f"the kernel logged {kind}{times}, expected no error: {line}"


def kmsg(path: str, since: str) -> tuple[str, list[str], bool]:
    """Read /dev/kmsg or a copy of it: (position of its end, lines after the position ``since``,
    whether all lines since then are there). The position is empty if reading was refused.
    """
    after = -1  # the sequence number before the first, which is 0
    if since.startswith("kmsg "):
        after = int(since.split()[1])
    numbers = [after]
    lines: list[str] = []
    try:
        for record in kmsg_records(path, LOG_S):
            # "priority,sequence number,microseconds,flags;text"; other lines belong to a record.
            words = record.split(b",", 2)
            if len(words) == 3 and words[0].isdigit() and words[1].isdigit():
                number = int(words[1])
                numbers.append(number)
                if number > after:
                    line = kmsg_line(record).decode("utf-8", "replace")
                    lines.append(line.rstrip())
    except OSError:
        return "", [], False
    # The ring buffer has dropped lines if its oldest line comes later than the next one after
    # ``since``.
    oldest = min(numbers[1:], default=after)
    is_whole = not since or oldest <= after + 1
    return f"kmsg {max(numbers)}", lines, is_whole


def _journal(since: str) -> tuple[str, list[str], bool]:
    """Read the kernel's lines in the journal: (position of its end, lines after the position
    ``since``, whether all are there). The position is empty if the journal cannot be read.
    """
    cursor = ""
    part = ["-n", "1"]  # one line, for the cursor after it
    if since.startswith("journal "):
        cursor = since[len("journal ") :]
        part = ["--after-cursor", cursor]
    this_boot = (*JOURNAL, "0")
    done = commands.run([*this_boot, "--show-cursor", *part], LOG_S, LOG_LIMIT)
    lines = []
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(CURSOR):
            cursor = line[len(CURSOR) :]
        elif not line.startswith("-- "):  # journalctl's own, such as "-- No entries --"
            lines.append(line)
    if done.status != "ok" or not cursor:
        return "", [], False
    return f"journal {cursor}", lines, True
