"""What the kernel logged since a position in its log that says a box is not well: faults of a GPU, of memory, of the hardware.

Positions are record numbers of /dev/kmsg (Documentation/ABI/testing/dev-kmsg), else a cursor of the journal: times would not
do, since the log's clock drifts from every clock that a program can read.
"""

from __future__ import annotations

import os
import re
import subprocess
import time

from helpers.load.targets import FAULTS
from helpers.look.commands import search_path
from helpers.look.files import fault
from helpers.look.kernel_log import Event, parse
from helpers.look.kernel_tap import kmsg_line

from .quarantine import Trouble

LOG_S, TEXT_LIMIT = 2.0, 200
# Faults of the program, not of the box (docs.nvidia.com/deploy/xid-errors): a later clean look lifts them.
OWN_XIDS = ("13", "31", "43", "45")
# drivers/edac/mce_amd.c decode_error_status, arch/x86/kernel/cpu/mce/core.c print_mce, drivers/firmware/efi/cper.c. Corrected
# and deferred ones are left out.
_HARDWARE = re.compile(
    r"\[Hardware Error\]: (?:System Fatal error|Uncorrected,|CPU \d{1,4}: Machine Check Exception|"
    r"event severity: (?:fatal|recoverable))"
)


def new_errors(root: str, since: str) -> tuple[str, tuple[Trouble, ...], str]:
    """(position of the log's end, errors after the position ``since``, why the log could not be read or read whole).

    With an empty ``since`` nothing is judged. The journal is asked only where /dev/kmsg is refused and ``root`` is this box.
    """
    position, lines, why = _kmsg(root + "/dev/kmsg", since)
    if not position and not root:
        position, lines, refused = _journal(since)
        why = f"/dev/kmsg: {why}; journalctl: {refused}" if refused else ""
    # A position of one source says nothing of the other.
    return position, judged("\n".join(lines)) if since[:4] == position[:4] else (), why


def judged(text: str) -> tuple[Trouble, ...]:
    """The troubles in a piece of kernel log. What the killer of a memory cgroup did is none: it stayed inside its limit."""
    found = [_trouble(event) for event in parse(text) if _is_error(event)]
    hardware = [line for line in text.splitlines() if _HARDWARE.search(line)]
    return tuple(found) + tuple(
        Trouble("box", _why("hardware error", 1, line), False) for line in hardware[:3]
    )


def _is_error(event: Event) -> bool:
    return (
        event.kind in (*FAULTS, "hung_task")
        or (event.kind == "oom_killer" and event.detail == "global")
        or (event.kind == "pcie_aer" and not event.detail.startswith("corrected"))
    )


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


def _kmsg(path: str, since: str) -> tuple[str, list[str], str]:
    after = int(since.split()[1]) if since.startswith("kmsg ") else -1
    last, first, lines, until = -1, -1, [], time.monotonic() + LOG_S
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return "", [], fault(error)[1]
    try:
        while time.monotonic() < until:
            try:
                data = os.read(opened, 1 << 13)  # one record of the device; more of a copy of it
            except BrokenPipeError:
                continue  # overwritten while we read: the next read goes on behind it
            if not data:
                break
            for record in data.split(b"\n"):
                words = record.split(b",", 2)
                if len(words) == 3 and words[0].isdigit() and words[1].isdigit():
                    last = int(words[1])
                    first = last if first < 0 else first
                    lines += (
                        [kmsg_line(record).decode("utf-8", "replace").rstrip()]
                        if last > after
                        else []
                    )
    except BlockingIOError:
        pass  # the end of the log
    except OSError as error:
        return "", [], fault(error)[1]
    finally:
        os.close(opened)
    lost = (
        f"{first - after - 1} of its lines were overwritten before they were read"
        if since and first > after + 1
        else ""
    )
    return f"kmsg {max(last, after)}", lines, lost


def _journal(since: str) -> tuple[str, list[str], str]:
    cursor = since.removeprefix("journal ") if since.startswith("journal ") else ""
    argv = [
        "journalctl",
        "-k",
        "-b",
        "0",
        "--no-pager",
        "--no-hostname",
        "-o",
        "short-monotonic",
        "--show-cursor",
        *(["--after-cursor", cursor] if cursor else ["-n", "1"]),
    ]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LOG_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={"PATH": search_path(), "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return "", [], f"no answer in {LOG_S:g} s"
    except OSError as error:
        return "", [], fault(error)[1]
    lines = done.stdout.splitlines()
    found = [line.removeprefix("-- cursor: ") for line in lines if line.startswith("-- cursor: ")]
    if not found and not cursor:
        return (
            "",
            [],
            ((done.stderr.strip() or done.stdout.strip() or "no lines").splitlines()[-1])[
                :TEXT_LIMIT
            ],
        )
    return (
        f"journal {found[-1] if found else cursor}",
        [line for line in lines if not line.startswith("-- ")],
        "",
    )
