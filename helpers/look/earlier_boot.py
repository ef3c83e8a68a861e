"""The last lines of an earlier boot's kernel log, which pstore or the journal may have kept."""

from __future__ import annotations

import os
import re

from helpers.look import commands, files
from helpers.look.kernel_line import LINE_LIMIT, split_time
from helpers.look.kernel_log_capture import JOURNAL, LIMIT_S, LONGEST_ERROR

PSTORE = (
    "/var/lib/systemd/pstore/*/dmesg*",
    "/var/lib/systemd/pstore/dmesg*",
    "/sys/fs/pstore/dmesg*",
)
"""The logs of kernels that crashed (Documentation/ABI/testing/pstore, systemd-pstore.service(8)).
"""
LAST_LINES = 20


def last_lines(boot_id: str, since_s: float, root: str = "") -> list[str]:
    """A line that names the source, and the last lines of an earlier boot's kernel log below it; or
    one line that says why there is none.

    A log in pstore does not name its boot: it counts if it was written after ``since_s``
    (seconds since 1970). The journal is asked for the boot ``boot_id``.
    """
    dumps = []
    refused = []
    for pattern in PSTORE:
        for match in files.find(root, pattern):
            if match.status == "not_allowed":
                refused.append(f"{match.source}: {match.why}")
            elif match.status == "ok" and _written_s(root + match.source) > since_s:
                dumps.append(match.source)
    for source in _latest_part_first(root, dumps):
        lines = files.text(root, source).splitlines()
        if lines:
            return _quoted(source, lines)
    if not refused:
        refused = ["the kernel left no log there since the run began"]
    why = f"pstore: {'; '.join(refused)}"
    boot = boot_id.replace("-", "")  # as journalctl writes it
    # The journal is this box's own, so it says nothing of a file tree.
    if not root and re.fullmatch("[0-9a-f]{32}", boot):
        lines, silence = _from_journal(boot)
        if lines:
            return _quoted("the journal", lines)
        why += f"; the journal: {silence}"
    return [f"not available because {why}"]


def _latest_part_first(root: str, dumps: list[str]) -> list[str]:
    """The dumps of a log, which pstore writes in parts from its end: the last lines are in Part1,
    as the first line of a dump says (fs/pstore/platform.c).
    """
    part_1 = [dump for dump in dumps if "Part1\n" in files.text(root, dump)]
    return sorted(part_1) + sorted(set(dumps).difference(part_1))


def _from_journal(boot: str) -> tuple[list[str], str]:
    """The journal's last lines of the kernel's log of a boot, and why there are none."""
    ended = commands.run([*JOURNAL, boot, "-n", str(LAST_LINES)], LIMIT_S)
    printed = ended.stdout.decode("utf-8", "replace").splitlines()
    # journalctl's own remarks, such as "-- No entries --".
    lines = [line for line in printed if not line.startswith("-- ")]
    if ended.why:
        return lines, ended.why
    errors = ended.stderr.strip().splitlines()
    if errors:
        return lines, errors[-1][:LONGEST_ERROR]
    return lines, "it keeps nothing of that boot"


def _quoted(source: str, lines: list[str]) -> list[str]:
    """The last lines of a log, each with its time, below a line that names their source."""
    quoted = [f"from {source}:"]
    for line in lines[-LAST_LINES:]:
        when, text = split_time(line[:LINE_LIMIT])
        if when:
            text = f"[{when}] {text}"
        quoted.append(text)
    return quoted


def _written_s(path: str) -> float:
    """When a file was last written, in seconds since 1970; 0 if that cannot be read."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
