"""What the kernel of an earlier boot logged last, and where that is left."""

from __future__ import annotations

import os
import re

from helpers.look import commands, files
from helpers.look.kernel_line import LINE_LIMIT, split_time
from helpers.look.kernel_log_capture import JOURNAL, LIMIT_S

PSTORE = (
    "/var/lib/systemd/pstore/*/dmesg*",
    "/var/lib/systemd/pstore/dmesg*",
    "/sys/fs/pstore/dmesg*",
)
"""Where a kernel that died leaves its log (Documentation/ABI/testing/pstore,
systemd-pstore.service(8)).
"""
LAST_LINES = 20


def last_lines(boot_id: str, since_s: float, root: str = "") -> list[str]:
    """What the kernel of an earlier boot logged last, and before it where that was read; or why
    from nowhere.

    pstore counts where it was written after ``since_s`` (seconds since 1970); the journal is
    asked for that very boot.
    """
    refused = []
    dumps = []
    for pattern in PSTORE:
        for match in files.find(root, pattern):
            if match.status == "not_allowed":
                refused.append(f"{match.source}: {match.why}")
            elif match.status == "ok" and _written_s(root + match.source) > since_s:
                dumps.append(match.source)
    # The part that was written last is the first.
    for source in sorted(
        dumps, key=lambda dump: ("Part1\n" not in files.text(root, dump), dump)
    ):
        lines = files.text(root, source).splitlines()
        if lines:
            return _quoted(source, lines)
    nothing = "the kernel left no log there since the run began"
    why = f"pstore: {'; '.join(refused) or nothing}"
    boot = boot_id.replace("-", "")
    if not root and re.fullmatch("[0-9a-f]{32}", boot):
        ended = commands.run([*JOURNAL, boot, "-n", str(LAST_LINES)], LIMIT_S)
        printed = ended.stdout.decode("utf-8", "replace").splitlines()
        lines = [line for line in printed if not line.startswith("-- ")]
        if lines:
            return _quoted("the journal", lines)
        last_words = "".join(ended.stderr.strip().splitlines()[-1:])[:200]
        silence = ended.why or last_words or "it keeps nothing of that boot"
        why += f"; the journal: {silence}"
    return [f"not available because {why}"]


def _quoted(source: str, lines: list[str]) -> list[str]:
    """The last lines of a log, each with its time, below where they are from."""
    quoted = [f"from {source}:"]
    for line in lines[-LAST_LINES:]:
        when, text = split_time(line[:LINE_LIMIT])
        quoted.append(f"[{when}] {text}" if when else text)
    return quoted


def _written_s(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
