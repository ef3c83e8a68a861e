"""A line of the kernel's log, in whatever form a program prints it: its time, and its message."""

from __future__ import annotations

import re

from helpers.ground.tables import data

LINE_LIMIT = 2048
_LEVEL = re.compile(r"(?:<[0-9]{1,3}>|[a-z]{3,8} {1,3}:[a-z]{3,7} {0,3}: )")
_MONOTONIC = re.compile(
    r"\[ {0,8}([0-9]{1,10}\.[0-9]{1,9})\](?:\[ {0,6}[TC][0-9]{1,9}\])? ?"
)
_KMSG = re.compile(r"[0-9]{1,4},[0-9]{1,10},([0-9]{1,17}),[^;]{1,40};")
_WALL_CLOCK = [re.compile(form) for form in data("look/kernel_log")["wall clock"]]
_HOST = re.compile(r"(?:[^\s:]{1,64} )?kernel: ?")


def split_time(line: str) -> tuple[float | str | None, str]:
    """The time of a line and its message: seconds since boot, a wall clock time as text, or
    None where it carries none.

    Takes dmesg in all its forms (plain, -T in any language, -x, --time-format iso, with
    callers), journalctl's short forms with or without a host name, syslog and raw /dev/kmsg.
    Seconds since boot are preferred where both are there.
    """
    level = _LEVEL.match(line)
    rest = line[level.end() :] if level else line
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
    for form in (_MONOTONIC, _HOST, _MONOTONIC):
        match = form.match(rest)
        if match:
            rest = rest[match.end() :]
            if form is _MONOTONIC:
                when = float(match[1])
    return when, rest.strip()
