"""How a trial ended, and which readings prove it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from helpers.ground.child import Ended, last_line
from helpers.ground.shapes import Evidence, Outcome, not_available, seen
from helpers.look.message import of_device
from helpers.look.messages import read_message
from helpers.trials.leftovers import driver_used
from helpers.trials.listener import Listener

HOST_OOM = re.compile(r"(numpy.*)?MemoryError|terminate called .*std::bad_alloc")
"""How a last line begins when host memory ran out: Python's MemoryError, that of numpy
(numpy._core._exceptions._ArrayMemoryError), or what libstdc++ prints for an uncaught bad_alloc.
"""
MESSAGE_CHARACTERS = 4000
CHARACTERS_BEFORE = 400
"""Of the text before "out of memory" that belong to the message: its first sentences."""
UNCOUNTED_KILL = " (by the kernel's OOM killer or not: no counter of its kills can be read for this group alone)"


class Ending(NamedTuple):
    """The outcome, a ``message`` that says why, and whether the work was ``complete``."""

    outcome: Outcome
    message: str
    complete: bool = False


def ending_of(ended: Ended, listener: Listener, killed: int | None) -> Ending:
    """The ending of a trial, from how its process ended and from what it told.

    The first that holds: it is stuck; it told that memory ran out; it was stopped at a limit; it
    came to its end; the kernel's OOM killer ended a process of it; its last words say that memory
    of the GPU or of the host ran out; it crashed. ``killed`` is how many of its processes the
    kernel's OOM killer ended, None if that is not known.
    """
    words = f"{listener.tail}\n{ended.last_words}"
    if ended.how == "stuck":
        where, _, _ = ended.stacks.partition("\n")
        return Ending("stuck", f"it waits in the kernel and outlived SIGKILL: {where}")
    if "oom" in listener.events:
        message = str(listener.events["oom"]["message"])
        return Ending("oom", message[:MESSAGE_CHARACTERS])
    if ended.how == "timed_out":
        return _hung_or_slow(listener)
    # A built-in workload tells its end; a user's command need not.
    finished = "end" in listener.events or listener.workload.command
    if ended.how == "exited" and ended.exit_code == 0 and finished:
        return Ending("ok", "", complete=True)
    # An exit code: the first process may live on, and fail when one of its own is killed.
    if killed and (ended.signal == "SIGKILL" or ended.exit_code):
        why = f"the kernel's OOM killer ended {killed} of its processes"
        return Ending("host_oom", why)
    message = _ran_out(words)
    if message:
        return Ending("oom", message)
    last = last_line(ended.last_words or listener.tail)
    if HOST_OOM.match(last) or "std::bad_alloc" in words:
        return Ending("oom", last)
    how = f"exit code {ended.exit_code}"
    if ended.signal:
        how = f"ended by {ended.signal}"
    if ended.signal == "SIGKILL" and killed is None:
        how += UNCOUNTED_KILL
    return Ending("crashed", f"{how}: {last}")


def _hung_or_slow(listener: Listener) -> Ending:
    """The ending of a trial that was stopped at a limit: ok, but not complete, if its last word was
    recent when its whole time was over; else hung.
    """
    limits = listener.limits
    deadline = listener.began + limits.seconds
    silent_s = limits.start_s
    if listener.ready is not None:
        silent_s = limits.silent_s
        if listener.heard + silent_s > deadline:
            stopped = f"stopped at its limit of {limits.seconds:g} s"
            return Ending("ok", f"{stopped} while it made progress: slow, not hung")
    silence = f"no word for {min(silent_s, limits.seconds):g} s"
    return Ending("hung", f"{silence}, after {len(listener.step_s)} steps")


def _ran_out(words: str) -> str:
    """The message in the last words of a program that says that a GPU's memory ran out; empty if
    there is none.
    """
    refused = [
        message
        for message in read_message(words).messages
        if of_device(message) and message.event.startswith("refused")
    ]
    if not refused:
        return ""
    message = refused[-1].words
    if not message:  # in no known form: the text around "out of memory"
        start = max(0, words.find("out of memory") - CHARACTERS_BEFORE)
        message = words[start:]
    return message[:MESSAGE_CHARACTERS]


def evidence_of(
    listener: Listener, ending: Ending, killed: int | None
) -> Iterator[Evidence]:
    """The readings that prove an ending: the driver's count of used memory, the kernel's count of
    OOM kills, and the size in the message.
    """
    used = not_available("it never started", "bytes", "sysfs")
    if listener.sampler is not None:
        used = driver_used(listener.target.pci)
        if listener.sampler.device_bytes is not None:
            used = seen(listener.sampler.device_bytes, "bytes", used.source)
    says = "the most that the driver counted as used on the card"
    yield Evidence(id="driver_used", reading=used, says=says)
    if killed:
        says = "processes ended by the kernel's OOM killer during the trial"
        count = seen(killed, "count", "oom_kill of the cgroup")
        yield Evidence(id="oom_kill", reading=count, says=says)
    if ending.outcome != "oom":
        return
    for message in read_message(ending.message).messages[:1]:
        size = not_available("the message names no size", "bytes", "the message")
        if message.requested and message.requested.bytes is not None:
            size = seen(message.requested.bytes, "bytes", "the message")
        program = message.program or "it"
        says = f"{program} asked for that much and failed"
        yield Evidence(id="oom_message", reading=size, says=says)
