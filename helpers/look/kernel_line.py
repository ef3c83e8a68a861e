"""Splits a line of the kernel's log, in any form in which a program prints it, into time and
message.
"""

from __future__ import annotations

import re

from helpers.ground.tables import data

LINE_LIMIT = 2048
"""Letters of a line that are read; the kernel's own have at most 1024 and a prefix
(PRINTKRB_RECORD_MAX in kernel/printk/internal.h).
"""
# <6> of syslog(2), or "kern  :warn  : " of dmesg -x.
_LEVEL = re.compile(r"(?:<[0-9]{1,3}>|[a-z]{3,8} {1,3}:[a-z]{3,7} {0,3}: )")
# "[    5.140900]", and behind it the thread or CPU ("[  T312]") with CONFIG_PRINTK_CALLER.
_MONOTONIC = re.compile(
    r"\[ {0,8}([0-9]{1,10}\.[0-9]{1,9})\](?:\[ {0,6}[TC][0-9]{1,9}\])? ?"
)
# "6,339,5140900,-;": priority, sequence, microseconds, flags (Documentation/ABI/testing/dev-kmsg).
_KMSG = re.compile(r"[0-9]{1,4},[0-9]{1,10},([0-9]{1,17}),[^;]{1,40};")
_WALL_CLOCK = [re.compile(form) for form in data("look/kernel_log")["wall clock"]]
# "oak kernel: " of syslog and journalctl.
_HOST = re.compile(r"(?:[^\s:]{1,64} )?kernel: ?")


def split_time(line: str) -> tuple[float | str | None, str]:
    """The time of a line, and its message. The time is seconds since boot; or, if the line has only
    that, a wall clock time as text; or None.

    Takes all forms of dmesg (plain, -T in any language, -x, --time-format iso, with callers),
    journalctl's short forms with or without a host name, syslog and raw /dev/kmsg.
    """
    level = _LEVEL.match(line)
    rest = line
    if level:
        rest = line[level.end() :]
    record = _KMSG.match(rest)
    if record:
        return int(record[1]) / 1e6, rest[record.end() :].strip()
    when: float | str | None = None
    for form in _WALL_CLOCK:
        wall_clock = form.match(rest)
        if wall_clock:
            when = wall_clock[1]
            rest = rest[wall_clock.end() :]
            break
    # journalctl -o short-monotonic puts the time before the host, syslog keeps the kernel's behind.
    for form in (_MONOTONIC, _HOST, _MONOTONIC):
        match = form.match(rest)
        if match:
            rest = rest[match.end() :]
            if form is _MONOTONIC:
                when = float(match[1])
    return when, rest.strip()
